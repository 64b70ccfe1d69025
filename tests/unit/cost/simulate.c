/* SPDX-License-Identifier: Apache-2.0 */
/* Simulations whose result can be computed by hand, or by the papers' formulas. Times are whole
 * numbers, so that sums are exact, and the error allowed is zero. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/env_posix.h"
#include "base/splitmix64.h"
#include "cost/simulate.h"
#include "test.h"

#define STAGES_MAX 512

static ls__schedule *schedule_of(const char *name, ls__schedule_spec spec)
{
    ls__schedule *s = NULL;
    CHECK_OK(ls__schedule_new(ls__env_posix(), name, &spec, &s));
    return s;
}

static ls__sim_result simulate(ls__schedule *s, ls__stage_times t, ls__sim_spec spec)
{
    static ls__stage_times times[STAGES_MAX];
    ls__sim_result result;
    for (int i = 0; i < s->stages; i++) {
        times[i] = t;
    }
    spec.times = times;
    CHECK_OK(ls__simulate(s, &spec, &result));
    return result;
}

/* ---- closed forms ---------------------------------------------------------------------------- */

static double makespan(const char *name, ls__schedule_spec spec, double latency)
{
    ls__schedule *s = schedule_of(name, spec);
    const double all =
        simulate(s, (ls__stage_times){1, 2, 1, 1}, (ls__sim_spec){.latency = latency}).makespan;
    ls__schedule_free(s);
    return all;
}

/* Returns whether there is a formula. */
static int check_form(const char *name, ls__schedule_spec spec, double latency)
{
    static const ls__stage_times t = {10, 21, 12, 9};
    ls__schedule *s = schedule_of(name, spec);
    ls__closed_form form;
    ls__schedule_closed_form(s, &t, latency, &form);
    const ls__sim_result found = simulate(s, t, (ls__sim_spec){.latency = latency});
    if (form.bubble >= 0.0 && (found.makespan != form.makespan || found.bubble != form.bubble)) {
        test_fail(__FILE__, __LINE__,
                  "%s P=%d M=%d c=%g: makespan %g, bubble %g; by the form %g, %g", name, s->ranks,
                  s->micro_batches, latency, found.makespan, found.bubble, form.makespan,
                  form.bubble);
    }
    ls__schedule_free(s);
    return form.bubble >= 0.0;
}

static int check_forms(ls__schedule_spec spec)
{
    int known = 0;
    for (int latency = 0; latency <= 30; latency += 15) {
        spec.warm_up = 0;
        known += check_form("naive", spec, latency);
        known += check_form("gpipe", spec, latency);
        known += check_form("1f1b", spec, latency);
        known += check_form("zb-h1", spec, latency);
        known += check_form("pipedream", spec, latency);
        if (spec.micro_batches % spec.ranks == 0 && spec.ranks <= 32) {
            known += check_form("interleaved", spec, latency);
        }
        spec.warm_up = 2;
        known += check_form("1f1b", spec, latency);
    }
    return known;
}

/* With TEST_LONG all of them. */
TEST(schedules_of_2_to_64_ranks_and_1_to_256_micro_batches_take_the_time_of_the_formulas)
{
    static const int ranks[] = {2, 3, 5, 8, 13, 32, 64}, batches[] = {1, 2, 3, 7, 32, 65, 255, 256};
    int known = 0;
    if (getenv("TEST_LONG") != NULL) {
        for (int p = 2; p <= 64; p++) {
            for (int m = 1; m <= 256; m += 5) {
                known += check_forms((ls__schedule_spec){.ranks = p, .micro_batches = m});
            }
        }
    }
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        for (size_t k = 0; k < sizeof batches / sizeof *batches; k++) {
            known +=
                check_forms((ls__schedule_spec){.ranks = ranks[i], .micro_batches = batches[k]});
        }
    }
    CHECK(known > 700);
}

TEST(latency_adds_to_1f1b_for_every_p_micro_batches_and_to_the_eager_one_once)
{
    const double c = 0.25;
    for (int p = 2; p <= 64; p *= 2) {
        for (int m = p; m <= 256; m += p) {
            const ls__schedule_spec plain = {.ranks = p, .micro_batches = m},
                                    eager = {.ranks = p, .micro_batches = m, .warm_up = 2};
            CHECK(makespan("1f1b", plain, c) - makespan("1f1b", plain, 0) ==
                  2 * c * ((p - 1) * (m / p) + p - 2));
            CHECK(makespan("1f1b", eager, c) - makespan("1f1b", eager, 0) == 2 * c * (p - 1));
        }
    }
}

/* ---- shares ---------------------------------------------------------------------------------- */

/* Forwards of rank 1 of a gpipe with two micro-batches, whose activations have 4 bytes. */
static void check_forwards(const ls__sim_resource *links, ls__sim_route route, double first,
                           double second)
{
    ls__schedule *s = schedule_of("gpipe", (ls__schedule_spec){.ranks = 2, .micro_batches = 2});
    const ls__sim_route none = {.resource = {LS__SIM_NONE, LS__SIM_NONE}, .weight = 1.0};
    const ls__sim_route activation[] = {route, none}, gradient[] = {none, none};
    const ls__sim_result found = simulate(s, (ls__stage_times){1, 1, 1, 0},
                                          (ls__sim_spec){.activation = activation,
                                                         .gradient = gradient,
                                                         .resources = links,
                                                         .resource_count = 2});
    double begin[2];
    for (int i = 0; i < s->rank[1].count; i++) {
        const ls__action *a = &s->rank[1].list[i];
        if (a->kind == LS__FORWARD) {
            begin[a->micro_batch] = found.begin[1][i];
        }
    }
    CHECK_NEAR(begin[0], first, 0.0);
    CHECK_NEAR(begin[1], second, 0.0);
    ls__schedule_free(s);
}

/* The first message begins at 1, the second at 2, when half of the first has arrived: they share
 * the link until 4. */
TEST(messages_share_a_link_evenly)
{
    const ls__sim_resource links[2] = {{2.0, INFINITY}, {8.0, INFINITY}};
    const ls__sim_route route = {.resource = {0, LS__SIM_NONE}, .bytes = 4.0, .weight = 1.0};
    check_forwards(links, route, 4.0, 5.0);
}

TEST(the_slower_of_two_links_counts)
{
    const ls__sim_resource links[2] = {{INFINITY, INFINITY}, {4.0, INFINITY}};
    const ls__sim_route route = {.resource = {0, 1}, .bytes = 4.0, .weight = 1.0};
    check_forwards(links, route, 2.0, 3.0);
}

/* A collapsed rank stands for two, so the link gives each half. */
TEST(equal_ranks_share_a_link)
{
    const ls__sim_resource links[2] = {{4.0, INFINITY}, {8.0, INFINITY}};
    const ls__sim_route route = {.resource = {0, LS__SIM_NONE}, .bytes = 4.0, .weight = 2.0};
    check_forwards(links, route, 4.0, 5.0);
}

TEST(a_link_gives_one_message_no_more_than_each_may_have)
{
    const ls__sim_resource links[2] = {{4.0, 2.0}, {8.0, INFINITY}};
    const ls__sim_route route = {
        .resource = {0, LS__SIM_NONE}, .bytes = 4.0, .weight = 1.0, .latency = 1.0};
    check_forwards(links, route, 4.0, 5.0); /* both at 2 bytes a second, and a second more */
}

/* Two ranks of one core: what they compute at the same time takes twice as long. */
TEST(ranks_share_the_cores_of_their_host)
{
    ls__schedule *s = schedule_of("gpipe", (ls__schedule_spec){.ranks = 2, .micro_batches = 2});
    const int processor[] = {0, 0};
    const double sharing[] = {1.0, 1.0};
    const ls__sim_resource core[] = {{1.0, 1.0}};
    const ls__stage_times t = {2, 2, 2, 0};
    ls__sim_spec spec = {
        .processor = processor, .sharing = sharing, .resources = core, .resource_count = 1};
    const ls__sim_result one = simulate(s, t, spec);
    CHECK_NEAR(one.makespan, 16.0, 0.0); /* all the work, one after the other */
    const ls__sim_resource cores[] = {{2.0, 1.0}};
    spec.resources = cores;
    CHECK_NEAR(simulate(s, t, spec).makespan, 12.0, 0.0);
    const ls__sim_resource many[] = {{8.0, 1.0}};
    spec.resources = many;
    CHECK_NEAR(simulate(s, t, spec).makespan, 12.0, 0.0); /* a rank uses one at most */
    ls__schedule_free(s);
}

/* ---- reductions ------------------------------------------------------------------------------ */

static ls__sim_reduction reduction(int stage, double after, double seconds)
{
    return (ls__sim_reduction){
        stage, after, {.resource = {LS__SIM_NONE, LS__SIM_NONE}, .latency = seconds}};
}

/* Backward is from 1 to 3: the first begins at 2 and takes 3; the second, ready at 3, follows. */
TEST(reductions_of_a_stage_follow_each_other_beside_its_last_backward)
{
    ls__schedule *s = schedule_of("1f1b", (ls__schedule_spec){.ranks = 1, .micro_batches = 1});
    const ls__sim_reduction reductions[] = {reduction(0, 0.5, 3.0), reduction(0, 1.0, 1.0)};
    const ls__sim_result found =
        simulate(s, (ls__stage_times){1, 2, 1, 1},
                 (ls__sim_spec){.reductions = reductions, .reduction_count = 2, .records = true});
    CHECK_NEAR(found.makespan, 3.0, 0.0);
    CHECK_NEAR(found.reduced, 6.0, 0.0);
    CHECK_INT(found.span_count, 2);
    CHECK(found.spans[0].begin == 2.0 && found.spans[0].end == 5.0);
    CHECK(found.spans[1].begin == 5.0 && found.spans[1].end == 6.0);
    ls__schedule_free(s);
}

/* Two replicas with three micro-batches: the first one's last backward ends at 6, the second's at
 * 3. */
TEST(a_reduction_waits_for_all_replicas)
{
    ls__schedule *s =
        schedule_of("gpipe", (ls__schedule_spec){.replicas = "2", .micro_batches = 3});
    const ls__sim_reduction reductions[] = {reduction(0, 1.0, 1.0)};
    const ls__sim_result found =
        simulate(s, (ls__stage_times){1, 2, 1, 1},
                 (ls__sim_spec){.reductions = reductions, .reduction_count = 1});
    CHECK_NEAR(found.reduced, 7.0, 0.0);
    ls__schedule_free(s);
}

/* ---- nothing shared -------------------------------------------------------------------------- */

#define SAMPLES 300

static uint64_t state;

/* 0 … below - 1. */
static int draw(int below)
{
    const uint64_t z = ls__splitmix64(state);
    state += LS__SPLITMIX64_GAMMA;
    return (int)(z % (uint64_t)below);
}

typedef struct sample {
    ls__schedule *s;
    ls__stage_times times[STAGES_MAX];
    ls__sim_route activation[STAGES_MAX], gradient[STAGES_MAX];
    ls__sim_reduction reductions[3 * STAGES_MAX];
    int processor[STAGES_MAX];
    double sharing[STAGES_MAX];
    ls__sim_spec spec;
} sample;

/* Over a link of 1 byte a second or none; with `shared`, all over the same link. */
static ls__sim_route draw_route(bool shared)
{
    return (ls__sim_route){.resource = {shared ? draw(2) : LS__SIM_NONE, LS__SIM_NONE},
                           .bytes = draw(8),
                           .weight = 1 + draw(2),
                           .latency = draw(4),
                           .processor = 2,
                           .cores = shared ? 0.5 * draw(2) : 0.0,
                           .moved = 1.0};
}

static void draw_stage(sample *d, int stage, bool shared)
{
    const double whole = 1 + draw(9), half = draw((int)whole + 1);
    d->times[stage] = (ls__stage_times){1 + draw(9), whole, half, whole - half};
    d->activation[stage] = draw_route(shared);
    d->gradient[stage] = draw_route(shared);
    d->processor[stage] = 2;
    d->sharing[stage] = 1 + draw(2);
    for (int k = draw(4); k > 0; k--) {
        d->reductions[d->spec.reduction_count++] =
            (ls__sim_reduction){stage, 1.0 - k / 4.0, draw_route(shared)};
    }
}

/* All times are multiples of 1/8, so sums are exact. */
static void draw_sample(sample *d, int i, bool shared)
{
    static const ls__sim_resource resources[] = {{1.0, INFINITY}, {2.0, INFINITY}, {2.0, 1.0}};
    static const char *const names[] = {"naive", "gpipe", "1f1b", "zb-h1", "interleaved"};
    const char *name = names[i % 5];
    const bool again = strcmp(name, "gpipe") == 0 && i % 2 == 0;
    state = test_seed() * 1000003 + (uint64_t)i;
    const int ranks = 1 + draw(6);
    *d = (sample){.s = schedule_of(name, (ls__schedule_spec){.ranks = ranks,
                                                             .micro_batches = ranks * (1 + draw(4)),
                                                             .recompute = again})};
    for (int stage = 0; stage < d->s->stages; stage++) {
        draw_stage(d, stage, shared);
    }
    d->spec.times = d->times;
    d->spec.activation = d->activation;
    d->spec.gradient = d->gradient;
    d->spec.resources = resources;
    d->spec.resource_count = 3;
    d->spec.processor = shared && i % 3 == 0 ? d->processor : NULL;
    d->spec.sharing = d->sharing;
    d->spec.reductions = d->reductions;
}

/* The end by events, and where nothing is shared. */
static void end_of(sample *d, double *events, double *alone)
{
    ls__sim_result found;
    CHECK_OK(ls__simulate_alone(d->s, &d->spec, alone));
    CHECK_OK(ls__simulate(d->s, &d->spec, &found));
    *events = fmax(found.makespan, found.reduced);
    ls__schedule_free(d->s);
}

TEST(where_nothing_is_shared_the_end_follows_without_events)
{
    static sample d;
    double events, alone;
    for (int i = 0; i < SAMPLES; i++) {
        draw_sample(&d, i, false);
        end_of(&d, &events, &alone);
        if (events != alone) {
            test_fail(__FILE__, __LINE__, "sample %d: %g, by events %g", i, alone, events);
        }
    }
}

TEST(where_something_is_shared_it_ends_no_earlier)
{
    static sample d;
    double events, alone;
    int later = 0;
    for (int i = 0; i < SAMPLES; i++) {
        draw_sample(&d, i, true);
        end_of(&d, &events, &alone);
        CHECK(alone <= events * (1.0 + 1e-12));
        later += alone < events * (1.0 - 1e-12);
    }
    CHECK(later > SAMPLES / 4 && later < SAMPLES);
}

TEST(replicas_take_turns_without_events_as_well)
{
    ls__schedule *s = schedule_of(
        "1f1b", (ls__schedule_spec){.ranks = 4, .replicas = "2,1,1", .micro_batches = 7});
    static const ls__stage_times times[] = {{3, 5, 2, 3}, {1, 2, 1, 1}, {2, 2, 1, 1}};
    const ls__sim_reduction reductions[] = {reduction(0, 0.5, 3.0), reduction(0, 1.0, 1.0)};
    const ls__sim_spec spec = {
        .times = times, .latency = 1.0, .reductions = reductions, .reduction_count = 2};
    ls__sim_result found;
    double alone;
    CHECK_OK(ls__simulate_alone(s, &spec, &alone));
    CHECK_OK(ls__simulate(s, &spec, &found));
    CHECK_NEAR(alone, fmax(found.makespan, found.reduced), 0.0);
    ls__schedule_free(s);
}

TEST_MAIN
