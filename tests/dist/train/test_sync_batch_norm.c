/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm over the ranks of a group: each rank has some samples of a batch, in uneven shares.
 * The reference is plain batch norm on the whole batch, which every rank computes for itself.
 *
 * Bounds: u = 2^-24 is float32's rounding. An element of y or dx is a few operations on statistics
 * that are rounded once, so 64 u of the largest one. A sum of M terms is right to M u of the
 * largest term; with bfloat16 each result is rounded once more, to 2^-8 of the largest. */
#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "says.h"
#include "test.h"

enum { RANKS_MAX = 8, CHANNELS = 5, HEIGHT = 3, WIDTH = 4, SAMPLES_MAX = 32 };
enum { SAMPLE_MAX = CHANNELS * HEIGHT * WIDTH };
enum { STEPS = 3, CLASSES = 3 };

#define U 5.9604644775390625e-8 /* 2^-24 */
#define HALF_U 3.90625e-3       /* 2^-8 */

typedef struct layout {
    const char *name;
    int64_t pixels; /* 1: x is [N,C] */
    bool last;      /* the channels lie last */
    ls_dtype dtype;
    bool fused; /* a residual and a ReLU follow */
} layout;

static const layout layouts[] = {
    {"[N,C]", 1, false, LS_FLOAT32, false},
    {"[N,C,H,W]", HEIGHT *WIDTH, false, LS_FLOAT32, false},
    {"[N,C,H,W], residual, relu", HEIGHT *WIDTH, false, LS_FLOAT32, true},
    {"[N,H,W,C]", HEIGHT *WIDTH, true, LS_FLOAT32, false},
    {"[N,H,W,C], residual, relu", HEIGHT *WIDTH, true, LS_FLOAT32, true},
    {"[N,C,H,W] bfloat16", HEIGHT *WIDTH, false, LS_BFLOAT16, false},
    {"[N,H,W,C] bfloat16", HEIGHT *WIDTH, true, LS_BFLOAT16, false},
    {"[N,H,W,C] bfloat16, residual, relu", HEIGHT *WIDTH, true, LS_BFLOAT16, true},
};

/* Rank 1's share is empty where `empty` says so. */
static int samples_of(int rank, bool empty)
{
    static const int counts[RANKS_MAX] = {3, 1, 4, 2, 5, 1, 3, 2};
    return empty && rank == 1 ? 0 : counts[rank];
}

/* The samples of the ranks before `rank`. */
static int first_of(int rank, bool empty)
{
    int first = 0;
    for (int i = 0; i < rank; i++) {
        first += samples_of(i, empty);
    }
    return first;
}

/* ---- one layer ------------------------------------------------------------------------------ */

typedef struct result {
    float y[SAMPLES_MAX * SAMPLE_MAX], dx[SAMPLES_MAX * SAMPLE_MAX], dr[SAMPLES_MAX * SAMPLE_MAX];
    float dw[CHANNELS], db[CHANNELS], mean[CHANNELS], var[CHANNELS];
} result;

/* Samples of stream `stream`, as a leaf; its numbers do not depend on the split. */
static ls_tensor *leaf_of(const layout *l, int stream, int first, int count)
{
    static float x[SAMPLES_MAX * SAMPLE_MAX];
    const int sample = CHANNELS * (int)l->pixels;
    for (int i = 0; i < count * sample; i++) {
        const int at = first * sample + i;
        x[i] = 0.5f + (float)(at % 7) + ls_random_normal(3, (uint64_t)stream, (uint64_t)at);
    }
    const ls_shape shape = l->pixels == 1 ? LS_SHAPE(count, CHANNELS)
                           : l->last      ? LS_SHAPE(count, HEIGHT, WIDTH, CHANNELS)
                                          : LS_SHAPE(count, CHANNELS, HEIGHT, WIDTH);
    return ls_set_requires_grad(ls_from_data(x, shape, LS_FLOAT32), true);
}

/* The leaf as batch norm takes it. */
static ls_tensor *operand_of(const layout *l, ls_tensor *leaf)
{
    ls_tensor *x = l->dtype == LS_BFLOAT16 ? ls_cast(leaf, LS_BFLOAT16) : leaf;
    return l->last ? ls_permute(x, LS_SHAPE(0, 3, 1, 2)) : x;
}

/* Back in the order of the leaf. */
static ls_tensor *result_of(const layout *l, ls_tensor *y)
{
    ls_tensor *in_order = l->last ? ls_permute(y, LS_SHAPE(0, 2, 3, 1)) : y;
    return ls_cast(in_order, LS_FLOAT32);
}

static void take(float *out, ls_tensor *t)
{
    CHECK(t != NULL);
    CHECK_OK(ls_tensor_status(t));
    memcpy(out, elements_of(t), (size_t)ls_numel(t) * sizeof(float));
}

static ls_module *layer_new(void)
{
    ls_module *layer = ls_batch_norm2d_new(CHANNELS, 1e-5, 0.3);
    float *w = edit_elements(ls_module_param(layer, "weight"));
    for (int c = 0; c < CHANNELS; c++) {
        w[c] = 0.5f + 0.25f * (float)c;
    }
    put_elements(ls_module_param(layer, "weight"), w);
    return layer;
}

/* Two forwards, so that running statistics build upon each other, and one backward. */
static void run_layer(ls_module *layer, const layout *l, int first, int count, result *out)
{
    LS_SCOPE;
    memset(out, 0, sizeof *out);
    ls_tensor *x = leaf_of(l, 0, first, count), *r = leaf_of(l, 1, first, count), *y = NULL;
    for (int i = 0; i < 2; i++) {
        y = l->fused ? ls_batch_norm2d_relu(layer, operand_of(l, x), operand_of(l, r))
                     : ls_forward(layer, operand_of(l, x));
        CHECK_OK(ls_tensor_status(y));
        CHECK_INT(ls_dtype_of(y), l->dtype);
    }
    y = result_of(l, y);
    ls_tensor *dy = ls_detach(leaf_of(l, 2, first, count));
    CHECK_OK(ls_backward(ls_sum(ls_mul(y, dy))));
    if (count > 0) {
        take(out->y, y);
        take(out->dx, ls_grad(x));
    }
    if (count > 0 && l->fused) {
        take(out->dr, ls_grad(r));
    }
    take(out->dw, ls_grad(ls_module_param(layer, "weight")));
    take(out->db, ls_grad(ls_module_param(layer, "bias")));
    take(out->mean, ls_module_buffer(layer, "running_mean"));
    take(out->var, ls_module_buffer(layer, "running_var"));
}

static void check_close(const layout *l, const char *what, const float *got, const float *want,
                        int64_t count, const float *scale, int64_t scale_count, double bound)
{
    double largest = 0.0;
    for (int64_t i = 0; i < scale_count; i++) {
        largest = fmax(largest, fabs((double)scale[i]));
    }
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs((double)got[i] - (double)want[i]) <= bound * largest)) {
            test_fail(__FILE__, __LINE__, "%s: %s[%lld] is %.9g, want %.9g to %.3g", l->name, what,
                      (long long)i, (double)got[i], (double)want[i], bound * largest);
        }
    }
}

/* All ranks have the same bits of the first `count` floats. */
static void check_equal_bits(const float *own, int count)
{
    float first[CHANNELS];
    memcpy(first, own, (size_t)count * sizeof(float));
    CHECK_OK(ls_broadcast(ls_world(), first, count, LS_FLOAT32, 0, NULL, NULL));
    CHECK(memcmp(first, own, (size_t)count * sizeof(float)) == 0);
}

/* The layer on this rank's samples against the layer on all. */
static void compare_layer(const layout *l, bool empty)
{
    static result got, want;
    const int rank = ls_rank(), ranks = ls_world_size();
    const int first = first_of(rank, empty), count = samples_of(rank, empty);
    const int total = first_of(ranks, empty);
    CHECK(total <= SAMPLES_MAX);
    ls_module *layer = layer_new(), *whole = layer_new();
    CHECK_OK(ls_sync_batch_norm_convert(layer, ls_world()));
    run_layer(layer, l, first, count, &got);
    run_layer(whole, l, 0, total, &want);
    CHECK_OK(ls_all_reduce(ls_world(), got.dw, got.dw, CHANNELS, LS_FLOAT32, LS_SUM, NULL, NULL));
    CHECK_OK(ls_all_reduce(ls_world(), got.db, got.db, CHANNELS, LS_FLOAT32, LS_SUM, NULL, NULL));

    const int64_t sample = CHANNELS * l->pixels, all = total * sample, own = count * sample;
    const double each = l->dtype == LS_BFLOAT16 ? HALF_U : 64.0 * U;
    const double sum = (double)all * U * 64.0; /* terms: dy up to 8, times h up to 5 */
    const float one = 1.0f;
    check_close(l, "y", got.y, want.y + first * sample, own, want.y, all, each);
    check_close(l, "dx", got.dx, want.dx + first * sample, own, want.dx, all, each);
    check_close(l, "dresidual", got.dr, want.dr + first * sample, own, want.dr, all, each);
    check_close(l, "dw", got.dw, want.dw, CHANNELS, &one, 1, sum);
    check_close(l, "db", got.db, want.db, CHANNELS, &one, 1, sum);
    check_close(l, "running_mean", got.mean, want.mean, CHANNELS, want.mean, CHANNELS, 64.0 * U);
    check_close(l, "running_var", got.var, want.var, CHANNELS, want.var, CHANNELS, 64.0 * U);
    check_equal_bits(got.mean, CHANNELS);
    check_equal_bits(got.var, CHANNELS);
    if (ranks == 1) {
        CHECK(memcmp(&got, &want, sizeof got) == 0);
    }
    ls_module_free(layer);
    ls_module_free(whole);
}

static void compare_layouts(void)
{
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        compare_layer(&layouts[i], false);
        if (ls_world_size() > 1) {
            compare_layer(&layouts[i], true);
        }
    }
}

DIST_TEST(one_rank_has_the_bits_of_plain_batch_norm, 1)
{
    compare_layouts();
}
DIST_TEST(two_ranks_have_the_statistics_of_the_whole_batch, 2)
{
    compare_layouts();
}
DIST_TEST(three_ranks_have_the_statistics_of_the_whole_batch, 3)
{
    compare_layouts();
}
DIST_TEST(four_ranks_have_the_statistics_of_the_whole_batch, 4)
{
    compare_layouts();
}
DIST_TEST(eight_ranks_have_the_statistics_of_the_whole_batch, 8)
{
    compare_layouts();
}

/* ---- a model -------------------------------------------------------------------------------- */

/* A residual network in small: batch norm behind convolutions, with and without a fused ReLU. */
typedef struct small {
    ls_module base;
    ls_module *conv1, *norm1, *conv2, *norm2, *head;
    bool recompute;
} small;

static ls_tensor *block(ls_tensor *x, void *arg)
{
    small *s = arg;
    ls_tensor *h = ls_batch_norm2d_relu(s->norm1, ls_forward(s->conv1, x), NULL);
    return ls_batch_norm2d_relu(s->norm2, ls_forward(s->conv2, h), h);
}

static ls_tensor *small_forward(ls_module *m, ls_tensor *x)
{
    small *s = (small *)m;
    ls_tensor *h = s->recompute ? ls_recompute_call(block, x, s) : block(x, s);
    ls_tensor *pooled = ls_adaptive_avg_pool2d(h, 1, 1);
    return ls_forward(s->head, ls_reshape(pooled, LS_SHAPE(ls_size(pooled, 0), CHANNELS)));
}

static const ls_module_class small_class =
    LS_MODULE_CLASS(.name = "small", .forward = small_forward);

static ls_module *small_new(bool recompute)
{
    CHECK_OK(ls_manual_seed(5));
    small *s = ls_module_new(sizeof *s, &small_class);
    const ls_conv2d_layer_options *same =
        LS_OPTIONS(ls_conv2d_layer_options, .padding = 1, .bias = false);
    s->conv1 = ls_module_add(&s->base, "conv1", ls_conv2d_new(2, CHANNELS, 3, same));
    s->norm1 = ls_module_add(&s->base, "norm1", ls_batch_norm2d_new(CHANNELS, 1e-5, 0.1));
    s->conv2 = ls_module_add(&s->base, "conv2", ls_conv2d_new(CHANNELS, CHANNELS, 3, same));
    s->norm2 = ls_module_add(&s->base, "norm2", ls_batch_norm2d_new(CHANNELS, 1e-5, 0.1));
    s->head = ls_module_add(&s->base, "head", ls_linear_new(CHANNELS, CLASSES, NULL));
    s->recompute = recompute;
    CHECK_OK(ls_module_status(&s->base));
    return &s->base;
}

static ls_tensor *images_of(int step, int first, int count)
{
    static float x[SAMPLES_MAX * 2 * HEIGHT * WIDTH];
    enum { IMAGE = 2 * HEIGHT * WIDTH };
    for (int i = 0; i < count * IMAGE; i++) {
        x[i] = ls_random_normal(8, (uint64_t)step, (uint64_t)(first * IMAGE + i));
    }
    return ls_from_data(x, LS_SHAPE(count, 2, HEIGHT, WIDTH), LS_FLOAT32);
}

static int silent = -1; /* the rank whose samples are in the statistics and in no loss; -1: none */

static bool is_silent(int sample)
{
    return silent >= 0 && sample >= first_of(silent, false) && sample < first_of(silent + 1, false);
}

/* One step on `count` samples. Those that the loss counts are its weight when others add to the
 * gradients. */
static void learn(ls_module *net, ls_optim *optim, int step, int first, int count, bool autocast)
{
    LS_SCOPE;
    LS_AUTOCAST(autocast);
    int32_t classes[SAMPLES_MAX];
    int weight = 0;
    for (int i = 0; i < count; i++) {
        classes[i] = is_silent(first + i) ? -100 : (first + i + step) % CLASSES;
        weight += !is_silent(first + i);
    }
    ls_tensor *y = ls_forward(net, images_of(step, first, count));
    ls_tensor *labels = ls_from_data(classes, LS_SHAPE(count), LS_INT32);
    ls_tensor *loss = ls_cross_entropy(y, labels, NULL);
    CHECK_OK(ls_ddp_module(net) != net ? ls_backward_weighted(loss, weight) : ls_backward(loss));
    CHECK_OK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
}

/* ||difference|| to ||value|| of each parameter. */
static void check_parameters(ls_module *got, ls_module *want, double bound)
{
    ls_param a[16], b[16];
    const int count = ls_module_params(got, a, 16);
    CHECK_INT(ls_module_params(want, b, 16), count);
    for (int i = 0; i < count; i++) {
        const float *x = elements_of(a[i].value), *y = elements_of(b[i].value);
        double off = 0.0, size = 0.0;
        for (int64_t k = 0; k < ls_numel(b[i].value); k++) {
            off += ((double)x[k] - (double)y[k]) * ((double)x[k] - (double)y[k]);
            size += (double)y[k] * (double)y[k];
        }
        if (!(sqrt(off) <= bound * sqrt(size))) {
            test_fail(__FILE__, __LINE__, "%s is off by %g", a[i].name, sqrt(off / size));
        }
    }
}

/* Trains the model on the ranks' shares and its twin on the whole batch. */
static void compare_training(bool recompute, bool empty, bool autocast)
{
    const int first = first_of(ls_rank(), empty), count = samples_of(ls_rank(), empty);
    int identical = 0;
    uint64_t hash = 0;
    ls_module *net = small_new(recompute), *twin = small_new(false);
    CHECK_OK(ls_sync_batch_norm_convert(net, ls_world()));
    net = ls_ddp_new(net, ls_world(), NULL);
    CHECK(net != NULL);
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.05, .momentum = 0.9));
    ls_optim *other = ls_sgd_new(twin, LS_OPTIONS(ls_sgd_options, .lr = 0.05, .momentum = 0.9));
    for (int step = 0; step < STEPS; step++) {
        learn(net, optim, step, first, count, autocast);
        learn(twin, other, step, 0, first_of(ls_world_size(), empty), autocast);
    }
    check_parameters(net, twin, autocast ? STEPS * HALF_U : 1e-5);
    const ls_tensor *seen = ls_module_buffer(net, "norm2.num_batches_tracked");
    CHECK_INT(*(const int64_t *)elements_of((ls_tensor *)seen), STEPS);
    CHECK_OK(ls_replicas_identical(net, ls_world(), &identical, &hash));
    CHECK_INT(identical, ls_world_size());
    ls_optim_free(optim);
    ls_optim_free(other);
    ls_module_free(net);
    ls_module_free(twin);
}

DIST_TEST(a_small_resnet_trains_as_one_process_with_the_whole_batch, 4)
{
    compare_training(false, false, false);
}

DIST_TEST(a_rank_with_an_empty_batch_trains_with_the_others, 3)
{
    compare_training(false, true, false);
}

DIST_TEST(recomputed_segments_exchange_again_and_give_the_same_gradients, 3)
{
    compare_training(true, false, false);
}

/* The rank without data has weight 0: its backward computes nothing, but it runs the segment again
 * for the exchanges that the others wait for. */
DIST_TEST(a_rank_with_an_empty_batch_recomputes_with_the_others, 3)
{
    compare_training(true, true, false);
}

/* A pass of weight 0 gives the gradients of what its samples are to the others' losses. */
DIST_TEST(a_rank_of_weight_0_learns_from_losses_that_its_samples_reach, 3)
{
    silent = 1;
    compare_training(false, false, false);
    compare_training(true, false, false);
}

/* Convolutions round to bfloat16; statistics and running ones stay float32. */
DIST_TEST(mixed_precision_trains_as_one_process_does_in_it, 3)
{
    compare_training(false, false, true);
    compare_training(true, true, true);
}

/* ---- without and against ------------------------------------------------------------------- */

/* Rank 0 alone evaluates, which would wait for ever if it exchanged. */
DIST_TEST(evaluation_exchanges_nothing, 2)
{
    LS_SCOPE;
    ls_module *net = small_new(false), *twin = small_new(false);
    CHECK_OK(ls_sync_batch_norm_convert(net, ls_world()));
    ls_module_train(net, false);
    ls_module_train(twin, false);
    if (ls_rank() == 0) {
        ls_tensor *y = ls_forward(net, images_of(0, 0, 3)),
                  *z = ls_forward(twin, images_of(0, 0, 3));
        CHECK_OK(ls_tensor_status(y));
        CHECK(memcmp(elements_of(y), elements_of(z), (size_t)ls_numel(y) * sizeof(float)) == 0);
    }
    ls_module_free(net);
    ls_module_free(twin);
}

/* Both ranks have one sample of one pixel, and one of them none. */
DIST_TEST(one_element_for_each_channel_is_enough_on_a_rank_but_not_on_all, 2)
{
    LS_SCOPE;
    ls_module *layer = layer_new();
    CHECK_OK(ls_sync_batch_norm_convert(layer, ls_world()));
    ls_tensor *x = leaf_of(&layouts[0], 0, ls_rank(), 1);
    CHECK_OK(ls_tensor_status(ls_forward(layer, x)));
    x = leaf_of(&layouts[0], 0, 0, 1 - ls_rank());
    CHECK_STATUS(ls_tensor_status(ls_forward(layer, x)), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "the %d ranks have one element per channel together; training needs at least two, "
               "because it divides by their standard deviation");
    ls_module_free(layer);
}

DIST_TEST(a_rank_whose_input_does_not_fit_is_named_to_the_others, 2)
{
    LS_SCOPE;
    ls_module *layer = layer_new();
    CHECK_OK(ls_sync_batch_norm_convert(layer, ls_world()));
    ls_tensor *x = ls_ones(LS_SHAPE(4, CHANNELS + ls_rank()), LS_FLOAT32);
    ls_tensor *y = ls_forward(layer, x);
    CHECK_STATUS(ls_tensor_status(y), ls_rank() == 1 ? LS_ERR_INVALID : LS_ERR_ABORTED);
    CHECK_CONTAINS(ls_error_message(), "it must be [6], the channels of x");
    ls_module_free(layer);
}

DIST_TEST(a_rank_that_did_not_convert_is_a_mismatch, 2)
{
    ls_module *net = small_new(false), *ddp = NULL;
    ls_status status = ls_rank() == 0 ? ls_sync_batch_norm_convert(net, ls_world()) : LS_OK;
    if (status == LS_OK) {
        ddp = ls_ddp_new(net, ls_world(), NULL);
        status = ls_error_status();
    }
    CHECK(ddp == NULL);
    CHECK_INT(status, LS_ERR_MISMATCH);
    ls_module_free(net);
}

DIST_TEST(shards_and_a_wrapped_model_are_refused_in_words, 2)
{
    ls_module *net = small_new(false);
    CHECK_OK(ls_sync_batch_norm_convert(net, ls_world()));
    CHECK(ls_ddp_new(net, ls_world(), LS_OPTIONS(ls_ddp_options, .shards = 4)) == NULL);
    CHECK_INT(ls_error_status(), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "shards and ls_sync_batch_norm_convert: batch norm would take "
                                   "the statistics of as many shards as there are ranks, so bits "
                                   "would depend on the number of ranks; leave one of them out");
    ls_module_free(net);
    net = ls_ddp_new(small_new(false), ls_world(), NULL);
    CHECK_STATUS(ls_sync_batch_norm_convert(net, ls_world()), LS_ERR_STATE);
    CHECK_STATUS(ls_sync_batch_norm_convert(ls_ddp_module(net), ls_world()), LS_ERR_STATE);
    CHECK_SAYS(
        ls_error_message(),
        "sync_batch_norm_convert: the model is wrapped already; convert it before ls_ddp_new");
    CHECK_STATUS(ls_sync_batch_norm_convert(net, NULL), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "sync_batch_norm_convert: the %s is NULL; give a model and the "
                                   "group of its ranks (ls_world())");
    ls_module_free(net);
}

/* The rank with data waits in batch norm, and hears why nobody comes. */
DIST_TEST(a_rank_that_joins_is_refused_and_the_others_hear_of_it, 2)
{
    LS_SCOPE;
    bool more = true;
    ls_module *net = small_new(false);
    CHECK_OK(ls_sync_batch_norm_convert(net, ls_world()));
    net = ls_ddp_new(net, ls_world(), NULL);
    if (ls_rank() == 0) {
        ls_tensor *y = ls_forward(net, images_of(0, 0, 2));
        CHECK_STATUS(ls_tensor_status(y), LS_ERR_ABORTED);
    } else {
        CHECK_STATUS(ls_ddp_join(net, NULL, &more), LS_ERR_UNSUPPORTED);
    }
    CHECK_SAYS(ls_error_message(),
               "ls_ddp_join: batch norm takes the statistics of all ranks "
               "(ls_sync_batch_norm_convert), and a rank that has joined runs no forward pass; "
               "give all ranks equally many batches, which may be empty, or leave one of them out");
    ls_module_free(net);
}

TEST_MAIN
