/* SPDX-License-Identifier: Apache-2.0 */
/* The prediction of a step beside sums by hand: two stages, one of them replicated, and how many
 * micro-batches a plan asks for. All numbers are small powers of two or sums of them: exact. */
#include "plan/predict.h"
#include "base/env_posix.h"
#include "test.h"

/* Two parts, each a stage: forward 1 and 2 s, backward 3 and 5 s, and a cut of 8 bytes forward and
 * 4 backward, over which a byte takes 1/8 s. */
static double step_of(int micro_batches, double sum_seconds)
{
    ls__profile_part parts[2] = {{.forward = 1.0, .input = 1.0, .weight = 2.0},
                                 {.forward = 2.0, .input = 2.0, .weight = 3.0}};
    const ls__profile profile = {.parts = parts, .part_count = 2};
    const double forward[2] = {8.0, 0.0}, backward[2] = {4.0, 0.0};
    const ls__chain chain = {.parts = 2, .forward = forward, .backward = backward};
    ls__partition p = {.workers = 2, .stages = 2};
    p.stage[0] = (ls__partition_stage){
        .first = 0, .count = 1, .replicas = 1, .bandwidth = 8.0, .sum_seconds = sum_seconds};
    p.stage[1] = (ls__partition_stage){.first = 1, .count = 1, .replicas = 1};
    double seconds = 0.0;
    CHECK_OK(ls__plan_step(ls__env_posix(), &profile, &chain, &p, micro_batches, &seconds));
    return seconds;
}

/* forward 1, the cut 1, forward 2, backward 5, the cut 1, backward 3. */
TEST(one_micro_batch_goes_there_and_back_over_the_cut)
{
    CHECK_NEAR(step_of(1, 0.0), 1 + 1 + 2 + 5 + 0.5 + 3, 0.0);
}

/* The second stage is never idle between them: 2 + 5 more for each. */
TEST(each_further_micro_batch_adds_what_the_slowest_stage_takes)
{
    CHECK_NEAR(step_of(2, 0.0), 12.5 + 7, 0.0);
    CHECK_NEAR(step_of(3, 0.0), 12.5 + 14, 0.0);
}

/* The last backward begins at 9.5 and takes 3; half of the sum runs beside it. */
TEST(the_sum_over_replicas_counts_where_it_outlasts_the_last_backward)
{
    CHECK_NEAR(step_of(1, 6.0), 12.5, 0.0);
    CHECK_NEAR(step_of(1, 20.0), 9.5 + 10, 0.0);
}

static int micro_batches_of(int first, int second)
{
    ls__partition p = {.workers = first + second, .stages = 2};
    p.stage[0].replicas = first;
    p.stage[1].replicas = second;
    return ls__plan_micro_batches(&p);
}

/* At least four for each stage and one for each worker, and a multiple of both replicas. */
TEST(micro_batches_are_shared_equally_by_all_replicas)
{
    CHECK_INT(micro_batches_of(1, 1), 8);
    CHECK_INT(micro_batches_of(2, 1), 8);
    CHECK_INT(micro_batches_of(3, 1), 9);
    CHECK_INT(micro_batches_of(3, 5), 15);
    CHECK_INT(micro_batches_of(6, 4), 12);
    CHECK_INT(micro_batches_of(7, 4), 28);
    CHECK_INT(micro_batches_of(13, 11), 24); /* 143 would be too many */
}

TEST_MAIN
