/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks with unequal numbers of batches (ls_ddp_join) against a twin in float64 that has all
 * batches:
 *
 *     y = (dense + expert of the rank's half) x + bias,   loss = mean of (y - t)^2
 *
 * The twin's gradients are the formula's, not autograd's. */
#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "replicas.h"
#include "rows.h"
#include "says.h"
#include "test.h"

enum { WEIGHTS = OUT * IN, EPOCHS = 2 };
static const double LR = 0.1, MOMENTUM = 0.9;

/* ---- the model ---------------------------------------------------------------------------- */

typedef struct halves {
    ls_module base;
    ls_module *dense, *expert; /* expert: NULL without halves */
} halves;

static ls_tensor *halves_forward(ls_module *m, ls_tensor *x)
{
    halves *self = (halves *)m;
    ls_tensor *y = ls_forward(self->dense, x);
    return self->expert != NULL ? ls_add(y, ls_forward(self->expert, x)) : y;
}

static const ls_module_class halves_class =
    LS_MODULE_CLASS(.name = "halves", .forward = halves_forward);

static ls_module *halves_new(bool experts)
{
    halves *n = ls_module_new(sizeof *n, &halves_class);
    n->dense = ls_module_add(&n->base, "dense", ls_linear_new(IN, OUT, NULL));
    if (experts) {
        n->expert =
            ls_module_add(&n->base, "expert",
                          ls_linear_new(IN, OUT, LS_OPTIONS(ls_linear_options, .bias = false)));
    }
    CHECK_OK(ls_module_status(&n->base));
    ls_param p[3];
    const int count = ls_module_params(&n->base, p, 3);
    for (int i = 0; i < count; i++) {
        CHECK_OK(ls_fill_constant(p[i].value, 0.0));
    }
    return &n->base;
}

static void place_expert(void *arg, const char *name, const ls_tensor *param, ls_ddp_place *place)
{
    (void)param;
    if (strncmp(name, "expert", 6) == 0) {
        place->reduce_group = arg;
    }
}

/* ---- the data ----------------------------------------------------------------------------- */

typedef struct share {
    const char *name;
    int (*batches)(int rank, int ranks); /* of each epoch */
} share;

static int rising(int rank, int ranks)
{
    (void)ranks;
    return 2 + rank;
}

static int falling(int rank, int ranks)
{
    return ranks - rank;
}

static int only_the_last(int rank, int ranks)
{
    return rank == ranks - 1 ? 4 : 0;
}

static int all_but_the_first(int rank, int ranks)
{
    (void)ranks;
    return rank > 0 ? 3 : 0;
}

static int none(int rank, int ranks)
{
    (void)rank, (void)ranks;
    return 0;
}

static const share shares[] = {{"rising", rising},
                               {"falling", falling},
                               {"only the last", only_the_last},
                               {"all but the first", all_but_the_first},
                               {"none", none}};
enum { SHARES = sizeof shares / sizeof shares[0] };

/* ---- the twin ----------------------------------------------------------------------------- */

typedef enum rule { BY_WEIGHT, BY_ALL, BY_LIVE } rule;

/* Weights [OUT, IN] of dense and of both experts, and the bias. */
typedef struct numbers {
    double dense[WEIGHTS], expert[2][WEIGHTS], bias[OUT];
} numbers;

typedef struct twin {
    numbers value, velocity, grad;
    bool experts, used[2]; /* used: the half had data in this step */
} twin;

/* Adds a rank's gradient of scale * mean loss. */
static void twin_add(twin *w, int rank, int b, double scale)
{
    float x[ROWS_MAX * IN], t[ROWS_MAX * OUT];
    const int rows = batch_of(rank, b, x, t), half = rank % 2;
    for (int i = 0; i < rows; i++) {
        for (int o = 0; o < OUT; o++) {
            double y = w->value.bias[o];
            for (int k = 0; k < IN; k++) {
                const double weight = w->value.dense[o * IN + k] +
                                      (w->experts ? w->value.expert[half][o * IN + k] : 0.0);
                y += weight * (double)x[i * IN + k];
            }
            const double e = scale * 2.0 * (y - (double)t[i * OUT + o]) / (rows * OUT);
            for (int k = 0; k < IN; k++) {
                w->grad.dense[o * IN + k] += e * (double)x[i * IN + k];
                w->grad.expert[half][o * IN + k] += e * (double)x[i * IN + k];
            }
            w->grad.bias[o] += e;
        }
    }
    w->used[half] = true;
}

/* SGD; a half without data keeps its momentum. */
static void twin_update(double *value, double *velocity, const double *grad, int count)
{
    for (int i = 0; i < count; i++) {
        velocity[i] = MOMENTUM * velocity[i] + grad[i];
        value[i] -= LR * velocity[i];
    }
}

static void twin_step(twin *w, double divisor)
{
    double *grads = (double *)&w->grad;
    for (size_t i = 0; i < sizeof w->grad / sizeof *grads; i++) {
        grads[i] /= divisor;
    }
    twin_update(w->value.dense, w->velocity.dense, w->grad.dense, WEIGHTS);
    twin_update(w->value.bias, w->velocity.bias, w->grad.bias, OUT);
    for (int h = 0; h < 2; h++) {
        if (w->used[h]) {
            twin_update(w->value.expert[h], w->velocity.expert[h], w->grad.expert[h], WEIGHTS);
        }
        w->used[h] = false;
    }
    memset(&w->grad, 0, sizeof w->grad);
}

/* One epoch of all ranks' data; returns the steps. */
static int twin_epoch(twin *w, const share *data, int ranks, rule by)
{
    for (int step = 0;; step++) {
        double weights = 0.0, live = 0.0;
        for (int r = 0; r < ranks; r++) {
            if (step < data->batches(r, ranks)) {
                float x[ROWS_MAX * IN], t[ROWS_MAX * OUT];
                const double rows = batch_of(r, step, x, t);
                twin_add(w, r, step, by == BY_WEIGHT ? rows : 1.0);
                weights += rows;
                live += 1.0;
            }
        }
        if (live == 0.0) {
            return step;
        }
        twin_step(w, by == BY_WEIGHT ? weights : by == BY_ALL ? (double)ranks : live);
    }
}

/* ---- the ranks ---------------------------------------------------------------------------- */

/* The loop of ddp.h. */
static int epoch(ls_module *ddp, ls_optim *optim, const share *data, rule by)
{
    const ls_ddp_join_options *options =
        LS_OPTIONS(ls_ddp_join_options, .divide_by_initial_world_size = by != BY_LIVE);
    for (int step = 0;; step++) {
        bool more = step < data->batches(ls_rank(), ls_world_size());
        if (more) {
            (void)backward_of(ddp, step, by == BY_WEIGHT);
        } else {
            CHECK_OK(ls_ddp_join(ddp, options, &more));
        }
        if (!more) {
            return step;
        }
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
}

static void check_identical(ls_module *ddp, ls_group *group)
{
    (void)equal_replicas(ddp, group);
}

/* float32 rounds every step of some 30 sums to 2^-24 of its terms, which are below 4, and momentum
 * adds up ten steps of them. */
static void check_near(const ls_tensor *got, const double *want)
{
    const double bound = 30 * 10 * 4 * ldexp(1, -24);
    const float *data = elements_of((ls_tensor *)got);
    for (int64_t i = 0; i < ls_numel(got); i++) {
        CHECK_NEAR(data[i], want[i], bound);
    }
}

static void compare(const share *data, rule by, ls_group *half)
{
    twin w = {.experts = half != NULL};
    ls_module *ddp =
        ls_ddp_new(halves_new(half != NULL), ls_world(),
                   LS_OPTIONS(ls_ddp_options, .bucket_bytes = 0, .check_every = 1,
                              .place = half != NULL ? place_expert : NULL, .place_arg = half));
    CHECK_OK(ls_module_status(ddp));
    ls_optim *optim = ls_sgd_new(ddp, LS_OPTIONS(ls_sgd_options, .lr = LR, .momentum = MOMENTUM));
    for (int e = 0; e < EPOCHS; e++) {
        CHECK_INT(epoch(ddp, optim, data, by), twin_epoch(&w, data, ls_world_size(), by));
    }
    ls_param p[3];
    const int count = ls_module_params(ddp, p, 3);
    CHECK_INT(count, half != NULL ? 3 : 2);
    check_near(p[0].value, w.value.dense);
    check_near(p[1].value, w.value.bias);
    if (half != NULL) {
        check_near(p[2].value, w.value.expert[ls_rank() % 2]);
    }
    check_identical(ddp, half != NULL ? half : ls_world());
    ls_optim_free(optim);
    ls_module_free(ddp);
}

DIST_TESTS(uneven_data_on_, _ranks_teach_what_one_process_learns, 1, 2, 3, 4, 5, 8)
{
    for (int s = 0; s < SHARES; s++) {
        compare(&shares[s], BY_WEIGHT, NULL);
        compare(&shares[s], BY_ALL, NULL);
        compare(&shares[s], BY_LIVE, NULL);
    }
}

/* In a job of its own: whatever forward passes note of a rank's settings is missing. */
DIST_TEST(a_rank_that_never_has_data_trains_from_the_first_step, 2)
{
    compare(&shares[3], BY_WEIGHT, NULL);
}

/* Even and odd ranks have an expert each. In `only_the_last` one half has no data at all. */
DIST_TEST(ranks_with_uneven_data_join_in_every_reduce_group, 4)
{
    ls_group *half = NULL;
    CHECK_OK(ls_group_split(ls_world(), ls_rank() % 2, ls_rank(), "half", &half));
    for (int s = 0; s < SHARES; s++) {
        compare(&shares[s], BY_WEIGHT, half);
        compare(&shares[s], BY_ALL, half);
        compare(&shares[s], BY_LIVE, half);
    }
    CHECK_OK(ls_group_free(half));
}

/* ---- accumulation -------------------------------------------------------------------------- */

/* Rank r has 3 + r micro-batches, two for a step; a last one alone takes part in the join. */
static int steps_of_two(ls_module *ddp, ls_optim *optim, rule by)
{
    const int batches = 3 + ls_rank();
    for (int step = 0;; step++) {
        bool more = 2 * step + 1 < batches;
        if (2 * step < batches) {
            LS_NO_SYNC(ddp);
            (void)backward_of(ddp, 2 * step, by == BY_WEIGHT);
        }
        if (more) {
            (void)backward_of(ddp, 2 * step + 1, by == BY_WEIGHT);
        } else {
            CHECK_OK(ls_ddp_join(ddp, NULL, &more));
        }
        if (!more) {
            return step;
        }
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
}

static int twin_of_two(twin *w, int ranks, rule by)
{
    for (int step = 0;; step++) {
        double weights = 0.0;
        for (int r = 0; r < ranks; r++) {
            for (int b = 2 * step; b < 2 * step + 2 && b < 3 + r; b++) {
                float x[ROWS_MAX * IN], t[ROWS_MAX * OUT];
                const double rows = batch_of(r, b, x, t);
                twin_add(w, r, b, by == BY_WEIGHT ? rows : 1.0);
                weights += rows;
            }
        }
        if (weights == 0.0) {
            return step;
        }
        twin_step(w, by == BY_WEIGHT ? weights : (double)ranks);
    }
}

static void accumulate(rule by)
{
    twin w = {.experts = false};
    ls_module *ddp = ls_ddp_new(halves_new(false), ls_world(), NULL);
    CHECK_OK(ls_module_status(ddp));
    ls_optim *optim = ls_sgd_new(ddp, LS_OPTIONS(ls_sgd_options, .lr = LR, .momentum = MOMENTUM));
    CHECK_INT(steps_of_two(ddp, optim, by), twin_of_two(&w, ls_world_size(), by));
    ls_param p[2];
    CHECK_INT(ls_module_params(ddp, p, 2), 2);
    check_near(p[0].value, w.value.dense);
    check_near(p[1].value, w.value.bias);
    check_identical(ddp, ls_world());
    ls_optim_free(optim);
    ls_module_free(ddp);
}

DIST_TEST(a_micro_batch_accumulated_before_the_data_ended_takes_part, 3)
{
    accumulate(BY_WEIGHT);
    accumulate(BY_ALL);
}

/* ---- running statistics -------------------------------------------------------------------- */

/* A batch norm's running mean is that of the batches of rank 0, later of rank 1, which has more. */
DIST_TEST(buffers_follow_a_rank_that_has_data, 3)
{
    enum { LONG = 40 };
    ls_module *layers[] = {ls_batch_norm2d_new(2, 1e-5, 0.1), ls_flatten_new(),
                           ls_linear_new(2, OUT, NULL)};
    ls_module *ddp = ls_ddp_new(ls_sequential_new(layers, 3), ls_world(), NULL);
    CHECK_OK(ls_module_status(ddp));
    const int batches = ls_rank() == 0 ? 2 : ls_rank() == 1 ? LONG : 3;
    for (int step = 0;; step++) {
        bool more = step < batches;
        if (more) {
            LS_SCOPE;
            ls_tensor *x = ls_full(LS_SHAPE(4, 2, 1, 1), LS_FLOAT32, 1.0 + 10.0 * ls_rank());
            ls_tensor *y = ls_forward(ddp, x);
            CHECK_OK(ls_backward(ls_mean(y)));
        } else {
            CHECK_OK(ls_ddp_join(ddp, NULL, &more));
        }
        if (!more) {
            break;
        }
    }
    const ls_tensor *mean = ls_module_buffer(ddp, "0.running_mean");
    CHECK_OK(ls_tensor_status(mean));
    CHECK_NEAR(((const float *)elements_of((ls_tensor *)mean))[0], 11.0, 0.5); /* rank 1's */
    check_identical(ddp, ls_world());
    ls_module_free(ddp);
}

/* ---- mistakes ------------------------------------------------------------------------------ */

DIST_TEST(ranks_that_join_with_different_divisors_are_named, 3)
{
    ls_module *ddp = ls_ddp_new(halves_new(false), ls_world(), NULL);
    bool more = true;
    if (ls_rank() == 0) {
        LS_SCOPE;
        float x[ROWS_MAX * IN], t[ROWS_MAX * OUT];
        const int rows = batch_of(0, 0, x, t);
        ls_tensor *y = ls_forward(ddp, ls_from_data(x, LS_SHAPE(rows, IN), LS_FLOAT32));
        CHECK_STATUS(ls_backward(ls_mean(y)), LS_ERR_MISMATCH);
    } else {
        CHECK_STATUS(ls_ddp_join(ddp,
                                 LS_OPTIONS(ls_ddp_join_options,
                                            .divide_by_initial_world_size = ls_rank() == 1),
                                 &more),
                     LS_ERR_MISMATCH);
    }
    CHECK_SAYS(ls_error_message(), "divide_by_initial_world_size of ls_ddp_join");
    CHECK_CONTAINS(ls_error_message(),
                   "rank 1 has true, rank 2 has false; give every rank the same");
    ls_module_free(ddp);
}

/* Rank 0 has left the loop of data and serves backwards; rank 1 waits for it in an operation of its
 * own, which rank 0 would reach only after the last backward. */
DIST_TEST(an_operation_that_a_joined_rank_does_not_reach_ends_in_words, 2)
{
    ls_module *ddp = ls_ddp_new(halves_new(false), ls_world(), NULL);
    CHECK_OK(ls_module_status(ddp));
    bool more = true;
    float sum = 1.0f;
    (void)backward_of(ddp, 0, false);
    const ls_status status =
        ls_rank() == 0 ? ls_ddp_join(ddp, NULL, &more)
                       : ls_all_reduce(ls_world(), &sum, &sum, 1, LS_FLOAT32, LS_SUM, NULL, NULL);
    CHECK(status < 0);
    if (ls_rank() == 1) {
        CHECK_CONTAINS(ls_error_message(), "rank 1 waits in all_reduce");
    }
    /* rank 1 may have gone on to its next call already */
    CHECK_CONTAINS(ls_error_message(), "a synchronised backward begins");
    CHECK_CONTAINS(ls_error_message(), "rank 1");
    ls_module_free(ddp);
}

DIST_TEST(a_reducer_joins_only_in_a_synchronising_backward, 1)
{
    ls_reducer_param weight = {.name = "w", .count = 4};
    ls_reducer *r = NULL;
    CHECK_OK(ls_reducer_new(ls_world(), &weight, 1, NULL, &r));
    CHECK_STATUS(
        ls_reducer_begin(r, LS_OPTIONS(ls_reducer_begin_options, .joined = true, .local = true)),
        LS_ERR_INVALID);
    CHECK_SAYS(
        ls_error_message(),
        "reducer \"%s\": a backward of a rank that has joined cannot be local; give joined or "
        "local");
    CHECK_OK(ls_reducer_begin(r, LS_OPTIONS(ls_reducer_begin_options, .joined = true)));
    CHECK_OK(ls_reducer_wait(r));
    ls_reducer_stats stats = {.size = sizeof stats};
    CHECK_OK(ls_reducer_get_stats(r, &stats));
    CHECK_INT(stats.live_ranks, 0);
    CHECK_OK(ls_reducer_free(r));
}

DIST_TEST(joining_without_a_place_for_the_answer_is_refused, 1)
{
    bool more = true;
    CHECK_STATUS(ls_ddp_join(NULL, NULL, &more), LS_ERR_INVALID);
    ls_module *plain = halves_new(false);
    CHECK_STATUS(ls_ddp_join(plain, NULL, NULL), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_ddp_join: an argument is NULL; give a module and a place for *more");
    CHECK_OK(ls_ddp_join(plain, NULL, &more));
    CHECK(!more);
    ls_module_free(plain);
}

TEST_MAIN
