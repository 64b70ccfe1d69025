/* SPDX-License-Identifier: Apache-2.0 */
/* The inter-operator program beside an exhaustive search that follows the definition: every chain
 * of stages, every shape of each. Times are small integers, so all sums are exact. */
#include "plan/inter.h"

#include <math.h>

#include "drawn.h"
#include "says.h"

#define DEVICES_MAX 8
#define CHAINS 10000

/* ---- chains ---------------------------------------------------------------------------------- */

typedef struct sample {
    ls__inter_spec spec;
    int shape[4];
    double cut[PARTS_MAX];
    ls__inter_cost cost[PARTS_MAX][PARTS_MAX + 1][4]; /* [first][end][shape] */
} sample;

static void cost_of(void *arg, int first, int end, int shape, ls__inter_cost *out)
{
    *out = ((const sample *)arg)->cost[first][end][shape];
}

/* Shapes of hosts, of powers of two, and of any number of devices. */
static void draw_shapes(sample *s)
{
    static const int sets[][4] = {{1, 2, 4, 8}, {1}, {2, 4, 8}, {1, 2, 3, 4}, {4}, {1, 3}, {2}};
    const int *set = sets[draw((int)(sizeof sets / sizeof *sets))];
    s->spec.shapes = 0;
    for (int i = 0; i < 4 && set[i] > 0 && set[i] <= s->spec.devices; i++) {
        s->shape[s->spec.shapes++] = set[i];
    }
    if (s->spec.shapes == 0) {
        s->shape[s->spec.shapes++] = s->spec.devices;
    }
    s->spec.shape = s->shape;
}

/* Work of parts over devices, so that plans are near each other; or any costs. */
static void draw_costs(sample *s, const int *work)
{
    const bool any = draw(3) == 0, turns = draw(3) == 0;
    for (int first = 0; first < s->spec.parts; first++) {
        int sum = 0;
        for (int end = first + 1; end <= s->spec.parts; end++) {
            sum += work[end - 1];
            for (int i = 0; i < s->spec.shapes; i++) {
                ls__inter_cost *c = &s->cost[first][end][i];
                const int n = s->shape[i], share = (sum + n - 1) / n;
                c->seconds = any ? draw(60) : turns ? sum : share + draw(3) * (n - 1);
                c->every = turns ? share : c->seconds;
                c->fixed = draw(20) * (end - first);
                c->kept = draw(10);
                if (draw(20) == 0) {
                    c->seconds = c->every = INFINITY;
                }
            }
        }
    }
}

static void draw_chain(sample *s)
{
    int work[PARTS_MAX];
    s->spec = (ls__inter_spec){.parts = 1 + draw(PARTS_MAX),
                               .devices = 1 + draw(DEVICES_MAX),
                               .micro_batches = 1 + draw(8) * draw(5),
                               .live = (ls__inter_live)draw(3),
                               .warm_up = 1 + draw(2),
                               .may_leave = draw(4) == 0,
                               .cut = s->cut,
                               .cost = cost_of,
                               .arg = s};
    const int dear = 1 + draw(2) * draw(20);
    draw_shapes(s);
    for (int i = 0; i < s->spec.parts; i++) {
        work[i] = draw(30);
        s->cut[i] = draw(dear);
    }
    draw_costs(s, work);
    s->spec.memory_bytes = draw(2) * (10.0 + draw(200));
    s->spec.stages = draw(4) == 0 ? 1 + draw(s->spec.parts) : 0;
}

/* ---- the definition -------------------------------------------------------------------------- */

typedef struct stages {
    int count, end[PARTS_MAX], shape[PARTS_MAX];
} stages;

static int held(const sample *s, int devices, int stages_after, int devices_after)
{
    const int m = s->spec.micro_batches;
    const int ahead = s->spec.warm_up * stages_after + 1;
    switch (s->spec.live) {
    case LS__LIVE_STAGES:
        return ahead < m ? ahead : m;
    case LS__LIVE_TURNS:
        return (int)ceil((double)(devices + devices_after) / devices);
    default:
        return m;
    }
}

/* INFINITY where a stage does not fit. */
static double time_of(const sample *s, const stages *p)
{
    double sum = 0.0, most = 0.0;
    int behind = 0;
    for (int i = p->count - 1; i >= 0; i--) {
        const int first = i > 0 ? p->end[i - 1] : 0, devices = s->shape[p->shape[i]];
        const ls__inter_cost *c = &s->cost[first][p->end[i]][p->shape[i]];
        const double cut = i + 1 < p->count ? s->cut[p->end[i] - 1] : 0.0;
        if (s->spec.memory_bytes > 0.0 &&
            c->fixed + held(s, devices, p->count - 1 - i, behind) * c->kept >
                s->spec.memory_bytes) {
            return INFINITY;
        }
        sum += c->seconds + cut;
        most = fmax(most, fmax(c->every, cut));
        behind += devices;
    }
    return sum + (s->spec.micro_batches - 1) * most;
}

/* Every end and every shape of the next stage, and after it everything. */
static double best_of(const sample *s, stages *p, int first, int devices)
{
    double best = INFINITY;
    if (first == s->spec.parts) {
        const bool counts = (devices == 0 || s->spec.may_leave) &&
                            (s->spec.stages == 0 || s->spec.stages == p->count);
        return counts ? time_of(s, p) : INFINITY;
    }
    for (int end = first + 1; end <= s->spec.parts; end++) {
        for (int shape = 0; shape < s->spec.shapes; shape++) {
            if (s->shape[shape] <= devices) {
                p->end[p->count] = end;
                p->shape[p->count++] = shape;
                best = fmin(best, best_of(s, p, end, devices - s->shape[shape]));
                p->count--;
            }
        }
    }
    return best;
}

/* ---- what is found --------------------------------------------------------------------------- */

static void check_plan(const sample *s, const ls__inter_plan *found, int i)
{
    stages p = {.count = found->stages};
    int devices = 0;
    CHECK(found->stages >= 1 && found->first[0] == 0);
    for (int k = 0; k < p.count; k++) {
        p.end[k] = k + 1 < p.count ? found->first[k + 1] : s->spec.parts;
        p.shape[k] = found->shape[k];
        CHECK(p.end[k] > found->first[k]);
        devices += s->shape[p.shape[k]];
    }
    CHECK(devices == found->devices && devices <= s->spec.devices);
    if (time_of(s, &p) != found->seconds) {
        test_fail(__FILE__, __LINE__, "chain %d: the plan takes %.17g, not %.17g", i,
                  time_of(s, &p), found->seconds);
    }
}

TEST(plans_are_those_of_an_exhaustive_search_on_10000_chains)
{
    static ls__inter_plan found;
    static sample s;
    int possible = 0, cut = 0, limited = 0;
    for (int i = 0; i < CHAINS; i++) {
        stages p = {0};
        draw_sample(i);
        draw_chain(&s);
        const double best = best_of(&s, &p, 0, s.spec.devices);
        const ls_status status = ls__inter_find(ls__env_posix(), &s.spec, &found);
        CHECK((status == LS_OK) == (best < INFINITY));
        if (status != LS_OK) {
            CHECK(status == LS_ERR_LIMIT);
            continue;
        }
        if (found.seconds != best) {
            test_fail(__FILE__, __LINE__, "chain %d: found %.17g, the best is %.17g", i,
                      found.seconds, best);
        }
        check_plan(&s, &found, i);
        possible++;
        cut += found.stages > 2;
        limited += s.spec.memory_bytes > 0.0;
    }
    CHECK(possible > CHAINS / 4 && cut > CHAINS / 20 && limited > CHAINS / 20);
}

/* ---- small cases by hand --------------------------------------------------------------------- */

/* A second for each part of 8 bytes, on any number of devices; each micro-batch keeps 1 byte. */
static void ones(void *arg, int first, int end, int shape, ls__inter_cost *out)
{
    (void)arg;
    (void)shape;
    const int parts = end - first;
    *out = (ls__inter_cost){parts, parts, 8.0 * parts, parts};
}

static const double nothing[8];
static const int one[] = {1};

static ls_status find(double memory, ls__inter_live live, int warm_up, ls__inter_plan *out)
{
    const ls__inter_spec spec = {.parts = 4,
                                 .devices = 2,
                                 .micro_batches = 8,
                                 .shapes = 1,
                                 .shape = one,
                                 .cut = nothing,
                                 .memory_bytes = memory,
                                 .live = live,
                                 .warm_up = warm_up,
                                 .cost = ones};
    return ls__inter_find(ls__env_posix(), &spec, out);
}

/* The first of two stages holds two micro-batches in 1f1b, three with a warm-up of 2, and eight in
 * gpipe. */
TEST(the_memory_counts_the_micro_batches_that_the_schedule_holds)
{
    static ls__inter_plan p;
    CHECK_OK(find(20.0, LS__LIVE_STAGES, 1, &p));
    CHECK(p.stages == 2 && p.first[1] == 2 && p.seconds == 4 + 7 * 2);
    CHECK_STATUS(find(20.0, LS__LIVE_STAGES, 2, &p), LS_ERR_LIMIT);
    CHECK_OK(find(22.0, LS__LIVE_STAGES, 2, &p));
    CHECK_STATUS(find(31.0, LS__LIVE_ALL, 1, &p), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(), SAYS("plan: no stages fit into %.0f bytes of each worker"));
    CHECK_OK(find(32.0, LS__LIVE_ALL, 1, &p));
}

TEST(more_stages_than_parts_are_refused)
{
    static ls__inter_plan p;
    const ls__inter_spec spec = {.parts = 4,
                                 .devices = 5,
                                 .micro_batches = 1,
                                 .shapes = 1,
                                 .shape = one,
                                 .stages = 5,
                                 .cut = nothing,
                                 .cost = ones};
    CHECK_STATUS(ls__inter_find(ls__env_posix(), &spec, &p), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(), SAYS("plan: %d parts are fewer than %d stages"));
}

TEST(without_memory_no_plan_is_found)
{
    static ls__inter_plan p;
    const ls__env env = env_without_memory();
    const ls__inter_spec spec = {.parts = 4,
                                 .devices = 2,
                                 .micro_batches = 1,
                                 .shapes = 1,
                                 .shape = one,
                                 .cut = nothing,
                                 .cost = ones};
    CHECK_STATUS(ls__inter_find(&env, &spec, &p), LS_ERR_MEMORY);
    CHECK_SAYS(ls_error_message(), SAYS("plan: no memory to find it"));
}

TEST_MAIN
