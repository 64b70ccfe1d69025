/* Which division stays, with made-up times. */
#include "reduce/turns.h"

#include <string.h>

#include <lockstep/random.h>

#include "test.h"

enum { STEPS_MAX = LS__TRIED * 7 + LS__DIVISIONS * (7 + 17), TRIALS = 500 };

/* Seconds of backward number `step`, of which `of` were made with that division before. */
typedef float (*machine_fn)(int division, int step, int of, const float *seconds);

typedef struct outcome {
    int division, steps;
    double cost;
    char order[STEPS_MAX + 1]; /* a letter for each backward */
} outcome;

static outcome search(machine_fn machine, const float *seconds)
{
    ls__turns t;
    outcome o = {.steps = 0};
    int made[LS__DIVISIONS] = {0};
    ls__turns_start(&t);
    while (!t.settled && o.steps < STEPS_MAX) {
        const int d = t.division;
        CHECK(d >= 0 && d < LS__DIVISIONS && t.kept[d]);
        o.order[o.steps] = (char)('A' + d);
        if (ls__turns_took(&t, machine(d, o.steps++, made[d]++, seconds))) {
            ls__turns_choose(&t);
        }
    }
    CHECK(t.settled);
    o.division = t.division;
    o.cost = ls__turns_cost(&t);
    return o;
}

static float steady(int division, int step, int of, const float *seconds)
{
    (void)step, (void)of;
    return seconds[division];
}

/* Each step takes longer than the one before, at the end three times as long. */
static float slower_and_slower(int division, int step, int of, const float *seconds)
{
    (void)of;
    return seconds[division] * (1.0f + 2.0f * (float)step / STEPS_MAX);
}

/* Every now and then other work takes the cores for a few steps. */
static float disturbed(int division, int step, int of, const float *seconds)
{
    (void)of;
    return seconds[division] * (step % 29 < 4 ? 8.0f : 1.0f);
}

static float first_is_slow(int division, int step, int of, const float *seconds)
{
    (void)step;
    return seconds[division] * (of == 0 ? 1000.0f : 1.0f);
}

TEST(rounds_go_there_and_back)
{
    const float equal[LS__DIVISIONS] = {1, 1, 1, 1, 1};
    const outcome o = search(steady, equal);
    CHECK_INT(o.steps, STEPS_MAX);
    CHECK(strncmp(o.order,
                  "ABCCBAABCCBAABCCBAABC"
                  "ABCDEEDCBAABCDE",
                  36) == 0);
    int count[LS__DIVISIONS] = {0};
    for (int i = LS__TRIED * 7; i < o.steps; i++) {
        count[o.order[i] - 'A']++;
    }
    for (int d = 0; d < LS__DIVISIONS; d++) {
        CHECK_INT(count[d], 7 + 17);
    }
}

TEST(the_fastest_stays)
{
    const machine_fn machines[] = {steady, slower_and_slower, disturbed, first_is_slow};
    for (int trial = 0; trial < TRIALS; trial++) {
        float seconds[LS__DIVISIONS];
        const int fastest = trial % LS__DIVISIONS;
        for (int d = 0; d < LS__DIVISIONS; d++) {
            seconds[d] =
                1.02f + 0.4f * ls_random_uniform(test_seed(), (uint64_t)trial, (uint64_t)d);
        }
        seconds[fastest] = 1.0f;
        for (size_t m = 0; m < sizeof machines / sizeof *machines; m++) {
            const outcome o = search(machines[m], seconds);
            if (o.division != fastest) {
                test_fail(__FILE__, __LINE__, "trial %d, machine %zu: %c stays, the fastest is %c",
                          trial, m, 'A' + o.division, 'A' + fastest);
            }
        }
    }
}

/* Less than the noise is no reason to leave what the search predicts. */
TEST(a_division_that_was_searched_for_stays_unless_another_is_clearly_faster)
{
    const float hardly[LS__DIVISIONS] = {0.99f, 1, 1, 1, 1},
                clearly[LS__DIVISIONS] = {0.97f, 1, 1, 1, 1};
    CHECK_INT(search(steady, hardly).division, LS__TRIED);
    CHECK_INT(search(steady, clearly).division, 0);
}

TEST(clearly_slower_divisions_are_compared_no_further)
{
    const float one[LS__DIVISIONS] = {2, 2, 2, 2, 1}, two[LS__DIVISIONS] = {2, 1.01f, 2, 1, 2};
    outcome o = search(steady, one);
    CHECK_INT(o.division, 4);
    CHECK_INT(o.steps, LS__TRIED * 7 + LS__DIVISIONS * 7);
    o = search(steady, two);
    CHECK_INT(o.division, 3);
    CHECK_INT(o.steps, LS__TRIED * 7 + LS__DIVISIONS * 7 + 2 * 17);
    CHECK(strncmp(o.order + LS__TRIED * 7 + LS__DIVISIONS * 7, "BDDBBD", 6) == 0);
    /* 14 each with A and C, 7 with E, of 1 s more than D; B's 31 of 0.01 s more */
    CHECK_NEAR(o.cost, 28 + 7 + 31 * 0.01, 1e-4);
}

/* Times of 0, of a clock that is too coarse. */
TEST(times_of_zero_settle_too)
{
    const float none[LS__DIVISIONS] = {0};
    CHECK_INT(search(steady, none).division, LS__TRIED);
}

TEST_MAIN
