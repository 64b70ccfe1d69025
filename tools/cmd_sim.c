/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep sim`: what a training step would take on a cluster, by simulation (src/cost/job.h). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/env_posix.h"
#include "base/error.h"
#include "comm/tune/collective.h"
#include "commands.h"
#include "cost/units.h"
#include "dist/axes.h"
#include "tools/cli/cli.h"
#include "tools/sim.h"

#define MODELS "gpt|llama|mixtral|gpt2|gpt2-medium|gpt2-large|gpt2-xl"
#define SCHEDULES "1f1b|gpipe|naive|interleaved|zb-h1|pipedream|pipedream-2bw"
#define AXES "dp|pp|tp|cp|ep"
#define VOCAB 50257
#define CONTEXT 1024
#define EXPERTS 8 /* of mixtral */
#define FULL 4    /* micro-batches for each rank of pp, as `plan pipeline` gives each stage */

static const char *mesh = "dp=1", *model = "gpt2", *cluster, *device = SIM_DEVICE,
                  *dtype = "bfloat16", *schedule = "1f1b", *trace_file;
static int64_t layers, dim, heads, vocab, context, experts, top_k = 2, batch = 1, micro_batches,
                                                            chunks, warm_up, zero;
static double bucket = 25 << 20, cores;
static bool sequence, recompute;
static sim_model own;

static int read_bucket(const cli_command *c, const cli_option *o, const char *text);

static const cli_option options[] = {
    {"mesh", CLI_TEXT, &mesh, .value_name = "AXES",
     .help = "ranks along dp, pp, tp, cp and ep; the last axis is the innermost: dp=8,pp=8,tp=8"},
    {"model", CLI_CHOICE, &model, .choices = MODELS,
     .help = "the published sizes, or gpt, llama or mixtral with those of the options below"},
    {"cluster", CLI_TEXT, &cluster, .value_name = "LEVELS|FILE", .fallback = SIM_CLUSTER,
     .help = "levels as count:bandwidth@latency, the innermost first; see below"},
    {"device", CLI_TEXT, &device, .value_name = "SPEEDS|FILE",
     .help = "operations a second and bytes a second of its memory; see below"},
    {"dtype", CLI_CHOICE, &dtype, .choices = SIM_DTYPES,
     .help = "of activations, parameters and gradients; the optimizer keeps float32"},
    {"layers", CLI_COUNT, &layers, .low = 1, .high = 100000, .fallback = "the model's",
     .help = "layers"},
    {"dim", CLI_COUNT, &dim, .low = 1, .high = 1 << 20, .fallback = "the model's",
     .help = "width of the activations between layers"},
    {"heads", CLI_COUNT, &heads, .low = 1, .high = 1 << 16, .fallback = "the model's",
     .help = "heads of attention"},
    SIM_MODEL_OPTIONS(own),
    {"vocab", CLI_COUNT, &vocab, .low = 1, .high = 1 << 24, .fallback = "the model's; 50257",
     .help = "tokens of the vocabulary"},
    {"context", CLI_COUNT, &context, .low = 1, .high = 1 << 20, .fallback = "the model's; 1024",
     .help = "tokens of a sequence"},
    {"experts", CLI_COUNT, &experts, .low = 0, .high = 1 << 16, .fallback = "0; 8 of mixtral",
     .help = "experts in place of the MLP of every second layer, of mixtral of every one; 0: none"},
    {"top-k", CLI_COUNT, &top_k, .low = 1, .high = 1 << 16, .help = "experts that a token visits"},
    {"batch", CLI_COUNT, &batch, .low = 1, .high = 1 << 20,
     .help = "sequences of a micro-batch, on each rank of dp and ep"},
    {"micro-batches", CLI_COUNT, &micro_batches, .low = 1, .high = LS__SCHEDULE_MICRO_BATCHES_MAX,
     .letter = 'm', .fallback = "4 for each rank of pp; 1 without pp",
     .help = "M, micro-batches of a step, on each rank of dp and ep"},
    {"schedule", CLI_CHOICE, &schedule, .choices = SCHEDULES,
     .help = "of the pipeline; lockstep plan schedule draws them"},
    {"chunks", CLI_COUNT, &chunks, .low = 1, .high = LS__SCHEDULE_STAGES_MAX, .fallback = "2",
     .help = "V, of interleaved: stages on each rank"},
    {"warm-up", CLI_COUNT, &warm_up, .low = 1, .high = LS__SCHEDULE_MICRO_BATCHES_MAX,
     .fallback = "1", .help = "w, of 1f1b: forwards ahead for each rank behind; 2 hides messages"},
    {"recompute", CLI_SWITCH, &recompute,
     .help = "run blocks again in backward, which keep their inputs only; with gpipe whole stages"},
    {"sequence", CLI_SWITCH, &sequence,
     .help = "divide the activations between the matrices over tp as well"},
    {"zero", CLI_COUNT, &zero, .low = 0, .high = 3,
     .help = "divide over dp: the optimizer's state (1), gradients as well (2), parameters, too "
             "(3)"},
    {"bucket", CLI_READ, &bucket, .read = read_bucket, .value_name = "BYTES", .fallback = "25m",
     .help = "gradients that are summed together, rounded up to whole layers"},
    {"cores", CLI_NUMBER, &cores, .low = 0, .high = 1e6, .fallback = "one for each rank",
     .help = "of a host (the lowest level), which its ranks share; a rank uses one at most"},
    {"trace", CLI_TEXT, &trace_file, .value_name = "FILE", .fallback = "",
     .help = "also write the timeline, as LOCKSTEP_TRACE writes that of a job"},
};

static const cli_command command = {
    .name = "lockstep sim",
    .about = "Predicts what a training step of a GPT or a Llama takes on a cluster, by simulation.",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more =
        "--cluster: 8:200gbyte,4:25gbyte@5us is 4 hosts of 8 devices, 200 GB/s of each device "
        "within\n"
        "its host, and 25 GB/s and 5 us of each host, which its ranks share; each direction by\n"
        "itself, in gbit or gbyte a second. A cluster with fewer devices than the mesh has ranks "
        "gets\n"
        "more hosts. 2:1gbit@50us/4gbyte: a core moves 4 GB in a second, and computes nothing "
        "meanwhile.\n"
        "\n"
        "--device: 312tflop,2039gbyte is the speed of computation and of memory. A matmul takes "
        "the\n"
        "longer of both (a roofline), which is a lower bound. A file may add lines of measured "
        "ones,\n"
        "\"matmul M N K TIME\" as in matmul 8192 6144 2048 0.92ms; others then have the efficiency "
        "of\n"
        "those of about their size.\n"
        "\n"
        "Both are read from a file if they do not begin with a digit: items with commas or ends "
        "of\n"
        "lines between them; # begins a comment.\n"};

/* ---- what was asked -------------------------------------------------------------------------- */

static int read_bucket(const cli_command *c, const cli_option *o, const char *text)
{
    (void)o;
    bucket = ls__amount_parse(text, strlen(text), false);
    return bucket > 0.0 ? 0 : cli_wrong(c, "--bucket is \"%s\"; give bytes, such as 25m", text);
}

static int fail(void)
{
    fprintf(stderr, "lockstep sim: %s\n", ls_error_message());
    return 1;
}

static int read_mesh(ls__sim_job *job)
{
    ls__axes axes;
    job->pp = job->dp = job->tp = job->cp = job->ep = (ls__sim_axis){1, 0};
    if (ls__axes_parse(mesh, 0, &axes) < 0) {
        return cli_wrong(&command, "%s", ls_error_message());
    }
    for (int a = 0; a < axes.count; a++) {
        ls__sim_axis *const all[] = {&job->dp, &job->pp, &job->tp, &job->cp, &job->ep};
        const int k = cli_choice(AXES, axes.axis[a].name);
        if (k < 0) {
            return cli_wrong(&command,
                             "axis \"%s\" of --mesh is not simulated; give dp, pp, tp, cp and ep",
                             axes.axis[a].name);
        }
        *all[k] = (ls__sim_axis){axes.axis[a].size, axes.axis[a].stride};
    }
    if (axes.ranks > LS__CLUSTER_RANKS_MAX || job->pp.size > LS__SCHEDULE_RANKS_MAX) {
        return cli_wrong(&command,
                         "--mesh has %d ranks, %d along pp; at most %d and %d are possible",
                         axes.ranks, job->pp.size, LS__CLUSTER_RANKS_MAX, LS__SCHEDULE_RANKS_MAX);
    }
    return 0;
}

static void set(int64_t *size, int64_t given)
{
    *size = given > 0 ? given : *size;
}

static int refuse_no_sizes(void)
{
    return cli_wrong(&command,
                     "--model %s has no sizes of its own; give --layers, --dim and --heads", model);
}

/* A Llama, a Mixtral, or whatever is in a folder. */
static int read_own(char *const *argv, ls__gpt *g)
{
    const bool folder = own.init != NULL;
    decoder_shape shape = {.model = model,
                           .layers = layers,
                           .dim = dim,
                           .heads = heads,
                           .vocab = vocab > 0 || folder ? vocab : VOCAB,
                           .context = context > 0 || folder ? context : CONTEXT,
                           .experts = experts > 0 ? experts : EXPERTS,
                           .top_k = top_k};
    if (!folder && (layers == 0 || dim == 0 || heads == 0)) {
        return refuse_no_sizes();
    }
    const int status = sim_read_model(&command, argv, &own, &shape, g);
    model = shape.model;
    return status;
}

static int read_model(char *const *argv, ls__gpt *g)
{
    if (sim_reads_model(&own, model)) {
        return read_own(argv, g);
    }
    *g = (ls__gpt){.vocab = VOCAB, .context = CONTEXT};
    (void)ls__gpt_find(model, g);
    set(&g->layers, layers);
    set(&g->dim, dim);
    set(&g->heads, heads);
    set(&g->vocab, vocab);
    set(&g->context, context);
    g->experts = experts;
    g->top_k = top_k;
    if (g->layers == 0 || g->dim == 0 || g->heads == 0) {
        return refuse_no_sizes();
    }
    if (g->dim % g->heads != 0) {
        return cli_wrong(
            &command, "--dim %" PRId64 " is no multiple of --heads %" PRId64 "; give one that is",
            g->dim, g->heads);
    }
    return sim_refuse_ignored(&command, &own, model);
}

/* Refuses axes that do not divide the model. */
static int check_axes(const ls__sim_job *job)
{
    const ls__gpt *g = &job->use.model;
    if (sequence && job->tp.size == 1) {
        return cli_wrong(&command, "--sequence divides activations over the ranks along tp, and "
                                   "--mesh has none; give it tp, as in --mesh dp=2,tp=2");
    }
    if (g->context % job->cp.size != 0) {
        return cli_wrong(&command,
                         "--context %" PRId64 " is no multiple of the %d ranks along cp; give one "
                         "that is",
                         g->context, job->cp.size);
    }
    if (job->ep.size > 1 && (g->experts == 0 || g->experts % job->ep.size != 0)) {
        return cli_wrong(&command,
                         "--experts %" PRId64 " cannot be divided over %d ranks along ep; give a "
                         "multiple",
                         g->experts, job->ep.size);
    }
    return g->experts == 0 || g->top_k <= g->experts
               ? 0
               : cli_wrong(&command, "--top-k %" PRId64 " is more than --experts %" PRId64,
                           g->top_k, g->experts);
}

static int read_job(char *const *argv, ls__sim_job *job)
{
    *job = (ls__sim_job){.use = {.batch = batch,
                                 .sequence = sequence,
                                 .width = strcmp(dtype, "float32") == 0 ? 4 : 2},
                         .schedule = schedule,
                         .zero = (int)zero,
                         .bucket_bytes = bucket,
                         .cores = cores,
                         .records = trace_file != NULL,
                         .count = ls__collective_counted};
    int status = read_mesh(job);
    status = status == 0 ? read_model(argv, &job->use.model) : status;
    status = status == 0 ? check_axes(job) : status;
    if (status != 0) {
        return status;
    }
    job->use.tp = job->tp.size;
    job->use.cp = job->cp.size;
    job->use.ep = job->ep.size;
    job->use.whole = LS__GPT_EXPERTS; /* as in training */
    const bool whole_stages = strcmp(schedule, "gpipe") == 0;
    job->use.recompute = recompute && !whole_stages;
    const int full = job->pp.size > 1 ? FULL * job->pp.size : 1;
    job->spec = (ls__schedule_spec){.ranks = job->pp.size,
                                    .micro_batches = micro_batches > 0 ? (int)micro_batches : full,
                                    .chunks = (int)chunks,
                                    .recompute = recompute && whole_stages,
                                    .warm_up = (int)warm_up};
    if (sim_read_cluster(cluster != NULL ? cluster : SIM_CLUSTER, job) < 0 ||
        sim_read_device(device, job) < 0) {
        return fail();
    }
    return 0;
}

/* ---- what is printed ------------------------------------------------------------------------- */

static void print_head(const ls__sim_job *job)
{
    sim_print_model(model, &job->use.model, dtype);
    printf("dp=%d, pp=%d, tp=%d", job->dp.size, job->pp.size, job->tp.size);
    if (job->cp.size > 1 || job->ep.size > 1) {
        printf(", cp=%d, ep=%d", job->cp.size, job->ep.size);
    }
    printf("%s: %d ranks; %s, %d micro-batches of %" PRId64 "%s; zero %" PRId64 "\n",
           sequence ? " with sequence" : "", ls__sim_job_ranks(job), schedule,
           job->spec.micro_batches, batch, recompute ? ", recomputed" : "", zero);
}

/* Notes on values that were changed, or that may mislead. */
static void print_notes(ls__sim_job *job)
{
    const int ranks = ls__sim_job_ranks(job), devices = job->cluster.devices;
    const int64_t on_most = (job->use.model.heads + job->tp.size - 1) / job->tp.size;
    const int64_t keys = ls__gpt_kv_heads(&job->use.model);
    if (ls__cluster_extend(&job->cluster, ranks) && cluster != NULL) {
        printf("note: the cluster has %d devices for %d ranks; its highest level is taken with %d "
               "components\n",
               devices, ranks, job->cluster.level[job->cluster.levels - 1].count);
    }
    if (job->use.model.heads % job->tp.size != 0) {
        printf("note: tp=%d does not divide %" PRId64 " heads; the times are those of a rank with "
               "%" PRId64 ", and training refuses such a mesh\n",
               job->tp.size, job->use.model.heads, on_most);
    } else if (keys % job->tp.size != 0 && job->tp.size % keys != 0) {
        printf("note: tp=%d and %" PRId64 " heads of keys: one must divide the other, so training "
               "refuses such a mesh\n",
               job->tp.size, keys);
    }
    if (job->cp.size > 1 && job->use.model.context % (2 * job->cp.size) != 0) {
        printf("note: a rank of cp has two chunks of a sequence, so training refuses cp=%d of "
               "--context %" PRId64 "\n",
               job->cp.size, job->use.model.context);
    }
    if (ls__sim_zero_kept((int)zero, job->spec.micro_batches) != zero) {
        printf("note: gradients of several micro-batches add up whole%s, so --zero %" PRId64
               " keeps what --zero 1 does; --micro-batches 1 keeps less\n",
               zero > 2 ? ", and the parameters that the first backward gathers stay" : "", zero);
    }
    if (zero > 2 && (job->pp.size > 1 || job->tp.size > 1 || job->ep.size > 1)) {
        printf("note: training refuses --zero 3 with pp, tp or ep\n");
    }
    if (job->device.matmul.count == 0) {
        printf("note: no matmul was measured, so computation is a lower bound\n");
    }
}

static void print_part(const char *name, double seconds, double step)
{
    printf("  %-12s %12.3f ms %6.1f %%\n", name, seconds * 1e3,
           step > 0.0 ? 100.0 * seconds / step : 0.0);
}

/* Axes of one rank have no row. */
static void print_axis(const char *name, ls__sim_axis axis, double seconds, double step)
{
    if (axis.size > 1) {
        print_part(name, seconds, step);
    }
}

static void print_times(const ls__sim_job *job, const ls__sim_step *s)
{
    const double ranks = ls__sim_job_ranks(job);
    const double tokens = (double)batch * job->spec.micro_batches * job->dp.size * job->ep.size *
                          (double)job->use.model.context;
    printf("\nstep           %12.3f ms\n", s->step * 1e3);
    print_part("compute", s->compute, s->step);
    print_part("bubble", s->bubble, s->step);
    print_part("pp exposed", s->pp, s->step);
    print_part("tp", s->tp, s->step);
    print_axis("cp exposed", job->cp, s->cp, s->step);
    print_axis("ep", job->ep, s->ep, s->step);
    print_part("dp exposed", s->dp, s->step);
    print_part("optimizer", s->optimizer, s->step);
    if (job->zero > 0) {
        print_part("gather", s->gather, s->step);
    }
    printf("%.0f tokens a second; %.1f TFLOP/s a rank, %.1f %% of the device's\n", tokens / s->step,
           s->flops / ranks / s->step * 1e-12,
           100.0 * s->flops / ranks / s->step / job->device.flops);
}

static double sum_of(const ls__sim_rank *r)
{
    return r->parameters + r->gradients + r->optimizer + r->activations;
}

static void print_memory_row(const ls__sim_step *s, int rank)
{
    const ls__sim_rank *r = &s->rank[rank];
    printf("%-8d %10.3f GB %10.3f GB %10.3f GB %10.3f GB %10.3f GB\n", rank, r->parameters * 1e-9,
           r->gradients * 1e-9, r->optimizer * 1e-9, r->activations * 1e-9, sum_of(r) * 1e-9);
}

static void print_rest(const ls__sim_job *job, const ls__sim_step *s)
{
    int most = 0;
    printf("\nsent by a rank in a step, the one that sends most\n");
    printf("  tp  %16.0f bytes\n  pp  %16.0f bytes\n  dp  %16.0f bytes\n", s->tp_bytes, s->pp_bytes,
           s->dp_bytes);
    if (job->cp.size > 1 || job->ep.size > 1) {
        printf("  cp  %16.0f bytes\n  ep  %16.0f bytes\n", s->cp_bytes, s->ep_bytes);
    }
    for (int r = 1; r < job->pp.size; r++) {
        most = sum_of(&s->rank[r]) > sum_of(&s->rank[most]) ? r : most;
    }
    printf("\nmemory of a rank, along pp\n%-8s %13s %13s %13s %13s %13s\n", "", "parameters",
           "gradients", "optimizer", "activations", "sum");
    print_memory_row(s, 0);
    if (most != 0 && most != job->pp.size - 1) {
        print_memory_row(s, most);
    }
    if (job->pp.size > 1) {
        print_memory_row(s, job->pp.size - 1);
    }
}

int cmd_sim(int argc, char **argv)
{
    static ls__sim_job job;
    ls__sim_step step;
    cli_leave_job();
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    const int status = read_job(argv, &job);
    if (status != 0) {
        return status;
    }
    print_head(&job);
    print_notes(&job);
    if (ls__simulate_job(ls__env_posix(), &job, &step) < 0) {
        return fail();
    }
    print_times(&job, &step);
    print_rest(&job, &step);
    const ls_status written = trace_file != NULL ? sim_write_trace(&job, &step, trace_file) : LS_OK;
    ls__sim_step_free(&step);
    return written < 0 ? fail() : 0;
}
