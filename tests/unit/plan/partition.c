/* SPDX-License-Identifier: Apache-2.0 */
/* The partitioner beside an exhaustive search that follows the definition: every chain of stages,
 * every number of replicas, on every level. Times are small integers, so all sums are exact. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "drawn.h"
#include "plan/partition.h"
#include "says.h"

#define CHAINS 10000

/* ---- chains ---------------------------------------------------------------------------------- */

/* A part's result, and the parts that take it. */
typedef struct edges {
    bool takes[PARTS_MAX][PARTS_MAX]; /* [from][to] */
    double bytes[PARTS_MAX];
} edges;

typedef struct sample {
    drawn_parts of;
    bool used_by[2][PARTS_MAX];
    ls__shared shared[2];
    ls__chain chain;
    edges edges;
    ls__partition_spec spec;
} sample;

/* Bytes that cross a cut behind part i: of every result that a later part takes, once. */
static double crossing(const sample *s, int i)
{
    double bytes = 0.0;
    for (int from = 0; from <= i; from++) {
        bool crosses = false;
        for (int to = i + 1; to < s->chain.parts; to++) {
            crosses = crosses || s->edges.takes[from][to];
        }
        bytes += crosses ? s->edges.bytes[from] : 0.0;
    }
    return bytes;
}

static void draw_shared(sample *s)
{
    s->chain.shared_count = draw(3);
    for (int k = 0; k < s->chain.shared_count; k++) {
        memset(s->used_by[k], 0, sizeof s->used_by[k]);
        s->used_by[k][draw(s->chain.parts)] = s->used_by[k][draw(s->chain.parts)] = true;
        s->shared[k] = (ls__shared){4.0 * draw(100), s->used_by[k]};
    }
    s->chain.shared = s->shared;
}

/* Chains with some skip connections; communication is dear, cheap, or in between. */
static void draw_chain(sample *s)
{
    const int parts = 1 + draw(PARTS_MAX - 1), dear = 1 << draw(8);
    memset(&s->edges, 0, sizeof s->edges);
    s->chain = chain_of(&s->of, parts);
    for (int i = 0; i < parts; i++) {
        s->of.compute[i] = 60.0 * draw(20);
        s->of.weights[i] = draw(3) > 0 ? 15.0 * draw(40) * dear : 0.0;
        s->of.kept[i] = draw(50);
        s->edges.bytes[i] = 60.0 * draw(6) * dear;
        for (int to = i + 1; to < parts; to++) {
            s->edges.takes[i][to] = to == i + 1 || draw(6) == 0;
        }
    }
    for (int i = 0; i < parts; i++) {
        s->of.forward[i] = crossing(s, i);
        s->of.backward[i] = draw(2) * s->of.forward[i];
    }
    draw_shared(s);
}

static const int shapes[][LS__LEVELS_MAX] = {{1},       {2},    {3},       {4},         {5},
                                             {6},       {2, 2}, {3, 2},    {2, 3},      {4, 2},
                                             {2, 2, 2}, {1, 3}, {3, 1, 2}, {1, 2, 1, 2}};

static void draw_levels(sample *s)
{
    const int *shape = shapes[draw((int)(sizeof shapes / sizeof *shapes))];
    s->spec = (ls__partition_spec){.kind = (ls__partition_kind)(draw(8) > 0 ? 0 : draw(3)),
                                   .copies = 4.0};
    double bandwidth = 256.0;
    for (int k = 0; k < LS__LEVELS_MAX && shape[k] > 0; k++) {
        s->spec.levels[s->spec.level_count++] = (ls__level){shape[k], bandwidth};
        bandwidth /= 1 << draw(4);
    }
    if (s->spec.level_count == 1 && draw(3) == 0) {
        s->spec.memory_bytes = 1.0 + draw(2000 * (1 + draw(8)));
    }
}

/* ---- the definition -------------------------------------------------------------------------- */

static double weights(const sample *s, int first, int end)
{
    double all = sum_of(s->of.weights, first, end);
    for (int k = 0; k < s->chain.shared_count; k++) {
        bool used = false;
        for (int i = first; i < end; i++) {
            used = used || s->used_by[k][i];
        }
        all += used ? s->shared[k].bytes : 0.0;
    }
    return all;
}

static double memory(const sample *s, int first, int end, int replicas, int behind)
{
    const int held = (int)ceil((double)(replicas + behind) / replicas);
    return s->spec.copies * weights(s, first, end) +
           held * (sum_of(s->of.kept, first, end) + (first > 0 ? s->of.forward[first - 1] : 0.0));
}

static double range(const sample *s, int level, int first, int end, int m);

static double stage(const sample *s, int level, int first, int end, int replicas, int behind)
{
    if (level == 0 && s->spec.memory_bytes > 0.0 &&
        memory(s, first, end, replicas, behind) > s->spec.memory_bytes) {
        return INFINITY;
    }
    const double compute = level == 0
                               ? sum_of(s->of.compute, first, end)
                               : range(s, level - 1, first, end, s->spec.levels[level - 1].count);
    const double bytes = 4.0 * (replicas - 1) * weights(s, first, end);
    return fmax(compute, bytes / (replicas * s->spec.levels[level].bandwidth)) / replicas;
}

/* Every first stage of every number of components, and behind it everything. */
static double range(const sample *s, int level, int first, int end, int m)
{
    double best = INFINITY;
    const ls__partition_kind kind = s->spec.kind;
    if (kind != LS__PARTITION_STRAIGHT || m == 1) {
        best = stage(s, level, first, end, m, 0);
    }
    for (int e = first + 1; e < end && kind != LS__PARTITION_DATA; e++) {
        for (int r = 1; r < (kind == LS__PARTITION_STRAIGHT ? 2 : m) && r < m; r++) {
            const double cut =
                (s->of.forward[e - 1] + s->of.backward[e - 1]) / s->spec.levels[level].bandwidth;
            best = fmin(best, fmax(fmax(stage(s, level, first, e, r, m - r), cut),
                                   range(s, level, e, end, m - r)));
        }
    }
    return best;
}

/* ---- what is found --------------------------------------------------------------------------- */

static int workers_of(const ls__partition_spec *spec)
{
    int all = 1;
    for (int k = 0; k < spec->level_count; k++) {
        all *= spec->levels[k].count;
    }
    return all;
}

/* All parts and all workers, once each; the times of the stages give the time that was promised. */
static void check_plan(const sample *s, const ls__partition *p)
{
    double most = 0.0;
    int part = 0, workers = 0;
    bool seen[LS__SCHEDULE_RANKS_MAX] = {false};
    for (int i = 0; i < p->stages; i++) {
        const ls__partition_stage *stage = &p->stage[i];
        CHECK(stage->first == part && stage->count > 0 && stage->replicas > 0);
        part += stage->count;
        workers += stage->replicas;
        CHECK(stage->compute == sum_of(s->of.compute, stage->first, part) / stage->replicas);
        CHECK(stage->weight_bytes == weights(s, stage->first, part));
        most = fmax(most, fmax(stage->compute, fmax(stage->all_reduce, stage->transfer)));
    }
    CHECK(part == s->chain.parts && workers == workers_of(&s->spec) && p->workers == workers);
    CHECK(p->stage[p->stages - 1].transfer == 0.0);
    CHECK(fabs(most - p->seconds) <= 1e-12 * p->seconds);
    for (int i = 0; i < workers; i++) {
        CHECK(p->worker[i] >= 0 && p->worker[i] < workers && !seen[p->worker[i]]);
        seen[p->worker[i]] = true;
    }
    for (int i = 0, behind = workers; i < p->stages; i++) {
        const ls__partition_stage *stage = &p->stage[i];
        behind -= stage->replicas;
        const double bytes =
            memory(s, stage->first, stage->first + stage->count, stage->replicas, behind);
        CHECK(stage->memory_bytes == bytes);
        CHECK(s->spec.memory_bytes == 0.0 || bytes <= s->spec.memory_bytes);
    }
}

TEST(plans_are_those_of_an_exhaustive_search_on_10000_chains)
{
    static ls__partition found;
    int possible = 0, leveled = 0, skipping = 0;
    for (int i = 0; i < CHAINS; i++) {
        sample s;
        draw_sample(i);
        draw_chain(&s);
        draw_levels(&s);
        const double best = range(&s, s.spec.level_count - 1, 0, s.chain.parts,
                                  s.spec.levels[s.spec.level_count - 1].count);
        const ls_status status = ls__partition_find(ls__env_posix(), &s.chain, &s.spec, &found);
        CHECK((status == LS_OK) == (best < INFINITY));
        if (status != LS_OK) {
            CHECK(s.spec.kind == LS__PARTITION_STRAIGHT || s.spec.memory_bytes > 0.0);
            continue;
        }
        if (fabs(found.seconds - best) > 1e-12 * best) { /* sums in another order */
            test_fail(__FILE__, __LINE__, "chain %d: found %.17g, the best is %.17g", i,
                      found.seconds, best);
        }
        check_plan(&s, &found);
        possible++;
        leveled += s.spec.level_count > 1;
        skipping += s.chain.parts > 3;
    }
    CHECK(possible > CHAINS * 3 / 4 && leveled > CHAINS / 3 && skipping > CHAINS / 3);
}

/* ---- small cases by hand --------------------------------------------------------------------- */

static const double ones[4] = {1, 1, 1, 1}, zeros[4] = {0, 0, 0, 0};

static ls__partition plan_of(const ls__chain *chain, const ls__partition_spec *spec)
{
    static ls__partition found;
    CHECK_OK(ls__partition_find(ls__env_posix(), chain, spec, &found));
    return found;
}

TEST(a_small_model_is_replicated_and_a_large_one_is_cut)
{
    const double heavy[4] = {1e6, 1e6, 1e6, 1e6};
    const ls__partition_spec spec = {.levels = {{2, 1e3}}, .level_count = 1};
    ls__chain chain = {4, ones, ones, ones, zeros, ones, NULL, 0};
    ls__partition p = plan_of(&chain, &spec);
    CHECK(p.stages == 1 && p.stage[0].replicas == 2 && p.seconds == 2.0);
    chain.weights = heavy;
    p = plan_of(&chain, &spec);
    CHECK(p.stages == 2 && p.stage[1].first == 2 && p.seconds == 2.0);
}

TEST(the_least_memory_is_found_where_no_plan_fits)
{
    static ls__partition p;
    const ls__chain chain = {4, ones, ones, ones, ones, ones, NULL, 0};
    ls__partition_spec spec = {.levels = {{2, 1e3}}, .level_count = 1, .copies = 2.0};
    spec.memory_bytes = 7.0;
    CHECK_STATUS(ls__partition_find(ls__env_posix(), &chain, &spec, &p), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(), SAYS("plan: no stages fit into %.0f bytes of each worker"));
    spec.kind = LS__PARTITION_SMALLEST;
    CHECK_OK(ls__partition_find(ls__env_posix(), &chain, &spec, &p));
    CHECK(p.seconds == 8.0); /* two parts: 2 x 2 of weights, 2 x 2 kept */
    spec.memory_bytes = p.seconds;
    spec.kind = LS__PARTITION_BEST;
    CHECK_OK(ls__partition_find(ls__env_posix(), &chain, &spec, &p));
}

/* Two hosts that repeat a pipeline of 3-1: micro-batches stay within a host. */
TEST(where_a_pipeline_is_repeated_its_replicas_take_turns)
{
    const double compute[2] = {3, 1}, weights[2] = {0, 8};
    const ls__chain chain = {2, compute, zeros, zeros, weights, zeros, NULL, 0};
    const ls__partition_spec spec = {.levels = {{4, 1e0}, {2, 1e1}}, .level_count = 2};
    const ls__partition p = plan_of(&chain, &spec);
    CHECK(p.stages == 2 && p.stage[0].replicas == 6 && p.stage[1].replicas == 2);
    static const int want[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    for (int i = 0; i < 8; i++) {
        CHECK_INT(p.worker[i], want[i]);
    }
    CHECK(p.seconds == 0.8); /* 16 bytes of two hosts at 10 bytes/s, for two micro-batches */
}

TEST(a_straight_pipeline_needs_a_part_for_each_worker)
{
    static ls__partition p;
    const ls__chain chain = {4, ones, ones, ones, ones, ones, NULL, 0};
    const ls__partition_spec spec = {
        .kind = LS__PARTITION_STRAIGHT, .levels = {{5, 1.0}}, .level_count = 1};
    CHECK_STATUS(ls__partition_find(ls__env_posix(), &chain, &spec, &p), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), SAYS("plan: %d parts are fewer than %d stages"));
}

TEST(without_memory_no_plan_is_found)
{
    static ls__partition p;
    const ls__env env = env_without_memory();
    const ls__chain chain = {4, ones, ones, ones, ones, ones, NULL, 0};
    const ls__partition_spec spec = {.levels = {{5, 1.0}}, .level_count = 1};
    CHECK_STATUS(ls__partition_find(&env, &chain, &spec, &p), LS_ERR_MEMORY);
    CHECK_SAYS(ls_error_message(), SAYS("plan: no memory to find it"));
}

TEST(memory_is_limited_on_one_level_only)
{
    static ls__partition p;
    const ls__chain chain = {4, ones, ones, ones, ones, ones, NULL, 0};
    const ls__partition_spec spec = {
        .levels = {{2, 1.0}, {2, 1.0}}, .level_count = 2, .memory_bytes = 1.0};
    CHECK_STATUS(ls__partition_find(ls__env_posix(), &chain, &spec, &p), LS_ERR_UNSUPPORTED);
}

TEST_MAIN
