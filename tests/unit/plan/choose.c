/* SPDX-License-Identifier: Apache-2.0 */
/* The plan that is written is not slower, in the schedule that it names, than one that is left. */
#include "plan/choose.h"

#include <math.h>

#include "drawn.h"

#define PROFILES 200

typedef struct sample {
    ls__profile_part part[PARTS_MAX];
    ls__profile profile;
    drawn_parts of;
    ls__chain chain;
    ls__partition_spec spec;
} sample;

/* Milliseconds, megabytes, and a link that is slow, fast or in between. */
static void draw_profile(sample *s)
{
    const int parts = 1 + draw(PARTS_MAX - 1);
    for (int i = 0; i < parts; i++) {
        const double forward = 1e-3 * (1 + draw(20)), input = 1e-3 * draw(20),
                     weight = 1e-3 * draw(20);
        s->part[i] = (ls__profile_part){.forward = forward, .input = input, .weight = weight};
        s->of.compute[i] = forward + input + weight;
        s->of.forward[i] = s->of.backward[i] = 1e6 * draw(20);
        s->of.weights[i] = draw(3) > 0 ? 1e6 * draw(40) : 0.0;
        s->of.kept[i] = 1e6 * draw(30);
    }
    s->profile = (ls__profile){.parts = s->part, .part_count = parts};
    s->chain = chain_of(&s->of, parts);
    s->spec = (ls__partition_spec){.levels = {{1 + draw(5), 1e7 * (1 << draw(12))}, {2, 1e8}},
                                   .level_count = 1 + (draw(5) == 0),
                                   .copies = 4.0};
    if (s->spec.level_count == 1 && draw(3) == 0) {
        s->spec.memory_bytes = 1e8 * (1 + draw(8));
    }
}

static double one_worker(const sample *s)
{
    return sum_of(s->of.compute, 0, s->chain.parts);
}

static void check_choice(const sample *s, const ls__plan_choice *c, int i)
{
    double step = 0.0;
    for (int k = 0; k < LS__PLAN_CANDIDATES; k++) {
        if (c->candidate[k].exists && c->best.step > c->candidate[k].step * (1 + 1e-9)) {
            test_fail(__FILE__, __LINE__, "profile %d: candidate %d takes %g s, the plan %g s", i,
                      k, c->candidate[k].step, c->best.step);
        }
    }
    if (s->spec.memory_bytes == 0.0 &&
        c->best.step > one_worker(s) * c->micro_batches * (1 + 1e-9)) {
        test_fail(__FILE__, __LINE__, "profile %d: one worker takes %g s, the plan %g s", i,
                  one_worker(s) * c->micro_batches, c->best.step);
    }
    CHECK_OK(ls__plan_step(ls__env_posix(), &s->profile, &s->chain, &c->best.partition,
                           c->micro_batches, &step));
    CHECK(step == c->best.step);
    for (int k = 0; k < c->best.partition.stages && s->spec.memory_bytes > 0.0; k++) {
        CHECK(c->best.partition.stage[k].memory_bytes <= s->spec.memory_bytes);
    }
}

TEST(no_row_of_the_table_is_faster_than_the_plan)
{
    static ls__plan_choice choice;
    static sample s;
    int chosen[LS__PLAN_CANDIDATES] = {0}, fewer = 0, possible = 0;
    for (int i = 0; i < PROFILES; i++) {
        draw_sample(i);
        draw_profile(&s);
        if (ls__plan_choose(ls__env_posix(), &s.profile, &s.chain, &s.spec, draw(2) * 8, &choice) ==
            LS_OK) {
            check_choice(&s, &choice, i);
            possible++;
            chosen[choice.kind]++;
            fewer += choice.best.partition.workers < s.spec.levels[0].count;
        }
    }
    CHECK(possible > PROFILES / 2 && fewer > 0);
    CHECK(chosen[LS__PLAN_CANDIDATE_DATA] > 0 && chosen[LS__PLAN_CANDIDATE_FLUSH] > 0);
}

TEST_MAIN
