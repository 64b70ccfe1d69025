/* SPDX-License-Identifier: Apache-2.0 */
/* bfloat16 tensors: which type an operation gives, that each result is rounded once, and autocast.
 * Gradients of every operation are in tests/grad, products in tests/unit/kernel/gemm_bf16.c. */
#include <math.h>
#include <string.h>

#include <lockstep/ops.h>
#include <lockstep/random.h>
#include <lockstep/vision.h>

#include "local.h"

static ls_tensor *values(ls_shape shape, ls_dtype dtype)
{
    ls_tensor *t = ls_empty(shape, LS_FLOAT32);
    float *x = ls_data(t);
    for (int64_t i = 0; i < ls_numel(t); i++) {
        x[i] = 2.0f * ls_random_uniform(9, 1, (uint64_t)i) - 1.0f;
    }
    return ls_cast(t, dtype);
}

static ls_tensor *f32(ls_shape shape)
{
    return values(shape, LS_FLOAT32);
}

static ls_tensor *half(ls_shape shape)
{
    return values(shape, LS_BFLOAT16);
}

static ls_tensor *indices(ls_shape shape)
{
    return ls_zeros(shape, LS_INT64);
}

static void gives(ls_dtype want, ls_tensor *t, int line)
{
    if (ls_tensor_status(t) != LS_OK || ls_dtype_of(t) != want) {
        test_fail(__FILE__, line, "gives %s, not %s: %s", ls_dtype_name(ls_dtype_of(t)),
                  ls_dtype_name(want), ls_error_message());
    }
}

#define GIVES(dtype, t) gives(dtype, t, __LINE__)
#define S(...) LS_SHAPE(__VA_ARGS__)

LOCAL_TEST(types_are_promoted_as_pytorch_does)
{
    GIVES(LS_BFLOAT16, ls_add(half(S(2, 3)), half(S(3))));
    GIVES(LS_FLOAT32, ls_add(half(S(2, 3)), f32(S(3))));
    GIVES(LS_FLOAT32, ls_div(f32(S(2, 3)), half(S(2, 3))));
    GIVES(LS_BFLOAT16, ls_relu(half(S(2, 3))));
    GIVES(LS_BFLOAT16, ls_dropout(half(S(2, 3)), 0.5));
    GIVES(LS_BFLOAT16, ls_matmul(half(S(2, 3)), half(S(3, 2))));
    GIVES(LS_FLOAT32, ls_matmul(half(S(2, 3)), f32(S(3, 2))));
    GIVES(LS_BFLOAT16, ls_linear(half(S(2, 3)), half(S(4, 3)), NULL));
    GIVES(LS_FLOAT32, ls_linear(half(S(2, 3)), half(S(4, 3)), f32(S(4))));
    GIVES(LS_BFLOAT16, ls_sum(half(S(2, 3))));
    GIVES(LS_BFLOAT16, ls_concat((ls_tensor *[]){half(S(2, 3)), half(S(1, 3))}, 2, 0));
    GIVES(LS_FLOAT32, ls_concat((ls_tensor *[]){half(S(2, 3)), f32(S(1, 3))}, 2, 0));
    GIVES(LS_BFLOAT16, ls_rms_norm(half(S(2, 3)), f32(S(3)), 1e-5));
    GIVES(LS_FLOAT32, ls_mul(half(S(2, 70)), f32(S(70))));
    GIVES(LS_BFLOAT16, ls_var_dims(half(S(2, 3)), S(0), true, false));
    GIVES(LS_BFLOAT16, ls_max_dim(half(S(2, 3)), 0, false));
    GIVES(LS_INT64, ls_argmax(half(S(2, 3)), 0));
    GIVES(LS_BFLOAT16, ls_softmax(half(S(2, 3)), 0));
    GIVES(LS_BFLOAT16, ls_layer_norm(half(S(2, 3)), f32(S(3)), f32(S(3)), 1e-5));
    GIVES(LS_FLOAT32, ls_rms_norm(f32(S(2, 3)), half(S(3)), 1e-5));
    GIVES(LS_BFLOAT16, ls_embedding(half(S(4, 3)), indices(S(2))));
    GIVES(LS_FLOAT32, ls_cross_entropy(half(S(2, 3)), indices(S(2)), NULL));
    GIVES(LS_FLOAT32, ls_nll_loss(half(S(2, 3)), indices(S(2))));
    GIVES(LS_FLOAT32, ls_mse_loss(half(S(2, 3)), half(S(2, 3))));
    GIVES(LS_FLOAT32, ls_bce_with_logits(half(S(2, 3)), half(S(2, 3))));
    GIVES(LS_FLOAT32, ls_where(ls_zeros(S(3), LS_BOOL), half(S(2, 3)), f32(S(3))));
    GIVES(LS_BFLOAT16, ls_index_select(half(S(2, 3)), 1, indices(S(5))));
    GIVES(LS_BFLOAT16, ls_slice(ls_transpose(half(S(2, 3)), 0, 1), 0, 1, 2));
    GIVES(LS_BFLOAT16, ls_attention(half(S(1, 2, 3, 4)), half(S(1, 2, 3, 4)), half(S(1, 2, 3, 4)),
                                    LS_OPTIONS(ls_attention_options, .causal = true)));
    GIVES(LS_BFLOAT16, ls_conv2d(half(S(1, 2, 5, 5)), half(S(3, 2, 3, 3)), NULL, NULL));
    GIVES(LS_BFLOAT16, ls_batch_norm(half(S(4, 3)), f32(S(3)), f32(S(3)),
                                     LS_OPTIONS(ls_batch_norm_options, .training = true)));
}

static void same_bits(ls_tensor *a, ls_tensor *b, int line)
{
    uint16_t x[256], y[256];
    int64_t count = ls_numel(b);
    CHECK_INT(ls_numel(a), count);
    CHECK_OK(ls_copy_out(ls_cast(a, LS_BFLOAT16), x, (size_t)count * 2));
    CHECK_OK(ls_copy_out(ls_cast(b, LS_BFLOAT16), y, (size_t)count * 2));
    for (int64_t i = 0; i < count; i++) {
        if (x[i] != y[i]) {
            test_fail(__FILE__, line, "element %lld is %04x, not %04x", (long long)i, x[i], y[i]);
        }
    }
}

/* f(x) of bfloat16 numbers, against f of the same numbers as float32, rounded behind. */
#define ROUNDS_ONCE(f)                                                                             \
    do {                                                                                           \
        ls_tensor *x = half(S(13, 7)), *wide = ls_cast(x, LS_FLOAT32);                             \
        ls_tensor *got = f(x), *want = f(wide);                                                    \
        same_bits(got, want, __LINE__);                                                            \
        x = ls_transpose(x, 0, 1);                                                                 \
        wide = ls_transpose(wide, 0, 1);                                                           \
        got = f(x);                                                                                \
        want = f(wide);                                                                            \
        same_bits(got, want, __LINE__);                                                            \
    } while (0)

static ls_tensor *gelu(ls_tensor *x)
{
    return ls_gelu(x, LS_GELU_TANH);
}

static ls_tensor *square(ls_tensor *x)
{
    return ls_mul(x, x);
}

static ls_tensor *over(ls_tensor *x)
{
    return ls_div(x, ls_slice(x, 1, 0, 1));
}

static ls_tensor *softmax(ls_tensor *x)
{
    return ls_softmax(x, -1);
}

static ls_tensor *norm(ls_tensor *x)
{
    return ls_layer_norm(x, NULL, NULL, 1e-5);
}

static ls_tensor *gathered(ls_tensor *x)
{
    return ls_concat((ls_tensor *[]){x, ls_slice(x, 0, 1, 3)}, 2, 0);
}

LOCAL_TEST(each_result_is_rounded_once)
{
    ROUNDS_ONCE(ls_exp);
    ROUNDS_ONCE(ls_tanh);
    ROUNDS_ONCE(gelu);
    ROUNDS_ONCE(square);
    ROUNDS_ONCE(over);
    ROUNDS_ONCE(softmax);
    ROUNDS_ONCE(norm);
    ROUNDS_ONCE(gathered);
    ROUNDS_ONCE(ls_clone);
}

LOCAL_TEST(a_sum_of_both_types_gives_each_operand_a_gradient_of_its_own)
{
    ls_tensor *a = ls_set_requires_grad(half(S(3, 5)), true);
    ls_tensor *b = ls_set_requires_grad(f32(S(3, 5)), true);
    ls_tensor *r = f32(S(3, 5));
    CHECK_OK(ls_backward(ls_sum(ls_mul(ls_add(a, b), r))));
    GIVES(LS_BFLOAT16, ls_grad(a));
    GIVES(LS_FLOAT32, ls_grad(b));
    same_bits(ls_grad(a), r, __LINE__);
    CHECK(memcmp(ls_data(ls_grad(b)), ls_data(r), 15 * sizeof(float)) == 0);
}

/* Gradients of views: several parts of one bfloat16 tensor, which is filled and added to. */
LOCAL_TEST(views_of_bfloat16_add_their_gradients)
{
    ls_tensor *x = ls_set_requires_grad(half(S(3, 5)), true);
    ls_tensor *left = ls_slice(x, 1, 0, 3), *right = ls_slice(x, 1, 2, 5);
    CHECK_OK(ls_backward(ls_sum(ls_add(ls_scale(left, 2.0), right))));
    const float want[] = {2, 2, 3, 1, 1};
    float got[15];
    CHECK_OK(ls_copy_out(ls_cast(ls_grad(x), LS_FLOAT32), got, sizeof got));
    for (int i = 0; i < 15; i++) {
        CHECK(got[i] == want[i % 5]);
    }
}

/* ---- autocast ----------------------------------------------------------------------------- */

LOCAL_TEST(autocast_gives_products_in_bfloat16_and_losses_in_float32)
{
    ls_tensor *x = f32(S(2, 4)), *w = f32(S(3, 4)), *b = f32(S(3)), *q = f32(S(1, 2, 3, 4));
    {
        LS_AUTOCAST(true);
        ls_tensor *y = ls_linear(x, w, b);
        GIVES(LS_BFLOAT16, y);
        GIVES(LS_BFLOAT16, ls_matmul(x, ls_transpose(w, 0, 1)));
        GIVES(LS_BFLOAT16, ls_matmul(y, f32(S(3, 2))));
        GIVES(LS_BFLOAT16, ls_attention(q, q, q, LS_OPTIONS(ls_attention_options, .causal = true)));
        GIVES(LS_BFLOAT16, ls_attention(q, q, q, NULL));
        GIVES(LS_BFLOAT16, ls_lstm(f32(S(2, 1, 4)), f32(S(4, 1)), NULL));
        GIVES(LS_BFLOAT16, ls_conv2d(f32(S(1, 2, 5, 5)), f32(S(3, 2, 3, 3)), NULL, NULL));
        GIVES(LS_BFLOAT16, ls_relu(y));
        GIVES(LS_FLOAT32, ls_relu(x));
        GIVES(LS_FLOAT32, ls_add(x, x));
        GIVES(LS_FLOAT32, ls_layer_norm(x, NULL, NULL, 1e-5));
        GIVES(LS_FLOAT32, ls_softmax(y, -1));
        GIVES(LS_FLOAT32, ls_cross_entropy(y, indices(S(2)), NULL));
    }
    GIVES(LS_FLOAT32, ls_linear(x, w, b));
}

/* A scope in this mode within those of the others. */
static void nested(const bool *modes, int count)
{
    if (count == 0) {
        return;
    }
    LS_AUTOCAST(modes[0]);
    ls_dtype want = modes[0] ? LS_BFLOAT16 : LS_FLOAT32;
    GIVES(want, ls_linear(f32(S(2, 4)), f32(S(3, 4)), NULL));
    nested(modes + 1, count - 1);
    GIVES(want, ls_linear(f32(S(2, 4)), f32(S(3, 4)), NULL));
}

LOCAL_TEST(autocast_scopes_nest)
{
    nested((const bool[]){true, false, true, true}, 4);
    GIVES(LS_FLOAT32, ls_linear(f32(S(2, 4)), f32(S(3, 4)), NULL));
    for (int i = 0; i < 2; i++) {
        LS_AUTOCAST(true);
        break;
    }
    CHECK(!ls_set_autocast(false));
}

/* y = x W^T of rounded operands, dy rounded: then dW = dy^T x exactly, in float32. */
LOCAL_TEST(a_float32_weight_gets_a_gradient_that_was_not_rounded)
{
    enum { ROWS = 40, IN = 33, OUT = 5 };
    ls_tensor *x = f32(S(ROWS, IN)), *w = ls_set_requires_grad(f32(S(OUT, IN)), true);
    ls_tensor *b = ls_set_requires_grad(f32(S(OUT)), true), *r = half(S(ROWS, OUT));
    x = ls_set_requires_grad(x, true);
    {
        LS_AUTOCAST(true);
        ls_tensor *y = ls_linear(x, w, b);
        CHECK_OK(ls_backward(ls_sum(ls_mul(ls_cast(y, LS_FLOAT32), r))));
    }
    GIVES(LS_FLOAT32, ls_grad(w));
    GIVES(LS_FLOAT32, ls_grad(b));
    GIVES(LS_FLOAT32, ls_grad(x));
    ls_tensor *x16 = ls_cast(ls_cast(ls_detach(x), LS_BFLOAT16), LS_FLOAT32);
    ls_tensor *w16 = ls_cast(ls_cast(ls_detach(w), LS_BFLOAT16), LS_FLOAT32);
    ls_tensor *dy = ls_cast(r, LS_FLOAT32);
    ls_tensor *pairs[][2] = {{ls_grad(w), ls_matmul(ls_transpose(dy, 0, 1), x16)},
                             {ls_grad(x), ls_matmul(dy, w16)},
                             {ls_grad(b), ls_sum_dim(dy, 0, false)}};
    for (int i = 0; i < 3; i++) {
        ls_tensor *off =
            ls_max_dim(ls_reshape(ls_abs(ls_sub(pairs[i][0], pairs[i][1])), S(-1)), 0, false);
        double most = 1.0;
        CHECK_OK(ls_item(off, &most));
        CHECK_NEAR(most, 0.0, 1e-5); /* sums of 40 products in another order */
    }
}

/* Numbers that bfloat16 has, whose sums and products it has, too. */
static ls_tensor *small(ls_shape shape, ls_dtype dtype, int64_t salt)
{
    ls_tensor *t = ls_empty(shape, LS_FLOAT32);
    float *x = ls_data(t);
    for (int64_t i = 0; i < ls_numel(t); i++) {
        x[i] = (float)((i * 5 + salt) % 7 - 3);
    }
    return ls_set_requires_grad(ls_cast(t, dtype), true);
}

/* Result, then the gradients, as float32. */
static void mixed(int op, ls_dtype a, ls_dtype b, const ls_shape shape[2], ls_tensor *out[3])
{
    ls_tensor *x = small(shape[0], a, 1), *y = small(shape[1], b, 2);
    ls_tensor *z = op == 0   ? ls_add(x, y)
                   : op == 1 ? ls_mul(x, y)
                             : ls_concat((ls_tensor *[]){x, y, x}, 3, 0);
    ls_tensor *r = ls_detach(small(ls_shape_of(z), LS_FLOAT32, 3));
    CHECK_OK(ls_backward(ls_sum(ls_mul(ls_cast(z, LS_FLOAT32), r))));
    GIVES(a == LS_BFLOAT16 && b == LS_BFLOAT16 ? LS_BFLOAT16 : LS_FLOAT32, z);
    GIVES(a, ls_grad(x));
    GIVES(b, ls_grad(y));
    out[0] = ls_cast(z, LS_FLOAT32);
    out[1] = ls_cast(ls_grad(x), LS_FLOAT32), out[2] = ls_cast(ls_grad(y), LS_FLOAT32);
}

LOCAL_TEST(mixed_types_give_what_float32_gives_and_gradients_of_their_own_types)
{
    const ls_shape shapes[][2] = {{S(3, 2, 70), S(3, 2, 70)}, {S(3, 2, 70), S(70)},
                                  {S(2, 70), S(3, 2, 70)},    {S(3, 2, 70), S(1, 1, 70)},
                                  {S(3, 2, 70), S(2, 1)},     {S(4, 5), S(5)}};
    for (int i = 0; i < 3 * 6 * 3; i++) {
        const ls_shape *shape = shapes[i / 3 % 6];
        const int types = i % 3 + 1, op = i / 18;
        if (op == 2 && i / 3 % 6 != 0) {
            continue;
        }
        LS_SCOPE;
        ls_tensor *got[3], *want[3];
        mixed(op, types & 1 ? LS_BFLOAT16 : LS_FLOAT32, types & 2 ? LS_BFLOAT16 : LS_FLOAT32, shape,
              got);
        mixed(op, LS_FLOAT32, LS_FLOAT32, shape, want);
        for (int part = 0; part < 3; part++) {
            const float *g = ls_data(ls_contiguous(got[part]));
            const float *w = ls_data(ls_contiguous(want[part]));
            CHECK_INT(ls_numel(got[part]), ls_numel(want[part]));
            for (int64_t at = 0; at < ls_numel(want[part]); at++) {
                CHECK_NEAR(g[at], w[at], 0.0);
            }
        }
    }
}

LOCAL_TEST(a_product_over_nothing_is_its_bias_in_bfloat16_too)
{
    ls_tensor *b = half(S(3));
    LS_AUTOCAST(true);
    ls_tensor *x = ls_set_requires_grad(f32(S(0, 4)), true);
    ls_tensor *w = ls_set_requires_grad(f32(S(3, 4)), true);
    ls_tensor *y = ls_linear(x, w, f32(S(3)));
    CHECK_INT(ls_numel(y), 0);
    CHECK_OK(ls_backward(ls_sum(y)));
    GIVES(LS_FLOAT32, ls_grad(w));
    CHECK_NEAR(((float *)ls_data(ls_grad(w)))[11], 0.0, 0.0);
    same_bits(ls_linear(f32(S(1, 0)), f32(S(3, 0)), b), b, __LINE__);
    same_bits(ls_matmul(f32(S(2, 0)), f32(S(0, 3))), ls_zeros(S(2, 3), LS_BFLOAT16), __LINE__);
}

LOCAL_TEST(poison_and_other_types_pass_through_autocast)
{
    LS_AUTOCAST(true);
    ls_tensor *wrong = ls_linear(indices(S(2, 4)), f32(S(3, 4)), NULL);
    CHECK_STATUS(ls_tensor_status(wrong), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "linear: argument 1 is int64 [2,4]");
    CHECK_STATUS(ls_tensor_status(ls_matmul(half(S(2, 2)), wrong)), LS_ERR_INVALID);
    CHECK_STATUS(ls_tensor_status(ls_cast(ls_relu(wrong), LS_BFLOAT16)), LS_ERR_INVALID);
    CHECK_STATUS(ls_tensor_status(ls_matmul(half(S(2, 3)), f32(S(2, 3)))), LS_ERR_INVALID);
}

static ls_tensor *piece(ls_tensor *x, void *arg)
{
    ls_tensor **w = arg;
    return ls_linear(ls_tanh(ls_linear(x, w[0], NULL)), w[1], NULL);
}

static void gradients(bool recompute, float out[2][20])
{
    ls_tensor *x = f32(S(6, 4));
    ls_tensor *w[] = {ls_set_requires_grad(f32(S(5, 4)), true),
                      ls_set_requires_grad(f32(S(4, 5)), true)};
    ls_tensor *y = NULL;
    {
        LS_AUTOCAST(true);
        y = recompute ? ls_recompute_call(piece, x, w) : piece(x, w);
    }
    GIVES(LS_BFLOAT16, y);
    CHECK_OK(ls_backward(ls_mse_loss(y, f32(S(6, 4))))); /* outside the scope */
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ls_copy_out(ls_grad(w[i]), out[i], sizeof out[i]));
    }
}

LOCAL_TEST(what_is_recomputed_runs_under_the_autocast_it_ran_under_first)
{
    float plain[2][20], again[2][20];
    gradients(false, plain);
    gradients(true, again);
    CHECK(memcmp(plain, again, sizeof plain) == 0);
    CHECK(!ls_set_autocast(false));
}

TEST_MAIN
