/* Learning rates against the formula written out by hand. */
#include "test.h"

#include <math.h>

#include <lockstep/optim.h>

TEST(warm_up_rises_by_equal_steps_and_ends_at_the_rate)
{
    const ls_schedule_options s = {
        .size = sizeof s, .kind = LS_SCHEDULE_CONSTANT, .lr = 0.4, .warmup = 4, .total = 10};
    const double expected[] = {0.1, 0.2, 0.3, 0.4, 0.4, 0.4};
    for (int i = 0; i < 6; i++) {
        CHECK(fabs(ls_schedule_lr(i, &s) - expected[i]) < 1e-15);
    }
    CHECK(ls_schedule_lr(1000, &s) == 0.4);
}

TEST(half_a_cosine_falls_to_the_floor_at_the_end)
{
    const ls_schedule_options s = {.size = sizeof s,
                                   .kind = LS_SCHEDULE_COSINE,
                                   .lr = 1.0,
                                   .min_lr = 0.2,
                                   .warmup = 2,
                                   .total = 10};
    CHECK(fabs(ls_schedule_lr(1, &s) - 1.0) < 1e-15);
    CHECK(fabs(ls_schedule_lr(2, &s) - 1.0) < 1e-15);
    CHECK(fabs(ls_schedule_lr(6, &s) - 0.6) < 1e-15); /* half way: the mean of both */
    CHECK(fabs(ls_schedule_lr(4, &s) - (0.2 + 0.4 * (1.0 + sqrt(0.5)))) < 1e-15);
    CHECK(fabs(ls_schedule_lr(10, &s) - 0.2) < 1e-15);
    CHECK(fabs(ls_schedule_lr(99, &s) - 0.2) < 1e-15);
}

TEST(a_straight_line_falls_to_the_floor_at_the_end)
{
    const ls_schedule_options s = {.size = sizeof s,
                                   .kind = LS_SCHEDULE_LINEAR,
                                   .lr = 1.0,
                                   .min_lr = 0.2,
                                   .warmup = 2,
                                   .total = 10};
    const double expected[] = {0.5, 1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.2};
    for (int i = 0; i < 12; i++) {
        CHECK(fabs(ls_schedule_lr(i, &s) - expected[i]) < 1e-15);
    }
}

TEST(schedules_without_room_do_not_divide_by_zero)
{
    const ls_schedule_options none = {
        .size = sizeof none, .kind = LS_SCHEDULE_COSINE, .lr = 1.0, .min_lr = 0.1};
    CHECK(ls_schedule_lr(0, &none) == 0.1);
    const ls_schedule_options warm = {.size = sizeof warm,
                                      .kind = LS_SCHEDULE_COSINE,
                                      .lr = 1.0,
                                      .min_lr = 0.1,
                                      .warmup = 5,
                                      .total = 5};
    CHECK(ls_schedule_lr(4, &warm) == 1.0);
    CHECK(ls_schedule_lr(5, &warm) == 0.1);
}

TEST_MAIN
