/* SPDX-License-Identifier: Apache-2.0 */
/* Local steps (ls_ddp_set_local, ls_ddp_average) against a twin in float64 that trains all
 * replicas:
 *
 *     y = weight x + bias,   loss = mean of (y - t)^2,   SGD with momentum
 *
 * The twin's gradients are the formula's, not autograd's. */
#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "rows.h"
#include "says.h"
#include "test.h"

enum { ALL = OUT * IN + OUT, RANKS_MAX = 8, STEPS = 12 };
static const double LR = 0.1, MOMENTUM = 0.9;

static ls_module *line_new(void)
{
    ls_module *net = ls_linear_new(IN, OUT, NULL);
    ls_param p[2];
    CHECK_INT(ls_module_params(net, p, 2), 2);
    CHECK_OK(ls_fill_constant(p[0].value, 0.0));
    CHECK_OK(ls_fill_constant(p[1].value, 0.0));
    return net;
}

/* How steps are taken. */
typedef struct recipe {
    int every;         /* steps between two averages, of gradients or parameters */
    bool gradients;    /* averaged in every nth step, instead of parameters after it */
    bool weighted;     /* by rows: averages and the micro-batches of a step */
    bool state;        /* the momentum is averaged, too */
    int micro_batches; /* of a step */
} recipe;

/* ---- the twin ----------------------------------------------------------------------------- */

typedef struct replica {
    double value[ALL], velocity[ALL], grad[ALL];
    double rows; /* since the last average */
} replica;

/* Adds the gradient of scale * mean loss; returns the rows. */
static double twin_add(replica *w, int rank, int step, double scale)
{
    float x[ROWS_MAX * IN], t[ROWS_MAX * OUT];
    const int rows = batch_of(rank, step, x, t);
    for (int i = 0; i < rows; i++) {
        for (int o = 0; o < OUT; o++) {
            double y = w->value[OUT * IN + o];
            for (int k = 0; k < IN; k++) {
                y += w->value[o * IN + k] * (double)x[i * IN + k];
            }
            const double e = scale * 2.0 * (y - (double)t[i * OUT + o]) / (rows * OUT);
            for (int k = 0; k < IN; k++) {
                w->grad[o * IN + k] += e * (double)x[i * IN + k];
            }
            w->grad[OUT * IN + o] += e;
        }
    }
    return rows;
}

/* The gradient of a step, divided by its own weights; returns these. */
static double twin_gradient(replica *w, const recipe *how, int rank, int step)
{
    double rows = 0.0, scales = 0.0;
    memset(w->grad, 0, sizeof w->grad);
    for (int m = 0; m < how->micro_batches; m++) {
        float x[ROWS_MAX * IN], t[ROWS_MAX * OUT];
        const int b = step * how->micro_batches + m;
        const double scale = how->weighted ? batch_of(rank, b, x, t) : 1.0;
        rows += twin_add(w, rank, b, scale);
        scales += scale;
    }
    for (int i = 0; i < ALL && how->weighted; i++) {
        w->grad[i] /= scales;
    }
    w->rows += rows;
    return how->weighted ? scales : 1.0;
}

static void average(replica *w, int ranks, size_t offset, const double *weights)
{
    for (int i = 0; i < ALL; i++) {
        double sum = 0.0, total = 0.0;
        for (int r = 0; r < ranks; r++) {
            sum +=
                weights[r] * *(double *)(void *)((char *)&w[r] + offset + (size_t)i * sizeof sum);
            total += weights[r];
        }
        for (int r = 0; r < ranks; r++) {
            *(double *)(void *)((char *)&w[r] + offset + (size_t)i * sizeof sum) = sum / total;
        }
    }
}

static void twin_step(replica *w, const recipe *how, int ranks, int step)
{
    double weights[RANKS_MAX];
    const bool meet = (step + 1) % how->every == 0;
    for (int r = 0; r < ranks; r++) {
        weights[r] = twin_gradient(&w[r], how, r, step);
    }
    if (meet && how->gradients) {
        average(w, ranks, offsetof(replica, grad), weights);
    }
    for (int r = 0; r < ranks; r++) {
        for (int i = 0; i < ALL; i++) {
            w[r].velocity[i] = MOMENTUM * w[r].velocity[i] + w[r].grad[i];
            w[r].value[i] -= LR * w[r].velocity[i];
        }
        weights[r] = how->weighted ? w[r].rows : 1.0;
        w[r].rows = meet && !how->gradients ? 0.0 : w[r].rows;
    }
    if (meet && !how->gradients) {
        average(w, ranks, offsetof(replica, value), weights);
        if (how->state) {
            average(w, ranks, offsetof(replica, velocity), weights);
        }
    }
}

/* ---- the ranks ---------------------------------------------------------------------------- */

/* Returns its rows. */
static int step_of(ls_module *ddp, ls_optim *optim, const recipe *how, int step)
{
    const bool meet = how->gradients && (step + 1) % how->every == 0;
    int rows = 0;
    for (int m = 0; m < how->micro_batches; m++) {
        CHECK_OK(ls_ddp_set_sync(ddp, meet && m == how->micro_batches - 1));
        rows += backward_of(ddp, step * how->micro_batches + m, how->weighted);
    }
    CHECK_OK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
    return rows;
}

static void train(ls_module *ddp, ls_optim *optim, const recipe *how)
{
    int rows = 0;
    CHECK_OK(ls_ddp_set_local(ddp, true));
    CHECK(ls_ddp_local(ddp));
    for (int step = 0; step < STEPS; step++) {
        rows += step_of(ddp, optim, how, step);
        if ((step + 1) % how->every == 0 && !how->gradients) {
            CHECK_OK(ls_ddp_average(ddp, LS_OPTIONS(ls_ddp_average_options,
                                                    .weight = how->weighted ? rows : 1.0,
                                                    .optim = how->state ? optim : NULL)));
            rows = 0;
        }
    }
}

static int identical(ls_module *ddp)
{
    int same = 0;
    uint64_t hash = 0;
    CHECK_OK(ls_replicas_identical(ddp, ls_world(), &same, &hash));
    return same;
}

/* float32 rounds every step of some 30 sums to 2^-24 of its terms, which are below 4, and momentum
 * adds up ten steps of them. */
static void check_near(ls_module *ddp, const double *want)
{
    const double bound = 30 * 10 * 4 * ldexp(1, -24);
    ls_param p[2];
    CHECK_INT(ls_module_params(ddp, p, 2), 2);
    const float *weight = elements_of(p[0].value), *bias = elements_of(p[1].value);
    for (int i = 0; i < ALL; i++) {
        CHECK_NEAR(i < OUT * IN ? weight[i] : bias[i - OUT * IN], want[i], bound);
    }
}

static void compare(const recipe *how)
{
    static replica w[RANKS_MAX];
    memset(w, 0, sizeof w);
    const int ranks = ls_world_size();
    ls_module *ddp =
        ls_ddp_new(line_new(), ls_world(), LS_OPTIONS(ls_ddp_options, .check_every = 1));
    ls_optim *optim = ls_sgd_new(ddp, LS_OPTIONS(ls_sgd_options, .lr = LR, .momentum = MOMENTUM));
    train(ddp, optim, how);
    for (int step = 0; step < STEPS; step++) {
        twin_step(w, how, ranks, step);
    }
    check_near(ddp, w[ls_rank()].value);
    CHECK_INT(identical(ddp), how->gradients && how->every > 1 ? 1 : ranks);
    ls_optim_free(optim);
    ls_module_free(ddp);
}

DIST_TESTS(local_steps_of_, _ranks_are_those_of_a_twin, 2, 3, 4, 5, 8)
{
    for (int every = 1; every <= 4; every *= 2) {
        compare(&(recipe){.every = every, .micro_batches = 1});
        compare(&(recipe){.every = every, .micro_batches = 2, .weighted = true});
        compare(&(recipe){.every = every, .micro_batches = 1, .state = true});
        compare(&(recipe){.every = every, .micro_batches = 1, .gradients = true});
        compare(&(recipe){.every = every, .micro_batches = 2, .gradients = true, .weighted = true});
    }
}

DIST_TEST(local_steps_of_one_rank_are_plain_steps, 1)
{
    compare(&(recipe){.every = 2, .micro_batches = 2, .weighted = true});
}

/* Experts, which even and odd ranks have apart, are averaged by themselves; an optimizer with two
 * states, and buffers. */
static void place_second(void *arg, const char *name, const ls_tensor *param, ls_ddp_place *place)
{
    (void)param;
    if (name[0] == '2') {
        place->reduce_group = arg;
    }
}

DIST_TEST(each_parameter_is_averaged_over_its_own_group, 4)
{
    ls_group *half = NULL;
    CHECK_OK(ls_group_split(ls_world(), ls_rank() % 2, ls_rank(), "half", &half));
    ls_module *layers[] = {ls_batch_norm2d_new(2, 1e-5, 0.1), ls_flatten_new(),
                           ls_linear_new(2, OUT, NULL)};
    ls_module *ddp =
        ls_ddp_new(ls_sequential_new(layers, 3), ls_world(),
                   LS_OPTIONS(ls_ddp_options, .place = place_second, .place_arg = half));
    CHECK_OK(ls_module_status(ddp));
    ls_optim *optim = ls_adamw_new(ddp, NULL);
    CHECK_OK(ls_ddp_set_local(ddp, true));
    CHECK_OK(ls_ddp_set_sync(ddp, false));
    for (int step = 0; step < 3; step++) {
        LS_SCOPE;
        float x[8];
        for (int i = 0; i < 8; i++) {
            x[i] = ls_random_normal(3, (uint64_t)(10 * ls_rank() + step), (uint64_t)i);
        }
        ls_tensor *y = ls_forward(ddp, ls_from_data(x, LS_SHAPE(4, 2, 1, 1), LS_FLOAT32));
        CHECK_OK(ls_backward(ls_mean(ls_mul(y, y))));
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    ls_param p[4];
    CHECK_INT(ls_module_params(ddp, p, 4), 4);
    float first[2], sum[2];
    for (int i = 0; i < 2; i++) { /* one that all have, one of the half */
        first[i] = ((const float *)elements_of(p[2 * i].value))[0];
        CHECK_OK(ls_all_reduce(i == 0 ? ls_world() : half, &first[i], &sum[i], 1, LS_FLOAT32,
                               LS_AVG, NULL, NULL));
    }
    CHECK_OK(ls_ddp_average(ddp, LS_OPTIONS(ls_ddp_average_options, .optim = optim)));
    for (int i = 0; i < 2; i++) {
        CHECK_NEAR(((const float *)elements_of(p[2 * i].value))[0], sum[i], 1e-6);
    }
    int same = 0;
    uint64_t hash = 0;
    CHECK_OK(ls_replicas_identical(ddp, half, &same, &hash));
    CHECK_INT(same, 2);
    CHECK_OK(ls_ddp_set_local(ddp, false));
    ls_optim_free(optim);
    ls_module_free(ddp);
    CHECK_OK(ls_group_free(half));
}

/* ---- the mode begins and ends --------------------------------------------------------------- */

/* With the momentum averaged the replicas stay equal afterwards, which every step checks; then a
 * bit is flipped. */
DIST_TEST(the_replica_check_resumes_after_the_average, 3)
{
    ls_module *ddp =
        ls_ddp_new(line_new(), ls_world(), LS_OPTIONS(ls_ddp_options, .check_every = 1));
    ls_optim *optim = ls_sgd_new(ddp, LS_OPTIONS(ls_sgd_options, .lr = LR, .momentum = MOMENTUM));
    train(ddp, optim, &(recipe){.every = 3, .micro_batches = 1, .state = true});
    CHECK_OK(ls_ddp_set_local(ddp, false));
    const recipe plain = {.every = 1, .micro_batches = 1, .gradients = true};
    for (int step = 0; step < 4; step++) {
        (void)step_of(ddp, optim, &plain, step);
    }
    CHECK_INT(identical(ddp), 3);
    ls_param p[2];
    CHECK_INT(ls_module_params(ddp, p, 2), 2);
    if (ls_rank() == 1) {
        add_float(p[1].value, 0, 1.0f);
    }
    LS_SCOPE;
    ls_tensor *y = ls_forward(ddp, ls_ones(LS_SHAPE(1, IN), LS_FLOAT32));
    CHECK_STATUS(ls_backward(ls_mean(y)), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "the numbers of bias (parameter 1): rank 0 has hash ");
    ls_optim_free(optim);
    ls_module_free(ddp);
}

DIST_TEST(the_mode_does_not_end_with_replicas_that_differ, 2)
{
    ls_module *ddp = ls_ddp_new(line_new(), ls_world(), NULL);
    ls_optim *optim = ls_sgd_new(ddp, NULL);
    CHECK_STATUS(ls_ddp_average(ddp, NULL), LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(),
               "ls_ddp_average: the replicas are equal, because gradients are averaged; call "
               "ls_ddp_set_local(net, true) before local steps");
    CHECK_OK(ls_ddp_set_local(ddp, true));
    CHECK_OK(ls_ddp_set_sync(ddp, false));
    (void)backward_of(ddp, 0, false);
    CHECK_OK(ls_ddp_set_local(ddp, false)); /* no step yet */
    CHECK_STATUS(ls_optim_step(optim), LS_ERR_STATE);
    CHECK_OK(ls_ddp_set_local(ddp, true));
    CHECK_OK(ls_optim_step(optim));
    CHECK_STATUS(ls_ddp_set_local(ddp, false), LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(),
               "ls_ddp_set_local: optimizers have stepped on gradients of single ranks, so the "
               "replicas differ; call ls_ddp_average with their state first");
    bool more;
    CHECK_STATUS(ls_ddp_join(ddp, NULL, &more), LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(),
               "ls_ddp_join: the replicas may differ (ls_ddp_set_local), so no rank waits for this "
               "one in each step; call ls_ddp_average with the weight 0 where the others call it");
    CHECK_STATUS(ls_ddp_average(ddp, LS_OPTIONS(ls_ddp_average_options, .weight = -1.0)),
                 LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_ddp_average: the weight is %g; give 0, or one from %g to %g");
    const double wrong[] = {NAN, INFINITY, 1e39, 1e-39}; /* some overflow float32, or vanish */
    for (int i = 0; i < 4; i++) {
        CHECK_STATUS(ls_ddp_average(ddp, LS_OPTIONS(ls_ddp_average_options, .weight = wrong[i])),
                     LS_ERR_INVALID);
    }
    CHECK_OK(ls_ddp_average(ddp, LS_OPTIONS(ls_ddp_average_options, .weight = ls_rank())));
    CHECK_INT(identical(ddp), 2);
    CHECK_OK(ls_ddp_set_local(ddp, false));
    CHECK_OK(ls_ddp_set_local(ddp, true));
    CHECK_STATUS(ls_ddp_average(ddp, LS_OPTIONS(ls_ddp_average_options, .weight = 0.0)),
                 LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "ls_ddp_average: the weights of all ranks add up to %g; give at "
                                   "least one rank a weight above 0");
    ls_optim_free(optim);
    ls_module_free(ddp);
}

DIST_TEST(the_mode_is_set_on_the_wrapper_and_on_no_module_beside_it, 2)
{
    ls_module *ddp = ls_ddp_new(line_new(), ls_world(), NULL);
    ls_module *whole = ls_sequential_new(&ddp, 1), *plain = line_new();
    ls_module *beside[] = {whole, ls_ddp_module(ddp)};
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(ls_ddp_set_local(beside[i], true), LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(),
                   "%s: the %s is not the ddp, but %s; give what ls_ddp_new returned");
        CHECK_CONTAINS(ls_error_message(), "ls_ddp_set_local: ");
        CHECK_STATUS(ls_ddp_set_sync(beside[i], false), LS_ERR_INVALID);
        CHECK_CONTAINS(ls_error_message(), "ls_ddp_set_sync: ");
        CHECK_STATUS(ls_ddp_average(beside[i], NULL), LS_ERR_INVALID);
        CHECK_CONTAINS(ls_error_message(), "ls_ddp_average: ");
    }
    CHECK(!ls_ddp_local(ddp) && ls_ddp_sync(ddp));
    CHECK_OK(ls_ddp_set_local(plain, true)); /* one loop serves a module without a wrapper */
    CHECK_OK(ls_ddp_set_sync(plain, false));
    CHECK_OK(ls_ddp_average(plain, NULL));
    ls_module_free(plain);
    ls_module_free(whole);
}

static int not_synchronised_beside(void *arg)
{
    (void)arg;
    LS_CHECK(ls_init(NULL));
    ls_module *ddp = ls_ddp_new(line_new(), ls_world(), NULL);
    ls_module *whole = ls_sequential_new(&ddp, 1);
    LS_NO_SYNC(whole); /* a declaration returns no error */
    return 0;
}

TEST(a_block_without_synchronisation_takes_no_module_beside_the_wrapper)
{
    CHECK(ls_spawn(not_synchronised_beside, NULL, 1) < 0);
}

DIST_TEST(a_rank_that_has_not_entered_the_mode_is_named, 3)
{
    ls_module *ddp = ls_ddp_new(line_new(), ls_world(), NULL);
    CHECK_OK(ls_ddp_set_local(ddp, ls_rank() != 1));
    LS_SCOPE;
    ls_tensor *y = ls_forward(ddp, ls_ones(LS_SHAPE(1, IN), LS_FLOAT32));
    CHECK_STATUS(ls_backward(ls_mean(y)), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "the ranks differ in ls_ddp_set_local: rank 0 has true, as "
                                       "2 of 3 ranks, rank 1 has false; ");
    CHECK_SAYS(ls_error_message(), "call it on all ranks alike");
    ls_module_free(ddp);
}

/* The average would be NaN on all ranks, and nothing would tell whose it was. */
DIST_TEST(a_parameter_that_is_not_finite_is_named_instead_of_averaged, 3)
{
    ls_module *net = ls_ddp_new(line_new(), ls_world(), NULL);
    ls_param p[2];
    CHECK_OK(ls_ddp_set_local(net, true));
    CHECK_INT(ls_module_params(net, p, 2), 2);
    if (ls_rank() == 1) {
        CHECK_OK(ls_fill_constant(p[1].value, INFINITY));
    }
    CHECK(ls_ddp_average(net, NULL) < 0);
    CHECK_SAYS(ls_error_message(),
               "ls_ddp_average: %.200s is not finite on rank %d (element %lld of %lld), and its "
               "average would not be on any; look for a division by zero or a logarithm of 0, or "
               "lower the learning rate");
    CHECK_CONTAINS(ls_error_message(),
                   "ls_ddp_average: bias is not finite on rank 1 (element 0 of");
    ls_module_free(net);
}

TEST_MAIN
