/* SPDX-License-Identifier: Apache-2.0 */
/* Averages of local steps against the plain twin in this file: the outer optimizer of DiLoCo and
 * SlowMo in float64, the average itself to the bit, and what averages of parameters have in common
 * with averages of gradients. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "rows.h"
#include "says.h"
#include "test.h"

#ifdef HOSTS /* each rank on a host of its own */
__attribute__((constructor)) static void on_hosts(void)
{
    (void)setenv("LOCKSTEP_HOSTS", HOSTS, 1);
}
#endif

enum { ALL = OUT * IN + OUT, RANKS_MAX = 8, ROUNDS = 20 };
static const double LR = 0.05;

static ls_module *line_new(void)
{
    ls_module *net = ls_linear_new(IN, OUT, NULL);
    ls_param p[2];
    CHECK_INT(ls_module_params(net, p, 2), 2);
    CHECK_OK(ls_fill_constant(p[0].value, 0.25));
    CHECK_OK(ls_fill_constant(p[1].value, -0.5));
    return net;
}

static void values_of(ls_module *net, float out[ALL])
{
    ls_param p[2];
    CHECK_INT(ls_module_params(net, p, 2), 2);
    memcpy(out, elements_of(p[0].value), OUT * IN * sizeof *out);
    memcpy(out + OUT * IN, elements_of(p[1].value), OUT * sizeof *out);
}

static void local_step(ls_module *ddp, ls_optim *optim, int batch)
{
    (void)backward_of(ddp, batch, false);
    CHECK_OK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
}

static ls_module *begin_local(ls_optim **optim, double momentum)
{
    ls_module *ddp = ls_ddp_new(line_new(), ls_world(), NULL);
    CHECK_OK(ls_module_status(ddp));
    *optim = ls_sgd_new(ddp, LS_OPTIONS(ls_sgd_options, .lr = LR, .momentum = momentum));
    CHECK_OK(ls_ddp_set_local(ddp, true));
    CHECK_OK(ls_ddp_set_sync(ddp, false));
    return ddp;
}

static void end(ls_module *ddp, ls_optim *optim)
{
    ls_optim_free(optim);
    ls_module_free(ddp);
}

static ls_status average(ls_module *ddp, const ls_outer_options *outer)
{
    return ls_ddp_average(ddp, LS_OPTIONS(ls_ddp_average_options, .outer = outer));
}

/* ---- with lr 1 and no momentum it is the average -------------------------------------------- */

DIST_TESTS(an_outer_lr_of_1_on_, _ranks_is_the_average_to_the_bit, 1, 2, 3, 4, 5, 6, 7, 8)
{
    ls_optim *plain_optim = NULL, *outer_optim = NULL;
    ls_module *plain = begin_local(&plain_optim, 0.9), *outer = begin_local(&outer_optim, 0.9);
    const ls_outer_options same = *LS_OPTIONS(ls_outer_options, .nesterov = true);
    CHECK_OK(average(outer, &same));
    for (int round = 0; round < 5; round++) {
        float a[ALL], b[ALL];
        for (int step = 0; step < 3; step++) {
            local_step(plain, plain_optim, 3 * round + step);
            local_step(outer, outer_optim, 3 * round + step);
        }
        CHECK_OK(average(plain, NULL));
        CHECK_OK(average(outer, &same));
        values_of(plain, a);
        values_of(outer, b);
        CHECK(memcmp(a, b, sizeof a) == 0);
    }
    end(plain, plain_optim);
    end(outer, outer_optim);
}

/* ---- DiLoCo and SlowMo ----------------------------------------------------------------------- */

typedef struct twin {
    double start[ALL], momentum[ALL];
} twin;

/* The formulas of the papers, not those of outer.c: x0 - lr inner_lr d. */
static void twin_step(twin *w, const double *mean, const ls_outer_options *o)
{
    for (int i = 0; i < ALL; i++) {
        const double g = (w->start[i] - mean[i]) / o->inner_lr;
        w->momentum[i] = o->momentum * w->momentum[i] + g;
        const double d = o->nesterov ? g + o->momentum * w->momentum[i] : w->momentum[i];
        w->start[i] -= o->lr * o->inner_lr * d;
    }
}

/* One local step of a rank in float64. */
static void twin_local(double *value, int rank, int batch)
{
    float x[ROWS_MAX * IN], t[ROWS_MAX * OUT];
    double grad[ALL] = {0};
    const int rows = batch_of(rank, batch, x, t);
    for (int i = 0; i < rows; i++) {
        for (int o = 0; o < OUT; o++) {
            double y = value[OUT * IN + o];
            for (int k = 0; k < IN; k++) {
                y += value[o * IN + k] * (double)x[i * IN + k];
            }
            const double e = 2.0 * (y - (double)t[i * OUT + o]) / (rows * OUT);
            for (int k = 0; k < IN; k++) {
                grad[o * IN + k] += e * (double)x[i * IN + k];
            }
            grad[OUT * IN + o] += e;
        }
    }
    for (int i = 0; i < ALL; i++) {
        value[i] -= LR * grad[i];
    }
}

static void twin_round(twin *w, int ranks, int round, int steps, const ls_outer_options *o)
{
    double mean[ALL] = {0};
    for (int r = 0; r < ranks; r++) {
        double value[ALL];
        memcpy(value, w->start, sizeof value);
        for (int step = 0; step < steps; step++) {
            twin_local(value, r, round * steps + step);
        }
        for (int i = 0; i < ALL; i++) {
            mean[i] += value[i] / ranks;
        }
    }
    twin_step(w, mean, o);
}

static void compare(const ls_outer_options *o)
{
    enum { STEPS = 4 };
    ls_optim *optim = NULL;
    ls_module *ddp = begin_local(&optim, 0.0);
    float value[ALL];
    twin w = {.momentum = {0}};
    values_of(ddp, value);
    for (int i = 0; i < ALL; i++) {
        w.start[i] = value[i];
    }
    CHECK_OK(average(ddp, o));
    for (int round = 0; round < ROUNDS; round++) {
        for (int step = 0; step < STEPS; step++) {
            local_step(ddp, optim, round * STEPS + step);
        }
        CHECK_OK(average(ddp, o));
        twin_round(&w, ls_world_size(), round, STEPS, o);
        values_of(ddp, value);
        for (int i = 0; i < ALL; i++) {
            CHECK_NEAR(value[i], w.start[i], 2e-5);
        }
    }
    end(ddp, optim);
}

DIST_TESTS(diloco_on_, _ranks_is_the_papers_formula, 1, 2, 3, 4, 5, 6, 7, 8)
{
    compare(LS_OPTIONS(ls_outer_options, .lr = 0.7, .momentum = 0.9, .nesterov = true));
}

DIST_TESTS(slowmo_on_, _ranks_is_the_papers_formula, 1, 2, 3, 4, 5, 6, 7, 8)
{
    compare(LS_OPTIONS(ls_outer_options, .lr = 1.0, .momentum = 0.6, .inner_lr = LR));
    compare(LS_OPTIONS(ls_outer_options, .lr = 0.5, .momentum = 0.0));
}

/* ---- averages of parameters and of gradients ------------------------------------------------- */

/* The canonical order: pairs first. */
static float tree(const float *values, int count, int stride)
{
    int left = 1;
    while (2 * left < count) {
        left *= 2;
    }
    return count == 1 ? values[0]
                      : tree(values, left, stride) +
                            tree(values + (size_t)left * (size_t)stride, count - left, stride);
}

/* One step, plain SGD: the mean of w - lr g of all ranks is w - lr (mean of g). In floating point
 * they are two roundings: each is compared, to the bit, with what its own order of operations
 * gives. */
DIST_TESTS(one_step_of_sgd_on_, _ranks_is_that_of_ddp, 2, 3, 4, 8)
{
    static float all[RANKS_MAX * ALL];
    const int ranks = ls_world_size();
    ls_optim *optim = NULL, *ddp_optim = NULL;
    ls_module *local = begin_local(&optim, 0.0);
    ls_module *ddp = ls_ddp_new(line_new(), ls_world(), NULL);
    ddp_optim = ls_sgd_new(ddp, LS_OPTIONS(ls_sgd_options, .lr = LR));
    for (int step = 0; step < 12; step++) {
        float mine[ALL], value[ALL], gradients[ALL];
        local_step(local, optim, step);
        values_of(local, mine);
        CHECK_OK(ls_all_gather(ls_world(), mine, all, ALL, LS_FLOAT32, NULL, NULL));
        CHECK_OK(average(local, NULL));
        values_of(local, value);
        local_step(ddp, ddp_optim, step);
        values_of(ddp, gradients);
        for (int i = 0; i < ALL; i++) {
            const float want = tree(all + i, ranks, ALL) / (float)ranks;
            CHECK(memcmp(&value[i], &want, sizeof want) == 0);
            CHECK_NEAR(value[i], gradients[i], 2e-6);
        }
    }
    end(local, optim);
    end(ddp, ddp_optim);
}

/* The largest distance between what averages of gradients and of parameters have reached after
 * `steps`, the latter every `every` steps. */
static double distance(bool adam, double momentum, int every, int steps)
{
    ls_optim *optim[2];
    ls_module *net[2];
    float value[2][ALL];
    double most = 0.0;
    for (int k = 0; k < 2; k++) {
        net[k] = ls_ddp_new(line_new(), ls_world(), NULL);
        optim[k] =
            adam ? ls_adamw_new(net[k], LS_OPTIONS(ls_adamw_options, .lr = LR))
                 : ls_sgd_new(net[k], LS_OPTIONS(ls_sgd_options, .lr = LR, .momentum = momentum));
    }
    CHECK_OK(ls_ddp_set_local(net[1], true));
    CHECK_OK(ls_ddp_set_sync(net[1], false));
    for (int step = 0; step < steps; step++) {
        local_step(net[0], optim[0], step);
        local_step(net[1], optim[1], step);
        CHECK_OK((step + 1) % every == 0 ? average(net[1], NULL) : LS_OK);
    }
    for (int k = 0; k < 2; k++) {
        values_of(net[k], value[k]);
        end(net[k], optim[k]);
    }
    for (int i = 0; i < ALL; i++) {
        most = fmax(most, fabs((double)value[0][i] - (double)value[1][i]));
    }
    return most;
}

/* Section 2.2 of Li et al. 2020: averages of parameters are another algorithm. With one local step
 * SGD is the same, also with momentum, because both are linear in the gradients; Adam is not, and
 * with several steps nothing is, momentum least. Parameters are of the size 1. */
DIST_TEST(averages_of_parameters_are_another_algorithm_than_those_of_gradients, 4)
{
    const double sgd = distance(false, 0.0, 1, 20), momentum = distance(false, 0.9, 1, 20);
    const double adam = distance(true, 0.0, 1, 20);
    const double sgd4 = distance(false, 0.0, 4, 20), momentum4 = distance(false, 0.9, 4, 20);
    if (ls_rank() == 0) {
        printf("# every step: sgd %.1e, momentum %.1e, adamw %.1e; every 4 steps: sgd %.1e, "
               "momentum %.1e\n",
               sgd, momentum, adam, sgd4, momentum4);
    }
    CHECK(sgd < 1e-5);
    CHECK(momentum < 1e-5);
    CHECK(adam > 1e-2);
    CHECK(sgd4 > 1e-3);
    CHECK(momentum4 > 3 * sgd4);
}

/* ---- federated ------------------------------------------------------------------------------- */

DIST_TEST(weights_of_1_and_3_give_the_mean_of_float64, 2)
{
    float all[2 * ALL], mine[ALL], value[ALL];
    ls_optim *optim = NULL;
    ls_module *ddp = begin_local(&optim, 0.9);
    for (int step = 0; step < 5; step++) {
        local_step(ddp, optim, step);
    }
    values_of(ddp, mine);
    CHECK_OK(ls_all_gather(ls_world(), mine, all, ALL, LS_FLOAT32, NULL, NULL));
    CHECK_OK(ls_ddp_average(
        ddp, LS_OPTIONS(ls_ddp_average_options, .weight = ls_rank() == 0 ? 1.0 : 3.0)));
    values_of(ddp, value);
    for (int i = 0; i < ALL; i++) {
        const double want = ((double)all[i] + 3.0 * (double)all[ALL + i]) / 4.0;
        CHECK_NEAR(value[i], want, 2.0 * ldexp(1.0, -24) * fmax(1.0, fabs(want)));
    }
    end(ddp, optim);
}

/* A rank of weight 0 gets the others' average, and takes the same outer step, also if it never
 * trained. */
DIST_TEST(a_rank_of_weight_0_takes_the_others_parameters, 3)
{
    ls_optim *optim = NULL;
    ls_module *ddp = begin_local(&optim, 0.9);
    const ls_outer_options *outer = LS_OPTIONS(ls_outer_options, .lr = 0.7, .momentum = 0.9);
    CHECK_OK(average(ddp, outer));
    for (int round = 0; round < 3; round++) {
        float first[ALL], value[ALL];
        for (int step = 0; step < 2 && ls_rank() != 2; step++) {
            local_step(ddp, optim, 2 * round + step);
        }
        CHECK_OK(ls_ddp_average(ddp, LS_OPTIONS(ls_ddp_average_options, .outer = outer,
                                                .weight = ls_rank() == 2 ? 0.0 : 1.0)));
        values_of(ddp, value);
        memcpy(first, value, sizeof first);
        CHECK_OK(ls_broadcast(ls_world(), first, ALL, LS_FLOAT32, 0, NULL, NULL));
        CHECK(memcmp(first, value, sizeof first) == 0);
    }
    end(ddp, optim);
}

/* ---- frozen parameters ----------------------------------------------------------------------- */

/* While the bias is frozen it keeps its value and its momentum. */
DIST_TEST(a_frozen_parameter_keeps_its_value_and_its_momentum, 2)
{
    ls_param p[2];
    float before[ALL], after[ALL];
    ls_optim *optim = NULL;
    ls_module *ddp = begin_local(&optim, 0.0);
    const ls_outer_options *outer = LS_OPTIONS(ls_outer_options, .lr = 0.7, .momentum = 0.9);
    CHECK_INT(ls_module_params(ddp, p, 2), 2);
    CHECK_OK(average(ddp, outer));
    local_step(ddp, optim, 0);
    CHECK_OK(average(ddp, outer));
    values_of(ddp, before);
    CHECK_OK(ls_set_requires_grad(p[1].value, false));
    local_step(ddp, optim, 1);
    CHECK_OK(average(ddp, outer));
    values_of(ddp, after);
    CHECK(memcmp(before + OUT * IN, after + OUT * IN, OUT * sizeof *before) == 0);
    CHECK(memcmp(before, after, OUT * IN * sizeof *before) != 0);
    CHECK_OK(ls_set_requires_grad(p[1].value, true));
    CHECK_OK(average(ddp, outer)); /* no local step: momentum alone moves it */
    values_of(ddp, after);
    CHECK(memcmp(before + OUT * IN, after + OUT * IN, OUT * sizeof *before) != 0);
    end(ddp, optim);
}

/* ---- guards ---------------------------------------------------------------------------------- */

DIST_TEST(a_round_whose_start_was_not_noted_is_refused, 2)
{
    ls_optim *optim = NULL;
    ls_module *ddp = begin_local(&optim, 0.0);
    if (ls_rank() == 1) {
        local_step(ddp, optim, 0);
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    CHECK(average(ddp, LS_OPTIONS(ls_outer_options, .lr = 0.7)) < 0);
    CHECK_SAYS(ls_error_message(),
               "ls_ddp_average: outer steps from the start of the round, and rank %d has taken "
               "local steps before it was noted; call ls_ddp_average with outer once after "
               "ls_ddp_set_local, before the first step");
    CHECK_CONTAINS(ls_error_message(), "and rank 1 has");
    end(ddp, optim);
}

DIST_TEST(options_of_the_outer_optimizer_are_checked, 1)
{
    ls_optim *optim = NULL;
    ls_module *ddp = begin_local(&optim, 0.0);
    const ls_outer_options *wrong[] = {LS_OPTIONS(ls_outer_options, .lr = 0.0),
                                       LS_OPTIONS(ls_outer_options, .lr = NAN),
                                       LS_OPTIONS(ls_outer_options, .inner_lr = -1.0)};
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(average(ddp, wrong[i]), LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(), "ls_ddp_average: outer has lr %g and inner_lr %g; give "
                                       "finite numbers above 0");
    }
    CHECK_STATUS(average(ddp, LS_OPTIONS(ls_outer_options, .momentum = 1.0)), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_ddp_average: outer has momentum %g; give one from 0 to below 1");
    CHECK_OK(average(ddp, NULL));
    end(ddp, optim);
}

DIST_TEST(a_first_round_starts_with_equal_parameters, 3)
{
    ls_param p[2];
    ls_optim *optim = NULL;
    ls_module *ddp = begin_local(&optim, 0.0);
    CHECK_INT(ls_module_params(ddp, p, 2), 2);
    if (ls_rank() == 1) {
        CHECK_OK(ls_fill_constant(p[0].value, 0.5));
    }
    CHECK_STATUS(average(ddp, LS_OPTIONS(ls_outer_options, .lr = 0.7)), LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(), "the parameters at the start of the first round");
    CHECK_SAYS(ls_error_message(),
               "call ls_ddp_average with outer before anything changes them on one rank");
    end(ddp, optim);
}

/* Each difference fails the group, so each has a job of its own. */
static void check_mismatch(const ls_ddp_average_options *mine, bool state, const char *what)
{
    ls_optim *optim = NULL;
    ls_module *ddp = begin_local(&optim, 0.9);
    ls_ddp_average_options options = *mine;
    options.optim = state ? optim : NULL;
    CHECK_STATUS(ls_ddp_average(ddp, &options), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), what);
    CHECK_SAYS(ls_error_message(), "call ls_ddp_average with the same options on every rank");
    end(ddp, optim);
}

static void check_outers(const ls_outer_options *first, const ls_outer_options *others,
                         const char *what)
{
    check_mismatch(LS_OPTIONS(ls_ddp_average_options, .outer = ls_rank() == 0 ? first : others),
                   false, what);
}

DIST_TEST(ranks_with_other_outer_rates_are_named, 2)
{
    check_outers(LS_OPTIONS(ls_outer_options, .lr = 0.5), LS_OPTIONS(ls_outer_options, .lr = 0.7),
                 "differ in lr of outer");
    CHECK_SAYS(ls_error_message(), "lr of outer");
}

DIST_TEST(ranks_with_other_outer_momenta_are_named, 2)
{
    check_outers(LS_OPTIONS(ls_outer_options, .momentum = 0.5),
                 LS_OPTIONS(ls_outer_options, .momentum = 0.7), "differ in momentum of outer");
    CHECK_SAYS(ls_error_message(), "momentum of outer");
}

DIST_TEST(ranks_with_other_inner_rates_are_named, 2)
{
    check_outers(LS_OPTIONS(ls_outer_options, .inner_lr = 0.5),
                 LS_OPTIONS(ls_outer_options, .inner_lr = 0.7), "differ in inner_lr of outer");
    CHECK_SAYS(ls_error_message(), "inner_lr of outer");
}

DIST_TEST(ranks_of_which_one_has_no_nesterov_are_named, 2)
{
    check_outers(LS_OPTIONS(ls_outer_options, .nesterov = true),
                 LS_OPTIONS(ls_outer_options, .nesterov = false), "differ in nesterov of outer");
    CHECK_SAYS(ls_error_message(), "nesterov of outer");
}

DIST_TEST(ranks_of_which_one_has_no_outer_optimizer_are_named, 2)
{
    check_outers(LS_OPTIONS(ls_outer_options, .lr = 0.5), NULL,
                 "differ in outer of ls_ddp_average");
    CHECK_SAYS(ls_error_message(), "outer of ls_ddp_average");
}

DIST_TEST(ranks_of_which_one_averages_its_optimizer_are_named, 2)
{
    check_mismatch(LS_OPTIONS(ls_ddp_average_options, .weight = 1.0), ls_rank() == 0,
                   "differ in optim of ls_ddp_average");
    CHECK_SAYS(ls_error_message(), "optim of ls_ddp_average");
}

DIST_TEST(ranks_of_which_one_has_no_log_are_named, 2)
{
    check_mismatch(LS_OPTIONS(ls_ddp_average_options, .log = ls_rank() == 0 ? "log" : NULL), false,
                   "differ in log of ls_ddp_average");
    CHECK_SAYS(ls_error_message(), "log of ls_ddp_average");
}

/* None waits for the rank that is wrong. */
static void check_wrong(const ls_ddp_average_options *wrong, const char *what)
{
    check_mismatch(ls_rank() == 1 ? wrong : LS_OPTIONS(ls_ddp_average_options, .weight = 1.0),
                   false,
                   "differ in the arguments of ls_ddp_average: rank 0 has right ones, as 2 "
                   "of 3 ranks, rank 1 has ls_ddp_average: ");
    CHECK_CONTAINS(ls_error_message(), what);
    CHECK_SAYS(ls_error_message(), "the arguments of ls_ddp_average");
    CHECK_SAYS(ls_error_message(), "right ones");
}

DIST_TEST(a_weight_that_is_wrong_on_one_rank_is_named_by_all, 3)
{
    check_wrong(LS_OPTIONS(ls_ddp_average_options, .weight = NAN), "the weight is ");
}

DIST_TEST(an_outer_rate_that_is_wrong_on_one_rank_is_named_by_all, 3)
{
    check_wrong(
        LS_OPTIONS(ls_ddp_average_options, .outer = LS_OPTIONS(ls_outer_options, .lr = NAN)),
        "outer has lr ");
}

/* Between two averages nothing else would notice it. */
DIST_TEST(ranks_with_other_optimizers_are_named_at_the_first_average, 2)
{
    ls_module *ddp = ls_ddp_new(line_new(), ls_world(), NULL);
    ls_optim *optim =
        ls_sgd_new(ddp, LS_OPTIONS(ls_sgd_options, .momentum = ls_rank() == 0 ? 0.9 : 0.8));
    CHECK_OK(ls_ddp_set_local(ddp, true));
    CHECK_STATUS(average(ddp, NULL), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "optimizer 1");
    end(ddp, optim);
}

DIST_TEST(an_outer_step_that_overflows_is_named, 2)
{
    ls_param p[2];
    ls_optim *optim = NULL;
    ls_module *ddp = begin_local(&optim, 0.0);
    const ls_outer_options *outer = LS_OPTIONS(ls_outer_options, .lr = 1e30);
    CHECK_OK(average(ddp, outer));
    CHECK_INT(ls_module_params(ddp, p, 2), 2);
    CHECK_OK(ls_fill_constant(p[0].value, 1e20));
    CHECK(average(ddp, outer) < 0);
    CHECK_SAYS(ls_error_message(), "ls_ddp_average: %.200s is not finite after the outer step "
                                   "(element %lld); lower outer's lr or momentum");
    end(ddp, optim);
}

static ls_status forward_none(ls_module *self, ls_tensor *const *inputs, int input_count,
                              ls_tensor **outputs, int output_count)
{
    (void)self, (void)inputs, (void)input_count, (void)outputs, (void)output_count;
    return LS_OK;
}

static const ls_module_class half_class =
    LS_MODULE_CLASS(.name = "half", .forward_many = forward_none);

DIST_TEST(parameters_in_bfloat16_have_no_outer_optimizer, 2)
{
    ls_module *net = ls_module_new(sizeof(ls_module), &half_class);
    CHECK(ls_module_add_param(net, "half", ls_zeros(LS_SHAPE(3), LS_BFLOAT16)) != NULL);
    ls_module *ddp = ls_ddp_new(net, ls_world(), NULL);
    CHECK_OK(ls_module_status(ddp));
    CHECK_OK(ls_ddp_set_local(ddp, true));
    CHECK(average(ddp, LS_OPTIONS(ls_outer_options, .lr = 0.7)) < 0);
    CHECK_SAYS(ls_error_message(), "ls_ddp_average: outer is for parameters in float32, and "
                                   "%.200s is in %s; leave outer out");
    ls_module_free(ddp);
}

/* Each rank has its own running statistics; only parameters are compared. */
DIST_TEST(the_first_round_begins_also_where_buffers_differ, 2)
{
    ls_module *layers[] = {ls_conv2d_new(1, 2, 3, NULL), ls_batch_norm2d_new(2, 1e-5, 0.1)};
    ls_module *net = ls_ddp_new(ls_sequential_new(layers, 2), ls_world(),
                                LS_OPTIONS(ls_ddp_options, .broadcast_buffers = false));
    {
        LS_SCOPE;
        float x[2 * 36];
        for (int i = 0; i < 2 * 36; i++) {
            x[i] = (float)(i * (ls_rank() + 1) % 7);
        }
        CHECK_OK(ls_backward(
            ls_mean(ls_forward(net, ls_from_data(x, LS_SHAPE(2, 1, 6, 6), LS_FLOAT32)))));
    }
    ls_outer_options outer = *LS_OPTIONS(ls_outer_options, .lr = 0.7, .momentum = 0.9);
    CHECK_OK(ls_ddp_set_local(net, true));
    CHECK_OK(ls_ddp_average(net, LS_OPTIONS(ls_ddp_average_options, .outer = &outer)));
    ls_module_free(net);
}

TEST_MAIN
