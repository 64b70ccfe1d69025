/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes with the operations of ops.h. */
#include "golden.h"

#include <math.h>

#define f32(...) ls_zeros(LS_SHAPE(__VA_ARGS__), LS_FLOAT32)

GOLDEN(choosing_by_conditions)
{
    ls_tensor *a = f32(4, 3), *c = ls_zeros(LS_SHAPE(4, 3), LS_BOOL);
    SHOW_TENSOR(ls_where(a, a, a));
    SHOW_TENSOR(ls_where(c, a, f32(2)));
    SHOW_TENSOR(ls_clamp(a, NAN, 1.0));
    SHOW_TENSOR(ls_pow_scalar(c, 2.0));
}

GOLDEN(joining_and_cutting)
{
    const int64_t sizes[] = {1, 3};
    ls_tensor *a = f32(4, 3), *out[2], *all[] = {a, a, f32(4, 2), ls_cast(a, LS_INT32)};
    SHOW_TENSOR(ls_concat(all, 0, 0));
    SHOW_TENSOR(ls_concat(NULL, 2, 0));
    SHOW(ls_split(a, 1, sizes, 2, NULL));
    SHOW_TENSOR(ls_concat(all, 3, 0));
    SHOW_TENSOR(ls_concat(all + 2, 2, 1));
    SHOW_TENSOR(ls_concat(all, 2, 2));
    SHOW(ls_split(a, 1, sizes, 2, out));
    SHOW_TENSOR(ls_relu(out[1]));
    SHOW(ls_split(a, 0, sizes, 2, out));
}

GOLDEN(picking_by_index)
{
    const int64_t index[] = {0, 3, 4, -1};
    ls_tensor *a = f32(4, 3), *i = ls_from_data(index, LS_SHAPE(2, 2), LS_INT64);
    ls_tensor *j = ls_zeros(LS_SHAPE(2, 2), LS_INT32);
    SHOW_TENSOR(ls_gather_dim(a, 0, i));
    SHOW_TENSOR(ls_gather_dim(a, 0, a));
    SHOW_TENSOR(ls_scatter_add(j, 0, j, f32(2, 2)));
    SHOW_TENSOR(ls_gather_dim(f32(4, 1), 0, j));
    SHOW_TENSOR(ls_scatter_add(a, 0, j, f32(2, 1)));
    SHOW_TENSOR(ls_index_select(a, 0, j));
    SHOW_TENSOR(ls_index_select(a, 0, ls_reshape(i, LS_SHAPE(-1))));
}

GOLDEN(adding_rows)
{
    const int64_t index[] = {0, 4};
    ls_tensor *a = f32(4, 3), *i = ls_from_data(index, LS_SHAPE(2), LS_INT64);
    SHOW_TENSOR(ls_index_add(a, 0, i, f32(2, 3)));
    SHOW_TENSOR(ls_index_add(a, 1, i, f32(2, 3)));
    SHOW_TENSOR(ls_index_add(a, 0, f32(2), f32(2, 3)));
}

GOLDEN(integers)
{
    ls_tensor *a = ls_zeros(LS_SHAPE(4, 3), LS_INT64), *b = ls_cast(a, LS_INT32), *x = f32(4, 3);
    SHOW_TENSOR(ls_add(a, b));
    SHOW_TENSOR(ls_add(a, x));
    SHOW_TENSOR(ls_mul(a, ls_zeros(LS_SHAPE(2), LS_INT64)));
    SHOW_TENSOR(ls_div(a, a));
    SHOW_TENSOR(ls_floor_div(a, a));
    SHOW_TENSOR(ls_remainder(x, x));
    SHOW_TENSOR(ls_scale(a, 0.5));
    SHOW_TENSOR(ls_add_scalar(ls_cast(a, LS_UINT8), 256.0));
    SHOW_TENSOR(ls_mean(a));
    SHOW_TENSOR(ls_bincount(a, -1));
    SHOW_TENSOR(ls_bincount(a, 0));
    SHOW_TENSOR(ls_bincount(x, 2));
}

GOLDEN(sums_over_dimensions)
{
    ls_tensor *a = f32(4, 3), *none = f32(2, 0);
    SHOW_TENSOR(ls_sum_dims(a, LS_SHAPE(0, -2), false));
    SHOW_TENSOR(ls_mean_dims(a, LS_SHAPE(2), false));
    SHOW_TENSOR(ls_mean_dims(none, LS_SHAPE(1), false));
    SHOW_TENSOR(ls_var_dims(none, LS_SCALAR, true, false));
    SHOW_TENSOR(ls_max_dim(none, 1, false));
    SHOW_TENSOR(ls_cumsum(a, 5));
    SHOW_TENSOR(ls_logsumexp(a, 2, false));
    SHOW_TENSOR(ls_logsumexp(none, 1, false));
}

GOLDEN(parts_of_transformers)
{
    ls_tensor *q = f32(2, 4, 3, 6), *k = f32(2, 3, 3, 6), *v = f32(2, 2, 2, 6), *m = f32(3, 2);
    SHOW_TENSOR(ls_rms_norm(q, f32(4), 1e-5));
    SHOW_NULL(ls_rms_norm_new(0, 1e-5));
    SHOW_TENSOR(ls_rotary(f32(2, 3, 5), 0, 10000.0));
    SHOW_TENSOR(ls_rotary(f32(1, 2, 3, 5), 0, 10000.0));
    SHOW_TENSOR(ls_rotary(q, -1, 10000.0));
    SHOW_TENSOR(ls_rotary_scaled(q, 0, 10000.0,
                                 LS_OPTIONS(ls_rotary_scaling_options, .low_freq_factor = 4.0)));
    SHOW_TENSOR(ls_attention(q, k, k, NULL));
    SHOW_TENSOR(ls_attention(q, v, v, LS_OPTIONS(ls_attention_options, .causal = true)));
    SHOW_TENSOR(ls_attention(q, v, v, LS_OPTIONS(ls_attention_options, .dropout = 2.0)));
    SHOW_TENSOR(ls_attention(q, v, v, LS_OPTIONS(ls_attention_options, .scale = INFINITY)));
    SHOW_TENSOR(ls_attention(q, v, v, LS_OPTIONS(ls_attention_options, .mask = q)));
    ls_set_requires_grad(m, true);
    SHOW_TENSOR(ls_attention(q, v, v, LS_OPTIONS(ls_attention_options, .mask = m)));
}

GOLDEN(targets_and_shares)
{
    const int64_t index[] = {0, 3, -100, -1};
    ls_tensor *x = f32(4, 5), *t = ls_from_data(index, LS_SHAPE(4), LS_INT64);
    SHOW_TENSOR(ls_cross_entropy(x, t, NULL));
    SHOW_TENSOR(
        ls_cross_entropy(x, t, LS_OPTIONS(ls_cross_entropy_options, .label_smoothing = 1.5)));
    SHOW_TENSOR(ls_cross_entropy(x, t, LS_OPTIONS(ls_cross_entropy_options, .weight = f32(4))));
    ls_tensor *learned = ls_set_requires_grad(f32(5), true);
    SHOW_TENSOR(ls_cross_entropy(x, t, LS_OPTIONS(ls_cross_entropy_options, .weight = learned)));
    double weight = 0.0;
    SHOW(ls_cross_entropy_weight(x, NULL, &weight));
    SHOW(ls_cross_entropy_weight(t, LS_OPTIONS(ls_cross_entropy_options, .weight = f32(5)),
                                 &weight));
    SHOW(ls_cross_entropy_weight(t, LS_OPTIONS(ls_cross_entropy_options, .weight = t), &weight));
    SHOW_TENSOR(ls_nll_loss(x, x));
    SHOW_TENSOR(ls_bce_with_logits(x, f32(5)));
}

GOLDEN(comparing_and_logic)
{
    ls_tensor *a = f32(4, 3), *i = ls_zeros(LS_SHAPE(4, 3), LS_INT64);
    SHOW_TENSOR(ls_eq(a, i));
    SHOW_TENSOR(ls_gt(a, f32(2, 3)));
    SHOW_TENSOR(ls_logical_not(ls_cast(a, LS_FLOAT16)));
    SHOW_TENSOR(ls_maximum(a, f32(2)));
    SHOW_TENSOR(ls_sin(i));
}

GOLDEN(rows_of_numbers)
{
    SHOW_TENSOR(ls_arange(0.0, 4.0, -1.0, LS_FLOAT32));
    SHOW_TENSOR(ls_linspace(0.0, 1.0, -1, LS_FLOAT32));
}

GOLDEN(other_shapes)
{
    ls_tensor *a = f32(4, 3), *all[] = {a, f32(4, 2)};
    SHOW_TENSOR(ls_pad(a, LS_SHAPE(1, 1, 1), LS_SHAPE(1), 0.0));
    SHOW_TENSOR(ls_pad(a, LS_SHAPE(-2), LS_SHAPE(-2), 0.0));
    SHOW_TENSOR(ls_expand(a, LS_SHAPE(4, 6)));
    SHOW_TENSOR(ls_stack(all, 0, 0));
    SHOW_TENSOR(ls_stack(all, 1, 3));
    SHOW_TENSOR(ls_stack(all, 2, 0));
}

GOLDEN(orders_and_classes)
{
    const int64_t index[] = {0, 5};
    ls_tensor *a = f32(4, 3), *i = ls_from_data(index, LS_SHAPE(2), LS_INT64);
    SHOW_TENSOR(ls_sort(i, 1, false, NULL));
    SHOW_TENSOR(ls_topk(a, 4, 1, true, NULL));
    SHOW_TENSOR(ls_argsort(a, 2, true));
    SHOW_TENSOR(ls_one_hot(i, 0));
    SHOW_TENSOR(ls_one_hot(i, 4));
    SHOW_TENSOR(ls_one_hot(a, 4));
}

GOLDEN(losses_of_differences)
{
    ls_tensor *x = f32(4, 5);
    SHOW_TENSOR(ls_l1_loss(x, f32(5)));
    SHOW_TENSOR(ls_huber_loss(x, x, 0.0));
    SHOW_TENSOR(ls_smooth_l1_loss(x, x, -1.0));
    SHOW_TENSOR(ls_kl_div(x, x, LS_OPTIONS(ls_kl_div_options, .reduction = (ls_reduction)7)));
    SHOW_TENSOR(ls_group_norm(x, 2, NULL, NULL, 1e-5));
    SHOW_TENSOR(ls_group_norm(f32(4, 6), 2, f32(5), NULL, 1e-5));
}
