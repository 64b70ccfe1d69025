/* SPDX-License-Identifier: Apache-2.0 */
/* Times of the tables beside the papers' formulas. All times are whole numbers, so that the sums
 * are exact, and the error allowed is zero. */
#include <stdio.h>

#include "cost/simulate.h"
#include "tables.h"

#define RANKS_MAX 8
#define MICRO_BATCHES_MAX 64

static const ls__stage_times times_tried[] = {
    {1, 2, 1, 1}, {2, 4, 2, 2}, {10, 21, 12, 9}, {3, 3, 2, 1}, {1, 5, 4, 1}, {7, 2, 1, 1},
};
#define TIMES (sizeof times_tried / sizeof *times_tried)

static void uniform(ls__stage_times *out, int stages, ls__stage_times t)
{
    for (int i = 0; i < stages; i++) {
        out[i] = t;
    }
}

/* Returns whether there is a formula. */
static bool check_cost(ls__schedule *s, ls__stage_times t, double latency)
{
    ls__stage_times times[RANKS_MAX * 4];
    ls__sim_result cost;
    ls__closed_form formula;
    uniform(times, s->stages, t);
    CHECK_OK(ls__simulate(s, &(ls__sim_spec){.times = times, .latency = latency}, &cost));
    ls__schedule_closed_form(s, &t, latency, &formula);
    if (formula.bubble < 0.0) {
        return false;
    }
    if (cost.makespan != formula.makespan || cost.bubble != formula.bubble) {
        test_fail(
            __FILE__, __LINE__,
            "%s P=%d M=%d F=%g B=%g I=%g W=%g c=%g: makespan %g, bubble %g; by the formula %g, "
            "%g",
            s->name, s->ranks, s->micro_batches, t.forward, t.backward, t.input, t.weight, latency,
            cost.makespan, cost.bubble, formula.makespan, formula.bubble);
    }
    return true;
}

/* Of all sizes and times; returns how many had a formula. */
static int check_all_of(const char *name, int chunks, bool recompute, double latency, int warm_up)
{
    int known = 0;
    for (int p = 2; p <= RANKS_MAX; p++) {
        const int multiple = strcmp(name, "interleaved") == 0 || strcmp(name, "pipedream-2bw") == 0;
        for (int m = multiple ? p : 1; m <= MICRO_BATCHES_MAX; m += multiple ? p : 1) {
            const ls__schedule_spec spec = {.ranks = p,
                                            .micro_batches = m,
                                            .chunks = chunks,
                                            .recompute = recompute,
                                            .warm_up = warm_up};
            ls__schedule *s = table_of(name, &spec);
            for (size_t i = 0; i < TIMES; i++) {
                known += check_cost(s, times_tried[i], latency);
            }
            ls__schedule_free(s);
        }
    }
    return known;
}

static int check_all(const char *name, int chunks, bool recompute, double latency)
{
    return check_all_of(name, chunks, recompute, latency, 0);
}

#define ALL (7 * MICRO_BATCHES_MAX * (int)TIMES)

TEST(flushing_schedules_take_the_time_of_the_formulas)
{
    for (int recompute = 0; recompute < 2; recompute++) {
        CHECK_INT(check_all("naive", 1, recompute, 0), ALL);
        CHECK_INT(check_all("gpipe", 1, recompute, 0), ALL);
    }
    CHECK_INT(check_all("1f1b", 1, false, 0), ALL);
}

TEST(latency_costs_what_the_formulas_say)
{
    CHECK_INT(check_all("naive", 1, false, 3), ALL);
    CHECK_INT(check_all("gpipe", 1, true, 3), ALL);
    CHECK_INT(check_all("1f1b", 1, false, 1), ALL);
    CHECK_INT(check_all("1f1b", 1, false, 30), ALL);
}

/* Up to (w-1)(F+B)/2, which is 1.5 with w = 2 for the shortest of the times, and 3 for the next
 * ones. */
TEST(forwards_ahead_hide_latency)
{
    CHECK_INT(check_all_of("1f1b", 1, false, 0, 2), ALL);
    CHECK_INT(check_all_of("1f1b", 1, false, 1.5, 2), ALL);
    CHECK_INT(check_all_of("1f1b", 1, false, 3, 2), ALL - ALL / (int)TIMES);
    CHECK_INT(check_all_of("1f1b", 1, false, 3, 3), ALL);
}

TEST(interleaved_takes_the_time_of_the_formula)
{
    for (int chunks = 1; chunks <= 4; chunks++) {
        CHECK(check_all("interleaved", chunks, false, 0) > 600);
    }
}

/* Of M >= P only, and of weight parts no longer than input parts. */
TEST(zb_h1_takes_the_time_of_the_formula)
{
    CHECK_INT(check_all("zb-h1", 1, false, 0), ALL - (1 + 2 + 3 + 4 + 5 + 6 + 7) * (int)TIMES);
}

/* Without a flush the time is that of one 1f1b over all micro-batches. */
TEST(asynchronous_schedules_take_the_time_of_the_formulas)
{
    CHECK_INT(check_all("pipedream", 1, false, 0), ALL);
    CHECK_INT(check_all("pipedream", 1, false, 2), ALL);
    CHECK(check_all("pipedream-2bw", 1, false, 0) > 600);
}

TEST(between_stages_of_one_rank_there_is_no_latency)
{
    ls__sim_result cost;
    ls__stage_times times[3];
    const ls__schedule_spec spec = {.ranks = 1, .micro_batches = 4, .chunks = 3};
    ls__schedule *s = table_of("interleaved", &spec);
    uniform(times, 3, (ls__stage_times){1, 2, 1, 1});
    CHECK_OK(ls__simulate(s, &(ls__sim_spec){.times = times, .latency = 100}, &cost));
    CHECK(cost.makespan == 36.0 && cost.bubble == 0.0);
    ls__schedule_free(s);
}

/* Ranks are looked at in their order, which is not that of the stages here. */
TEST(a_stage_waits_for_one_on_a_later_rank)
{
    ls__sim_result cost;
    ls__stage_times times[2];
    ls__schedule *s = table_parsed("schedule x\nranks 2\nstages 2\nmicro-batches 1\nplacement 1 0\n"
                                   "rank 1: 0F0 0SEND_F0>0 0RECV_B0<0 0B0 0REDUCE 0STEP@1\n"
                                   "rank 0: 1RECV_F0<1 1F0 1B0 1SEND_B0>1 1REDUCE 1STEP@1\n");
    CHECK_OK(ls__schedule_verify(s));
    uniform(times, 2, (ls__stage_times){1, 2, 1, 1});
    CHECK_OK(ls__simulate(s, &(ls__sim_spec){.times = times}, &cost));
    CHECK(cost.begin[0][1] == 1.0 && cost.makespan == 6.0);
    ls__schedule_free(s);
}

static double makespan_of(const char *name, int p, int m, const ls__stage_times *times)
{
    ls__sim_result cost;
    const ls__schedule_spec spec = {.ranks = p, .micro_batches = m};
    ls__schedule *s = table_of(name, &spec);
    CHECK_OK(ls__simulate(s, &(ls__sim_spec){.times = times}, &cost));
    const double makespan = cost.makespan;
    ls__schedule_free(s);
    return makespan;
}

/* PipeDream, section 3.1: the slowest stage alone decides. */
TEST(in_the_steady_state_of_pipedream_a_micro_batch_takes_the_time_of_the_slowest_stage)
{
    for (int p = 2; p <= RANKS_MAX; p++) {
        for (int slow = 0; slow < p; slow++) {
            ls__stage_times times[RANKS_MAX];
            uniform(times, p, (ls__stage_times){2, 4, 2, 2});
            times[slow] = (ls__stage_times){3, 5, 2, 3};
            const double more = makespan_of("pipedream", p, MICRO_BATCHES_MAX, times) -
                                makespan_of("pipedream", p, MICRO_BATCHES_MAX / 2, times);
            CHECK(more == 8.0 * MICRO_BATCHES_MAX / 2);
        }
    }
}

/* The makespan of more micro-batches, when a stage with r replicas takes r times as long as one
 * without. */
static double makespan_with(const char *name, const char *replicas, int m)
{
    ls__sim_result cost;
    ls__stage_times times[RANKS_MAX];
    const ls__schedule_spec spec = {.replicas = replicas, .micro_batches = m};
    ls__schedule *s = table_of(name, &spec);
    for (int i = 0; i < s->stages; i++) {
        times[i] = (ls__stage_times){s->replicas[i], 2 * s->replicas[i], 1, 1};
    }
    CHECK_OK(ls__simulate(s, &(ls__sim_spec){.times = times}, &cost));
    const double makespan = cost.makespan;
    ls__schedule_free(s);
    return makespan;
}

/* PipeDream, section 3.1: replicas raise the throughput of their stage. (1f1b of 1,3,2 does not
 * reach it: its replicas wait for each other's turns.) */
TEST(a_stage_with_r_replicas_has_r_times_the_throughput)
{
    static const char *const all[] = {"2", "2,1", "1,2", "2,1,1", "3,2", "2,2", "1,1,2", "1,8"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK(makespan_with("1f1b", all[i], 48) - makespan_with("1f1b", all[i], 24) == 24.0 * 3);
        CHECK(makespan_with("gpipe", all[i], 48) - makespan_with("gpipe", all[i], 24) == 24.0 * 3);
    }
    CHECK(makespan_with("gpipe", "1,3,2", 48) - makespan_with("gpipe", "1,3,2", 24) == 24.0 * 3);
}

/* The last rank of an asynchronous schedule computes without a pause. */
TEST(begins_of_actions_follow_each_other)
{
    ls__sim_result cost;
    ls__stage_times times[4];
    const ls__schedule_spec spec = {.ranks = 4, .micro_batches = 8};
    ls__schedule *s = table_of("pipedream", &spec);
    uniform(times, 4, (ls__stage_times){1, 2, 1, 1});
    CHECK_OK(ls__simulate(s, &(ls__sim_spec){.times = times}, &cost));
    double end = 3.0; /* the fill */
    for (int i = 0; i < s->rank[3].count; i++) {
        const ls__action *a = &s->rank[3].list[i];
        if (ls__action_time(a, &times[3]) > 0.0) {
            CHECK(cost.begin[3][i] == end);
            end += ls__action_time(a, &times[3]);
        }
    }
    CHECK(end == 27.0 && cost.busy[3] == 24.0 && cost.makespan == 33.0);
    ls__schedule_free(s);
}

TEST_MAIN
