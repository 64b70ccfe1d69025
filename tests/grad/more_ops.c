/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of ops.h × shape × layout × kernel table: backward against central differences. */
#include <math.h>

#include "sweep.h"

UNARY(abs_, ls_abs(x))
UNARY(silu, ls_silu(x))
UNARY(square, ls_pow_scalar(x, 2))
UNARY(cube, ls_pow_scalar(x, 3))
UNARY(root, ls_pow_scalar(x, 0.4))
UNARY(inverse, ls_pow_scalar(x, -1))
UNARY(to_one, ls_pow_scalar(x, 0))
UNARY(clamp, ls_clamp(x, -0.1, 0.1))
UNARY(clamp_below, ls_clamp(x, 0.0, INFINITY))
UNARY(clamp_twice, ls_add(ls_clamp(x, -INFINITY, 0.05), ls_clamp(x, -0.05, 5)))
UNARY(sum_all, ls_sum_dims(x, LS_SCALAR, false))
UNARY(sum_first_last, ls_sum_dims(x, S(0, -1), false))
UNARY(sum_middle_kept, ls_sum_dims(x, S(1), true))
UNARY(mean_first_last_kept, ls_mean_dims(x, S(-1, 0), true))
UNARY(mean_last, ls_mean_dims(x, S(2), false))
UNARY(var_all, ls_var_dims(x, LS_SCALAR, true, false))
UNARY(var_first_last, ls_var_dims(x, S(0, 2), true, false))
UNARY(var_middle_kept, ls_var_dims(x, S(1), false, true))
UNARY(var_last_twice, ls_add(ls_var_dims(x, S(2), false, true), ls_var_dims(x, S(2), true, true)))
UNARY(max_first, ls_max_dim(x, 0, false))
UNARY(max_last_kept, ls_max_dim(x, -1, true))
UNARY(min_middle, ls_min_dim(x, 1, false))
UNARY(max_and_min, ls_sub(ls_max_dim(x, -1, false), ls_min_dim(x, -1, false)))
UNARY(cumsum_first, ls_cumsum(x, 0))
UNARY(cumsum_last, ls_cumsum(x, -1))
UNARY(cumsum_middle_twice, ls_mul(ls_cumsum(x, 1), ls_cumsum(x, 1)))
UNARY(rms_norm_plain, ls_rms_norm(x, NULL, 1e-5))
UNARY(rotary, ls_rotary(x, 0, 100.0))
UNARY(rotary_scaled,
      ls_rotary_scaled(x, 7, 100.0,
                       LS_OPTIONS(ls_rotary_scaling_options, .original_positions = 16)))
UNARY(rotary_later_twice, ls_add(ls_rotary(x, 70, 10000.0), ls_rotary(x, 3, 50.0)))
UNARY(concat_itself, ls_concat((ls_tensor *[]){x, x, x}, 3, 0))
BINARY(rms_norm, ls_rms_norm(x, y, 1e-5))
BINARY(bce, ls_bce_with_logits(x, y))
BINARY(bce_scaled, ls_scale(ls_bce_with_logits(x, ls_sigmoid(y)), 3.0))
BINARY(concat_first, ls_concat((ls_tensor *[]){x, y}, 2, 0))
BINARY(concat_last, ls_concat((ls_tensor *[]){x, y, x}, 3, -1))
BINARY(attention_short, ls_attention(x, y, y, NULL))

static ls_tensor *mask_of(ls_shape shape)
{
    ls_tensor *mask = ls_empty(shape, LS_BOOL);
    uint8_t *m = ls_data(mask);
    for (int64_t i = 0; i < ls_numel(mask); i++) {
        m[i] = i * 5 % 7 < 3;
    }
    return mask;
}

static ls_tensor *where_whole(ls_tensor **in)
{
    return ls_where(mask_of(S(3, 4)), in[0], in[1]);
}

static ls_tensor *where_row(ls_tensor **in)
{
    return ls_where(mask_of(S(4)), in[0], in[1]);
}

/* The condition is the larger one, and a transpose. */
static ls_tensor *where_column(ls_tensor **in)
{
    return ls_where(ls_transpose(mask_of(S(3, 5, 2)), 0, 2), in[0], in[1]);
}

static ls_tensor *concat_five(ls_tensor **in)
{
    ls_tensor *fixed = ls_ones(S(2, 1, 3), ls_dtype_of(in[0]));
    ls_tensor *all[] = {in[0], fixed, in[1], ls_exp(in[2]), in[0]};
    return ls_concat(all, 5, 1);
}

static ls_tensor *split_and_use(ls_tensor **in)
{
    const int64_t sizes[] = {1, 0, 2};
    ls_tensor *part[3];
    CHECK_OK(ls_split(in[0], -1, sizes, 3, part));
    return ls_mul(part[0], ls_exp(part[2]));
}

static ls_tensor *index_of(ls_shape shape, int64_t limit, ls_dtype dtype)
{
    ls_tensor *index = ls_empty(shape, LS_INT64);
    int64_t *at = ls_data(index);
    for (int64_t i = 0; i < ls_numel(index); i++) {
        at[i] = (i * i + 2) % limit; /* some twice, some never */
    }
    return ls_cast(index, dtype);
}

static ls_tensor *gather_last(ls_tensor **in)
{
    return ls_gather_dim(in[0], -1, index_of(S(3, 6), 4, LS_INT64));
}

static ls_tensor *gather_first_fewer(ls_tensor **in)
{
    return ls_gather_dim(in[0], 0, index_of(S(5, 2), 3, LS_INT32));
}

static ls_tensor *gather_middle_twice(ls_tensor **in)
{
    ls_tensor *index = ls_transpose(index_of(S(4, 5, 2), 3, LS_INT32), 0, 2);
    return ls_mul(ls_gather_dim(in[0], 1, index), ls_gather_dim(in[0], 1, index));
}

static ls_tensor *scatter_last(ls_tensor **in)
{
    return ls_scatter_add(in[0], 1, index_of(S(3, 2), 4, LS_INT64), in[1]);
}

static ls_tensor *scatter_first(ls_tensor **in)
{
    return ls_exp(ls_scatter_add(in[0], 0, index_of(S(5, 3), 3, LS_INT32), in[1]));
}

static ls_tensor *select_first(ls_tensor **in)
{
    return ls_index_select(in[0], 0, index_of(S(4), 3, LS_INT64));
}

static ls_tensor *select_last_twice(ls_tensor **in)
{
    ls_tensor *index = index_of(S(6), 4, LS_INT32);
    return ls_mul(ls_index_select(in[0], -1, index), ls_index_select(in[0], 1, index));
}

static ls_tensor *norm_shared_weight(ls_tensor **in)
{
    return ls_rms_norm(ls_rms_norm(in[0], in[1], 1e-5), in[1], 1e-3);
}

static ls_tensor *smoothed(ls_tensor **in)
{
    ls_shape shape = ls_shape_of(in[0]);
    ls_shape rows = {shape.ndim - 1, {shape.dim[0], shape.dim[1]}};
    ls_tensor *target = index_of(rows, shape.dim[rows.ndim], LS_INT64);
    return ls_scale(ls_cross_entropy(in[0], target,
                                     LS_OPTIONS(ls_cross_entropy_options, .label_smoothing = 0.2,
                                                .ignore_index = 3, .z_loss = 0.05)),
                    1.5);
}

static ls_tensor *nll(ls_tensor **in)
{
    const int32_t target[] = {4, -100, 0};
    return ls_nll_loss(ls_log_softmax(in[0], -1), ls_from_data(target, S(3), LS_INT32));
}

static ls_tensor *attention_grouped(ls_tensor **in)
{
    return ls_attention(in[0], in[1], in[2],
                        LS_OPTIONS(ls_attention_options, .causal = true, .scale = 0.7));
}

/* Key 0 is hidden from all, query 1 of head 0 sees nothing. */
static ls_tensor *attention_masked(ls_tensor **in)
{
    const float hidden = -INFINITY;
    const float m[] = {hidden, 0.5f, 0, 0.25f, hidden, hidden, hidden, hidden,
                       hidden, 0,    0, 0,     hidden, 0,      -0.5f,  0};
    ls_tensor *mask = ls_from_data(m, S(2, 2, 4), LS_FLOAT32);
    return ls_attention(in[0], in[1], in[2], LS_OPTIONS(ls_attention_options, .mask = mask));
}

static ls_tensor *attention_dropped(ls_tensor **in)
{
    ls_tensor *mask = ls_slice(ls_full(S(2, 1, 1, 6), LS_FLOAT32, 0.3), 3, 1, 5);
    return ls_attention(
        in[0], in[1], in[2],
        LS_OPTIONS(ls_attention_options, .causal = true, .dropout = 0.3, .mask = mask));
}

/* x [B,T,(H+2G)D] as one product leaves it: four heads, two of keys and values. */
static ls_tensor *attention_fused_grouped(ls_tensor **in)
{
    ls_shape s = ls_shape_of(in[0]);
    const int64_t heads[] = {4, 2, 2};
    ls_tensor *part[3], *all = ls_reshape(in[0], S(s.dim[0], s.dim[1], 8, s.dim[2] / 8));
    CHECK_OK(ls_split(all, 2, heads, 3, part));
    for (int i = 0; i < 3; i++) {
        part[i] = ls_transpose(part[i], 1, 2);
    }
    ls_tensor *o =
        ls_attention(part[0], part[1], part[2], LS_OPTIONS(ls_attention_options, .causal = true));
    return ls_reshape(ls_transpose(o, 1, 2), S(s.dim[0], s.dim[1], -1));
}

static void check_elements(const ls__kernels *kernels)
{
    const op_case all[] = {
        ONE(abs_, 3, 4),
        ONE(silu, 3, 4),
        ONE(silu, 17, 1),
        ONE(square, 3, 4),
        ONE(cube, 2, 1, 5),
        {"root", root, true, 1, {S(3, 4)}},
        {"inverse", inverse, true, 1, {S(3, 4)}},
        ONE(to_one, 3, 4),
        ONE(clamp, 3, 4),
        ONE(clamp_below, 3, 4),
        ONE(clamp_twice, 3, 4),
        TWO(where_whole, S(3, 4), S(3, 4)),
        TWO(where_row, S(3, 4), S(3, 1)),
        TWO(where_row, S(1), S(2, 4)),
        TWO(where_column, S(2, 1, 1), S(5, 3)),
    };
    check_cases(kernels, all, (int)(sizeof all / sizeof all[0]));
}

static void check_picking(const ls__kernels *kernels)
{
    const op_case all[] = {
        TWO(concat_first, S(3, 4), S(2, 4)),
        TWO(concat_last, S(3, 4), S(3, 1)),
        ONE(concat_itself, 2, 3),
        THREE(concat_five, S(2, 3, 3), S(2, 1, 3), S(2, 2, 3)),
        ONE(split_and_use, 4, 3),
        ONE(gather_last, 3, 4),
        ONE(gather_first_fewer, 3, 4),
        ONE(gather_middle_twice, 2, 3, 4),
        TWO(scatter_last, S(3, 4), S(3, 2)),
        TWO(scatter_last, S(4, 4), S(4, 3)),
        TWO(scatter_first, S(3, 4), S(6, 3)),
        ONE(select_first, 3, 2, 2),
        ONE(select_last_twice, 3, 4),
    };
    check_cases(kernels, all, (int)(sizeof all / sizeof all[0]));
}

static void check_reductions(const ls__kernels *kernels)
{
    const op_case all[] = {
        ONE(sum_all, 2, 3, 4),         ONE(sum_first_last, 2, 3, 4),
        ONE(sum_middle_kept, 2, 3, 4), ONE(mean_first_last_kept, 2, 3, 4),
        ONE(mean_last, 2, 3, 4),       ONE(var_all, 2, 3),
        ONE(var_first_last, 2, 3, 4),  ONE(var_middle_kept, 2, 3, 4),
        ONE(var_last_twice, 2, 3, 4),  ONE(max_first, 3, 4),
        ONE(max_last_kept, 2, 5),      ONE(min_middle, 2, 3, 4),
        ONE(max_and_min, 2, 3),        ONE(cumsum_first, 5, 3),
        ONE(cumsum_last, 2, 3, 4),     ONE(cumsum_middle_twice, 2, 3, 2),
    };
    check_cases(kernels, all, (int)(sizeof all / sizeof all[0]));
}

static void check_networks(const ls__kernels *kernels)
{
    const op_case all[] = {
        ONE(rms_norm_plain, 2, 17),
        TWO(rms_norm, S(2, 3, 5), S(5)),
        TWO(norm_shared_weight, S(3, 4), S(4)),
        ONE(rotary, 2, 2, 3, 6),
        ONE(rotary, 1, 1, 1, 2),
        ONE(rotary_scaled, 1, 2, 3, 6),
        ONE(rotary_later_twice, 1, 2, 3, 4),
        TWO(bce, S(3, 4), S(3, 4)),
        TWO(bce_scaled, S(5), S(5)),
        ONE(smoothed, 2, 3, 7),
        ONE(smoothed, 5, 4),
        ONE(nll, 3, 5),
        TWO(attention_short, S(1, 2, 2, 4), S(1, 2, 5, 4)),
        THREE(attention_grouped, S(1, 4, 3, 4), S(1, 2, 5, 4), S(1, 2, 5, 4)),
        THREE(attention_grouped, S(2, 3, 2, 3), S(2, 1, 2, 3), S(2, 1, 2, 3)),
        THREE(attention_masked, S(2, 2, 2, 3), S(2, 2, 4, 3), S(2, 2, 4, 3)),
        THREE(attention_masked, S(1, 2, 2, 3), S(1, 1, 4, 3), S(1, 1, 4, 3)),
        THREE(attention_dropped, S(2, 2, 3, 2), S(2, 2, 4, 2), S(2, 2, 4, 2)),
        ONE(attention_fused_grouped, 1, 3, 16),
    };
    check_cases(kernels, all, (int)(sizeof all / sizeof all[0]));
}

TEST(functions_of_elements_have_the_gradients_of_differences)
{
    check_elements(ls__kernels_ref());
    check_elements(ls__kernels_cpu());
}

TEST(joining_and_picking_have_the_gradients_of_differences)
{
    check_picking(ls__kernels_ref());
    check_picking(ls__kernels_cpu());
}

TEST(reductions_have_the_gradients_of_differences)
{
    check_reductions(ls__kernels_ref());
    check_reductions(ls__kernels_cpu());
}

TEST(norms_losses_and_attention_have_the_gradients_of_differences)
{
    check_networks(ls__kernels_ref());
    check_networks(ls__kernels_cpu());
}

TEST_MAIN
