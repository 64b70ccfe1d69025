/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep bench replay`: the steps of `lockstep bench ddp` without a network. Forward, backward
 * and optimizer are sleeps of recorded lengths, in which each gradient becomes ready at its
 * recorded time, and the reducer reduces them: more ranks than cores communicate as they would
 * beside processors of their own.
 *
 *   begin       + forward                               + backward         waits         + step
 *   |-- sleep --|-- sleep -- ready(g9) -- ready(g8) … --|-- exposed wire --|--- sleep ---|
 *
 * Sleeps end at times that are counted from the begin of the step, so late ones do not add up. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/assert.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/runtime.h"
#include "base/splitmix64.h"
#include "timeline.h"
#include "tools/cli/cli.h"

#define GROUPS_MAX 16

static ls__bench_ddp given;
static ls__bench_ddp_asked asked;
static ls__timeline timeline;
static double speed, noise;
static int64_t seed;

/* ---- options ------------------------------------------------------------------------------- */

static const cli_option options[] = {
    LS__BENCH_DDP_OPTIONS(asked),
    {"skip", CLI_TEXT, &asked.skips, .value_name = "LIST",
     .help = "synchronise every N-th step; times are means over N steps"},
    {"groups", CLI_TEXT, &asked.groups, .value_name = "LIST",
     .help = "this many groups reduce buckets in turns"},
    {"speed", CLI_NUMBER, &speed, .low = 1e-3, .high = 1e6,
     .help = "the network computes this many times as fast as recorded"},
    {"noise", CLI_NUMBER, &noise, .low = 0, .high = 10,
     .help = "a rank's step computes longer by a random share with this mean, exponentially "
             "distributed"},
    {"seed", CLI_COUNT, &seed, .low = 0, .high = 1e9, .help = "of the noise"},
};

/* The text after the options, with the list of timelines. */
static const char *describe(char *out, size_t bytes)
{
    char names[512];
    (void)snprintf(out, bytes,
                   "Forward, backward and optimizer are sleeps as long as those that were "
                   "recorded; gradients are\n"
                   "ready when they were. Timelines: %s;\n"
                   "or a file that lockstep bench ddp --timeline wrote. Columns are those of "
                   "lockstep bench ddp.\n",
                   ls__timeline_names(names, sizeof names));
    return out;
}

/* The last to be ready first: the reducer fills buckets in reverse order of registration, and DDP
 * makes that the order of readiness. */
static int by_time(const void *a, const void *b)
{
    const ls__timeline_gradient *x = a, *y = b;
    return x->ready_s != y->ready_s ? (x->ready_s < y->ready_s) - (x->ready_s > y->ready_s)
                                    : strcmp(x->name, y->name);
}

static int load(const char *name)
{
    static char about[512];
    if (ls__timeline_read(name, &timeline) < 0) {
        fprintf(stderr, "lockstep bench: %s\n", ls_error_message());
        return 1;
    }
    qsort(timeline.gradients, (size_t)timeline.count, sizeof *timeline.gradients, by_time);
    given.model = timeline.name;
    (void)snprintf(about, sizeof about, "%s, replayed as recorded on %s%s", timeline.title,
                   timeline.recorded, speed != 1.0 || noise > 0.0 ? ", changed" : "");
    given.about = about;
    given.batch = timeline.batch;
    given.parameters = timeline.parameters;
    given.more = json_pack("{s:s, s:f, s:f, s:I}", "recorded", timeline.recorded, "speed", speed,
                           "noise", noise, "seed", (json_int_t)seed);
    return -1;
}

/* -1, or the status to end with. */
static int parse(int argc, char **argv)
{
    char more[1024];
    const cli_command command = {
        .name = "lockstep bench replay",
        .about = "Times the reduction of gradients that become ready as in a recorded backward.",
        .operands = "TIMELINE|FILE",
        .options = options,
        .count = (int)(sizeof options / sizeof *options),
        .more = describe(more, sizeof more)};
    given = (ls__bench_ddp){.compute = "replay"};
    asked = (ls__bench_ddp_asked){.modes = "naive,flat,bucketed,overlap,local",
                                  .sizes = "25",
                                  .wires = "float32",
                                  .comms = "plain",
                                  .skips = "1",
                                  .groups = "1",
                                  .ranks = 2,
                                  .steps = 10,
                                  .rounds = 3,
                                  .warmups = 2,
                                  .untimed = 1};
    speed = 1.0;
    noise = 0.0;
    seed = 1;
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    if (argc - first != 1) {
        return cli_wrong(&command, "name one timeline or file");
    }
    int status = ls__bench_ddp_ask(&given, &asked, &command);
    if (status != 0) {
        return status;
    }
    return load(argv[first]);
}

/* ---- memory -------------------------------------------------------------------------------- */

typedef struct place { /* of a rank */
    int64_t kernel;    /* ranks of one share its memory, of several namespaces or containers, too */
    int64_t available; /* bytes; below 0: not known */
} place;

static place find_place(void)
{
    char id[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    const bool read = file != NULL && fgets(id, sizeof id, file) != NULL;
    if (file != NULL) {
        (void)fclose(file);
    }
    return (place){.kernel = read ? (int64_t)ls__hash_text(id) : 0,
                   .available = ls__memory_available(ls__self.runtime->env)};
}

/* All contenders are alive at once, and each rank has its own gradients. All ranks return the
 * same. */
static bool check_memory(const ls__bench_ddp *b)
{
    place own = find_place(), *all = calloc((size_t)b->ranks, sizeof *all);
    double copies = 0.0;
    bool enough = all != NULL;
    LS_CHECK(enough ? ls_all_gather(ls_world(), &own, all, 2, LS_INT64, NULL, NULL)
                    : ls_fail(LS_ERR_MEMORY, "no memory"));
    for (int i = 0; i < b->count; i++) {
        copies += b->contender[i].mode != BENCH_DDP_LOCAL;
    }
    for (int r = 0; r < b->ranks && enough; r++) {
        int local = 0;
        for (int other = 0; other < b->ranks; other++) {
            local += all[other].kernel == all[r].kernel;
        }
        const double needed = copies * local * (double)timeline.bytes;
        const double available = (double)all[r].available;
        enough = available < 0.0 || needed <= 0.9 * available;
        if (!enough && ls_rank() == 0) {
            fprintf(
                stderr,
                "lockstep bench: %.0f rows of %d ranks with %.3g GB of gradients each need %.3g "
                "GB of memory; %.3g GB are available: ask for fewer rows (--mode, --buckets, "
                "--skip, --groups) or ranks\n",
                copies, local, (double)timeline.bytes * 1e-9, needed * 1e-9, available * 1e-9);
        }
    }
    free(all);
    if (!enough) { /* mpirun ends all ranks when the first has ended with a status */
        LS_CHECK(ls_barrier(ls_world(), NULL, NULL));
    }
    return enough;
}

/* ---- steps --------------------------------------------------------------------------------- */

typedef struct replayed { /* of a contender */
    ls_group *groups[GROUPS_MAX], *turns;
    int group_count;
    bool reduced; /* the gradients hold averages */
} replayed;

/* The world, or one handle over duplicates of it that take turns. */
static ls_status open_groups(replayed *r, int count, ls_group **out)
{
    *out = ls_world();
    if (count == 1) {
        return LS_OK;
    }
    for (; r->group_count < count; r->group_count++) {
        LS_TRY(ls_group_new(ls_world(), NULL, 0, "replay", &r->groups[r->group_count]));
    }
    LS_TRY(ls_group_round_robin(r->groups, count, "replay", &r->turns));
    *out = r->turns;
    return LS_OK;
}

static ls_status open_contender(const ls__bench_ddp *b, ls__bench_ddp_contender *c)
{
    ls_group *group = NULL;
    c->run = calloc(1, sizeof(replayed));
    ls_reducer_param *params = calloc((size_t)timeline.count, sizeof *params);
    (void)b;
    (void)prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    ls_status status = LS_OK;
    if (c->run == NULL || params == NULL) {
        status = ls_fail(LS_ERR_MEMORY, "no memory");
    } else if (c->mode != BENCH_DDP_LOCAL) {
        for (int i = 0; i < timeline.count; i++) {
            const ls__timeline_gradient *g = &timeline.gradients[i];
            params[i] =
                (ls_reducer_param){.name = g->name, .count = g->elements, .dtype = g->dtype};
        }
        status = open_groups(c->run, c->groups, &group);
        status =
            status < 0
                ? status
                : ls_reducer_new(group, params, timeline.count,
                                 LS_OPTIONS(ls_reducer_options, .name = "replay",
                                            .bucket_bytes = c->bucket_bytes,
                                            .mode = (ls_reduce_mode)c->mode, .wire_dtype = c->wire),
                                 &c->reducer);
    }
    free(params);
    return status;
}

/* Groups took turns: each has reduced a bucket, unless there were fewer of them. */
static ls_status check_turns(const ls__bench_ddp_contender *c)
{
    const replayed *r = c->run;
    ls_reducer_stats stats = {.size = sizeof stats};
    if (c->reducer == NULL || r->group_count == 0) {
        return LS_OK;
    }
    LS_TRY(ls_reducer_get_stats(c->reducer, &stats));
    for (int i = 0; i < r->group_count; i++) {
        ls_counters counters = {.size = sizeof counters};
        LS_TRY(ls_group_get_counters(r->groups[i], &counters));
        LS_ASSERT(counters.operations > 0 ||
                  stats.reductions * (uint64_t)stats.buckets < (uint64_t)r->group_count);
    }
    return LS_OK;
}

static ls_status close_contender(ls__bench_ddp_contender *c)
{
    replayed *r = c->run;
    LS_TRY(check_turns(c));
    LS_TRY(ls_reducer_free(c->reducer));
    c->reducer = NULL;
    LS_TRY(ls_group_free(r != NULL ? r->turns : NULL));
    for (int i = 0; r != NULL && i < r->group_count; i++) {
        LS_TRY(ls_group_free(r->groups[i]));
    }
    free(r);
    c->run = NULL;
    return LS_OK;
}

/* A number in (0,1] from the seed, the rank and the timed step: the same for all contenders, so
 * that they meet the same noise. */
static double draw(uint64_t step)
{
    const uint64_t of = (uint64_t)seed * LS__SPLITMIX64_GAMMA + ((uint64_t)ls_rank() << 40) + step;
    return (double)((ls__splitmix64(ls__splitmix64(of)) >> 11) + 1) * 0x1p-53;
}

/* Sleeps until `seconds` of the recorded time after `begin_ns`. */
static void sleep_until(const ls__env *env, uint64_t begin_ns, double seconds, double factor)
{
    env->sleep_until(env, begin_ns + (uint64_t)(seconds * factor * 1e9 + 0.5));
}

static ls_status replay_backward(const ls__env *env, ls__bench_ddp_contender *c, uint64_t begin_ns,
                                 double factor, bool synchronise)
{
    if (c->reducer != NULL) {
        LS_TRY(ls_reducer_begin(c->reducer,
                                LS_OPTIONS(ls_reducer_begin_options, .local = !synchronise)));
    }
    for (int i = timeline.count - 1; i >= 0; i--) {
        sleep_until(env, begin_ns, timeline.forward_s + timeline.gradients[i].ready_s, factor);
        if (c->reducer != NULL) {
            LS_TRY(ls_reducer_ready(c->reducer, i, NULL));
        }
    }
    sleep_until(env, begin_ns, timeline.forward_s + timeline.backward_s, factor);
    return c->reducer != NULL ? ls_reducer_wait(c->reducer) : LS_OK;
}

static ls_status step(const ls__bench_ddp *b, ls__bench_ddp_contender *c, bool synchronise,
                      double parts[BENCH_DDP_PARTS])
{
    const ls__env *env = ls__self.runtime->env;
    ls_reducer_stats stats = {.size = sizeof stats};
    const double share = noise > 0.0 ? -noise * log(draw((uint64_t)c->taken)) : 0.0;
    const double factor = (1.0 + share) / speed;
    uint64_t at[4] = {env->now_ns(env)};
    replayed *r = c->run;
    (void)b;
    if (r->reduced) {
        LS_TRY(ls_reducer_zero(c->reducer)); /* its time is a part of forward's */
    }
    sleep_until(env, at[0], timeline.forward_s, factor);
    at[1] = env->now_ns(env);
    LS_TRY(replay_backward(env, c, at[0], factor, synchronise));
    at[2] = env->now_ns(env);
    r->reduced = c->reducer != NULL && synchronise;
    if (r->reduced) {
        LS_TRY(ls_reducer_get_stats(c->reducer, &stats));
    }
    sleep_until(env, at[2], timeline.optimizer_s, 1.0 / speed);
    at[3] = env->now_ns(env);
    ls__bench_ddp_set_parts(parts, at, stats.comm_seconds, stats.exposed_seconds);
    return LS_OK;
}

int ls__bench_replay(int argc, char **argv)
{
    static const ls__bench_ddp_steps steps = {
        .check = check_memory, .open = open_contender, .step = step, .close = close_contender};
    int status = parse(argc, argv);
    given.of = &steps;
    status = status >= 0 ? status : ls__bench_ddp_measure(&given);
    json_decref(given.more);
    ls__timeline_free(&timeline);
    return status;
}
