/* SPDX-License-Identifier: Apache-2.0 */
/* Values and gradients of operations beside those of PyTorch 2.13: torch_ops_numbers.h, made by
 * torch_ops.py, whose cases have the names used here. */
#include <math.h>
#include <string.h>

#include <lockstep/ops.h>
#include <lockstep/vision.h>

#include "../unit/tensor/local.h"
#include "torch_ops_numbers.h"

#define TOLERANCE 4e-6 /* float32 on both sides, sums of some dozen terms near 1 */
#define S(...) LS_SHAPE(__VA_ARGS__)

static void check_near(int line, ls_tensor *t, const float *want, int64_t count)
{
    float got[128];
    CHECK_OK(ls_tensor_status(t));
    CHECK_INT(ls_numel(t), count);
    CHECK_OK(ls_copy_out(ls_cast(t, LS_FLOAT32), got, (size_t)count * sizeof(float)));
    for (int64_t i = 0; i < count; i++) {
        const bool same =
            got[i] == want[i] || (isnan(got[i]) && isnan(want[i])); /* infinite, NaN */
        if (!same && !(fabs((double)got[i] - (double)want[i]) <=
                       TOLERANCE * (1.0 + fabs((double)want[i])))) {
            test_fail(__FILE__, line, "element %lld is %.9g, PyTorch has %.9g", (long long)i,
                      (double)got[i], (double)want[i]);
        }
    }
}

#define CHECK_TORCH(t, name)                                                                       \
    check_near(__LINE__, t, torch_##name, (int64_t)(sizeof torch_##name / sizeof(float)))

/* f of torch_ops.py: sin(1.7), sin(3.4), … */
static ls_tensor *f(ls_shape shape)
{
    float x[128];
    for (int i = 0; i < 128; i++) {
        x[i] = (float)sin(1.7 * (double)(i + 1));
    }
    return ls_from_data(x, shape, LS_FLOAT32);
}

static ls_tensor *leaf(ls_shape shape)
{
    return ls_set_requires_grad(f(shape), true);
}

/* The gradients of sum(y * f). */
static void weigh(ls_tensor *y)
{
    CHECK_OK(ls_backward(ls_sum(ls_mul(y, f(ls_shape_of(y))))));
}

/* The result, then the gradients of one, two or three leaves. */
#define CHECK_CASE1(y, name, a)                                                                    \
    CHECK_TORCH(y, name);                                                                          \
    weigh(y);                                                                                      \
    CHECK_TORCH(ls_grad(a), name##_grad0)
#define CHECK_CASE2(y, name, a, b)                                                                 \
    CHECK_CASE1(y, name, a);                                                                       \
    CHECK_TORCH(ls_grad(b), name##_grad1)
#define CHECK_CASE3(y, name, a, b, c)                                                              \
    CHECK_CASE2(y, name, a, b);                                                                    \
    CHECK_TORCH(ls_grad(c), name##_grad2)

LOCAL_TEST(functions_of_elements_agree_with_torch)
{
    ls_tensor *x = leaf(S(2, 4)), *y = ls_sin(ls_scale(x, 3.0));
    CHECK_CASE1(y, sin, x);
    x = leaf(S(2, 4)), y = ls_cos(ls_scale(x, 3.0));
    CHECK_CASE1(y, cos, x);
    ls_tensor *a = leaf(S(3, 4)), *b = leaf(S(4));
    y = ls_maximum(a, b);
    CHECK_CASE2(y, maximum, a, b);
    a = leaf(S(3, 4)), b = leaf(S(4)), y = ls_minimum(a, b);
    CHECK_CASE2(y, minimum, a, b);
}

/* |x| in steps of a tenth, as torch_ops.py has it; of numbers below 1 one step is enough. */
static ls_tensor *tenths(ls_tensor *x)
{
    float values[128];
    const int64_t count = ls_numel(x);
    CHECK_OK(ls_copy_out(x, values, (size_t)count * sizeof(float)));
    for (int64_t i = 0; i < count; i++) {
        values[i] = nearbyintf(fabsf(values[i]) * 10.0f) / 10.0f;
    }
    return ls_from_data(values, ls_shape_of(x), LS_FLOAT32);
}

static ls_tensor *whole(ls_tensor *x) /* to 0 and 1 */
{
    return ls_cast(ls_gt(x, ls_full(LS_SCALAR, LS_FLOAT32, 0.5)), LS_FLOAT32);
}

LOCAL_TEST(comparisons_agree_with_torch)
{
    ls_tensor *a = tenths(f(S(3, 4))), *b = tenths(f(S(4)));
    CHECK_TORCH(ls_eq(a, b), eq);
    CHECK_TORCH(ls_ne(a, b), ne);
    CHECK_TORCH(ls_lt(a, b), lt);
    CHECK_TORCH(ls_le(a, b), le);
    CHECK_TORCH(ls_gt(a, b), gt);
    CHECK_TORCH(ls_ge(a, b), ge);
    const float nan[] = {1.0f, NAN, 2.0f, NAN}, others[] = {1.0f, 1.0f, NAN, NAN};
    ls_tensor *x = ls_from_data(nan, S(4), LS_FLOAT32), *y = ls_from_data(others, S(4), LS_FLOAT32);
    CHECK_TORCH(ls_eq(x, y), eq_nan);
    CHECK_TORCH(ls_ne(x, y), ne_nan);
    CHECK_TORCH(ls_lt(x, y), lt_nan);
    CHECK_TORCH(ls_ge(x, y), ge_nan);
    CHECK_TORCH(ls_logical_and(whole(a), whole(b)), and);
    CHECK_TORCH(ls_logical_or(whole(a), whole(b)), or);
    CHECK_TORCH(ls_logical_not(whole(a)), not );
}

LOCAL_TEST(rows_of_numbers_and_padding_agree_with_torch)
{
    CHECK_TORCH(ls_arange(-1.0, 2.2, 0.7, LS_FLOAT32), arange);
    CHECK_TORCH(ls_arange(5, -4, -3, LS_INT32), arange_down);
    CHECK_TORCH(ls_linspace(-1.0, 2.0, 7, LS_FLOAT32), linspace);
    CHECK_TORCH(ls_linspace(3.0, 9.0, 1, LS_FLOAT32), linspace_one);
    ls_tensor *a = leaf(S(2, 2, 3)), *y = ls_pad(a, S(0, 1), S(1, 2), 0.5);
    CHECK_CASE1(y, pad, a);
    a = leaf(S(2, 4, 3)), y = ls_pad(a, S(2, -1), S(-3, 1), 0.0);
    CHECK_CASE1(y, pad_cut, a);
    a = leaf(S(2, 1, 2, 1, 2, 2));
    y = ls_pad(a, S(0, 1, 0, 1, -1, 0), S(-1, 0, 1, 0, 0, 1), 2.5);
    CHECK_CASE1(y, pad_six, a);
}

LOCAL_TEST(stacking_and_repeating_agree_with_torch)
{
    ls_tensor *a = leaf(S(2, 3)), *b = leaf(S(2, 3));
    ls_tensor *y = ls_stack((ls_tensor *[]){a, ls_exp(b)}, 2, 1);
    CHECK_CASE2(y, stack, a, b);
    a = leaf(S(2, 3)), b = leaf(S(2, 3));
    y = ls_stack((ls_tensor *[]){a, ls_exp(b)}, 2, -1);
    CHECK_CASE2(y, stack_last, a, b);
    a = leaf(S(2, 1, 3)), y = ls_expand(a, S(2, 2, 3));
    CHECK_CASE1(y, expand, a);
    a = leaf(S(3, 1)), y = ls_expand(a, S(2, -1, 2));
    CHECK_CASE1(y, expand_more, a);
    const int32_t index[] = {2, 0, 1, 2};
    CHECK_TORCH(ls_one_hot(ls_from_data(index, S(2, 2), LS_INT32), 3), one_hot);
}

LOCAL_TEST(orders_agree_with_torch)
{
    ls_tensor *at, *a = leaf(S(3, 5)), *y = ls_sort(a, 1, false, &at);
    CHECK_CASE1(y, sort, a);
    CHECK_TORCH(at, sort_index);
    a = leaf(S(3, 5)), y = ls_sort(a, -1, true, &at);
    CHECK_CASE1(y, sort_down, a);
    CHECK_TORCH(at, sort_down_index);
    a = leaf(S(4, 2, 2)), y = ls_sort(a, 0, false, &at);
    CHECK_CASE1(y, sort_first, a);
    CHECK_TORCH(at, sort_first_index);
    a = leaf(S(4, 2, 2)), y = ls_sort(a, 0, true, &at);
    CHECK_CASE1(y, sort_down_first, a);
    CHECK_TORCH(at, sort_down_first_index);
    const float odd[] = {3.0f, NAN, -1.0f, 3.0f, -0.0f, 0.0f};
    ls_tensor *x = ls_from_data(odd, S(6), LS_FLOAT32);
    CHECK_TORCH(ls_argsort(x, 0, false), argsort);
    CHECK_TORCH(ls_argsort(x, 0, true), argsort_down);
    a = leaf(S(2, 7)), y = ls_topk(a, 3, 1, true, &at);
    CHECK_CASE1(y, topk, a);
    CHECK_TORCH(at, topk_index);
    a = leaf(S(2, 7)), y = ls_topk(a, 3, 1, false, &at);
    CHECK_CASE1(y, topk_least, a);
    CHECK_TORCH(at, topk_least_index);
}

#define CHECK_ORDER(name, dtype, values)                                                           \
    {                                                                                              \
        ls_tensor *at, *x = ls_cast(ls_from_data(values, S(9), LS_FLOAT32), dtype);                \
        ls_tensor *y = ls_sort(x, 0, false, &at);                                                  \
        CHECK(ls_dtype_of(y) == (dtype));                                                          \
        CHECK_TORCH(y, sort_##name##_up);                                                          \
        CHECK_TORCH(at, sort_##name##_up_index);                                                   \
        CHECK_TORCH(ls_sort(x, 0, true, &at), sort_##name##_down);                                 \
        CHECK_TORCH(at, sort_##name##_down_index);                                                 \
    }

LOCAL_TEST(orders_of_other_types_agree_with_torch)
{
    const float floats[] = {3, NAN, -1, 3, -0.0f, 0, INFINITY, -INFINITY, 0.5f};
    const float whole[] = {3, -5, 0, 3, 127, -128, 0, -5, 64};
    const float natural[] = {3, 255, 0, 3, 128, 127, 0, 255, 64};
    const float truths[] = {1, 0, 1, 1, 0, 0, 1, 0, 1};
    CHECK_ORDER(float64, LS_FLOAT64, floats)
    CHECK_ORDER(float16, LS_FLOAT16, floats)
    CHECK_ORDER(bfloat16, LS_BFLOAT16, floats)
    CHECK_ORDER(int8, LS_INT8, whole)
    CHECK_ORDER(int16, LS_INT16, whole)
    CHECK_ORDER(int32, LS_INT32, whole)
    CHECK_ORDER(int64, LS_INT64, whole)
    CHECK_ORDER(uint8, LS_UINT8, natural)
    CHECK_ORDER(uint16, LS_UINT16, natural)
    CHECK_ORDER(uint32, LS_UINT32, natural)
    CHECK_ORDER(uint64, LS_UINT64, natural)
    CHECK_ORDER(bool, LS_BOOL, truths)
}

#define UPSAMPLE(x, kind, corners, ...)                                                            \
    ls_upsample(x, LS_OPTIONS(ls_upsample_options, .mode = (kind), .align_corners = (corners),     \
                              __VA_ARGS__))

#define CHECK_UPSAMPLE(name, kind, corners)                                                        \
    do {                                                                                           \
        ls_tensor *x = leaf(S(1, 2, 2, 3)), *y = UPSAMPLE(x, kind, corners, .output = {4, 5});     \
        CHECK_CASE1(y, up_##name, x);                                                              \
        x = leaf(S(1, 1, 5, 4)), y = UPSAMPLE(x, kind, corners, .output = {2, 3});                 \
        CHECK_CASE1(y, down_##name, x);                                                            \
        x = leaf(S(2, 1, 2, 2)), y = UPSAMPLE(x, kind, corners, .scale = {1.5, 2.5});              \
        CHECK_CASE1(y, scaled_##name, x);                                                          \
    } while (0)

LOCAL_TEST(enlarged_images_agree_with_torch)
{
    CHECK_UPSAMPLE(nearest, LS_UPSAMPLE_NEAREST, false);
    CHECK_UPSAMPLE(bilinear, LS_UPSAMPLE_BILINEAR, false);
    CHECK_UPSAMPLE(corners, LS_UPSAMPLE_BILINEAR, true);
}

LOCAL_TEST(convolutions_of_sequences_and_transposed_ones_agree_with_torch)
{
    ls_tensor *x = leaf(S(2, 2, 7)), *w = leaf(S(4, 2, 3)), *b = leaf(S(4));
    ls_tensor *y = ls_conv1d(x, w, b, NULL);
    CHECK_CASE3(y, conv1d, x, w, b);
    x = leaf(S(1, 4, 9)), w = leaf(S(2, 2, 3));
    y = ls_conv1d(
        x, w, NULL,
        LS_OPTIONS(ls_conv1d_options, .stride = 2, .padding = 3, .dilation = 2, .groups = 2));
    CHECK_CASE2(y, conv1d_options, x, w);
    x = leaf(S(2, 2, 2, 3)), w = leaf(S(2, 3, 2, 2)), b = leaf(S(3));
    y = ls_conv_transpose2d(x, w, b, NULL);
    CHECK_CASE3(y, transposed, x, w, b);
    x = leaf(S(1, 4, 3, 2)), w = leaf(S(4, 1, 3, 2)), b = leaf(S(2));
    y = ls_conv_transpose2d(x, w, b,
                            LS_OPTIONS(ls_conv_transpose2d_options, .stride = {2, 3},
                                       .padding = {1, 0}, .dilation = {1, 2},
                                       .output_padding = {1, 2}, .groups = 2));
    CHECK_CASE3(y, transposed_options, x, w, b);
}

LOCAL_TEST(group_norms_agree_with_torch)
{
    ls_tensor *x = leaf(S(2, 4, 3)), *w = leaf(S(4)), *b = leaf(S(4));
    ls_tensor *y = ls_group_norm(x, 2, w, b, 1e-5);
    CHECK_CASE3(y, group_norm, x, w, b);
    x = leaf(S(2, 2, 1, 3)), y = ls_group_norm(x, 1, NULL, NULL, 1e-5);
    CHECK_CASE1(y, group_norm_plain, x);
}

/* The second half of f. */
static ls_tensor *later(void)
{
    return ls_set_requires_grad(ls_clone(ls_slice(f(S(6, 4)), 0, 3, 6)), true);
}

LOCAL_TEST(losses_of_differences_agree_with_torch)
{
    ls_tensor *x = leaf(S(3, 4)), *y = later(), *loss = ls_l1_loss(x, y);
    CHECK_CASE2(loss, l1, x, y);
    x = leaf(S(3, 4)), y = later(), loss = ls_huber_loss(x, y, 0.4);
    CHECK_CASE2(loss, huber, x, y);
    x = leaf(S(3, 4)), y = later(), loss = ls_smooth_l1_loss(x, y, 0.3);
    CHECK_CASE2(loss, smooth_l1, x, y);
    x = leaf(S(3, 4)), y = later(), loss = ls_smooth_l1_loss(x, y, 0.0);
    CHECK_CASE2(loss, smooth_l1_0, x, y);
}

static ls_tensor *transposed_leaf(void)
{
    return ls_set_requires_grad(ls_clone(ls_transpose(f(S(3, 2)), 0, 1)), true);
}

#define CHECK_KL(name, kind)                                                                       \
    do {                                                                                           \
        const ls_kl_div_options plain = {.size = sizeof plain, .reduction = (kind)};               \
        const ls_kl_div_options logs = {                                                           \
            .size = sizeof logs, .reduction = (kind), .log_target = true};                         \
        ls_tensor *x = leaf(S(2, 3)), *y = transposed_leaf();                                      \
        ls_tensor *loss = ls_kl_div(ls_log_softmax(x, 1), ls_softmax(y, 1), &plain);               \
        CHECK_CASE2(loss, kl_##name, x, y);                                                        \
        x = leaf(S(2, 3)), y = transposed_leaf();                                                  \
        loss = ls_kl_div(ls_log_softmax(x, 1), ls_log_softmax(y, 1), &logs);                       \
        CHECK_CASE2(loss, kl_log_##name, x, y);                                                    \
    } while (0)

LOCAL_TEST(divergences_agree_with_torch)
{
    CHECK_KL(mean, LS_REDUCTION_MEAN);
    CHECK_KL(sum, LS_REDUCTION_SUM);
    CHECK_KL(none, LS_REDUCTION_NONE);
    CHECK_KL(batchmean, LS_REDUCTION_BATCHMEAN);
    const float target[] = {0.0f, 0.25f, 0.75f};
    ls_tensor *loss = ls_kl_div(ls_log_softmax(f(S(3)), 0), ls_from_data(target, S(3), LS_FLOAT32),
                                LS_OPTIONS(ls_kl_div_options, .reduction = LS_REDUCTION_SUM));
    CHECK_TORCH(loss, kl_zero);
}

LOCAL_TEST(leaky_relu_and_log_sum_exp_agree_with_torch)
{
    ls_tensor *x = leaf(S(2, 4)), *y = ls_leaky_relu(x, 0.1);
    CHECK_CASE1(y, leaky_relu, x);
    x = leaf(S(2, 3, 2)), y = ls_logsumexp(ls_scale(x, 3.0), 1, false);
    CHECK_CASE1(y, logsumexp, x);
    x = leaf(S(3, 4)), y = ls_logsumexp(x, -1, true);
    CHECK_CASE1(y, logsumexp_keep, x);
    const float odd[] = {-INFINITY, -INFINITY, INFINITY, 1.0f, 1000.0f,  1000.0f,
                         -INFINITY, 2.0f,      NAN,      1.0f, -1000.0f, -1001.0f};
    CHECK_TORCH(ls_logsumexp(ls_from_data(odd, S(6, 2), LS_FLOAT32), 1, false), logsumexp_odd);
    const float large[] = {-INFINITY, 2.0f, 1000.0f, 999.0f};
    x = ls_set_requires_grad(ls_from_data(large, S(2, 2), LS_FLOAT32), true);
    y = ls_logsumexp(x, 1, false);
    CHECK_CASE1(y, logsumexp_large, x);
}

LOCAL_TEST(rows_added_at_an_index_agree_with_torch)
{
    const int64_t rows[] = {2, 0, 2};
    const int32_t middle[] = {0, 0, 2, 0};
    ls_tensor *a = leaf(S(4, 3)), *b = leaf(S(3, 3));
    ls_tensor *y = ls_index_add(a, 0, ls_from_data(rows, S(3), LS_INT64), ls_exp(b));
    CHECK_CASE2(y, index_add, a, b);
    a = leaf(S(2, 3, 2)), b = leaf(S(2, 4, 2));
    y = ls_index_add(a, 1, ls_from_data(middle, S(4), LS_INT32), b);
    CHECK_CASE2(y, index_add_middle, a, b);
}

LOCAL_TEST(cross_entropy_with_weights_of_classes_agrees_with_torch)
{
    const int64_t classes[] = {2, 0, -100, 1, 2};
    float weights[3];
    double sum = 0.0, count = 0.0;
    for (int i = 0; i < 3; i++) {
        weights[i] = fabsf((float)sin(1.7 * (double)(i + 1))) + 0.2f;
    }
    ls_tensor *w = ls_from_data(weights, S(3), LS_FLOAT32);
    ls_tensor *target = ls_from_data(classes, S(5), LS_INT64), *x = leaf(S(5, 3));
    const ls_cross_entropy_options *plain = LS_OPTIONS(ls_cross_entropy_options, .weight = w);
    ls_tensor *loss = ls_cross_entropy(x, target, plain);
    CHECK_CASE1(loss, weighted, x);
    x = leaf(S(5, 3));
    loss = ls_cross_entropy(
        x, target, LS_OPTIONS(ls_cross_entropy_options, .weight = w, .label_smoothing = 0.3));
    CHECK_CASE1(loss, weighted_smooth, x);
    CHECK_OK(ls_cross_entropy_weight(target, plain, &sum));
    CHECK_TORCH(ls_full(LS_SCALAR, LS_FLOAT32, sum), weighted_sum);
    CHECK_OK(ls_cross_entropy_weight(ls_cast(target, LS_INT32), NULL, &count));
    CHECK_NEAR(count, 4, 0);
}

static ls_tensor *whole_numbers(ls_dtype dtype)
{
    const int64_t a[] = {-7, 7, -8, 3, 0, 9, -9, 1};
    return ls_cast(ls_from_data(a, S(2, 4), LS_INT64), dtype);
}

LOCAL_TEST(integers_agree_with_torch)
{
    static const ls_dtype types[] = {LS_INT8, LS_INT16, LS_INT32, LS_INT64};
    const int64_t divisors[] = {2, -2, 3, 5};
    for (int i = 0; i < 4; i++) {
        ls_tensor *a = whole_numbers(types[i]);
        ls_tensor *b = ls_cast(ls_from_data(divisors, S(4), LS_INT64), types[i]);
        CHECK(ls_dtype_of(ls_add(a, b)) == types[i]);
        CHECK_TORCH(ls_add(a, b), int_add);
        CHECK_TORCH(ls_sub(a, b), int_sub);
        CHECK_TORCH(ls_mul(a, b), int_mul);
        CHECK_TORCH(ls_maximum(a, b), int_max);
        CHECK_TORCH(ls_minimum(a, b), int_min);
        CHECK_TORCH(ls_floor_div(a, b), int_floor);
        CHECK_TORCH(ls_remainder(a, b), int_rest);
        CHECK(ls_dtype_of(ls_sum(a)) == LS_INT64);
        CHECK_TORCH(ls_sum(a), int_sum);
        CHECK_TORCH(ls_sum_dim(a, 1, true), int_sum_dim);
        CHECK_TORCH(ls_sum_dims(ls_reshape(a, S(2, 2, 2)), S(0, 2), false), int_sum_dims);
        CHECK_TORCH(ls_cumsum(a, 0), int_cumsum);
        CHECK_TORCH(ls_cumsum(ls_transpose(ls_transpose(a, 0, 1), 0, 1), 1), int_cumsum_last);
    }
    ls_tensor *small = ls_add_scalar(ls_scale(whole_numbers(LS_INT8), 20.0), 100.0);
    CHECK_TORCH(small, int_wraps);
}

LOCAL_TEST(counts_and_places_agree_with_torch)
{
    const int32_t index[] = {3, 0, 3, 1, 3};
    const float odd[] = {0.0f, -0.0f, NAN, 2.0f};
    ls_tensor *above = ls_gt(f(S(3, 4)), ls_full(LS_SCALAR, LS_FLOAT32, 0.3));
    CHECK_TORCH(ls_sum(above), truths);
    CHECK_TORCH(ls_sum_dim(above, 0, false), truths_dim);
    CHECK_TORCH(ls_nonzero(above), nonzero);
    CHECK_TORCH(ls_nonzero(ls_from_data(odd, S(4), LS_FLOAT32)), nonzero_floats);
    CHECK_TORCH(ls_bincount(ls_from_data(index, S(5), LS_INT32), 6), bincount);
    CHECK_INT(ls_numel(ls_nonzero(ls_zeros(S(3, 2), LS_INT64))), 0);
    CHECK_INT(ls_size(ls_nonzero(ls_ones(LS_SCALAR, LS_BOOL)), 1), 0);
}

/* Beyond what a double holds, and where signs differ. */
LOCAL_TEST(large_integers_are_exact)
{
    const int64_t a[] = {INT64_MAX, INT64_MIN, INT64_MIN, -1}, b[] = {1, 1, -1, INT64_MAX};
    const int64_t sums[] = {INT64_MIN, INT64_MIN + 1, INT64_MAX, INT64_MAX - 1};
    const int64_t quotients[] = {INT64_MAX, INT64_MIN, INT64_MIN, -1};
    const int64_t rests[] = {0, 0, 0, INT64_MAX - 1};
    const uint64_t high[] = {UINT64_MAX, 3}, by[] = {7, UINT64_MAX};
    const uint64_t parts[] = {UINT64_MAX / 7, 0}, most[] = {UINT64_MAX, UINT64_MAX};
    ls_tensor *x = ls_from_data(a, S(4), LS_INT64), *y = ls_from_data(b, S(4), LS_INT64);
    CHECK(memcmp(ls_data(ls_add(x, y)), sums, sizeof sums) == 0);
    CHECK(memcmp(ls_data(ls_floor_div(x, y)), quotients, sizeof quotients) == 0);
    CHECK(memcmp(ls_data(ls_remainder(x, y)), rests, sizeof rests) == 0);
    x = ls_from_data(high, S(2), LS_UINT64), y = ls_from_data(by, S(2), LS_UINT64);
    CHECK(memcmp(ls_data(ls_floor_div(x, y)), parts, sizeof parts) == 0);
    CHECK(memcmp(ls_data(ls_maximum(x, y)), most, sizeof most) == 0);
}

TEST_MAIN
