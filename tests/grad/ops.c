/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation × shape × layout × kernel table: backward against central differences.
 *
 * An operation is given its inputs as views of leaves: whole ones, transposed ones (the leaf has
 * its last two dims swapped), slices of larger ones, and a different layout for each input. The
 * leaf's gradient is what is checked, so the path through the view is too. */
#include <lockstep/ops.h>

#include "sweep.h"

/* ---- operations --------------------------------------------------------------------------- */

UNARY(neg, ls_neg(x))
UNARY(exp_, ls_exp(x))
UNARY(log_, ls_log(x))
UNARY(sqrt_, ls_sqrt(x))
UNARY(tanh_, ls_tanh(x))
UNARY(sigmoid, ls_sigmoid(x))
UNARY(relu, ls_relu(x))
UNARY(gelu_erf, ls_gelu(x, LS_GELU_ERF))
UNARY(gelu_tanh, ls_gelu(x, LS_GELU_TANH))
UNARY(scale, ls_scale(x, -2.5))
UNARY(add_scalar, ls_add_scalar(x, 0.75))
UNARY(dropout, ls_dropout(x, 0.4))
UNARY(sum, ls_sum(x))
UNARY(mean, ls_mean(x))
UNARY(sum_dim_first, ls_sum_dim(x, 0, false))
UNARY(sum_dim_last_kept, ls_sum_dim(x, -1, true))
UNARY(mean_dim_first_kept, ls_mean_dim(x, 0, true))
UNARY(mean_dim_last, ls_mean_dim(x, -1, false))
UNARY(softmax_last, ls_softmax(x, -1))
UNARY(softmax_first, ls_softmax(x, 0))
UNARY(log_softmax_last, ls_log_softmax(x, -1))
UNARY(log_softmax_first, ls_log_softmax(x, 0))
UNARY(layer_norm_plain, ls_layer_norm(x, NULL, NULL, 1e-5))
UNARY(clone_, ls_clone(x))
UNARY(contiguous, ls_contiguous(x))
UNARY(flat, ls_reshape(x, LS_SHAPE(-1)))
UNARY(square, ls_mul(x, x))
UNARY(twice, ls_add(x, x))
UNARY(over_itself, ls_div(x, ls_exp(x)))
UNARY(gram, ls_matmul(x, ls_transpose(x, 0, 1)))
UNARY(with_its_transpose, ls_add(x, ls_transpose(x, 0, 1)))
UNARY(two_slices, ls_mul(ls_slice(x, 1, 0, 2), ls_slice(x, 1, 1, 3)))
UNARY(first_and_whole, ls_sum(ls_mul(ls_slice(x, 0, 0, 1), x)))
UNARY(exp_twice, ls_add(ls_exp(x), ls_mul(ls_exp(x), ls_tanh(x))))
UNARY(reshaped_transpose, ls_exp(ls_reshape(ls_transpose(x, 0, 1), LS_SHAPE(-1))))
BINARY(add, ls_add(x, y))
BINARY(sub, ls_sub(x, y))
BINARY(mul, ls_mul(x, y))
BINARY(div_, ls_div(x, y))
BINARY(matmul, ls_matmul(x, y))
BINARY(matmul_transposed, ls_matmul(x, ls_transpose(y, -1, -2)))
BINARY(linear_plain, ls_linear(x, y, NULL))
BINARY(mse, ls_mse_loss(x, y))
BINARY(layer_norm_weight, ls_layer_norm(x, y, NULL, 1e-5))

/* dy is handed to a and b; adding c's part to a must not change b's. */
static ls_tensor *shared_dy(ls_tensor **in)
{
    ls_tensor *a = ls_exp(in[0]), *b = ls_tanh(in[0]);
    ls_tensor *c = ls_mul(a, in[0]);
    return ls_add(ls_add(a, b), c);
}

static ls_tensor *linear(ls_tensor **in)
{
    return ls_linear(in[0], in[1], in[2]);
}

#define LINEAR_WITH(name, activation)                                                              \
    static ls_tensor *name(ls_tensor **in)                                                         \
    {                                                                                              \
        return ls_linear_activation(in[0], in[1], in[2], LS_ACTIVATION_##activation);              \
    }
LINEAR_WITH(linear_relu, RELU)
LINEAR_WITH(linear_gelu, GELU)
LINEAR_WITH(linear_gelu_tanh, GELU_TANH)
LINEAR_WITH(linear_silu, SILU)
LINEAR_WITH(linear_tanh, TANH)
BINARY(linear_gelu_plain, ls_linear_activation(x, y, NULL, LS_ACTIVATION_GELU))
BINARY(linear_silu_twice, ls_linear_activation(ls_linear_activation(x, y, NULL, LS_ACTIVATION_SILU),
                                               y, NULL, LS_ACTIVATION_TANH))

/* The weight twice, the bias once: their first gradients come at different times. */
static ls_tensor *norm_shared_weight(ls_tensor **in)
{
    return ls_layer_norm(ls_layer_norm(in[0], in[1], NULL, 1e-5), in[1], in[2], 1e-5);
}

static ls_tensor *layer_norm(ls_tensor **in)
{
    return ls_layer_norm(in[0], in[1], in[2], 1e-5);
}

static ls_tensor *attention(ls_tensor **in)
{
    return ls_attention(in[0], in[1], in[2], NULL);
}

static ls_tensor *attention_causal(ls_tensor **in)
{
    return ls_attention(in[0], in[1], in[2], LS_OPTIONS(ls_attention_options, .causal = true));
}

static ls_tensor *attention_of_itself(ls_tensor **in)
{
    return ls_attention(in[0], in[0], in[0], LS_OPTIONS(ls_attention_options, .causal = true));
}

/* x [B,T,3HD], as a GPT block uses it: two heads. */
static ls_tensor *attention_fused(ls_tensor **in)
{
    ls_shape s = ls_shape_of(in[0]);
    ls_tensor *all = ls_reshape(in[0], LS_SHAPE(s.dim[0], s.dim[1], 3, 2, s.dim[2] / 6));
    ls_tensor *part[3];
    for (int i = 0; i < 3; i++) {
        ls_tensor *one = ls_slice(all, 2, i, i + 1);
        one = ls_reshape(one, LS_SHAPE(s.dim[0], s.dim[1], 2, s.dim[2] / 6));
        part[i] = ls_transpose(one, 1, 2);
    }
    ls_tensor *o = ls_transpose(
        ls_attention(part[0], part[1], part[2], LS_OPTIONS(ls_attention_options, .causal = true)),
        1, 2);
    return ls_reshape(o, LS_SHAPE(s.dim[0], s.dim[1], -1));
}

static ls_tensor *lstm(ls_tensor **in)
{
    return ls_lstm(in[0], in[1], in[2]);
}

static ls_tensor *lstm_from_zeros(ls_tensor **in)
{
    return ls_lstm(in[0], in[1], NULL);
}

/* The same weight and gates twice, with the state carried on. */
static ls_tensor *lstm_carried(ls_tensor **in)
{
    int64_t time = ls_size(in[0], 0);
    ls_tensor *first = ls_lstm(in[0], in[1], NULL);
    return ls_lstm(in[0], in[1], ls_slice(first, 0, time - 1, time + 1));
}

static ls_tensor *gru(ls_tensor **in)
{
    return ls_gru(in[0], in[1], in[2], in[3]);
}

static ls_tensor *gru_from_zeros(ls_tensor **in)
{
    return ls_gru(in[0], in[1], NULL, NULL);
}

/* The same weight, bias and gates twice, with the state carried on. */
static ls_tensor *gru_carried(ls_tensor **in)
{
    int64_t time = ls_size(in[0], 0);
    ls_tensor *first = ls_gru(in[0], in[1], in[2], NULL);
    return ls_gru(in[0], in[1], in[2], ls_slice(first, 0, time - 1, time));
}

static ls_tensor *embedding(ls_tensor **in)
{
    static const int64_t index[] = {2, 0, 2, 1, 2, 0};
    return ls_embedding(in[0], ls_from_data(index, LS_SHAPE(2, 3), LS_INT64));
}

static ls_tensor *cross_entropy(ls_tensor **in)
{
    int32_t target[64];
    ls_shape shape = ls_shape_of(in[0]);
    int64_t classes = shape.dim[--shape.ndim], count = 1;
    for (int d = 0; d < shape.ndim; d++) {
        count *= shape.dim[d];
    }
    for (int i = 0; i < count; i++) {
        target[i] = (int32_t)((7 * i + 2) % classes);
    }
    return ls_cross_entropy(in[0], ls_from_data(target, shape, LS_INT32), NULL);
}

static ls_tensor *cross_entropy_scaled(ls_tensor **in)
{
    return ls_add(ls_scale(cross_entropy(in), 0.5), ls_mean(in[0]));
}

#define S(...) LS_SHAPE(__VA_ARGS__)
#define EACH_SHAPE(op, pos)                                                                        \
    {#op, op, pos, 1, {S(3, 4)}}, {#op, op, pos, 1, {S(1)}}, {#op, op, pos, 1, {S(2, 1, 5)}},      \
    {                                                                                              \
#op, op, pos, 1,                                                                           \
        {                                                                                          \
            S(17, 1)                                                                               \
        }                                                                                          \
    }
#define EACH_PAIR(op, pos)                                                                         \
    {#op, op, pos, 2, {S(3, 4), S(3, 4)}}, {#op, op, pos, 2, {S(3, 4), S(4)}},                     \
        {#op, op, pos, 2, {S(2, 3, 4), S(3, 1)}}, {#op, op, pos, 2, {S(1, 4), S(3, 1)}},           \
    {                                                                                              \
#op, op, pos, 2,                                                                           \
        {                                                                                          \
            S(1), S(2, 3)                                                                          \
        }                                                                                          \
    }

#define CASES_MAX 200

typedef struct op_table {
    op_case row[CASES_MAX];
    int count;
} op_table;

static void add_cases(op_table *table, const op_case *more, size_t count)
{
    CHECK((size_t)table->count + count <= CASES_MAX);
    memcpy(&table->row[table->count], more, count * sizeof *more);
    table->count += (int)count;
}

static void add_elementwise(op_table *table)
{
    const op_case all[] = {
        EACH_SHAPE(neg, false),
        EACH_SHAPE(exp_, false),
        EACH_SHAPE(log_, true),
        EACH_SHAPE(sqrt_, true),
        EACH_SHAPE(tanh_, false),
        EACH_SHAPE(sigmoid, false),
        EACH_SHAPE(relu, false),
        EACH_SHAPE(gelu_erf, false),
        EACH_SHAPE(gelu_tanh, false),
        EACH_SHAPE(scale, false),
        EACH_SHAPE(add_scalar, false),
        EACH_SHAPE(dropout, false),
        EACH_SHAPE(sum, false),
        EACH_SHAPE(mean, false),
        EACH_SHAPE(sum_dim_first, false),
        EACH_SHAPE(sum_dim_last_kept, false),
        EACH_SHAPE(mean_dim_first_kept, false),
        EACH_SHAPE(mean_dim_last, false),
        EACH_SHAPE(softmax_last, false),
        EACH_SHAPE(softmax_first, false),
        EACH_SHAPE(log_softmax_last, false),
        EACH_SHAPE(log_softmax_first, false),
        EACH_SHAPE(clone_, false),
        EACH_SHAPE(contiguous, false),
        EACH_SHAPE(flat, false),
        EACH_SHAPE(square, false),
        EACH_SHAPE(twice, false),
        EACH_SHAPE(over_itself, false),
        EACH_SHAPE(exp_twice, false),
        EACH_SHAPE(first_and_whole, false),
        EACH_SHAPE(shared_dy, false),
        EACH_PAIR(add, false),
        EACH_PAIR(sub, false),
        EACH_PAIR(mul, false),
        EACH_PAIR(div_, true),
    };
    add_cases(table, all, sizeof all / sizeof all[0]);
}

static void add_others(op_table *table)
{
    const op_case all[] = {
        {"layer_norm_plain", layer_norm_plain, false, 1, {S(2, 3, 5)}},
        {"layer_norm_plain", layer_norm_plain, false, 1, {S(2, 17)}},
        {"gram", gram, false, 1, {S(3, 2)}},
        {"with_its_transpose", with_its_transpose, false, 1, {S(3, 3)}},
        {"two_slices", two_slices, false, 1, {S(2, 3)}},
        {"reshaped_transpose", reshaped_transpose, false, 1, {S(3, 4)}},
        {"matmul", matmul, false, 2, {S(3, 4), S(4, 5)}},
        {"matmul", matmul, false, 2, {S(2, 3, 4), S(4, 2)}},
        {"matmul", matmul, false, 2, {S(2, 3, 4), S(2, 4, 2)}},
        {"matmul", matmul, false, 2, {S(2, 1, 3, 2), S(3, 2, 2)}},
        {"matmul", matmul, false, 2, {S(3, 2), S(2, 2, 2)}},
        {"matmul", matmul, false, 2, {S(1, 1), S(1, 1)}},
        {"matmul", matmul, false, 2, {S(4, 1), S(1, 3)}},
        {"matmul_transposed", matmul_transposed, false, 2, {S(2, 3, 4), S(2, 5, 4)}},
        {"linear", linear, false, 3, {S(2, 3, 4), S(5, 4), S(5)}},
        {"linear", linear, false, 3, {S(4), S(1, 4), S(1)}},
        {"linear_plain", linear_plain, false, 2, {S(3, 4), S(2, 4)}},
        {"linear_relu", linear_relu, true, 3, {S(2, 3, 4), S(5, 4), S(5)}},
        {"linear_gelu", linear_gelu, false, 3, {S(2, 3, 4), S(5, 4), S(5)}},
        {"linear_gelu_tanh", linear_gelu_tanh, false, 3, {S(3, 4), S(5, 4), S(5)}},
        {"linear_silu", linear_silu, false, 3, {S(4), S(1, 4), S(1)}},
        {"linear_tanh", linear_tanh, false, 3, {S(3, 4), S(2, 4), S(2)}},
        {"linear_gelu_plain", linear_gelu_plain, false, 2, {S(3, 4), S(5, 4)}},
        {"linear_silu_twice", linear_silu_twice, false, 2, {S(3, 4), S(4, 4)}},
        {"mse", mse, false, 2, {S(3, 4), S(3, 4)}},
        {"layer_norm", layer_norm, false, 3, {S(2, 3, 5), S(5), S(5)}},
        {"layer_norm_weight", layer_norm_weight, false, 2, {S(3, 4), S(4)}},
        {"norm_shared_weight", norm_shared_weight, false, 3, {S(3, 4), S(4), S(4)}},
        {"embedding", embedding, false, 1, {S(4, 3)}},
        {"attention", attention, false, 3, {S(2, 2, 3, 4), S(2, 2, 3, 4), S(2, 2, 3, 4)}},
        {"attention_causal",
         attention_causal,
         false,
         3,
         {S(1, 2, 5, 3), S(1, 2, 5, 3), S(1, 2, 5, 3)}},
        {"attention_causal",
         attention_causal,
         false,
         3,
         {S(1, 1, 1, 1), S(1, 1, 1, 1), S(1, 1, 1, 1)}},
        {"attention_of_itself", attention_of_itself, false, 1, {S(1, 2, 3, 4)}},
        {"attention_fused", attention_fused, false, 1, {S(2, 3, 12)}},
        {"lstm", lstm, false, 3, {S(3, 2, 8), S(8, 2), S(2, 2, 2)}},
        {"lstm", lstm, false, 3, {S(1, 1, 4), S(4, 1), S(2, 1, 1)}},
        {"lstm_from_zeros", lstm_from_zeros, false, 2, {S(4, 1, 12), S(12, 3)}},
        {"lstm_from_zeros", lstm_from_zeros, false, 2, {S(1, 2, 4), S(4, 1)}},
        {"lstm_carried", lstm_carried, false, 2, {S(2, 2, 8), S(8, 2)}},
        {"gru", gru, false, 4, {S(3, 2, 6), S(6, 2), S(6), S(1, 2, 2)}},
        {"gru", gru, false, 4, {S(1, 1, 3), S(3, 1), S(3), S(1, 1, 1)}},
        {"gru_from_zeros", gru_from_zeros, false, 2, {S(4, 1, 9), S(9, 3)}},
        {"gru_carried", gru_carried, false, 3, {S(2, 2, 6), S(6, 2), S(6)}},
        {"cross_entropy", cross_entropy, false, 1, {S(3, 5)}},
        {"cross_entropy", cross_entropy, false, 1, {S(2, 3, 7)}},
        {"cross_entropy_scaled", cross_entropy_scaled, false, 1, {S(3, 5)}},
    };
    add_cases(table, all, sizeof all / sizeof all[0]);
}

static const op_case *cases(int *count)
{
    static op_table table;
    table.count = 0;
    add_elementwise(&table);
    add_others(&table);
    *count = table.count;
    return table.row;
}

TEST(plain_kernels_gradients_match_differences)
{
    int count;
    const op_case *all = cases(&count);
    check_cases(ls__kernels_ref(), all, count);
}

TEST(fast_kernels_gradients_match_differences)
{
    int count;
    const op_case *all = cases(&count);
    check_cases(ls__kernels_cpu(), all, count);
}

static ls_tensor *wrong_gradient(ls_tensor **in, void *arg)
{
    (void)arg;
    return ls_add(in[0], ls_detach(ls_mul(in[0], in[0])));
}

LOCAL_TEST(check_finds_a_wrong_gradient)
{
    ls_tensor *x = leaf_new(LS_SHAPE(2, 3), false, 7);
    CHECK_STATUS(ls_gradcheck(wrong_gradient, &x, 1, NULL, NULL), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "input 0, element ");
}

TEST_MAIN
