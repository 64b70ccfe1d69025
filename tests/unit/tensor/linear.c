/* SPDX-License-Identifier: Apache-2.0 */
/* ls_linear_activation: the numbers of the operations one by one, to the bit, and what it keeps. */
#include <string.h>

#include <lockstep/memory.h>
#include <lockstep/nn.h>
#include <lockstep/ops.h>
#include <lockstep/random.h>

#include "local.h"

#define S(...) LS_SHAPE(__VA_ARGS__)

static ls_tensor *values(ls_shape shape, uint64_t stream)
{
    ls_tensor *t = ls_empty(shape, LS_FLOAT32);
    float *x = ls_data(t);
    for (int64_t i = 0; i < ls_numel(t); i++) {
        x[i] = 2.0f * ls_random_uniform(5, stream, (uint64_t)i) - 1.0f;
    }
    return t;
}

static ls_tensor *leaf(ls_shape shape, uint64_t stream, ls_dtype dtype)
{
    return ls_set_requires_grad(ls_cast(values(shape, stream), dtype), true);
}

static ls_tensor *function(ls_tensor *z, ls_activation activation)
{
    switch (activation) {
    case LS_ACTIVATION_RELU:
        return ls_relu(z);
    case LS_ACTIVATION_GELU:
        return ls_gelu(z, LS_GELU_ERF);
    case LS_ACTIVATION_GELU_TANH:
        return ls_gelu(z, LS_GELU_TANH);
    case LS_ACTIVATION_SILU:
        return ls_silu(z);
    case LS_ACTIVATION_TANH:
        return ls_tanh(z);
    default:
        return z;
    }
}

typedef struct layer_case {
    ls_activation activation;
    ls_dtype dtype;
    bool autocast, turned, biased;
    int64_t rows, in, out;
} layer_case;

/* y, dx, dw, db */
static void run(const layer_case *c, bool fused, ls_tensor *result[4])
{
    ls_tensor *x = leaf(S(c->rows, c->in), 1, c->dtype), *b = leaf(S(c->out), 3, c->dtype);
    ls_tensor *w = leaf(c->turned ? S(c->in, c->out) : S(c->out, c->in), 2, c->dtype);
    ls_tensor *weight = c->turned ? ls_transpose(w, 0, 1) : w, *bias = c->biased ? b : NULL;
    ls_tensor *r = ls_cast(values(S(c->rows, c->out), 4), LS_BFLOAT16);
    {
        LS_AUTOCAST(c->autocast);
        result[0] = fused ? ls_linear_activation(x, weight, bias, c->activation)
                          : function(ls_linear(x, ls_contiguous(weight), bias), c->activation);
        ls_tensor *loss = ls_sum(ls_mul(ls_cast(result[0], LS_FLOAT32), r));
        CHECK_OK(ls_backward(ls_cast(loss, LS_FLOAT32)));
    }
    result[1] = ls_grad(x), result[2] = ls_grad(w), result[3] = c->biased ? ls_grad(b) : x;
}

static void check_same(const layer_case *c, int part, ls_tensor *got, ls_tensor *want)
{
    CHECK_OK(ls_tensor_status(got));
    CHECK(ls_dtype_of(got) == ls_dtype_of(want));
    size_t bytes = (size_t)ls_numel(want) * ls_dtype_size(ls_dtype_of(want));
    if (memcmp(ls_data(got), ls_data(want), bytes) != 0) {
        test_fail(__FILE__, __LINE__, "activation %d %s autocast %d turned %d bias %d: part %d",
                  (int)c->activation, ls_dtype_name(c->dtype), c->autocast, c->turned, c->biased,
                  part);
    }
}

LOCAL_TEST(a_linear_layer_with_its_activation_has_the_bits_of_the_two)
{
    for (int i = 0; i < 6 * 3 * 4; i++) {
        layer_case c = {.activation = (ls_activation)(i % 6), .rows = 21, .in = 19, .out = 301};
        c.dtype = i / 6 % 3 == 1 ? LS_BFLOAT16 : LS_FLOAT32;
        c.autocast = i / 6 % 3 == 2;
        c.biased = (i / 18 & 1) != 0;
        c.turned = false;
        LS_SCOPE;
        ls_tensor *one[4], *two[4];
        run(&c, true, one);
        run(&c, false, two);
        for (int part = 0; part < 4; part++) {
            check_same(&c, part, one[part], two[part]);
        }
    }
}

/* The product reads such a weight as it lies, so sums may be in another order. */
LOCAL_TEST(a_transposed_weight_is_read_as_it_lies)
{
    for (int i = 0; i < 6; i++) {
        layer_case c = {.activation = (ls_activation)i, .rows = 9, .in = 33, .out = 20};
        c.turned = c.biased = true;
        c.dtype = LS_FLOAT32;
        LS_SCOPE;
        ls_tensor *one[4], *two[4];
        run(&c, true, one);
        run(&c, false, two);
        for (int part = 0; part < 4; part++) {
            double off = 1.0;
            CHECK_INT(ls_size(one[part], 0), ls_size(two[part], 0));
            ls_tensor *most =
                ls_max_dim(ls_reshape(ls_abs(ls_sub(one[part], two[part])), S(-1)), 0, false);
            CHECK_OK(ls_item(most, &off));
            CHECK_NEAR(off, 0.0, 1e-5);
        }
    }
}

/* An addition hands its gradient to both sides; backward of the layer comes first. */
LOCAL_TEST(a_gradient_that_another_operation_will_read_is_left_alone)
{
    ls_tensor *got[2];
    for (int fused = 0; fused < 2; fused++) {
        ls_tensor *p = leaf(S(9, 300), 7, LS_FLOAT32), *other = ls_exp(p);
        ls_tensor *x = values(S(9, 20), 1), *w = leaf(S(300, 20), 2, LS_FLOAT32);
        ls_tensor *y = fused ? ls_linear_activation(x, w, NULL, LS_ACTIVATION_GELU)
                             : function(ls_linear(x, w, NULL), LS_ACTIVATION_GELU);
        ls_tensor *sum = ls_add(y, other);
        CHECK_OK(ls_backward(ls_sum(ls_mul(sum, values(S(9, 300), 3)))));
        got[fused] = ls_grad(p);
    }
    CHECK(memcmp(ls_data(got[0]), ls_data(got[1]), 9 * 300 * sizeof(float)) == 0);
}

static int64_t bytes_for(ls_activation activation, bool fused)
{
    ls_memory_stats before = {.size = sizeof before}, after = before;
    {
        LS_SCOPE;
        ls_tensor *x = values(S(64, 8), 1), *w = leaf(S(1024, 8), 2, LS_FLOAT32);
        CHECK_OK(ls_memory_get_stats(&before));
        ls_tensor *y = fused ? ls_linear_activation(x, w, NULL, activation)
                             : function(ls_linear(x, w, NULL), activation);
        CHECK_OK(ls_tensor_status(y));
        CHECK_OK(ls_memory_get_stats(&after));
    }
    return (int64_t)(after.allocated - before.allocated);
}

LOCAL_TEST(only_what_backward_reads_is_kept)
{
    const int64_t result = 64 * 1024 * 4;
    CHECK_INT(bytes_for(LS_ACTIVATION_RELU, false), 2 * result);
    CHECK_INT(bytes_for(LS_ACTIVATION_RELU, true), result);
    CHECK_INT(bytes_for(LS_ACTIVATION_TANH, true), result);
    CHECK_INT(bytes_for(LS_ACTIVATION_GELU, true), 2 * result);
    CHECK_INT(bytes_for(LS_ACTIVATION_SILU, true), 2 * result);
    LS_NO_GRAD;
    CHECK_INT(bytes_for(LS_ACTIVATION_GELU, true), result);
}

LOCAL_TEST(an_activation_that_is_none_is_named)
{
    ls_tensor *x = values(S(2, 3), 1), *w = values(S(4, 3), 2);
    ls_tensor *y = ls_linear_activation(x, w, NULL, (ls_activation)6);
    CHECK_STATUS(ls_tensor_status(y), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "linear: activation 6; give one of ls_activation");
    y = ls_linear_activation(x, values(S(4, 2), 2), NULL, LS_ACTIVATION_RELU);
    CHECK_STATUS(ls_tensor_status(y), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "linear_relu: x [2,3] with weight [4,2]");
    y = ls_linear_activation(y, w, NULL, LS_ACTIVATION_GELU);
    CHECK_STATUS(ls_tensor_status(y), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "linear_relu: x [2,3]");
}

LOCAL_TEST(nothing_in_gives_nothing_out_and_zero_gradients)
{
    for (int i = 0; i < 2; i++) {
        ls_tensor *w = leaf(S(4, 3), 1, LS_FLOAT32), *b = leaf(S(4), 2, LS_FLOAT32);
        {
            LS_AUTOCAST(i == 1);
            ls_tensor *y = ls_linear_activation(values(S(0, 3), 3), w, b, LS_ACTIVATION_GELU);
            CHECK_INT(ls_numel(y), 0);
            CHECK_OK(ls_backward(ls_cast(ls_sum(y), LS_FLOAT32)));
        }
        CHECK_NEAR(((float *)ls_data(ls_grad(w)))[11], 0.0, 0.0);
        CHECK_NEAR(((float *)ls_data(ls_grad(b)))[3], 0.0, 0.0);
    }
}

TEST_MAIN
