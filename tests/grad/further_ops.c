/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes, orders, enlarged images, transposed convolutions, losses of differences × layout × kernel
 * table: backward against central differences, and bfloat16 against float32. */
#include "sweep.h"

#include <lockstep/vision.h>

/* x moved so far apart that no difference changes which element is the larger: every second one up
 * (apart), or each to a place of its own (placed). */
static ls_tensor *moved(ls_tensor *x, int64_t step, int64_t places)
{
    ls_tensor *by = ls_empty(ls_shape_of(x), LS_FLOAT32);
    float *to = ls_data(by);
    for (int64_t i = 0; i < ls_numel(by); i++) {
        to[i] = 4.0f * (float)(i * step % places);
    }
    return ls_add(x, ls_cast(by, ls_dtype_of(x)));
}

static ls_tensor *apart(ls_tensor *x)
{
    return ls_add_scalar(moved(x, 1, 2), -2.0);
}

static ls_tensor *placed(ls_tensor *x)
{
    return moved(x, 7, ls_numel(x) % 7 == 0 ? ls_numel(x) + 1 : ls_numel(x));
}

UNARY(sin_, ls_sin(ls_scale(x, 2.0)))
UNARY(cos_, ls_cos(ls_scale(x, 2.0)))
BINARY(maximum, ls_maximum(apart(x), y))
BINARY(minimum, ls_minimum(apart(x), y))
BINARY(both, ls_mul(ls_maximum(apart(x), y), ls_minimum(x, apart(y))))
UNARY(maximum_itself, ls_maximum(x, x))
UNARY(padded, ls_pad(x, S(1), S(2), 0.7))
UNARY(padded_all, ls_exp(ls_pad(x, S(2, 0), S(0, 1), 0.0)))
UNARY(padded_five,
      ls_pad(ls_reshape(x, S(1, 2, 1, 3, 1, 2)), S(1, 0, 2, -1, 0), S(0, 1, 0, 1, 1), 0.3))
UNARY(padded_cut, ls_mul(ls_pad(x, S(1, -1), S(-1, 2), 0.0), ls_pad(x, S(1, -1), S(-1, 2), 1.0)))
UNARY(expanded, ls_exp(ls_expand(x, S(2, 3, 4))))
UNARY(expanded_first, ls_expand(x, S(2, -1, -1)))
UNARY(sorted, ls_sigmoid(ls_scale(ls_sort(placed(x), -1, false, NULL), 0.1)))
UNARY(sorted_first, ls_sort(placed(x), 0, true, NULL))
UNARY(top, ls_sigmoid(ls_scale(ls_topk(placed(x), 2, 1, true, NULL), 0.1)))
UNARY(least_first, ls_topk(placed(x), 2, 0, false, NULL))
BINARY(stacked, ls_stack((ls_tensor *[]){x, y, x}, 3, 1))
BINARY(stacked_last, ls_exp(ls_stack((ls_tensor *[]){x, y}, 2, -1)))
UNARY(group_norm_plain, ls_group_norm(x, 2, NULL, NULL, 1e-3))
UNARY(leaky, ls_leaky_relu(x, 0.2))
UNARY(log_sum, ls_exp(ls_logsumexp(ls_scale(x, 2.0), -1, false)))
UNARY(log_sum_first, ls_mul(ls_logsumexp(x, 0, true), x))
BINARY(l1, ls_l1_loss(apart(x), y))
BINARY(huber, ls_huber_loss(apart(x), ls_scale(y, 2.0), 1.5))
BINARY(smooth_l1, ls_scale(ls_smooth_l1_loss(x, y, 0.5), 2.0))
BINARY(kl, ls_kl_div(ls_log_softmax(x, -1), ls_softmax(y, -1), NULL))

static ls_tensor *kl_logs(ls_tensor **in)
{
    const ls_reduction reduction = LS_REDUCTION_BATCHMEAN;
    return ls_kl_div(ls_log_softmax(in[0], -1), ls_log_softmax(in[1], -1),
                     LS_OPTIONS(ls_kl_div_options, .reduction = reduction, .log_target = true));
}

static ls_tensor *kl_terms(ls_tensor **in)
{
    return ls_exp(ls_kl_div(in[0], ls_exp(in[1]),
                            LS_OPTIONS(ls_kl_div_options, .reduction = LS_REDUCTION_NONE)));
}

static ls_tensor *index_of(int64_t count)
{
    static const int64_t index[] = {1, 0, 1, 2};
    return ls_from_data(index, S(count), LS_INT64);
}

BINARY(rows_added, ls_exp(ls_index_add(x, 0, index_of(4), y)))
BINARY(columns_added, ls_mul(ls_index_add(x, -1, index_of(2), y), x))

static ls_tensor *weighted(ls_tensor **in)
{
    static const float weights[] = {0.5f, 2.0f, 0.0f, 1.25f};
    ls_tensor *w = ls_from_data(weights, S(4), LS_FLOAT32);
    return ls_cross_entropy(in[0], index_of(3),
                            LS_OPTIONS(ls_cross_entropy_options, .weight = w, .z_loss = 0.1,
                                       .label_smoothing = 0.25, .ignore_index = 0));
}

static ls_tensor *group_norm(ls_tensor **in)
{
    return ls_group_norm(in[0], 2, in[1], in[2], 1e-3);
}

static ls_tensor *sequence(ls_tensor **in)
{
    return ls_conv1d(in[0], in[1], in[2], NULL);
}

static ls_tensor *sequence_options(ls_tensor **in)
{
    return ls_conv1d(
        in[0], in[1], NULL,
        LS_OPTIONS(ls_conv1d_options, .stride = 2, .padding = 2, .dilation = 2, .groups = 2));
}

static ls_tensor *transposed(ls_tensor **in)
{
    return ls_conv_transpose2d(in[0], in[1], in[2], NULL);
}

static ls_tensor *transposed_options(ls_tensor **in)
{
    return ls_conv_transpose2d(in[0], in[1], in[2],
                               LS_OPTIONS(ls_conv_transpose2d_options, .stride = {2, 3},
                                          .padding = {1, 0}, .dilation = {1, 2},
                                          .output_padding = {1, 2}, .groups = 2));
}

/* There and back: the weight and the image are used twice. */
static ls_tensor *there_and_back(ls_tensor **in)
{
    return ls_add(ls_conv_transpose2d(ls_conv2d(in[0], in[1], NULL, NULL), in[1], NULL, NULL),
                  in[0]);
}

#define UPSAMPLE(...) LS_OPTIONS(ls_upsample_options, __VA_ARGS__)

static ls_tensor *nearest(ls_tensor **in)
{
    return ls_exp(ls_upsample(in[0], UPSAMPLE(.output = {5, 3})));
}

static ls_tensor *bilinear(ls_tensor **in)
{
    return ls_upsample(in[0], UPSAMPLE(.scale = {2.0, 1.5}, .mode = LS_UPSAMPLE_BILINEAR));
}

static ls_tensor *corners(ls_tensor **in)
{
    ls_tensor *y = ls_upsample(
        in[0], UPSAMPLE(.output = {4, 7}, .mode = LS_UPSAMPLE_BILINEAR, .align_corners = true));
    return ls_mul(y, ls_upsample(in[0], UPSAMPLE(.output = {4, 7})));
}

static void check_elements(const ls__kernels *kernels)
{
    const op_case all[] = {
        ONE(sin_, 3, 4),
        ONE(cos_, 17, 1),
        TWO(maximum, S(3, 4), S(3, 4)),
        TWO(maximum, S(2, 3, 4), S(3, 1)),
        TWO(minimum, S(3, 1), S(2, 1, 4)),
        TWO(both, S(4), S(3, 4)),
        ONE(maximum_itself, 3, 4),
        ONE(leaky, 3, 4),
        ONE(log_sum, 3, 4),
        ONE(log_sum, 5),
        ONE(log_sum_first, 2, 3, 2),
        TWO(rows_added, S(3, 4), S(4, 4)),
        TWO(columns_added, S(2, 3), S(2, 2)),
        ONE(weighted, 3, 4),
        TWO(l1, S(3, 4), S(3, 4)),
        TWO(huber, S(3, 4), S(3, 4)),
        TWO(smooth_l1, S(5), S(5)),
        TWO(kl, S(3, 4), S(3, 4)),
        TWO(kl_logs, S(2, 5), S(2, 5)),
        TWO(kl_terms, S(3, 2), S(3, 2)),
    };
    check_cases(kernels, all, (int)(sizeof all / sizeof all[0]));
}

static void check_shapes(const ls__kernels *kernels)
{
    const op_case all[] = {
        ONE(padded, 3, 4),
        ONE(padded, 3),
        ONE(padded_all, 2, 3, 2),
        ONE(padded_cut, 2, 3, 3),
        ONE(padded_five, 2, 3, 2),
        ONE(expanded, 3, 1),
        ONE(expanded, 2, 1, 4),
        ONE(expanded_first, 3, 2),
        ONE(sorted, 3, 5),
        ONE(sorted, 7),
        ONE(sorted_first, 4, 2, 2),
        ONE(top, 2, 5),
        ONE(least_first, 5, 3),
        TWO(stacked, S(3, 4), S(3, 4)),
        TWO(stacked_last, S(2, 3), S(2, 3)),
    };
    check_cases(kernels, all, (int)(sizeof all / sizeof all[0]));
}

static void check_images(const ls__kernels *kernels)
{
    const op_case all[] = {
        ONE(nearest, 2, 3, 2, 4),
        ONE(bilinear, 2, 1, 3, 4),
        ONE(corners, 1, 2, 3, 3),
        THREE(sequence, S(2, 3, 5), S(2, 3, 2), S(2)),
        TWO(sequence_options, S(2, 4, 7), S(2, 2, 3)),
        THREE(transposed, S(2, 2, 2, 3), S(2, 3, 2, 2), S(3)),
        THREE(transposed_options, S(1, 4, 3, 2), S(4, 1, 3, 2), S(2)),
        TWO(there_and_back, S(1, 2, 3, 4), S(3, 2, 2, 2)),
        ONE(group_norm_plain, 2, 4, 3),
        THREE(group_norm, S(2, 4, 3), S(4), S(4)),
        THREE(group_norm, S(1, 2, 2, 3), S(2), S(2)),
    };
    check_cases(kernels, all, (int)(sizeof all / sizeof all[0]));
}

TEST(sines_extremes_and_losses_have_the_gradients_of_differences)
{
    check_elements(ls__kernels_ref());
    check_elements(ls__kernels_cpu());
}

TEST(shapes_and_orders_have_the_gradients_of_differences)
{
    check_shapes(ls__kernels_ref());
    check_shapes(ls__kernels_cpu());
}

TEST(enlarged_images_transposed_convolutions_and_group_norms_have_the_gradients_of_differences)
{
    check_images(ls__kernels_ref());
    check_images(ls__kernels_cpu());
}

TEST_MAIN
