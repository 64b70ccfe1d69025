/* `lockstep bench ddp`: training steps of a network of models/ under DDP, mode by mode and size by
 * size. All contenders are alive and take turns, so that a slow minute of the machine meets all of
 * them; the first one of a turn is another each time. Under a launcher its ranks take part, else -n
 * ranks are started on this host. */
#include "ddp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/runtime.h"
#include "job/bootstrap/detect.h"
#include "tools/cli/cli.h"

#define SEARCH_MAX 1000 /* steps in which automatic buckets settle */

/* ---- options ------------------------------------------------------------------------------- */

static ls__bench_ddp given;
static int64_t ranks, batch, steps, rounds, warmups;
static const char *modes, *sizes, *wires;
static ls_dtype wire; /* of the contenders that are being added */

static int parse_model(const cli_command *command, const cli_option *o, const char *text)
{
    (void)o;
    given.net = net_find(text);
    return given.net != NULL
               ? 0
               : cli_wrong(command,
                           "--model: \"%s\" is not a network; lockstep bench step --help "
                           "lists them",
                           text);
}

static const cli_option options[] = {
    {"model", CLI_READ, .read = parse_model, .value_name = "NAME",
     .help = "the network: mlp, resnet18-cifar, gpt or another of lockstep bench step"},
    {"mode", CLI_TEXT, &modes, .value_name = "LIST",
     .help = "naive, flat, bucketed, overlap, local (no communication)"},
    {"buckets", CLI_TEXT, &sizes, .value_name = "LIST",
     .help = "sizes of buckets in MB, or auto: of bucketed and overlap"},
    {"wire", CLI_TEXT, &wires, .value_name = "LIST",
     .help = "types in which float32 gradients travel: float32, bfloat16"},
    {"ranks", CLI_COUNT, &ranks, .low = 1, .high = LS__BENCH_RANKS_MAX, .letter = 'n',
     .help = "ranks on this host"},
    {"transport", CLI_CHOICE, &given.transport, .choices = "shm|tcp",
     .fallback = "as the environment says, else shm",
     .help = "shm: shared memory; tcp: as if every rank had a host of its own"},
    {"batch", CLI_COUNT, &batch, .low = 1, .high = 1 << 20, .fallback = "the model's",
     .help = "samples of a step of a rank"},
    {"steps", CLI_COUNT, &steps, .low = 1, .high = 1000, .help = "timed steps of a turn"},
    {"rounds", CLI_COUNT, &rounds, .low = 1, .high = 10, .help = "turns of each"},
    {"warmup", CLI_COUNT, &warmups, .low = 1, .high = 1000,
     .help = "steps before them; more where automatic buckets are still searched for"},
    {"json", CLI_TEXT, &given.json, .value_name = "FILE", .help = "also write the rows to FILE"},
};

static const cli_command command = {
    .name = "lockstep bench ddp",
    .about = "Times training steps under DDP, with each way and size of reducing gradients in "
             "turns.",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more = "backward is the rank's own work, wire the time from the first bucket's launch to the "
            "last\n"
            "one's end, exposed the part of it for which backward waited, hidden the rest of it, "
            "comm\n"
            "the part of a step that is exposed. Means are over ranks, too. Under a launcher\n"
            "(`lockstep run … lockstep bench ddp`) the ranks of the job take part.\n"};

static int add(int mode, size_t bytes)
{
    if (given.count == BENCH_DDP_CONTENDERS) {
        return cli_wrong(&command, "--mode and --buckets: more than %d rows", BENCH_DDP_CONTENDERS);
    }
    given.contender[given.count++] =
        (ls__bench_ddp_contender){.mode = mode, .wire = wire, .bucket_bytes = bytes};
    return 0;
}

/* One item of --buckets. */
static int add_size(int mode, const char *text)
{
    char *end = NULL;
    const double mb = strtod(text, &end);
    if (strcmp(text, "auto") == 0) {
        return mode == LS_REDUCE_OVERLAP ? add(mode, LS_BUCKET_BYTES_AUTO) : 0;
    }
    if (end == text || *end != '\0' || !(mb >= 0.0) || mb > 1e6) {
        return cli_wrong(&command,
                         "--buckets: \"%s\" is not a size; give MB, as 0.5 or 25, or auto", text);
    }
    return add(mode, (size_t)(mb * 1e6));
}

/* Calls `item` for each part of "a,b,c". */
static int each(const char *list, int (*item)(int mode, const char *text), int mode)
{
    char copy[512];
    (void)snprintf(copy, sizeof copy, "%s", list);
    char *rest = copy;
    while (rest != NULL) {
        char *at = rest;
        rest = strchr(rest, ',');
        if (rest != NULL) {
            *rest++ = '\0';
        }
        const int status = item(mode, at);
        if (status != 0) {
            return status;
        }
    }
    return 0;
}

static int add_mode(int unused, const char *text)
{
    (void)unused;
    switch (cli_choice("overlap|bucketed|flat|naive|local", text)) {
    case LS_REDUCE_OVERLAP:
        return each(sizes, add_size, LS_REDUCE_OVERLAP);
    case LS_REDUCE_BUCKETED:
        return each(sizes, add_size, LS_REDUCE_BUCKETED);
    case LS_REDUCE_FLAT:
        return add(LS_REDUCE_FLAT, 0);
    case LS_REDUCE_NAIVE:
        return add(LS_REDUCE_NAIVE, 0);
    case LS_REDUCE_NAIVE + 1:
        return wire == LS_FLOAT32 ? add(BENCH_DDP_LOCAL, 0) : 0;
    default:
        return cli_wrong(&command,
                         "--mode: \"%s\" is not known; there is naive, flat, bucketed, overlap, "
                         "local",
                         text);
    }
}

static int add_wire(int unused, const char *text)
{
    const int choice = cli_choice("float32|bfloat16", text);
    (void)unused;
    if (choice < 0) {
        return cli_wrong(&command, "--wire: \"%s\" is not known; there is float32, bfloat16", text);
    }
    wire = choice == 0 ? LS_FLOAT32 : LS_BFLOAT16;
    return each(modes, add_mode, 0);
}

/* -1, or the status to end with. */
static int parse(int argc, char **argv)
{
    memset(&given, 0, sizeof given);
    ranks = 2;
    batch = 0;
    steps = 10;
    rounds = 3;
    warmups = 3;
    modes = "naive,flat,bucketed,overlap,local";
    sizes = "auto";
    wires = "float32";
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    if (given.net == NULL) {
        return cli_wrong(&command, "say which model: --model NAME");
    }
    given.ranks = (int)ranks;
    given.batch = batch > 0 ? (int)batch : (int)given.net->batch;
    given.steps = (int)steps;
    given.rounds = (int)rounds;
    given.warmups = (int)warmups;
    const int status = each(wires, add_wire, 0);
    if (status == 0 && given.count == 0) {
        return cli_wrong(&command, "--buckets auto is for --mode overlap; give bucketed a size");
    }
    return status == 0 ? -1 : status;
}

/* ---- measuring ----------------------------------------------------------------------------- */

/* The optimizer is made anew, for the parameters under DDP. */
static ls_status open_contender(const ls__bench_ddp *b, ls__bench_ddp_contender *c)
{
    LS_TRY(net_open(&c->run, b->net, b->batch, true));
    c->seconds = calloc((size_t)(b->steps * b->rounds), sizeof *c->seconds);
    if (c->seconds == NULL) {
        return ls_fail(LS_ERR_MEMORY, "no memory");
    }
    const bool local = c->mode == BENCH_DDP_LOCAL;
    ls_optim_free(c->run.optim);
    c->run.optim = NULL;
    ls_module *ddp = ls_ddp_new(
        c->run.model, ls_world(),
        LS_OPTIONS(ls_ddp_options, .bucket_bytes = c->bucket_bytes, .wire_dtype = c->wire,
                   .mode = local ? LS_REDUCE_OVERLAP : (ls_reduce_mode)c->mode));
    if (ddp == NULL) {
        return ls_error_status();
    }
    if (local) {
        LS_TRY(ls_ddp_set_local(ddp, true));
        LS_TRY(ls_ddp_set_sync(ddp, false));
    }
    c->run.model = ddp;
    c->run.optim = net_optim(b->net, ddp);
    return c->run.optim != NULL ? LS_OK : ls_error_status();
}

/* Parts of one step, in the order of ls__bench_ddp_parts. */
static ls_status step(ls__bench_ddp_contender *c, double parts[BENCH_DDP_PARTS])
{
    const ls__env *env = ls__self.runtime->env;
    ls_ddp_stats stats = {.size = sizeof stats};
    uint64_t at[4] = {env->now_ns(env)};
    {
        LS_SCOPE;
        ls_optim_zero_grad(c->run.optim);
        ls_tensor *loss = net_loss(&c->run);
        at[1] = env->now_ns(env);
        LS_TRY(ls_backward(loss));
        at[2] = env->now_ns(env);
        LS_TRY(ls_optim_step(c->run.optim));
        at[3] = env->now_ns(env);
    }
    if (c->mode != BENCH_DDP_LOCAL) {
        LS_TRY(ls_ddp_get_stats(c->run.model, &stats));
    }
    parts[0] = (double)(at[3] - at[0]) * 1e-9;
    parts[1] = (double)(at[1] - at[0]) * 1e-9;
    parts[2] = (double)(at[2] - at[1]) * 1e-9 - stats.exposed.last;
    parts[3] = stats.wire.last;
    parts[4] = stats.exposed.last;
    parts[5] = (double)(at[3] - at[2]) * 1e-9;
    return LS_OK;
}

/* All ranks begin together. */
static ls_status turn(const ls__bench_ddp *b, ls__bench_ddp_contender *c)
{
    double unused[BENCH_DDP_PARTS];
    LS_TRY(ls_barrier(ls_world(), NULL, NULL));
    LS_TRY(step(c, unused)); /* the caches have another contender's numbers */
    for (int s = 0; s < b->steps; s++) {
        LS_TRY(step(c, c->seconds[c->steps++]));
    }
    return LS_OK;
}

/* Whether Lockstep still looks for the contender's buckets. */
static ls_status searches(const ls__bench_ddp_contender *c, bool *still)
{
    ls_reducer_stats stats = {.size = sizeof stats};
    if (c->mode != BENCH_DDP_LOCAL) {
        LS_TRY(ls_reducer_get_stats(ls_ddp_reducer(c->run.model), &stats));
    }
    *still = stats.automatic && !stats.settled;
    return LS_OK;
}

/* Steps in which buckets are searched for are timed, but for the first, which makes memory. */
static ls_status warm_up(const ls__bench_ddp *b, ls__bench_ddp_contender *c)
{
    double parts[BENCH_DDP_PARTS];
    bool still = true;
    for (int s = 0; s < b->warmups || (still && s < SEARCH_MAX); s++) {
        LS_TRY(step(c, parts));
        LS_TRY(searches(c, &still));
        c->search_steps += still && s > 0;
        c->search_mean += still && s > 0 ? (parts[0] - c->search_mean) / c->search_steps : 0.0;
    }
    return LS_OK;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(const ls__bench_ddp_contender *c, int first, int count)
{
    double sorted[1000];
    for (int s = 0; s < count; s++) {
        sorted[s] = c->seconds[first + s][0];
    }
    qsort(sorted, (size_t)count, sizeof *sorted, by_size);
    return sorted[count / 2];
}

/* Means over ranks, then over steps. */
static ls_status sum_up(const ls__bench_ddp *b, ls__bench_ddp_contender *c)
{
    LS_TRY(ls_all_reduce(ls_world(), c->seconds, c->seconds, (int64_t)c->steps * BENCH_DDP_PARTS,
                         LS_FLOAT64, LS_AVG, NULL, NULL));
    for (int p = 0; p < BENCH_DDP_PARTS; p++) {
        double sum = 0.0, squares = 0.0;
        for (int s = 0; s < c->steps; s++) {
            sum += c->seconds[s][p];
        }
        c->mean[p] = sum / c->steps;
        for (int s = 0; s < c->steps; s++) {
            squares += (c->seconds[s][p] - c->mean[p]) * (c->seconds[s][p] - c->mean[p]);
        }
        c->deviation[p] = c->steps > 1 ? sqrt(squares / (c->steps - 1)) : 0.0;
    }
    for (int round = 0; round < b->rounds; round++) {
        c->medians[round] = median_of(c, round * b->steps, b->steps);
    }
    ls_reducer *reducer = c->mode == BENCH_DDP_LOCAL ? NULL : ls_ddp_reducer(c->run.model);
    ls_reducer_stats stats = {.size = sizeof stats};
    if (reducer != NULL) {
        LS_TRY(ls_reducer_get_stats(reducer, &stats));
    }
    c->buckets = stats.buckets;
    for (int i = 0; i < c->buckets && i < BENCH_DDP_BUCKETS; i++) {
        ls_reducer_bucket bucket = {.size = sizeof bucket};
        LS_TRY(ls_reducer_get_bucket(reducer, i, &bucket));
        c->bytes[i] = bucket.bytes;
    }
    return LS_OK;
}

static ls_status measure(ls__bench_ddp *b)
{
    for (int i = 0; i < b->count; i++) {
        LS_TRY(open_contender(b, &b->contender[i]));
        LS_TRY(warm_up(b, &b->contender[i]));
    }
    b->parameters = (double)ls_module_numel(b->contender[0].run.model);
    for (int round = 0; round < b->rounds; round++) {
        for (int i = 0; i < b->count; i++) {
            LS_TRY(turn(b, &b->contender[(i + round) % b->count]));
        }
    }
    for (int i = 0; i < b->count; i++) {
        LS_TRY(sum_up(b, &b->contender[i]));
    }
    return LS_OK;
}

/* One rank. Returns its exit status. */
static int run_rank(void *arg)
{
    ls__bench_ddp *b = arg;
    bool written = true;
    LS_CHECK(ls_init(NULL));
    b->ranks = ls_world_size();
    LS_CHECK(measure(b));
    if (ls_rank() == 0) {
        ls__bench_ddp_print(b);
        written = b->json == NULL || ls__bench_ddp_write(b);
    }
    for (int i = 0; i < b->count; i++) {
        free(b->contender[i].seconds);
        net_close(&b->contender[i].run);
    }
    LS_CHECK(ls_finalize());
    return written ? 0 : 1;
}

static bool is_a_rank(void)
{
    ls__detected found;
    return ls__detect_here(ls__env_posix(), &found) == LS_OK && strcmp(found.launcher, "none") != 0;
}

int ls__bench_ddp_run(int argc, char **argv)
{
    const int ended = parse(argc, argv);
    if (ended >= 0 || !ls__bench_can_write(given.json) ||
        !ls__bench_set_transport(given.transport, given.ranks)) {
        return ended >= 0 ? ended : 1;
    }
    if (is_a_rank()) {
        return run_rank(&given);
    }
    if (ls_spawn(run_rank, &given, given.ranks) < 0) {
        fprintf(stderr, "lockstep bench: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
