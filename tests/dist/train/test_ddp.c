/* SPDX-License-Identifier: Apache-2.0 */
/* DistributedDataParallel against one process on the same global batch.
 *
 * The twin: every rank also trains a plain, unwrapped copy of the network on the *whole* batch.
 * Both must have the same losses (to rounding), and all wrapped replicas the same bytes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "replicas.h"
#include "test.h"

enum { IN = 10, HIDDEN = 32, OUT = 5, BATCH = 24, STEPS = 100 };

typedef struct net {
    ls_module base;
    ls_module *fc1, *norm, *fc2, *spare;
    bool use_spare; /* also goes through `spare`, twice */
} net;

static ls_tensor *net_forward(ls_module *m, ls_tensor *x)
{
    net *self = (net *)m;
    ls_tensor *h = ls_gelu(ls_forward(self->norm, ls_forward(self->fc1, x)), LS_GELU_ERF);
    if (self->use_spare) {
        h = ls_add(h, ls_forward(self->spare, ls_forward(self->spare, h)));
    }
    return ls_forward(self->fc2, h);
}

static const ls_module_class net_class = LS_MODULE_CLASS(.name = "net", .forward = net_forward);

static net *net_new(int64_t hidden)
{
    net *n = ls_module_new(sizeof *n, &net_class);
    n->fc1 = ls_module_add(&n->base, "fc1", ls_linear_new(IN, hidden, NULL));
    n->norm = ls_module_add(&n->base, "norm", ls_layer_norm_new(hidden, NULL));
    n->spare = ls_module_add(&n->base, "spare", ls_linear_new(hidden, hidden, NULL));
    n->fc2 = ls_module_add(&n->base, "fc2", ls_linear_new(hidden, OUT, NULL));
    CHECK_OK(ls_module_status(&n->base));
    return n;
}

/* Rows [first, first+count) of a step's global batch. */
static void rows(int step, int64_t first, int64_t count, ls_tensor **x, ls_tensor **y)
{
    float xs[BATCH * IN];
    int32_t ys[BATCH];
    for (int64_t i = 0; i < count; i++) {
        float best = -1e9f;
        for (int64_t k = 0; k < IN; k++) {
            float v = ls_random_normal(5, (uint64_t)step, (uint64_t)((first + i) * IN + k));
            xs[i * IN + k] = v;
            if (k < OUT && v > best) {
                best = v;
                ys[i] = (int32_t)k;
            }
        }
    }
    *x = ls_from_data(xs, LS_SHAPE(count, IN), LS_FLOAT32);
    *y = ls_from_data(ys, LS_SHAPE(count), LS_INT32);
}

static double loss_backward(ls_module *m, int step, int64_t first, int64_t count, double weight)
{
    double value = 0.0;
    {
        LS_SCOPE;
        ls_tensor *x, *y;
        rows(step, first, count, &x, &y);
        ls_tensor *loss = ls_cross_entropy(ls_forward(m, x), y, NULL);
        CHECK_OK(weight < 0.0 ? ls_backward(loss) : ls_backward_weighted(loss, weight));
        CHECK_OK(ls_item(loss, &value));
    }
    return value;
}

/* How a network is trained: everything but its data. */
typedef struct recipe {
    size_t bucket_bytes;
    int steps;
    bool uneven;     /* rank r has r + 1 parts of a batch, the loss is weighted with its rows */
    double max_norm; /* 0: no clipping */
} recipe;

/* The rows of this rank's share begin at *first; returns their number. */
static int64_t share_of(const recipe *how, int64_t *first)
{
    const int64_t n = ls_world_size(), r = ls_rank();
    const int64_t parts = how->uneven ? n * (n + 1) / 2 : n;
    const int64_t before = how->uneven ? r * (r + 1) / 2 : r;
    const int64_t after = how->uneven ? before + r + 1 : before + 1;
    *first = BATCH * before / parts;
    return BATCH * after / parts - *first;
}

/* A step of a module on `count` rows; *norm is that of the gradients before clipping. */
static double step_once(net *n, ls_module *m, ls_optim *optim, const recipe *how, int step,
                        int64_t first, int64_t count, double *norm)
{
    n->use_spare = step % 3 != 0;
    const double loss = loss_backward(m, step, first, count, how->uneven ? (double)count : -1.0);
    if (how->max_norm > 0.0) {
        CHECK_OK(ls_clip_grad_norm(m, how->max_norm, NULL, norm));
    }
    CHECK_OK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
    return loss;
}

/* The mean of the ranks' losses over all rows. */
static double over_ranks(double loss, int64_t count)
{
    double sum[2] = {loss * (double)count, (double)count};
    CHECK_OK(ls_all_reduce(ls_world(), sum, sum, 2, LS_FLOAT64, LS_SUM, NULL, NULL));
    return sum[0] / sum[1];
}

static uint64_t train(const recipe *how, double *losses)
{
    CHECK_OK(ls_manual_seed(1));
    net *n = net_new(HIDDEN);
    ls_module *ddp = ls_ddp_new(&n->base, ls_world(),
                                LS_OPTIONS(ls_ddp_options, .bucket_bytes = how->bucket_bytes,
                                           .first_bucket_bytes = how->bucket_bytes / 3));
    CHECK(ddp);
    ls_optim *optim = ls_adamw_new(ddp, LS_OPTIONS(ls_adamw_options, .lr = 1e-2));
    int64_t first, count = share_of(how, &first);
    bool clipped = false;
    for (int step = 0; step < how->steps; step++) {
        double norm = 0.0;
        const double loss = step_once(n, ddp, optim, how, step, first, count, &norm);
        losses[step] = over_ranks(loss, count);
        clipped = clipped || norm > how->max_norm;
    }
    CHECK(how->max_norm == 0.0 || clipped);
    const uint64_t hash = equal_replicas(ddp, ls_world());
    ls_optim_free(optim);
    ls_module_free(ddp);
    return hash;
}

static void train_alone(const recipe *how, double *losses)
{
    CHECK_OK(ls_manual_seed(1));
    net *n = net_new(HIDDEN);
    ls_optim *optim = ls_adamw_new(&n->base, LS_OPTIONS(ls_adamw_options, .lr = 1e-2));
    const recipe whole = {.max_norm = how->max_norm};
    for (int step = 0; step < how->steps; step++) {
        double norm;
        losses[step] = step_once(n, &n->base, optim, &whole, step, 0, BATCH, &norm);
    }
    ls_optim_free(optim);
    ls_module_free(&n->base);
}

static void equal_one_process(const recipe *how)
{
    double together[STEPS], alone[STEPS];
    (void)train(how, together);
    train_alone(how, alone);
    for (int step = 0; step < how->steps; step++) {
        CHECK_NEAR(together[step], alone[step], 1e-5 * fabs(alone[step]));
    }
    CHECK(alone[how->steps - 1] < 0.5 * alone[0]);
}

DIST_TESTS(losses_of_100_steps_with_, _workers_equal_those_of_one_process, 1, 2, 3, 4, 6, 8)
{
    equal_one_process(&(recipe){.bucket_bytes = 4096, .steps = STEPS});
}

DIST_TEST(losses_with_buckets_that_lockstep_chose_equal_those_of_one_process, 2)
{
    equal_one_process(&(recipe){.bucket_bytes = LS_BUCKET_BYTES_AUTO, .steps = STEPS});
}

/* Gradients are clipped in most steps, and every rank has another number of rows. */
DIST_TESTS(uneven_shares_over_, _workers_and_clipping_equal_one_process, 2, 3, 4, 6)
{
    equal_one_process(
        &(recipe){.bucket_bytes = 4096, .steps = STEPS, .uneven = true, .max_norm = 0.5});
}

DIST_TESTS(the_same_run_twice_and_in_other_buckets_gives_the_same_bits_on_, _ranks, 2, 3, 4, 5)
{
    static const size_t bytes[] = {4096, 0, 10000, 1 << 20, LS_BUCKET_BYTES_AUTO};
    double losses[20];
    for (int kind = 0; kind < 2; kind++) {
        recipe how = {.bucket_bytes = 4096,
                      .steps = 20,
                      .uneven = kind == 1,
                      .max_norm = kind == 1 ? 0.5 : 0.0};
        const uint64_t first = train(&how, losses);
        for (size_t b = 0; b < sizeof bytes / sizeof *bytes; b++) {
            how.bucket_bytes = bytes[b];
            CHECK(train(&how, losses) == first);
        }
    }
}

DIST_TEST(parameters_lie_beside_each_other_as_their_gradients_do, 2)
{
    CHECK_OK(ls_manual_seed(1));
    net *n = net_new(HIDDEN);
    n->use_spare = true;
    ls_module *ddp = ls_ddp_new(&n->base, ls_world(), NULL);
    ls_param params[16];
    int count = ls_module_params(&n->base, params, 16);
    ls_tensor *view = ls_keep(ls_slice(params[0].value, 0, 1, 2)); /* follows the move */
    uint64_t before = ls_module_hash(&n->base);
    (void)loss_backward(ddp, 0, 0, 4, -1.0);
    CHECK(ls_module_hash(&n->base) == before);
    CHECK(test_on_device() || ls_data(view) == (float *)ls_data(params[0].value) + IN);
    for (int i = 1; i < count && !test_on_device(); i++) { /* one bucket holds them all */
        CHECK_INT((char *)ls_data(params[i].value) - (char *)ls_data(params[0].value),
                  (char *)ls_data(ls_grad(params[i].value)) -
                      (char *)ls_data(ls_grad(params[0].value)));
    }
    ls_free(view);
    ls_module_free(ddp);
}

DIST_TEST(wrapping_changes_no_name_and_no_hash, 2)
{
    CHECK_OK(ls_manual_seed(1));
    net *n = net_new(HIDDEN);
    ls_param bare[16], wrapped[16];
    int count = ls_module_params(&n->base, bare, 16);
    char first[64];
    snprintf(first, sizeof first, "%s", bare[0].name);
    uint64_t hash = ls_module_hash(&n->base);
    ls_module *ddp = ls_ddp_new(&n->base, ls_world(), NULL);
    CHECK_INT(ls_module_params(ddp, wrapped, 16), count);
    CHECK(strcmp(wrapped[0].name, first) == 0);
    CHECK_CONTAINS(first, "fc1.weight");
    CHECK(ls_module_hash(ddp) == hash);
    ls_module_free(ddp);
}

DIST_TEST(parameters_are_broadcast_from_rank_0_at_the_start, 4)
{
    CHECK_OK(ls_manual_seed((uint64_t)ls_rank())); /* a different start on every rank */
    ls_module *ddp = ls_ddp_new(&net_new(HIDDEN)->base, ls_world(), NULL);
    CHECK(ddp);
    int identical = 0;
    uint64_t hash = 0;
    CHECK_OK(ls_replicas_identical(ddp, ls_world(), &identical, &hash));
    CHECK_INT(identical, 4);
    ls_module_free(ddp);
}

DIST_TEST(another_model_on_one_rank_is_named_on_both_sides, 3)
{
    net *n = net_new(ls_rank() == 2 ? HIDDEN + 1 : HIDDEN);
    ls_module *ddp = ls_ddp_new(&n->base, ls_world(), NULL);
    CHECK(!ddp);
    CHECK_CONTAINS(ls_error_message(), "rank 0 has fc1.weight float32[32,10]");
    CHECK_CONTAINS(ls_error_message(), "rank 2 has fc1.weight float32[33,10]");
    ls_module_free(&n->base);
}

DIST_TEST(a_weighted_backward_is_the_exact_mean_over_uneven_shares, 3)
{
    /* 24 rows in shares of 15, 9 and 0: rank 2 has run out of data */
    static const int64_t first[] = {0, 15, 24}, count[] = {15, 9, 0};
    CHECK_OK(ls_manual_seed(1));
    net *n = net_new(HIDDEN);
    CHECK_OK(ls_manual_seed(1));
    net *twin = net_new(HIDDEN);
    ls_module *ddp = ls_ddp_new(&n->base, ls_world(), NULL);
    CHECK(ddp);
    n->use_spare = twin->use_spare = true;
    int r = ls_rank();
    (void)loss_backward(ddp, 0, first[r] % BATCH, count[r] ? count[r] : 1, (double)count[r]);
    (void)loss_backward(&twin->base, 0, 0, BATCH, -1.0);
    ls_param a[16], b[16];
    int params = ls_module_params(&n->base, a, 16);
    CHECK_INT(ls_module_params(&twin->base, b, 16), params);
    for (int i = 0; i < params; i++) {
        const float *x = elements_of(ls_grad(a[i].value)), *y = elements_of(ls_grad(b[i].value));
        for (int64_t k = 0; k < ls_numel(a[i].value); k++) {
            CHECK_NEAR(x[k], y[k], 1e-6);
        }
    }
    ls_module_free(ddp);
    ls_module_free(&twin->base);
}

DIST_TEST(stepping_on_gradients_that_were_never_synchronised_is_refused, 2)
{
    CHECK_OK(ls_manual_seed(1));
    ls_module *ddp = ls_ddp_new(&net_new(HIDDEN)->base, ls_world(), NULL);
    ls_optim *optim = ls_sgd_new(ddp, NULL);
    {
        LS_NO_SYNC(ddp);
        (void)loss_backward(ddp, 0, 0, 4, -1.0);
    }
    CHECK_STATUS(ls_optim_step(optim), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "LS_NO_SYNC");
    (void)loss_backward(ddp, 1, 0, 4, -1.0);
    CHECK_OK(ls_optim_step(optim));
    ls_optim_free(optim);
    ls_module_free(ddp);
}

/* One part of a model is wrapped, the other one trains on each rank alone. */
DIST_TEST(an_optimizer_steps_over_wrapped_and_plain_parameters, 2)
{
    CHECK_OK(ls_manual_seed(1));
    net *n = net_new(HIDDEN);
    ls_module *outer = ls_module_new(sizeof *outer, &net_class);
    ls_module *ddp = ls_module_add(outer, "wrapped", ls_ddp_new(&n->base, ls_world(), NULL));
    ls_module *plain = ls_module_add(outer, "plain", ls_linear_new(OUT, OUT, NULL));
    ls_optim *optim = ls_sgd_new(outer, NULL);
    const uint64_t before = ls_module_hash(plain), wrapped = ls_module_hash(ddp);
    {
        LS_SCOPE;
        ls_tensor *x, *y;
        rows(0, ls_rank() * 4, 4, &x, &y);
        ls_tensor *out = ls_forward(plain, ls_forward(ddp, x));
        CHECK_OK(ls_backward(ls_cross_entropy(out, y, NULL)));
    }
    CHECK_OK(ls_optim_step(optim));
    CHECK(ls_module_hash(plain) != before && ls_module_hash(ddp) != wrapped);
    int identical = 0;
    uint64_t hash = 0;
    CHECK_OK(ls_replicas_identical(ddp, ls_world(), &identical, &hash));
    CHECK_INT(identical, 2);
    ls_optim_free(optim);
    ls_module_free(outer);
}

DIST_TEST(a_parameter_used_on_one_rank_only_gets_its_mean_and_unused_ones_stay_absent, 2)
{
    CHECK_OK(ls_manual_seed(1));
    net *n = net_new(HIDDEN);
    ls_module *ddp = ls_ddp_new(&n->base, ls_world(), NULL);
    ls_param params[16];
    int count = ls_module_params(&n->base, params, 16);
    (void)loss_backward(ddp, 0, 0, 4, -1.0);
    for (int i = 0; i < count; i++) {
        bool spare = strncmp(params[i].name, "spare", 5) == 0;
        CHECK((ls_grad(params[i].value) == NULL) == spare);
    }
    n->use_spare = ls_rank() == 1;
    (void)loss_backward(ddp, 1, 0, 4, -1.0);
    double sum = 0.0;
    for (int i = 0; i < count; i++) {
        const float *grad = elements_of(ls_grad(params[i].value));
        CHECK(grad);
        for (int64_t k = 0; k < ls_numel(params[i].value); k++) {
            sum += (double)grad[k] * (double)(k % 7 + 1);
        }
    }
    double low = sum, high = sum;
    CHECK_OK(ls_all_reduce(ls_world(), &low, &low, 1, LS_FLOAT64, LS_MIN, NULL, NULL));
    CHECK_OK(ls_all_reduce(ls_world(), &high, &high, 1, LS_FLOAT64, LS_MAX, NULL, NULL));
    CHECK(low == high);
    ls_module_free(ddp);
}

DIST_TEST(a_poisoned_loss_on_one_rank_fails_all_ranks_with_its_cause, 2)
{
    CHECK_OK(ls_manual_seed(1));
    ls_module *ddp = ls_ddp_new(&net_new(HIDDEN)->base, ls_world(), NULL);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* or rank 0 may fail within ls_ddp_new */
    {
        LS_SCOPE;
        int64_t width = ls_rank() == 1 ? IN + 1 : IN; /* rank 1 feeds another width */
        ls_tensor *out = ls_forward(ddp, ls_ones(LS_SHAPE(4, width), LS_FLOAT32));
        ls_status status = ls_backward(ls_mean(out));
        CHECK(status < 0);
        CHECK_CONTAINS(ls_error_message(), "linear");
        CHECK_CONTAINS(ls_error_message(), "11");
    }
    ls_module_free(ddp);
}

DIST_TEST(evaluating_between_steps_needs_no_collective, 2)
{
    CHECK_OK(ls_manual_seed(1));
    net *n = net_new(HIDDEN);
    ls_module *ddp = ls_ddp_new(&n->base, ls_world(), NULL);
    if (ls_rank() == 0) { /* one rank only: nothing may wait for the other */
        LS_NO_GRAD;
        LS_SCOPE;
        ls_tensor *x, *y;
        rows(0, 0, 8, &x, &y);
        double a, b;
        CHECK_OK(ls_item(ls_cross_entropy(ls_forward(ddp, x), y, NULL), &a));
        CHECK_OK(ls_item(ls_cross_entropy(ls_forward(&n->base, x), y, NULL), &b));
        CHECK_NEAR(a, b, 0.0);
    }
    (void)loss_backward(ddp, 0, 0, 4, -1.0);
    ls_module_free(ddp);
}

/* ---- kept graphs, weights of classes, names ------------------------------------------------- */

/* This rank's losses of one forward pass: two that share all of the network. */
static void two_losses(ls_module *m, ls_tensor *out[2])
{
    ls_tensor *x, *y;
    rows(0, ls_rank() * 4, 4, &x, &y);
    ls_tensor *logits = ls_forward(m, x);
    out[0] = ls_cross_entropy(logits, y, NULL);
    out[1] = ls_mean(ls_mul(logits, logits));
}

enum { WEIGHTS = HIDDEN * OUT };

typedef enum keeping { SUM_OF_LOSSES, FIRST_IS_LOCAL, BOTH_SYNCHRONISE } keeping;

/* The averaged gradient of fc2.weight, and how often gradients were reduced. */
static uint64_t average_of(keeping how, float *grad)
{
    CHECK_OK(ls_manual_seed(1));
    ls_module *ddp = ls_ddp_new(&net_new(HIDDEN)->base, ls_world(), NULL);
    ls_ddp_stats stats = {.size = sizeof stats, .reduce = {.size = sizeof stats.reduce}};
    {
        LS_SCOPE;
        ls_tensor *loss[2];
        two_losses(ddp, loss);
        if (how == SUM_OF_LOSSES) {
            CHECK_OK(ls_backward(ls_add(loss[0], loss[1])));
        } else {
            LS_RETAIN_GRAPH;
            CHECK_OK(ls_ddp_set_sync(ddp, how == BOTH_SYNCHRONISE));
            CHECK_OK(ls_backward(loss[0]));
            CHECK_OK(ls_ddp_set_sync(ddp, true));
            CHECK_OK(ls_backward(loss[1]));
        }
    }
    CHECK_OK(ls_copy_out(ls_grad(ls_module_param(ddp, "fc2.weight")), grad, WEIGHTS * 4));
    CHECK_OK(ls_ddp_get_stats(ddp, &stats));
    ls_module_free(ddp);
    return stats.reduce.reductions;
}

/* In PyTorch the second backward of a graph that DDP has reduced is an error. */
DIST_TEST(two_backwards_of_a_kept_graph_are_reduced_once_or_each, 2)
{
    float sum[WEIGHTS], kept[WEIGHTS];
    CHECK_INT(average_of(SUM_OF_LOSSES, sum), 1);
    for (int how = FIRST_IS_LOCAL; how <= BOTH_SYNCHRONISE; how++) {
        CHECK_INT(average_of((keeping)how, kept), how == BOTH_SYNCHRONISE ? 2 : 1);
        for (int i = 0; i < WEIGHTS; i++) {
            CHECK_NEAR((double)kept[i], (double)sum[i], 5e-7);
        }
    }
}

/* Ranks of 5 and 19 rows, whose classes count differently, against one process. */
DIST_TEST(weights_of_classes_give_the_mean_over_the_rows_of_all_ranks, 2)
{
    static const float of_class[OUT] = {0.25f, 4.0f, 1.0f, 0.0f, 2.5f};
    CHECK_OK(ls_manual_seed(1));
    ls_module *ddp = ls_ddp_new(&net_new(HIDDEN)->base, ls_world(), NULL);
    CHECK_OK(ls_manual_seed(1));
    ls_module *plain = &net_new(HIDDEN)->base;
    {
        LS_SCOPE;
        ls_tensor *x, *y, *w = ls_from_data(of_class, LS_SHAPE(OUT), LS_FLOAT32);
        const ls_cross_entropy_options *options =
            LS_OPTIONS(ls_cross_entropy_options, .weight = w, .label_smoothing = 0.1);
        double weight = 0.0;
        rows(0, ls_rank() == 0 ? 0 : 5, ls_rank() == 0 ? 5 : 19, &x, &y);
        CHECK_OK(ls_cross_entropy_weight(y, options, &weight));
        CHECK_OK(ls_backward_weighted(ls_cross_entropy(ls_forward(ddp, x), y, options), weight));
        rows(0, 0, 24, &x, &y);
        CHECK_OK(ls_backward(ls_cross_entropy(ls_forward(plain, x), y, options)));
    }
    const float *got = elements_of(ls_grad(ls_module_param(ddp, "fc2.weight")));
    const float *want = elements_of(ls_grad(ls_module_param(plain, "fc2.weight")));
    for (int i = 0; i < WEIGHTS; i++) {
        CHECK_NEAR((double)got[i], (double)want[i], 1e-6);
    }
    ls_module_free(plain);
    ls_module_free(ddp);
}

/* Makes the wrapper's reducer say its name: one step mixes two kinds of backward. */
static void check_name(ls_module *ddp, const char *name)
{
    char want[64];
    LS_NO_SYNC(ddp);
    (void)loss_backward(ddp, 0, 0, 4, 1.0);
    LS_SCOPE;
    ls_tensor *x, *y;
    rows(0, 0, 4, &x, &y);
    CHECK_STATUS(ls_backward(ls_cross_entropy(ls_forward(ddp, x), y, NULL)), LS_ERR_STATE);
    snprintf(want, sizeof want, "reducer \"%s\": weighted", name);
    CHECK_CONTAINS(ls_error_message(), want);
}

DIST_TEST(each_wrapper_has_a_name_of_its_own_in_reports, 2)
{
    ls_module *wrapped[4];
    for (int i = 0; i < 4; i++) {
        wrapped[i] = ls_ddp_new(&net_new(HIDDEN)->base, ls_world(),
                                LS_OPTIONS(ls_ddp_options, .name = i == 3 ? "critic" : NULL));
    }
    check_name(wrapped[0], "ddp");
    check_name(wrapped[1], "ddp 2");
    check_name(wrapped[2], "ddp 3");
    check_name(wrapped[3], "critic");
    ls_module_free(wrapped[2]);
    wrapped[2] = ls_ddp_new(&net_new(HIDDEN)->base, ls_world(), NULL);
    check_name(wrapped[2], "ddp 5"); /* the fourth one is still there */
    for (int i = 0; i < 4; i++) {
        ls_module_free(wrapped[i]);
    }
}

TEST_MAIN
