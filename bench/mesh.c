/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep bench mesh`: a step of a GPT whose layers are divided between operators (pp), within
 * them (tp), or both, beside what src/cost predicts. The layers sleep for the time that a device
 * of the given speed takes, so ranks need no cores of their own; activations and all-reduces are
 * real, over the links that there are. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "base/env_posix.h"
#include "bench.h"
#include "cost/job.h"
#include "dist/axes.h"
#include "tools/cli/cli.h"

enum { MESHES_MAX = 8, ROUNDS_MAX = 100, MICRO_MAX = 64, WARM_UP = 1 };
#define VOCAB 256

/* ---- options ------------------------------------------------------------------------------- */

static const char *meshes = "pp=4,tp=1/pp=2,tp=2/pp=1,tp=4", *schedule = "1f1b", *transport, *json;
static const char *device = "20gflop,20gbyte", *link_rate = "1gbit";
static int64_t ranks, layers, dim, context, micro_batches, rounds;

static const cli_option options[] = {
    {"meshes", CLI_TEXT, &meshes, .value_name = "AXES/AXES",
     .help = "meshes with axes pp and tp, with / between them"},
    {"ranks", CLI_COUNT, &ranks, .low = 1, .high = LS__BENCH_RANKS_MAX, .letter = 'n',
     .help = "ranks on this host, of every mesh"},
    {"layers", CLI_COUNT, &layers, .low = 1, .high = 1000, .help = "layers of the GPT"},
    {"dim", CLI_COUNT, &dim, .low = 64, .high = 1 << 16, .help = "its width, a multiple of 64"},
    {"context", CLI_COUNT, &context, .low = 1, .high = 1 << 16,
     .help = "tokens of a micro-batch, which is one sequence"},
    {"micro-batches", CLI_COUNT, &micro_batches, .low = 1, .high = MICRO_MAX, .letter = 'm',
     .help = "M, micro-batches of a step"},
    {"schedule", CLI_CHOICE, &schedule, .choices = "1f1b|gpipe", .help = "along pp"},
    {"device", CLI_TEXT, &device, .value_name = "SPEEDS",
     .help = "of a rank, as lockstep sim takes it"},
    {"link", CLI_TEXT, &link_rate, .value_name = "RATE[@LATENCY]",
     .help = "of a rank, for the prediction alone"},
    {"transport", CLI_CHOICE, &transport, .choices = "shm|tcp",
     .fallback = "as the environment says, else shm",
     .help = "shm: shared memory; tcp: as if every rank had a host of its own"},
    {"rounds", CLI_COUNT, &rounds, .low = 1, .high = ROUNDS_MAX,
     .help = "measured steps of each mesh"},
    {"json", CLI_TEXT, &json, .value_name = "FILE", .help = "also write the rows to FILE"},
};

static const cli_command command = {
    .name = "lockstep bench mesh",
    .about = "Steps of a GPT divided between and within operators; its layers sleep.",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more = "step is the time of a step on the slowest rank, work the sleep of the rank that "
            "sleeps\n"
            "longest, sent the bytes of the rank that sends most: medians of the rounds. "
            "predicted,\n"
            "bubble and tp are those of lockstep sim without the sum of gradients and the "
            "optimizer.\n"
            "The meshes take turns.\n"};

typedef struct row { /* of a mesh */
    char mesh[64];
    ls__axes axes;
    ls__sim_job job;
    double predicted_ms, bubble_ms, tp_ms, predicted_bytes;
    double step_ms[ROUNDS_MAX], work_ms[ROUNDS_MAX], sent[ROUNDS_MAX];
} row;

static row rows[MESHES_MAX];
static int row_count;

/* ---- layers that sleep ---------------------------------------------------------------------- */

/* A rank's part of a micro-batch. Each part of its time ends with an all-reduce along tp. */
typedef struct stage {
    double forward_ms, backward_ms;
    int forward_sums, backward_sums; /* 0: without tp */
    bool first, last;
    ls_group *tp;
} stage;

static double slept_ms;  /* by this rank in this step */
static double handed_on; /* bytes of activations and their gradients, to neighbours along pp */

static ls_tensor *passed(const stage *s, ls_tensor *x, double ms, int sums)
{
    ls_tensor *y = ls_scale(x, 1.0);
    ls_status status = ls_tensor_status(y);
    for (int i = 0; i < sums && status == LS_OK; i++) {
        slept_ms += ls__bench_sleep(ms / sums);
        status = ls_all_reduce(s->tp, ls_data(y), ls_data(y), ls_numel(y), LS_FLOAT32, LS_AVG, NULL,
                               NULL);
    }
    slept_ms += sums == 0 ? ls__bench_sleep(ms) : 0.0;
    return status == LS_OK ? y : NULL;
}

static ls_status stage_forward(ls_function_call *call, ls_tensor *const *in, int n, ls_tensor **out,
                               int m, void *of)
{
    (void)n, (void)m;
    const stage *s = of;
    out[0] = passed(s, in[0], s->forward_ms, s->forward_sums);
    handed_on += s->last ? 0.0 : (double)ls_numel(in[0]) * sizeof(float);
    return out[0] != NULL ? ls_function_save_data(call, &s, sizeof s) : ls_error_status();
}

static ls_status stage_backward(ls_function_call *call, ls_tensor *const *dout, int m,
                                ls_tensor **din, int n)
{
    (void)m, (void)n;
    const stage *s = *(const stage *const *)ls_function_data(call);
    din[0] = passed(s, dout[0], s->backward_ms, s->backward_sums);
    handed_on += s->first ? 0.0 : (double)ls_numel(dout[0]) * sizeof(float);
    return din[0] != NULL ? LS_OK : ls_error_status();
}

static const ls_function stage_function =
    LS_FUNCTION(.name = "stage", .forward = stage_forward, .backward = stage_backward);

typedef struct sleeper {
    ls__bench_sleeper base;
    stage of;
} sleeper;

static ls_tensor *sleeper_forward(ls_module *m, ls_tensor *x)
{
    sleeper *self = (sleeper *)m;
    return ls_add(ls_function_apply(&stage_function, x, &self->of), self->base.weight);
}

static const ls_module_class sleeper_class =
    LS_MODULE_CLASS(.name = "sleeper", .forward = sleeper_forward);

/* As job.c divides layers, and adds the all-reduces of the embedding and of the head. */
static stage stage_of(const row *r, int index, ls_group *tp)
{
    const ls__sim_job *job = &r->job;
    const int64_t n = job->pp.size, own = layers * (index + 1) / n - layers * index / n;
    const ls__stage_times layer = ls__gpt_layer_times(&job->use, &job->device, false),
                          embedding = ls__gpt_embedding_times(&job->use, &job->device),
                          head = ls__gpt_head_times(&job->use, &job->device);
    const bool first = index == 0, last = index == n - 1, divided = job->tp.size > 1;
    const double forward = (double)own * layer.forward + (first ? embedding.forward : 0.0) +
                           (last ? head.forward : 0.0),
                 backward = (double)own * layer.backward + (first ? embedding.backward : 0.0) +
                            (last ? head.backward : 0.0);
    return (stage){.forward_ms = 1e3 * forward,
                   .backward_ms = 1e3 * backward,
                   .forward_sums = divided ? (int)(2 * own) + first : 0,
                   .backward_sums = divided ? (int)(2 * own) + last : 0,
                   .first = first,
                   .last = last,
                   .tp = tp};
}

static ls_module *net_of(const row *r, ls_group *tp)
{
    ls_module *net = ls_sequential_new(NULL, 0);
    for (int i = 0; net != NULL && i < r->job.pp.size; i++) {
        sleeper *one = ls_module_new(sizeof *one, &sleeper_class);
        if (one != NULL) {
            one->of = stage_of(r, i, tp);
        }
        ls__bench_add_sleeper(net, i, one != NULL ? &one->base : NULL);
    }
    return net;
}

/* ---- measuring ------------------------------------------------------------------------------ */

typedef struct runner {
    ls_mesh *mesh;
    ls_module *net;
    ls_pipeline *pipe; /* NULL: one stage */
} runner;

static ls_status make_runner(const row *r, runner *out)
{
    LS_TRY(ls_mesh_new(ls_world(), r->mesh, &out->mesh));
    LS_TRY(ls_mesh_use(NULL)); /* tensors here have no places */
    out->net = net_of(r, ls_mesh_group(out->mesh, "tp"));
    LS_TRY(out->net != NULL ? ls_module_status(out->net) : ls_error_status());
    return r->job.pp.size == 1
               ? LS_OK
               : ls_pipeline_new(out->net, ls_mesh_group(out->mesh, "pp"),
                                 LS_OPTIONS(ls_pipeline_options, .schedule = schedule,
                                            .micro_batches = (int)micro_batches,
                                            .loss = ls__bench_sum_of),
                                 &out->pipe);
}

static void free_runner(runner *r)
{
    (void)ls_pipeline_free(r->pipe);
    ls_module_free(r->net);
    (void)ls_mesh_free(r->mesh);
}

static ls_status run_step(const runner *with)
{
    LS_SCOPE;
    ls_micro_batch micro[MICRO_MAX];
    ls__bench_same_inputs(micro, (int)micro_batches, LS_SHAPE(1, context, dim));
    if (with->pipe != NULL) {
        return ls_pipeline_backward(with->pipe, with->net, micro, NULL);
    }
    for (int m = 0; m < micro_batches; m++) {
        LS_TRY(ls_backward(ls_sum(ls_forward(with->net, micro[m].inputs[0]))));
    }
    return LS_OK;
}

/* Along tp by the counters of its group; a pipeline has a group of its own, so what stages hand on
 * is counted where it is made. */
static double sent_so_far(const runner *with)
{
    ls_counters counters = {.size = sizeof counters};
    (void)ls_group_get_counters(ls_mesh_group(with->mesh, "tp"), &counters);
    return (double)counters.bytes_sent + handed_on;
}

/* A step after which the ranks know the longest time, the most work and the most bytes of any. */
static ls_status measure_step(row *r, runner *with, int round)
{
    double most[3];
    LS_TRY(ls_barrier(ls_world(), NULL, NULL));
    const double begin = ls__bench_now_ms(), before = sent_so_far(with);
    slept_ms = 0.0;
    LS_TRY(run_step(with));
    most[0] = ls__bench_now_ms() - begin;
    most[1] = slept_ms;
    most[2] = sent_so_far(with) - before;
    LS_TRY(ls_all_reduce(ls_world(), most, most, 3, LS_FLOAT64, LS_MAX, NULL, NULL));
    if (round >= 0) {
        r->step_ms[round] = most[0];
        r->work_ms[round] = most[1];
        r->sent[round] = most[2];
    }
    return LS_OK;
}

static ls_status measure(runner *runners)
{
    for (int i = 0; i < row_count; i++) {
        LS_TRY(make_runner(&rows[i], &runners[i]));
    }
    for (int round = -WARM_UP; round < rounds; round++) {
        for (int i = 0; i < row_count; i++) {
            LS_TRY(measure_step(&rows[i], &runners[i], round));
        }
    }
    return LS_OK;
}

/* ---- rows ----------------------------------------------------------------------------------- */

static double median(const double *values)
{
    return ls__bench_median(values, (int)rounds);
}

static json_t *row_of(const row *r, json_t *machine)
{
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:O}",
                     "name", "mesh", "mesh", r->mesh, "ranks", r->axes.ranks, "pp", r->job.pp.size,
                     "tp", r->job.tp.size, "step_ms", median(r->step_ms), "work_ms",
                     median(r->work_ms), "sent_bytes", median(r->sent), "predicted_ms",
                     r->predicted_ms, "bubble_ms", r->bubble_ms, "tp_ms", r->tp_ms,
                     "predicted_bytes", r->predicted_bytes, "round_ms",
                     ls__bench_list(r->step_ms, (int)rounds), "machine", machine);
}

static bool report(void)
{
    json_t *list = json_array(), *machine = ls__bench_machine();
    printf("# %lld layers of width %lld, %lld micro-batches of %lld tokens; medians of %lld "
           "steps\n",
           (long long)layers, (long long)dim, (long long)micro_batches, (long long)context,
           (long long)rounds);
    printf("# %-14s %10s %10s %12s %10s %10s %10s %12s\n", "mesh", "step", "work", "sent",
           "predicted", "bubble", "tp", "sent");
    printf("# %-14s %10s %10s %12s %10s %10s %10s %12s\n", "", "(ms)", "(ms)", "(bytes)", "(ms)",
           "(ms)", "(ms)", "(bytes)");
    for (int i = 0; i < row_count; i++) {
        const row *r = &rows[i];
        printf("  %-14s %10.2f %10.2f %12.0f %10.2f %10.2f %10.2f %12.0f\n", r->mesh,
               median(r->step_ms), median(r->work_ms), median(r->sent), r->predicted_ms,
               r->bubble_ms, r->tp_ms, r->predicted_bytes);
        json_array_append_new(list, row_of(r, machine));
    }
    json_decref(machine);
    return ls__bench_dump(list, row_count, json);
}

/* One rank. Returns its exit status. */
static int run_rank(void *arg)
{
    static runner runners[MESHES_MAX];
    (void)arg;
    ls__bench_sleep_exactly();
    LS_CHECK(ls_init(NULL));
    LS_CHECK(measure(runners));
    const bool written = ls_rank() != 0 || report();
    for (int i = row_count - 1; i >= 0; i--) {
        free_runner(&runners[i]);
    }
    LS_CHECK(ls_finalize());
    return written ? 0 : 1;
}

/* ---- the prediction ------------------------------------------------------------------------- */

static int fail(void)
{
    return cli_wrong(&command, "%s", ls_error_message());
}

static int read_axes(row *r)
{
    ls__sim_job *job = &r->job;
    job->pp = job->dp = job->tp = (ls__sim_axis){1, 0};
    if (ls__axes_parse(r->mesh, (int)ranks, &r->axes) < 0) {
        return fail();
    }
    for (int a = 0; a < r->axes.count; a++) {
        const int k = cli_choice("pp|tp", r->axes.axis[a].name);
        if (k >= 0) {
            *(k == 0 ? &job->pp : &job->tp) =
                (ls__sim_axis){r->axes.axis[a].size, r->axes.axis[a].stride};
        }
    }
    return job->pp.size * job->tp.size == ranks && ls__axes_find(&r->axes, "tp", 2) >= 0 &&
                   ls__axes_find(&r->axes, "pp", 2) >= 0
               ? 0
               : cli_wrong(&command, "mesh \"%s\" needs the axes pp and tp, and these %lld ranks",
                           r->mesh, (long long)ranks);
}

static int predict(row *r)
{
    char cluster[80];
    ls__sim_step step;
    ls__sim_job *job = &r->job;
    job->use = (ls__gpt_use){.model = {.layers = layers,
                                       .dim = dim,
                                       .heads = dim / 64,
                                       .vocab = VOCAB,
                                       .context = context},
                             .batch = 1,
                             .tp = job->tp.size,
                             .width = 4};
    job->schedule = schedule;
    job->spec = (ls__schedule_spec){.ranks = job->pp.size, .micro_batches = (int)micro_batches};
    (void)snprintf(cluster, sizeof cluster, "%lld:%.60s", (long long)ranks, link_rate);
    if (ls__cluster_parse("--link", cluster, strlen(cluster), &job->cluster) < 0 ||
        ls__processor_parse("--device", device, strlen(device), job->use.width, &job->device) < 0 ||
        ls__simulate_job(ls__env_posix(), job, &step) < 0) {
        return fail();
    }
    r->predicted_ms = 1e3 * (step.compute + step.tp + step.bubble);
    r->bubble_ms = 1e3 * step.bubble;
    r->tp_ms = 1e3 * step.tp;
    r->predicted_bytes = step.tp_bytes + step.pp_bytes;
    ls__sim_step_free(&step);
    return 0;
}

static int add_rows(void)
{
    for (const char *at = meshes; *at != '\0';) {
        const size_t length = strcspn(at, "/");
        row *r = &rows[row_count];
        if (row_count == MESHES_MAX || length >= sizeof r->mesh) {
            return cli_wrong(&command, "--meshes: give up to %d, of fewer than %zu characters",
                             MESHES_MAX, sizeof r->mesh);
        }
        memset(r, 0, sizeof *r);
        memcpy(r->mesh, at, length);
        row_count++;
        const int status = read_axes(r);
        if (status != 0 || predict(r) != 0) {
            return status != 0 ? status : 2;
        }
        at += length + (at[length] == '/');
    }
    return row_count > 0 ? 0 : cli_wrong(&command, "--meshes is empty; give one");
}

int ls__bench_mesh(int argc, char **argv)
{
    ranks = 4;
    layers = 8;
    dim = 256;
    context = 128;
    micro_batches = 8;
    rounds = 5;
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    if (dim % 64 != 0) {
        return cli_wrong(&command, "--dim %lld is not a multiple of 64", (long long)dim);
    }
    const int job = ls__bench_job_size();
    ranks = job > 0 ? job : ranks;
    const int status = add_rows();
    const int ended =
        status == 0 ? ls__bench_start(transport, json, (int)ranks, run_rank, NULL) : status;
    row_count = 0;
    return ended;
}
