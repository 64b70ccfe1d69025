/* SPDX-License-Identifier: Apache-2.0 */
/* A residual network's operations on bfloat16, forward and backward, beside the same in float32: of
 * bfloat16 tensors, and of float32 parameters under autocast, whose gradients stay float32. */
#include <math.h>

#include <lockstep/random.h>
#include <lockstep/vision.h>

#include "../unit/tensor/local.h"

enum { X, W1, W2, GAMMA, BETA, LEAVES };

/* Each result is rounded to 8 bits, some ten of them one after the other. */
#define TOLERANCE 0.03

static ls_tensor *leaf(ls_shape shape, int which, ls_dtype dtype)
{
    ls_tensor *t = ls_empty(shape, LS_FLOAT32);
    float *x = ls_data(t);
    for (int64_t i = 0; i < ls_numel(t); i++) {
        x[i] = ls_random_uniform(3, (uint64_t)which, (uint64_t)i) - 0.4f;
    }
    t = ls_cast(ls_cast(t, LS_BFLOAT16), dtype); /* either type has these numbers */
    return ls_set_requires_grad(ls_detach(t), true);
}

static ls_tensor *norm(ls_tensor **in, ls_tensor *x, ls_tensor *residual)
{
    return ls_batch_norm(
        x, in[GAMMA], in[BETA],
        LS_OPTIONS(ls_batch_norm_options, .training = true, .relu = true, .residual = residual));
}

/* [2,3,9,8] -> [2,4,3,2]; no kink is near, where one type may take another side than the other. */
static ls_tensor *network(ls_tensor **in)
{
    const ls_conv2d_options same = *LS_OPTIONS(ls_conv2d_options, .padding = {1, 1});
    ls_tensor *x = ls_conv2d(in[X], in[W1], NULL, LS_OPTIONS(ls_conv2d_options, .relu = true));
    x = ls_avg_pool2d(x, LS_OPTIONS(ls_pool2d_options, .kernel = {2, 2}, .stride = {1, 1}));
    ls_tensor *y = norm(in, ls_conv2d(x, in[W2], in[BETA], &same), NULL);
    x = norm(in, ls_conv2d(y, in[W2], NULL, &same), x);
    x = ls_max_pool2d(x, LS_OPTIONS(ls_pool2d_options, .kernel = {2, 2}, .stride = {1, 1}));
    return ls_adaptive_avg_pool2d(ls_relu(x), 3, 2);
}

typedef struct outcome {
    ls_dtype result, gradient[LEAVES];
    double value[LEAVES + 1][512];
    int64_t numel[LEAVES + 1];
} outcome;

static void keep(outcome *out, int part, ls_tensor *t)
{
    t = ls_contiguous(ls_cast(t, LS_FLOAT32));
    CHECK_OK(ls_tensor_status(t));
    out->numel[part] = ls_numel(t);
    CHECK(out->numel[part] <= 512);
    for (int64_t i = 0; i < out->numel[part]; i++) {
        out->value[part][i] = (double)((const float *)ls_data(t))[i];
    }
}

static void run(outcome *out, ls_dtype dtype, bool autocast)
{
    const ls_shape shape[LEAVES] = {LS_SHAPE(2, 3, 9, 8), LS_SHAPE(4, 3, 3, 3),
                                    LS_SHAPE(4, 4, 3, 3), LS_SHAPE(4), LS_SHAPE(4)};
    ls_tensor *in[LEAVES], *y = NULL;
    for (int i = 0; i < LEAVES; i++) {
        in[i] = leaf(shape[i], i, dtype);
    }
    {
        LS_AUTOCAST(autocast);
        y = network(in);
    }
    ls_tensor *weights = ls_detach(leaf(ls_shape_of(y), 9, LS_FLOAT32));
    out->result = ls_dtype_of(y);
    CHECK_OK(ls_backward(ls_sum(ls_mul(ls_cast(y, LS_FLOAT32), weights))));
    keep(out, LEAVES, y);
    for (int i = 0; i < LEAVES; i++) {
        out->gradient[i] = ls_dtype_of(ls_grad(in[i]));
        keep(out, i, ls_grad(in[i]));
    }
}

/* |got - want| / |want| of all elements together. */
static void check_near(const outcome *got, const outcome *want, ls_dtype gradients)
{
    CHECK(got->result == LS_BFLOAT16);
    for (int part = 0; part <= LEAVES; part++) {
        double off = 0.0, all = 0.0;
        CHECK_INT(got->numel[part], want->numel[part]);
        CHECK(part == LEAVES || got->gradient[part] == gradients);
        for (int64_t i = 0; i < want->numel[part]; i++) {
            off += pow(got->value[part][i] - want->value[part][i], 2.0);
            all += pow(want->value[part][i], 2.0);
        }
        if (!(sqrt(off) <= TOLERANCE * sqrt(all))) {
            test_fail(__FILE__, __LINE__, "%s: part %d is off by %.3g of itself",
                      ls__tensors_get("")->host.k->name, part, sqrt(off / all));
        }
    }
}

static void check_tables(ls_dtype dtype, bool autocast)
{
    static outcome got, want;
    const ls__kernels *tables[] = {ls__kernels_ref(), ls__kernels_cpu()};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ls__tensor_use_kernels(tables[i]));
        LS_SCOPE;
        run(&want, LS_FLOAT32, false);
        run(&got, dtype, autocast);
        check_near(&got, &want, dtype);
    }
}

LOCAL_TEST(images_of_bfloat16_give_what_float32_gives_rounded)
{
    check_tables(LS_BFLOAT16, false);
}

LOCAL_TEST(images_under_autocast_give_what_float32_gives_and_float32_gradients)
{
    check_tables(LS_FLOAT32, true);
}

TEST_MAIN
