/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep plan auto`: the mesh, the cuts, the schedule and all else with which a GPT or a Llama
 * trains fastest on a cluster (src/plan/auto.h). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/env_posix.h"
#include "base/error.h"
#include "cost/units.h"
#include "dist/axes.h"
#include "plan/auto.h"
#include "tools/cli/cli.h"
#include "tools/plan.h"
#include "tools/sim.h"

#define MODELS "gpt|moe|llama|mixtral|gpt2|gpt2-medium|gpt2-large|gpt2-xl"
#define AXES "dp|pp|ep|cp|tp"
#define EACH 8       /* sequences for each rank, as `lockstep train gpt` takes without --batch */
#define RIVALS 4     /* meshes that the best one is compared with */
#define VISIBLE 0.01 /* of a step: smaller differences are not named */

static const char *cluster, *device = SIM_DEVICE, *dtype = "float32", *mesh, *out, *svg;
static int64_t ranks, layers, dim, heads, vocab, context, experts, top_k, batch;
static double memory, cores, bucket = 25 << 20;
static sim_model own;

static int read_bytes(const cli_command *c, const cli_option *o, const char *text);

static const cli_option options[] = {
    {"cluster", CLI_TEXT, &cluster, .value_name = "LEVELS|FILE", .fallback = "",
     .help = "levels as count:bandwidth@latency, the innermost first, as lockstep sim takes them"},
    {"ranks", CLI_COUNT, &ranks, .low = 1, .high = LS__CLUSTER_RANKS_MAX, .letter = 'n',
     .fallback = "the cluster's devices", .help = "ranks of the job"},
    {"memory", CLI_READ, &memory, .read = read_bytes, .value_name = "BYTES", .fallback = "no limit",
     .help = "what a rank has for parameters, gradients, optimizer and activations: 2g"},
    {"batch", CLI_COUNT, &batch, .low = 1, .high = 1 << 20, .letter = 'b',
     .fallback = "8 for each rank", .help = "sequences of a step, of all ranks"},
    {"layers", CLI_COUNT, &layers, .low = 1, .high = 1000, .fallback = "the model's; 4",
     .help = "layers"},
    {"dim", CLI_COUNT, &dim, .low = 1, .high = 1 << 20, .fallback = "the model's; 128",
     .help = "width of the activations between layers"},
    {"heads", CLI_COUNT, &heads, .low = 1, .high = 1 << 16, .fallback = "the model's; 4",
     .help = "heads of attention"},
    SIM_MODEL_OPTIONS(own),
    {"vocab", CLI_COUNT, &vocab, .low = 1, .high = 1 << 24, .fallback = "the model's; 256",
     .help = "tokens of the vocabulary"},
    {"context", CLI_COUNT, &context, .low = 1, .high = 1 << 20, .fallback = "the model's; 128",
     .help = "tokens of a sequence"},
    {"experts", CLI_COUNT, &experts, .low = 1, .high = 1 << 16, .fallback = "8",
     .help = "experts of every second layer of moe, of every one of mixtral"},
    {"top-k", CLI_COUNT, &top_k, .low = 1, .high = 1 << 16, .fallback = "2",
     .help = "of moe and mixtral: experts that a token visits"},
    {"mesh", CLI_TEXT, &mesh, .value_name = "AXES", .fallback = "all",
     .help = "only meshes with these sizes, as in pp=2,dp=2; an axis that is missing has 1"},
    {"device", CLI_TEXT, &device, .value_name = "SPEEDS|FILE",
     .help = "operations a second and bytes a second of its memory, as lockstep sim takes them"},
    {"cores", CLI_NUMBER, &cores, .low = 0, .high = 1e6, .fallback = "one for each rank",
     .help = "of a host (the lowest level), which its ranks share; a rank uses one at most"},
    {"dtype", CLI_CHOICE, &dtype, .choices = SIM_DTYPES,
     .help = "of activations, parameters and gradients; the optimizer keeps float32"},
    {"bucket", CLI_READ, &bucket, .read = read_bytes, .value_name = "BYTES", .fallback = "25m",
     .help = "gradients that are summed together, rounded up to whole layers"},
    {"out", CLI_TEXT, &out, .value_name = "FILE", .letter = 'o',
     .help = "write the plan: lockstep train gpt -n N --plan FILE follows it"},
    {"svg", CLI_TEXT, &svg, .value_name = "FILE",
     .help = "draw the steps of the best plan of each mesh"},
};

static const cli_command command = {
    .name = "lockstep plan auto",
    .about = "Finds how a GPT or a Llama trains fastest on a cluster: mesh, stages, schedule, "
             "memory.",
    .operands = "[" MODELS "]",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more =
        "  lockstep plan auto gpt --layers 12 --dim 768 --heads 12 --cluster 4:10gbit,2:1gbit \\\n"
        "      --memory 2g --out plan.json\n"
        "  lockstep plan auto --init TinyLlama/ --context 512 --cluster 4:10gbit     of its "
        "config.json\n"
        "\n"
        "Searched are meshes of dp, pp and tp that `lockstep train` runs, but of GPT-2 with cp, of "
        "moe\n"
        "and mixtral with ep; the sequences of a micro-batch, --sequence, the schedule and its "
        "warm-up,\n"
        "--zero, --recompute, and by the program of Alpa (Zheng et al., OSDI 2022, section 5.2) "
        "the\n"
        "stages. Each plan is judged by a simulation of its schedule (lockstep sim).\n"};

/* ---- what was asked -------------------------------------------------------------------------- */

static int fail(void)
{
    fprintf(stderr, "lockstep plan auto: %s\n", ls_error_message());
    return 1;
}

static int read_bytes(const cli_command *c, const cli_option *o, const char *text)
{
    double *value = o->value;
    *value = ls__amount_parse(text, strlen(text), false);
    return *value > 0.0 ? 0 : cli_wrong(c, "--%s is \"%s\"; give bytes, such as 2g", o->name, text);
}

static int64_t given(int64_t value, int64_t otherwise)
{
    return value > 0 ? value : otherwise;
}

static bool has_experts(const char *model)
{
    return strcmp(model, "moe") == 0;
}

static int read_experts(const char *name, ls__gpt *g)
{
    if (!has_experts(name)) {
        return experts == 0 && top_k == 0
                   ? 0
                   : cli_wrong(&command, "--%s is for moe, and %s has no experts; leave it out",
                               experts > 0 ? "experts" : "top-k", name);
    }
    g->experts = given(experts, 8);
    g->top_k = given(top_k, 2);
    return g->top_k <= g->experts ? 0
                                  : cli_wrong(&command,
                                              "--top-k %" PRId64 " is more than --experts %" PRId64
                                              "; give at most all",
                                              g->top_k, g->experts);
}

/* A Llama, a Mixtral, or whatever is in a folder; *name becomes its name. */
static int read_own(char *const *argv, const char **name, ls__gpt *g)
{
    const bool folder = own.init != NULL;
    decoder_shape shape = {.model = *name,
                           .layers = given(layers, 4),
                           .dim = given(dim, 128),
                           .heads = given(heads, 4),
                           .vocab = given(vocab, folder ? 0 : 256),
                           .context = given(context, folder ? 0 : 128),
                           .experts = given(experts, 8),
                           .top_k = given(top_k, 2)};
    const int status = sim_read_model(&command, argv, &own, &shape, g);
    if (status == 0 && *name != NULL && !decoder_is_of_a_kind(*name, shape.model)) {
        return cli_wrong(&command, "the model of --init is %s, and this is %s; leave one out",
                         shape.model, *name);
    }
    *name = shape.model;
    return status;
}

static int read_gpt(const char *name, ls__gpt *g)
{
    const bool published = ls__gpt_find(name, g);
    if (!published) {
        *g = (ls__gpt){4, 128, 4, 256, 128, .untied = true};
    }
    g->layers = given(layers, g->layers);
    g->dim = given(dim, g->dim);
    g->heads = given(heads, g->heads);
    g->vocab = given(vocab, g->vocab);
    g->context = given(context, g->context);
    if (published && (layers > 0 || dim > 0 || heads > 0)) {
        return cli_wrong(&command,
                         "%s has its own --layers, --dim and --heads; leave them out, or give gpt",
                         name);
    }
    if (g->dim % g->heads != 0) {
        return cli_wrong(
            &command, "--dim %" PRId64 " is no multiple of --heads %" PRId64 "; give one that is",
            g->dim, g->heads);
    }
    const int status = sim_refuse_ignored(&command, &own, name);
    return status == 0 ? read_experts(name, g) : status;
}

static int read_model(char *const *argv, const char **name, ls__gpt *g)
{
    return *name == NULL || sim_reads_model(&own, *name) ? read_own(argv, name, g)
                                                         : read_gpt(*name, g);
}

/* Refuses axes that do not divide the model. */
static int check_axes(const char *model, const ls__auto_ask *ask)
{
    if (ask->cp > 1 && !ask->contexts) {
        return cli_wrong(&command,
                         "--mesh has an axis cp, and %s has no ring attention; give gpt "
                         "or moe, or leave cp out",
                         model);
    }
    return ask->ep <= 1 || ask->job.use.model.experts > 0
               ? 0
               : cli_wrong(&command,
                           "--mesh has an axis ep, and %s has no experts; give moe, or leave ep "
                           "out",
                           model);
}

/* Axes that --mesh leaves out have one rank. */
static int read_mesh(const char *model, ls__auto_ask *ask)
{
    ls__axes axes;
    if (mesh == NULL) {
        return 0;
    }
    if (ls__axes_parse(mesh, 0, &axes) < 0) {
        return cli_wrong(&command, "%s", ls_error_message());
    }
    ask->pp = ask->dp = ask->ep = ask->cp = ask->tp = 1;
    for (int a = 0; a < axes.count; a++) {
        int *const all[] = {&ask->dp, &ask->pp, &ask->ep, &ask->cp, &ask->tp};
        const int k = cli_choice(AXES, axes.axis[a].name);
        if (k < 0) {
            return cli_wrong(&command,
                             "axis \"%s\" of --mesh is not planned; give dp, pp, ep, cp and tp",
                             axes.axis[a].name);
        }
        *all[k] = axes.axis[a].size;
    }
    if (axes.ranks != ask->ranks) {
        return cli_wrong(&command, "--mesh \"%s\" has %d ranks, and the job %d; make them equal",
                         mesh, axes.ranks, ask->ranks);
    }
    return check_axes(model, ask);
}

/* `model` becomes that of --init. */
static int read_ask(char *const *argv, const char **model, ls__auto_ask *ask)
{
    ls__sim_job *job = &ask->job;
    *job = (ls__sim_job){.use = {.width = strcmp(dtype, "float32") == 0 ? 4 : 2},
                         .bucket_bytes = bucket,
                         .cores = cores};
    if (cluster == NULL) {
        return cli_wrong(&command, "--cluster is missing; give levels, such as 4:10gbit,2:1gbit");
    }
    const int status = read_model(argv, model, &job->use.model);
    if (status == 0 && (sim_read_cluster(cluster, job) < 0 || sim_read_device(device, job) < 0)) {
        return fail();
    }
    if (status != 0) {
        return status;
    }
    ask->ranks = ranks > 0 ? (int)ranks : job->cluster.devices;
    ask->batch = batch > 0 ? batch : (int64_t)EACH * ask->ranks;
    ask->memory_bytes = memory;
    ask->contexts = !decoder_is_gpt2(*model); /* it has no ring attention */
    (void)ls__cluster_extend(&job->cluster, ask->ranks);
    return read_mesh(*model, ask);
}

/* ---- what is printed ------------------------------------------------------------------------- */

static void print_head(const char *model, const ls__auto_ask *ask)
{
    sim_print_model(model, &ask->job.use.model, dtype);
    printf("%d ranks on %s; %" PRId64 " sequences a step", ask->ranks, cluster, ask->batch);
    if (memory > 0.0) {
        printf("; %.6g MB of memory for each rank", memory * 1e-6);
    }
    printf("\n");
    if (ask->job.device.matmul.count == 0) {
        printf("note: no matmul was measured, so computation is a lower bound\n");
    }
}

static char *mesh_text(const ls__auto_mesh *m, char text[LS__AUTO_MESH_BYTES])
{
    return ls__auto_mesh_text(&m->best, text);
}

/* The axes along which ranks send, of which models lack some. */
enum { TP, PP, DP, CP, EP, SENT };

static const char *const sent[SENT] = {"tp", "pp", "dp", "cp", "ep"};

static bool is_searched(const ls__auto_ask *ask, int axis)
{
    return axis == CP ? ask->contexts : axis != EP || ask->job.use.model.experts > 0;
}

static double bytes_along(const ls__auto_plan *p, int axis)
{
    const double all[SENT] = {p->tp_bytes, p->pp_bytes, p->dp_bytes, p->cp_bytes, p->ep_bytes};
    return all[axis];
}

/* A mesh, its choices of micro-batch, placement, schedule, zero and recomputation, and the cuts. */
static void print_space(const ls__auto_result *found)
{
    char text[LS__AUTO_MESH_BYTES];
    printf("\n%-20s %10s %14s\n", "the space", "choices", "with all cuts");
    for (int i = 0; i < found->meshes; i++) {
        const ls__auto_mesh *m = &found->mesh[i];
        printf("  %-18s %10d %14.6g\n", mesh_text(m, text), m->choices, m->plans);
    }
    printf("  %-18s %10d %14.6g\n", "all", found->choices, found->plans);
    printf(
        "a choice is a micro-batch, a placement along tp, a schedule with its warm-up, zero and\n"
        "recomputation; its cuts follow from Alpa's program. %d plans were simulated.\n",
        found->simulated);
}

static void print_stages(const ls__auto_plan *p, int64_t all)
{
    printf(", layers");
    for (int i = 0; i < p->stages && p->stages == p->pp.size; i++) {
        const int64_t end = i + 1 < p->stages ? p->first_layer[i + 1] : all;
        printf("%c%" PRId64, i == 0 ? ' ' : '-', end - p->first_layer[i]);
    }
    printf(p->stages == p->pp.size ? "" : " evenly on %d stages", p->stages);
}

static void print_whole(int whole)
{
    static const char *const names[] = {"attention", "MLP", "embedding", "head"};
    const char *between = ", whole ";
    for (int i = 0; i < LS__GPT_DIVISIONS; i++) {
        if (whole >> i & 1) {
            printf("%s%s", between, names[i]);
            between = "+";
        }
    }
}

/* "1f1b, 8 x 4, layers 3-3, zero 1" */
static void print_choice(const ls__gpt *g, const ls__auto_plan *p)
{
    if (p->pp.size > 1) {
        printf("%s", p->schedule);
        if (p->warm_up > 1) {
            printf(" --warm-up %d", p->warm_up);
        }
        printf(", ");
    }
    printf("%d x %" PRId64, p->micro_batches, p->batch);
    if (p->pp.size > 1) {
        print_stages(p, g->layers);
    }
    print_whole(ls__gpt_has_mlps(g) ? p->whole : p->whole & ~LS__GPT_MLP);
    if (p->zero > 0) {
        printf(", zero %d", p->zero);
    }
    printf("%s%s\n", p->sequence ? ", sequence" : "", p->recompute ? ", recomputed" : "");
}

static void print_plans_head(const ls__auto_ask *ask)
{
    printf("\n%-20s %10s %10s ", "best of each mesh", "step ms", "memory MB");
    for (int k = 0; k < SENT; k++) {
        if (is_searched(ask, k)) {
            printf("%6s MB ", sent[k]);
        }
    }
    printf(" plan\n");
}

static void print_plans_notes(const ls__auto_ask *ask)
{
    const char *between = "memory: of the rank that has most. ";
    for (int k = 0; k < SENT; k++) {
        if (is_searched(ask, k)) {
            printf("%s%s", between, sent[k]);
            between = ", ";
        }
    }
    printf(": sent by the rank that sends most, in a step.\n"
           "plan: micro-batches x sequences of each.\n");
}

static void print_plans(const ls__auto_ask *ask, const ls__auto_result *found)
{
    char text[LS__AUTO_MESH_BYTES];
    print_plans_head(ask);
    for (int i = 0; i < found->meshes; i++) {
        const ls__auto_plan *p = &found->mesh[i].best;
        printf("  %-18s ", mesh_text(&found->mesh[i], text));
        if (!found->mesh[i].exists) {
            printf("no plan fits into the memory\n");
            continue;
        }
        printf("%10.6g %10.6g ", p->step * 1e3, p->memory * 1e-6);
        for (int k = 0; k < SENT; k++) {
            if (is_searched(ask, k)) {
                printf("%9.5g ", bytes_along(p, k) * 1e-6);
            }
        }
        printf(" ");
        print_choice(&ask->job.use.model, p);
    }
    print_plans_notes(ask);
}

/* The differences between the parts of two steps, in the order of their size in the step. */
static void print_differences(const ls__auto_plan *best, const ls__auto_plan *other)
{
    const struct {
        const char *name;
        double best, other;
    } parts[] = {{"computation", best->compute, other->compute},
                 {"tp", best->tp_seconds, other->tp_seconds},
                 {"cp exposed", best->cp_seconds, other->cp_seconds},
                 {"ep", best->ep_seconds, other->ep_seconds},
                 {"pp exposed", best->pp_seconds, other->pp_seconds},
                 {"bubble", best->bubble, other->bubble},
                 {"dp exposed", best->dp_seconds, other->dp_seconds},
                 {"optimizer", best->optimizer, other->optimizer},
                 {"gather", best->gather, other->gather}};
    const char *between = ": ";
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const double more = parts[i].other - parts[i].best;
        if (fabs(more) > VISIBLE * best->step) {
            printf("%s%s %.4g ms %s", between, parts[i].name, fabs(more) * 1e3,
                   more > 0.0 ? "more" : "less");
            between = ", ";
        }
    }
    printf("\n");
}

static void print_why(const ls__auto_result *found)
{
    char name[LS__AUTO_MESH_BYTES], other[LS__AUTO_MESH_BYTES];
    const ls__auto_plan *best = &found->mesh[0].best;
    printf("\nwhy %s\n", mesh_text(&found->mesh[0], name));
    for (int i = 1; i < found->meshes && i <= RIVALS && found->mesh[i].exists; i++) {
        const ls__auto_plan *p = &found->mesh[i].best;
        printf("  %s takes %.4g ms more", mesh_text(&found->mesh[i], other),
               (p->step - best->step) * 1e3);
        print_differences(best, p);
    }
    if (found->meshes == 1 || !found->mesh[1].exists) {
        printf("  no other mesh %s\n", found->meshes == 1 ? "is possible" : "fits into the memory");
    }
}

static void print_words(const char *model, const ls__auto_ask *ask, const ls__auto_plan *best)
{
    char words[LS__AUTO_WORDS_BYTES];
    if (ls__auto_words(ls__auto_names_of(model), &ask->job.use.model, best, words)[0] != '\0') {
        printf("\nalong tp%s: %s\n", best->sequence ? " with --sequence" : "", words);
    }
}

static void print_shape(const char *model, const ls__auto_ask *ask)
{
    const ls__gpt *g = &ask->job.use.model;
    if (strcmp(model, "gpt") != 0) {
        printf(" --model %s", model);
    }
    if (ask->contexts) { /* it has no sizes of its own */
        printf(" --layers %" PRId64 " --dim %" PRId64 " --heads %" PRId64, g->layers, g->dim,
               g->heads);
    }
    if (g->llama) {
        printf(" --kv-heads %" PRId64 " --hidden %" PRId64 "%s", ls__gpt_kv_heads(g),
               ls__gpt_mlp(g), g->untied ? "" : " --tied");
    }
    if (g->experts > 0) {
        printf(" --experts %" PRId64 " --top-k %" PRId64, g->experts, g->top_k);
    }
}

static void print_command(const char *model, const ls__auto_ask *ask)
{
    const ls__gpt *g = &ask->job.use.model;
    if (out == NULL) {
        return;
    }
    printf("\nlockstep train gpt -n %d --plan %s", ask->ranks, out);
    if (own.init != NULL) {
        printf(" --init %s", own.init);
    } else {
        print_shape(model, ask);
    }
    printf(" --context %" PRId64 " --data ...\n", g->context);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int draw(const char *model, const ls__auto_result *found)
{
    char title[256];
    (void)snprintf(title, sizeof title, "%s on %.150s", model, cluster);
    FILE *file = cli_create(svg);
    const bool written = file != NULL && plan_write_auto_svg(file, found, title);
    return (file != NULL && fclose(file) != 0) || !written ? plan_fail_to_write(svg) : 0;
}

static int show(const char *model, const ls__auto_ask *ask, const ls__auto_result *found)
{
    print_space(found);
    print_plans(ask, found);
    print_why(found);
    print_words(model, ask, &found->mesh[0].best);
    print_command(model, ask);
    if (out != NULL &&
        ls__auto_write(ls__env_posix(), ask, &found->mesh[0].best, model, cluster, out) < 0) {
        return fail();
    }
    return svg != NULL ? draw(model, found) : 0;
}

void plan_auto_print_operands(void)
{
    for (const char *at = MODELS; *at != '\0'; at++) {
        putchar(*at == '|' ? '\n' : *at);
    }
    putchar('\n');
}

int plan_auto(int argc, char **argv)
{
    static ls__auto_ask ask;
    ls__auto_result found;
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    const char *model = argc - first == 1 ? argv[first] : NULL;
    if (argc - first > 1 || (model == NULL && own.init == NULL) ||
        (model != NULL && cli_choice(MODELS, model) < 0)) {
        return cli_wrong(&command, "give one model: gpt, moe, llama, mixtral, gpt2 to gpt2-xl, or "
                                   "--init with the folder of one");
    }
    const char *const files[] = {out, svg};
    for (int i = 0; i < 2; i++) {
        if (files[i] != NULL && !cli_can_create(files[i])) {
            return plan_fail_to_write(files[i]);
        }
    }
    int status = read_ask(argv, &model, &ask);
    if (status != 0) {
        return status;
    }
    print_head(model, &ask);
    status = ls__auto_find(ls__env_posix(), &ask, &found) < 0 ? fail() : show(model, &ask, &found);
    ls__auto_free(&found);
    return status;
}
