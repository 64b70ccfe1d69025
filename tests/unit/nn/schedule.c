/* SPDX-License-Identifier: Apache-2.0 */
/* Learning rates against the formula written out by hand. */
#include "test.h"

#include <math.h>

#include <lockstep/nn.h>
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

TEST(a_warm_up_as_long_as_the_schedule_ends_at_the_floor)
{
    const ls_schedule_options warm = {.size = sizeof warm,
                                      .kind = LS_SCHEDULE_COSINE,
                                      .lr = 1.0,
                                      .min_lr = 0.1,
                                      .warmup = 5,
                                      .total = 5};
    CHECK(ls_schedule_lr(4, &warm) == 1.0);
    CHECK(ls_schedule_lr(5, &warm) == 0.1);
}

static void check_no_rate(ls_schedule_options s, const char *words)
{
    s.size = sizeof s;
    s.lr = 1.0;
    CHECK(isnan(ls_schedule_lr(0, &s)) && isnan(ls_schedule_lr(100, &s)));
    CHECK(ls_error_status() == LS_ERR_INVALID && strstr(ls_error_message(), words) != NULL);
}

/* In such a run every step had min_lr, which is 0 unless given: it learnt nothing, without a
 * word. */
TEST(a_falling_schedule_without_its_steps_has_no_rate)
{
    check_no_rate((ls_schedule_options){.kind = LS_SCHEDULE_COSINE}, "a total of 0 given");
    check_no_rate((ls_schedule_options){.kind = LS_SCHEDULE_LINEAR, .total = -3}, "of -3 given");
    check_no_rate((ls_schedule_options){.kind = LS_SCHEDULE_LINEAR, .warmup = 11, .total = 10},
                  "a warm-up of 11 steps");
    check_no_rate((ls_schedule_options){.warmup = -1}, "a warm-up of -1 steps");
    check_no_rate((ls_schedule_options){.kind = (ls_schedule_kind)7, .total = 10}, "schedule 7");
    CHECK(ls_schedule_lr(3, LS_OPTIONS(ls_schedule_options, .lr = 0.5, .warmup = 2)) == 0.5);
}

TEST(an_optimizer_refuses_the_rate_of_a_schedule_without_steps)
{
    CHECK(ls_init(NULL) == LS_OK);
    ls_module *net = ls_linear_new(2, 2, NULL);
    ls_optim *optim = ls_sgd_new(net, NULL);
    ls_optim_set_lr(optim,
                    ls_schedule_lr(0, LS_OPTIONS(ls_schedule_options, .kind = LS_SCHEDULE_COSINE)));
    CHECK(ls_optim_step(optim) == LS_ERR_INVALID);
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK(ls_finalize() == LS_OK);
}

TEST_MAIN
