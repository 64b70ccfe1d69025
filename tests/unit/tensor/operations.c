/* SPDX-License-Identifier: Apache-2.0 */
/* What the gradient checks do not see of ops.h: other types, views, poison, tensors without
 * elements, memory of a steady loop. */
#include <math.h>
#include <string.h>

#include <lockstep/ops.h>
#include <lockstep/random.h>

#include "local.h"

static ls_tensor *counting(ls_shape shape)
{
    ls_tensor *t = ls_empty(shape, LS_FLOAT32);
    float *x = ls_data(t);
    for (int64_t i = 0; i < ls_numel(t); i++) {
        x[i] = (float)i;
    }
    return t;
}

LOCAL_TEST(tensors_of_any_type_are_joined)
{
    const ls_dtype types[] = {LS_BOOL, LS_FLOAT16, LS_INT32, LS_INT64, LS_FLOAT64};
    for (int i = 0; i < 5; i++) {
        ls_tensor *a = ls_cast(counting(LS_SHAPE(2, 3)), types[i]);
        ls_tensor *b = ls_transpose(ls_cast(counting(LS_SHAPE(1, 2)), types[i]), 0, 1);
        ls_tensor *joined = ls_concat((ls_tensor *[]){a, b, ls_slice(a, 1, 0, 0)}, 3, 1);
        float got[8];
        const float want[] = {0, 1, 2, 0, 3, 4, 5, 1}, truth[] = {0, 1, 1, 0, 1, 1, 1, 1};
        CHECK(ls_dtype_of(joined) == types[i]);
        CHECK_OK(ls_copy_out(ls_cast(joined, LS_FLOAT32), got, sizeof got));
        CHECK(memcmp(got, types[i] == LS_BOOL ? truth : want, sizeof got) == 0);
    }
}

LOCAL_TEST(split_gives_views)
{
    const int64_t sizes[] = {1, 2};
    ls_tensor *a = counting(LS_SHAPE(2, 3)), *part[2];
    CHECK_OK(ls_split(a, 1, sizes, 2, part));
    ((float *)ls_data(a))[4] = 50.0f;
    float got[4];
    CHECK_OK(ls_copy_out(part[1], got, sizeof got));
    CHECK(got[0] == 1.0f && got[1] == 2.0f && got[2] == 50.0f && got[3] == 5.0f);
    CHECK_STATUS(ls_split(a, 1, sizes, 1, part), LS_ERR_INVALID);
    CHECK_STATUS(ls_tensor_status(part[0]), LS_ERR_INVALID);
}

LOCAL_TEST(poison_is_passed_on_with_its_first_error)
{
    ls_tensor *bad = ls_matmul(counting(LS_SHAPE(4, 3)), counting(LS_SHAPE(5, 2)));
    ls_tensor *x = counting(LS_SHAPE(4, 3)), *i = ls_zeros(LS_SHAPE(4, 3), LS_INT64), *part[2];
    ls_tensor *c = ls_zeros(LS_SHAPE(4, 3), LS_BOOL), *q = counting(LS_SHAPE(1, 1, 2, 2));
    ls_tensor *four = ls_zeros(LS_SHAPE(4), LS_INT64);
    const int64_t sizes[] = {1, 2};
    ls_tensor *all[] = {
        ls_leaky_relu(bad, 0.1),
        ls_logsumexp(bad, 0, false),
        ls_index_add(bad, 0, four, x),
        ls_index_add(x, 0, four, bad),
        ls_nonzero(bad),
        ls_bincount(bad, 2),
        ls_floor_div(i, bad),
        ls_remainder(bad, i),
        ls_cross_entropy(x, four, LS_OPTIONS(ls_cross_entropy_options, .weight = bad)),
        ls_abs(bad),
        ls_silu(bad),
        ls_pow_scalar(bad, 2),
        ls_clamp(bad, 0, 1),
        ls_where(c, x, bad),
        ls_where(bad, x, x),
        ls_concat((ls_tensor *[]){x, bad}, 2, 0),
        ls_concat((ls_tensor *[]){bad, x}, 2, 0),
        ls_gather_dim(bad, 0, i),
        ls_gather_dim(x, 0, bad),
        ls_scatter_add(x, 0, i, bad),
        ls_index_select(x, 0, bad),
        ls_cumsum(bad, 0),
        ls_sum_dims(bad, LS_SCALAR, false),
        ls_mean_dims(bad, LS_SCALAR, false),
        ls_var_dims(bad, LS_SCALAR, true, false),
        ls_max_dim(bad, 0, false),
        ls_min_dim(bad, 0, false),
        ls_rms_norm(x, bad, 1e-5),
        ls_rotary(bad, 0, 10000.0),
        ls_attention(q, bad, q, NULL),
        ls_attention(q, q, q, LS_OPTIONS(ls_attention_options, .mask = bad)),
        ls_nll_loss(x, bad),
        ls_bce_with_logits(bad, x),
        ls_cross_entropy(bad, i, NULL),
    };
    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++) {
        CHECK_STATUS(ls_tensor_status(all[n]), LS_ERR_INVALID);
        CHECK_CONTAINS(ls_error_message(), "matmul: [4,3] x [5,2]");
    }
    CHECK_STATUS(ls_split(bad, 1, sizes, 2, part), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "matmul: [4,3] x [5,2]");
}

/* ---- nothing ------------------------------------------------------------------------------ */

static void check_zero_gradient(ls_tensor *y, ls_tensor *param)
{
    CHECK_OK(ls_backward(ls_sum(y)));
    CHECK(ls_grad(param) != NULL);
    const float *g = ls_data(ls_grad(param));
    for (int64_t i = 0; i < ls_numel(param); i++) {
        CHECK_NEAR(g[i], 0.0, 0.0);
    }
}

LOCAL_TEST(tensors_without_elements_have_results_and_zero_gradients)
{
    ls_tensor *x = ls_set_requires_grad(counting(LS_SHAPE(2, 2, 3, 4)), true);
    ls_tensor *none = ls_slice(x, 2, 1, 1); /* [2,2,0,4] */
    ls_tensor *no_index = ls_zeros(LS_SHAPE(2, 2, 0, 4), LS_INT64),
              *flat = ls_zeros(LS_SHAPE(0), LS_INT32);
    check_zero_gradient(ls_silu(none), x);
    check_zero_gradient(ls_clamp(none, 0, 1), x);
    check_zero_gradient(ls_index_add(none, 2, flat, none), x);
    check_zero_gradient(ls_logsumexp(ls_slice(x, 0, 0, 0), 1, false), x);
    check_zero_gradient(ls_where(ls_zeros(LS_SHAPE(4), LS_BOOL), none, none), x);
    check_zero_gradient(ls_concat((ls_tensor *[]){none, none}, 2, 0), x);
    check_zero_gradient(ls_gather_dim(x, 2, no_index), x);
    check_zero_gradient(ls_gather_dim(none, 2, no_index), x);
    check_zero_gradient(ls_index_select(x, 1, flat), x);
    check_zero_gradient(ls_cumsum(none, 1), x);
    check_zero_gradient(ls_sum_dims(none, LS_SHAPE(2, 3), false), x);
    check_zero_gradient(ls_mean_dims(none, LS_SHAPE(0, 3), false), x);
    check_zero_gradient(ls_var_dims(none, LS_SHAPE(1), true, true), x);
    check_zero_gradient(ls_max_dim(none, 0, false), x);
    check_zero_gradient(ls_rms_norm(none, NULL, 1e-5), x);
    check_zero_gradient(ls_rotary(none, 0, 10000.0), x);
    check_zero_gradient(ls_attention(none, x, x, NULL), x);
    check_zero_gradient(ls_attention(x, none, none, NULL), x);
}

LOCAL_TEST(losses_over_no_rows_that_count_are_nan_with_zero_gradients)
{
    const int64_t ignored[] = {-100, -100};
    ls_tensor *w = ls_set_requires_grad(counting(LS_SHAPE(3, 4)), true);
    ls_tensor *x = ls_matmul(counting(LS_SHAPE(2, 3)), w);
    ls_tensor *t = ls_from_data(ignored, LS_SHAPE(2), LS_INT64);
    ls_tensor *none = ls_slice(x, 0, 0, 0), *no_target = ls_slice(t, 0, 0, 0);
    ls_tensor *losses[] = {ls_cross_entropy(x, t, NULL), ls_nll_loss(x, t),
                           ls_cross_entropy(none, no_target, NULL), ls_nll_loss(none, no_target),
                           ls_bce_with_logits(none, ls_detach(none))};
    ls_tensor *sum = losses[0];
    for (int i = 0; i < 5; i++) {
        double value = 0.0;
        CHECK_OK(ls_item(losses[i], &value));
        CHECK(isnan(value));
        sum = i > 0 ? ls_add(sum, losses[i]) : sum;
    }
    check_zero_gradient(sum, w);
}

/* Each group about another mean; those of the second sample are constant. */
LOCAL_TEST(groups_with_a_large_mean_are_normalised_exactly)
{
    enum { CHANNELS = 4, PIXELS = 384, COUNT = CHANNELS * PIXELS, OF_GROUP = COUNT / 2 };
    static float y[2 * COUNT];
    ls_tensor *x = ls_randn(LS_SHAPE(2, CHANNELS, PIXELS));
    float *at = ls_data(x);
    for (int i = 0; i < 2 * COUNT; i++) {
        at[i] = 1000.0f + 2.517f * (float)(i / OF_GROUP) + (i < COUNT ? 0.01f * at[i] : 0.0f);
    }
    CHECK_OK(ls_copy_out(ls_group_norm(x, 2, NULL, NULL, 1e-5), y, sizeof y));
    for (int first = 0; first < 2 * COUNT; first += OF_GROUP) {
        double mean = 0.0, variance = 0.0;
        for (int i = first; i < first + OF_GROUP; i++) {
            mean += (double)at[i] / OF_GROUP;
        }
        for (int i = first; i < first + OF_GROUP; i++) {
            variance += ((double)at[i] - mean) * ((double)at[i] - mean) / OF_GROUP;
        }
        for (int i = first; i < first + OF_GROUP; i++) {
            const double want = ((double)at[i] - mean) / sqrt(variance + 1e-5);
            CHECK_NEAR(y[i], want, 4e-6 * fabs(want) + 1e-6);
            CHECK(first < COUNT || y[i] == 0.0f);
        }
    }
}

/* ---- attention ---------------------------------------------------------------------------- */

static void check_same(ls_tensor *a, ls_tensor *b, double tolerance)
{
    float x[512], y[512];
    CHECK_INT(ls_numel(a), ls_numel(b));
    CHECK_OK(ls_copy_out(a, x, (size_t)ls_numel(a) * sizeof(float)));
    CHECK_OK(ls_copy_out(b, y, (size_t)ls_numel(b) * sizeof(float)));
    for (int64_t i = 0; i < ls_numel(a); i++) {
        CHECK_NEAR(x[i], y[i], tolerance);
    }
}

/* softmax(scale q k^T + mask) v of products and softmax. */
static ls_tensor *composed(ls_tensor *q, ls_tensor *k, ls_tensor *v, ls_tensor *mask, double scale)
{
    ls_tensor *scores = ls_scale(ls_matmul(q, ls_transpose(k, -1, -2)), scale);
    return ls_matmul(ls_softmax(ls_add(scores, mask), -1), v);
}

LOCAL_TEST(attention_with_options_is_what_products_and_softmax_give)
{
    ls_step_begin((ls_step_context){1, 0});
    ls_tensor *q = ls_randn(LS_SHAPE(2, 4, 3, 8)), *k = ls_randn(LS_SHAPE(2, 2, 5, 8));
    ls_tensor *v = ls_randn(LS_SHAPE(2, 2, 5, 8)), *mask = ls_randn(LS_SHAPE(4, 3, 5));
    const int64_t twice[] = {0, 0, 1, 1};
    ls_tensor *index = ls_from_data(twice, LS_SHAPE(4), LS_INT64);
    ls_tensor *o = ls_attention(q, k, v, LS_OPTIONS(ls_attention_options, .mask = mask));
    ls_tensor *want = composed(q, ls_index_select(k, 1, index), ls_index_select(v, 1, index), mask,
                               1.0 / sqrt(8.0));
    check_same(o, want, 2e-6);
    ls_tensor *edge = ls_empty(LS_SHAPE(3, 5), LS_FLOAT32); /* query t sees keys 0 … t + 2 */
    for (int i = 0; i < 15; i++) {
        ((float *)ls_data(edge))[i] = i % 5 > i / 5 + 2 ? -INFINITY : 0.0f;
    }
    check_same(ls_attention(q, k, v, LS_OPTIONS(ls_attention_options, .causal = true)),
               ls_attention(q, k, v, LS_OPTIONS(ls_attention_options, .mask = edge)), 0.0);
    check_same(ls_attention(k, k, v, LS_OPTIONS(ls_attention_options, .causal = true)),
               ls_attention(k, k, v, LS_OPTIONS(ls_attention_options, .causal = true)), 0.0);
}

LOCAL_TEST(dropout_of_attention_keeps_the_mean_and_repeats_with_the_step)
{
    ls_tensor *q = ls_zeros(LS_SHAPE(1, 2, 50, 4), LS_FLOAT32);
    ls_tensor *v = ls_ones(LS_SHAPE(1, 2, 200, 4), LS_FLOAT32), *o[2];
    for (int i = 0; i < 2; i++) {
        ls_step_begin((ls_step_context){3, 0});
        o[i] = ls_attention(q, v, v, LS_OPTIONS(ls_attention_options, .dropout = 0.25));
    }
    double mean = 0.0; /* of 20000 weights: sqrt(0.25/0.75/20000) = 0.004 */
    check_same(o[0], o[1], 0.0);
    CHECK_OK(ls_item(ls_mean(o[0]), &mean));
    CHECK_NEAR(mean, 1.0, 0.02);
    CHECK_OK(
        ls_item(ls_max_dim(ls_var_dims(o[0], LS_SHAPE(0, 1, 2), true, true), -1, false), &mean));
    CHECK(mean > 0.0);
}

/* ---- memory ------------------------------------------------------------------------------- */

static void one_step(ls_tensor *w)
{
    LS_SCOPE;
    const int64_t sizes[] = {2, 2};
    const int32_t target[] = {0, -100, 1};
    ls_tensor *part[2], *x = ls_rms_norm(ls_silu(w), NULL, 1e-5);
    CHECK_OK(ls_split(x, -1, sizes, 2, part));
    x = ls_concat((ls_tensor *[]){part[1], part[0], ls_exp(part[1])}, 3, -1);
    x = ls_where(ls_ones(LS_SHAPE(6), LS_BOOL), ls_cumsum(x, 0), x);
    ls_tensor *q = ls_rotary(ls_reshape(x, LS_SHAPE(1, 1, 3, 6)), 0, 10000.0);
    q = ls_attention(q, q, q, LS_OPTIONS(ls_attention_options, .dropout = 0.1));
    q = ls_add(ls_reshape(q, LS_SHAPE(3, 6)), ls_var_dims(x, LS_SHAPE(1), true, true));
    ls_tensor *t = ls_from_data(target, LS_SHAPE(3), LS_INT32);
    CHECK_OK(ls_backward(ls_cross_entropy(q, t, NULL)));
}

LOCAL_TEST(a_steady_loop_allocates_nothing)
{
    ls_tensor *w = ls_set_requires_grad(counting(LS_SHAPE(3, 4)), true);
    uint64_t before = 0;
    for (int i = 0; i < 6; i++) {
        before = i == 3 ? ls__tensor_allocations(ls_runtime_current()) : before;
        one_step(w);
    }
    CHECK_INT(ls__tensor_allocations(ls_runtime_current()) - before, 0);
}

static void check_bytes(ls_tensor *t, const char *want)
{
    uint8_t got[16];
    const size_t count = strlen(want);
    CHECK(ls_dtype_of(t) == LS_BOOL && (size_t)ls_numel(t) == count);
    CHECK_OK(ls_copy_out(t, got, count));
    for (size_t i = 0; i < count; i++) {
        CHECK_INT(got[i], want[i] - '0');
    }
}

LOCAL_TEST(comparisons_of_any_type_broadcast_and_choose)
{
    const int64_t large[] = {INT64_MAX - 1, INT64_MAX, 0}; /* one number to a double */
    const uint8_t bytes[] = {0, 2, 255}, truths[] = {0, 2, 1};
    ls_tensor *a = ls_from_data(large, LS_SHAPE(3), LS_INT64);
    ls_tensor *b = ls_full(LS_SCALAR, LS_INT64, 0);
    check_bytes(ls_lt(a, ls_reshape(a, LS_SHAPE(3, 1))), "001101000");
    check_bytes(ls_gt(a, b), "110");
    check_bytes(ls_logical_or(ls_eq(a, b), ls_logical_not(a)), "001");
    check_bytes(ls_ge(ls_from_data(bytes, LS_SHAPE(3), LS_UINT8), ls_full(LS_SCALAR, LS_UINT8, 2)),
                "011");
    ls_tensor *t = ls_from_data(truths, LS_SHAPE(3), LS_BOOL); /* any byte but 0 is true */
    check_bytes(ls_eq(t, ls_ones(LS_SCALAR, LS_BOOL)), "011");
    ls_tensor *x = ls_cast(ls_arange(-1.0, 2.0, 1.0, LS_FLOAT32), LS_BFLOAT16);
    ls_tensor *limit = ls_full(LS_SCALAR, LS_FLOAT32, 0.5);
    double sum;
    CHECK_OK(ls_item(ls_sum(ls_where(ls_le(x, limit), x, limit)), &sum));
    CHECK(sum == -0.5);
    CHECK_INT(ls_numel(ls_eq(ls_zeros(LS_SHAPE(2, 0), LS_INT8), ls_zeros(LS_SHAPE(1), LS_INT8))),
              0);
}

LOCAL_TEST(unsigned_and_short_integers_are_compared_cast_and_cut)
{
    const uint64_t large[] = {UINT64_MAX, UINT64_MAX - 1, 3}; /* two are one number to a double */
    ls_tensor *a = ls_from_data(large, LS_SHAPE(3), LS_UINT64);
    check_bytes(ls_gt(a, ls_slice(a, 0, 1, 2)), "100");
    int64_t narrowed[3];
    CHECK_OK(ls_copy_out(ls_cast(a, LS_INT64), narrowed, sizeof narrowed));
    CHECK(narrowed[0] == INT64_MAX && narrowed[1] == INT64_MAX && narrowed[2] == 3);
    const int64_t exact[] = {INT64_MAX - 1, -5};
    uint64_t widened[2];
    ls_tensor *b = ls_cast(ls_from_data(exact, LS_SHAPE(2), LS_INT64), LS_UINT64);
    CHECK_OK(ls_copy_out(b, widened, sizeof widened));
    CHECK(widened[0] == (uint64_t)INT64_MAX - 1 && widened[1] == 0);
    const int16_t shorts[] = {-2, 7, -32768, 32767};
    int16_t got[4];
    ls_tensor *c = ls_from_data(shorts, LS_SHAPE(2, 2), LS_INT16);
    CHECK_OK(ls_copy_out(ls_transpose(c, 0, 1), got, sizeof got));
    CHECK(got[0] == -2 && got[1] == -32768 && got[2] == 7 && got[3] == 32767);
    check_bytes(ls_lt(c, ls_full(LS_SCALAR, LS_INT16, 0)), "1010");
    check_bytes(ls_le(ls_cast(c, LS_UINT16), ls_full(LS_SCALAR, LS_UINT16, 7)), "1110");
    check_bytes(ls_ge(ls_cast(c, LS_UINT32), ls_full(LS_SCALAR, LS_UINT32, 8)), "0001");
}

LOCAL_TEST(padding_stacking_and_repeating_keep_any_type)
{
    const int8_t from[] = {1, 2, 3, 4};
    const int8_t want[] = {9, 9, 9, 1, 2, 9, 3, 4, 9};
    int8_t got[16];
    ls_tensor *a = ls_from_data(from, LS_SHAPE(2, 2), LS_INT8);
    ls_tensor *padded = ls_pad(a, LS_SHAPE(1, 0), LS_SHAPE(0, 1), 9);
    CHECK(ls_dtype_of(padded) == LS_INT8);
    CHECK_OK(ls_copy_out(padded, got, sizeof want));
    CHECK(memcmp(got, want, sizeof want) == 0);
    CHECK_OK(ls_copy_out(ls_pad(ls_transpose(a, 0, 1), LS_SHAPE(-1), LS_SHAPE(0), 0), got, 2));
    CHECK(got[0] == 3 && got[1] == 4);
    ls_tensor *twice = ls_stack((ls_tensor *[]){a, ls_transpose(a, 0, 1)}, 2, 0);
    CHECK_OK(ls_copy_out(twice, got, 8));
    CHECK(ls_ndim(twice) == 3 && got[1] == 2 && got[5] == 3);
    ls_tensor *rows = ls_expand(ls_slice(a, 0, 1, 2), LS_SHAPE(2, 3, 2));
    CHECK_OK(ls_copy_out(rows, got, 12));
    CHECK(ls_dtype_of(rows) == LS_INT8 && got[0] == 3 && got[11] == 4);
    CHECK_INT(
        ls_numel(ls_pad(ls_zeros(LS_SHAPE(0, 2), LS_FLOAT32), LS_SHAPE(1, 0), LS_SHAPE(2, 0), 1.0)),
        6);
}

LOCAL_TEST(orders_are_stable_and_take_bfloat16)
{
    const float values[] = {0.0f, 1.0f, -0.0f, 1.0f, 0.0f};
    int64_t at[5];
    ls_tensor *x = ls_cast(ls_from_data(values, LS_SHAPE(5), LS_FLOAT32), LS_BFLOAT16), *index;
    CHECK(ls_dtype_of(ls_topk(x, 4, 0, true, &index)) == LS_BFLOAT16);
    CHECK_OK(ls_copy_out(index, at, 4 * sizeof *at));
    CHECK(at[0] == 1 && at[1] == 3 && at[2] == 0 && at[3] == 2);
    CHECK_OK(ls_copy_out(ls_argsort(x, 0, false), at, sizeof at));
    CHECK(at[0] == 0 && at[1] == 2 && at[2] == 4 && at[3] == 1 && at[4] == 3);
    CHECK_INT(ls_numel(ls_topk(x, 0, 0, true, NULL)), 0);
    CHECK_INT(ls_numel(ls_sort(ls_zeros(LS_SHAPE(3, 0), LS_FLOAT32), 1, false, &index)), 0);
}

/* Not among the gradients of differences: the kernel's heap is larger than a row of those. */
LOCAL_TEST(a_long_row_is_sorted)
{
    ls_tensor *index, *y = ls_sort(ls_rand(LS_SHAPE(5000)), 0, true, &index);
    const float *v = ls_data(y);
    bool seen[5000] = {false};
    for (int i = 0; i < 5000; i++) {
        CHECK(i == 0 || v[i] <= v[i - 1]);
        seen[((int64_t *)ls_data(index))[i]] = true;
    }
    CHECK(memchr(seen, 0, sizeof seen) == NULL);
}

TEST_MAIN
