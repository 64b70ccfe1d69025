/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes with images: convolution, pooling, batch norm and their layers. */
#include "golden.h"

#define f32(...) ls_zeros(LS_SHAPE(__VA_ARGS__), LS_FLOAT32)
#define CONV(...) LS_OPTIONS(ls_conv2d_options, __VA_ARGS__)
#define POOL(...) LS_OPTIONS(ls_pool2d_options, __VA_ARGS__)

GOLDEN(convolution)
{
    ls_tensor *x = f32(2, 4, 5, 6), *w = f32(8, 4, 3, 3);
    SHOW_TENSOR(ls_conv2d(f32(4, 5, 6), w, NULL, NULL));
    SHOW_TENSOR(ls_conv2d(x, f32(8, 3, 3, 3), NULL, NULL));
    SHOW_TENSOR(ls_conv2d(x, f32(8, 2, 3, 3), NULL, CONV(.groups = 3)));
    SHOW_TENSOR(ls_conv2d(x, w, f32(4), NULL));
    SHOW_TENSOR(ls_conv2d(x, w, NULL, CONV(.stride = {1, 0})));
    SHOW_TENSOR(ls_conv2d(x, w, NULL, CONV(.dilation = {1, 3})));
    SHOW_TENSOR(ls_conv2d(x, f32(8, 4, 0, 3), NULL, NULL));
    SHOW_TENSOR(ls_conv2d(ls_zeros(LS_SHAPE(2, 4, 5, 6), LS_INT32), w, NULL, NULL));
}

GOLDEN(convolution_of_sequences)
{
    ls_tensor *x = f32(2, 4, 9), *w = f32(8, 4, 3);
    SHOW_TENSOR(ls_conv1d(f32(2, 4, 5, 9), w, NULL, NULL));
    SHOW_TENSOR(ls_conv1d(x, f32(8, 3, 3), NULL, NULL));
    SHOW_TENSOR(ls_conv1d(x, w, f32(4), NULL));
    SHOW_TENSOR(ls_conv1d(x, w, NULL, LS_OPTIONS(ls_conv1d_options, .stride = 0)));
    SHOW_TENSOR(ls_conv1d(x, w, NULL, LS_OPTIONS(ls_conv1d_options, .dilation = 5)));
}

#define TRANSPOSED(...) LS_OPTIONS(ls_conv_transpose2d_options, __VA_ARGS__)

GOLDEN(transposed_convolution)
{
    ls_tensor *x = f32(2, 4, 5, 6), *w = f32(4, 8, 3, 3);
    SHOW_TENSOR(ls_conv_transpose2d(f32(4, 5, 6), w, NULL, NULL));
    SHOW_TENSOR(ls_conv_transpose2d(x, f32(8, 4, 3, 3), NULL, NULL));
    SHOW_TENSOR(ls_conv_transpose2d(x, w, NULL, TRANSPOSED(.groups = 3)));
    SHOW_TENSOR(ls_conv_transpose2d(x, w, f32(4), NULL));
    SHOW_TENSOR(ls_conv_transpose2d(x, w, NULL, TRANSPOSED(.output_padding = {0, 1})));
    SHOW_TENSOR(ls_conv_transpose2d(x, w, NULL, TRANSPOSED(.padding = {4, 0})));
}

#define UPSAMPLE(...) LS_OPTIONS(ls_upsample_options, __VA_ARGS__)

GOLDEN(enlarging_images)
{
    ls_tensor *x = f32(2, 4, 5, 6);
    SHOW_TENSOR(ls_upsample(x, NULL));
    SHOW_TENSOR(ls_upsample(x, UPSAMPLE(.output = {4, 4}, .scale = {0.0, 2.0})));
    SHOW_TENSOR(ls_upsample(f32(4, 5, 6), UPSAMPLE(.scale = {2.0, 2.0})));
    SHOW_TENSOR(ls_upsample(x, UPSAMPLE(.scale = {2.0, 2.0}, .align_corners = true)));
    SHOW_TENSOR(ls_upsample(x, UPSAMPLE(.output = {4, 4}, .mode = (ls_upsample_mode)5)));
}

GOLDEN(pooling)
{
    ls_tensor *x = f32(2, 4, 5, 6);
    SHOW_TENSOR(ls_max_pool2d(x, NULL));
    SHOW_TENSOR(ls_max_pool2d(x, POOL(.kernel = {6, 2})));
    SHOW_TENSOR(ls_avg_pool2d(x, POOL(.kernel = {2, 2}, .padding = {0, 2})));
    SHOW_TENSOR(ls_avg_pool2d(f32(4, 5), POOL(.kernel = {2, 2})));
    SHOW_TENSOR(ls_adaptive_avg_pool2d(f32(2, 4, 0, 6), 1, 1));
    SHOW_TENSOR(ls_adaptive_avg_pool2d(x, 0, 1));
}

GOLDEN(batch_norm)
{
    ls_tensor *x = f32(2, 4, 5, 6), *c = f32(4), *d = f32(5);
    SHOW_TENSOR(ls_batch_norm(c, NULL, NULL, LS_OPTIONS(ls_batch_norm_options, .training = true)));
    SHOW_TENSOR(ls_batch_norm(x, d, c, LS_OPTIONS(ls_batch_norm_options, .training = true)));
    SHOW_TENSOR(ls_batch_norm(
        x, c, c,
        LS_OPTIONS(ls_batch_norm_options, .running_mean = c, .running_var = d, .training = true)));
    SHOW_TENSOR(ls_batch_norm(x, c, c, LS_OPTIONS(ls_batch_norm_options, .running_mean = c)));
    SHOW_TENSOR(
        ls_batch_norm(f32(1, 4), c, c, LS_OPTIONS(ls_batch_norm_options, .training = true)));
    SHOW_TENSOR(ls_batch_norm(
        x, c, c, LS_OPTIONS(ls_batch_norm_options, .training = true, .momentum = 1.5)));
    SHOW_TENSOR(ls_batch_norm(x, c, c, LS_OPTIONS(ls_batch_norm_options, .residual = c)));
    SHOW_TENSOR(ls_batch_norm2d_relu(ls_relu_new(), x, NULL));
}

GOLDEN(layers_of_images)
{
    SHOW_NULL(ls_conv2d_new(3, 0, 3, NULL));
    SHOW_NULL(ls_conv2d_new(6, 8, 3, LS_OPTIONS(ls_conv2d_layer_options, .groups = 4)));
    SHOW_NULL(ls_batch_norm2d_new(4, 0.0, 0.1));
    SHOW_NULL(ls_max_pool2d_new(0, 1, 0));
    SHOW_NULL(ls_conv1d_new(3, 4, 0, NULL));
    SHOW_NULL(ls_conv_transpose2d_new(6, 8, 3,
                                      LS_OPTIONS(ls_conv_transpose2d_layer_options, .groups = 4)));
    SHOW_NULL(ls_group_norm_new(4, 6, NULL));
    SHOW(ls_fill_kaiming_normal(f32(4), true));
}

GOLDEN_RANKS(one_rank_would_keep_its_own_running_statistics, 2)
{
    const ls_ddp_options *options = LS_OPTIONS(ls_ddp_options, .broadcast_buffers = ls_rank() == 0);
    ls_module *net = ls_ddp_new(ls_batch_norm2d_new(2, 1e-5, 0.1), ls_world(), options);
    SHOW(ls_backward(ls_mean(ls_forward(net, ls_ones(LS_SHAPE(2, 2), LS_FLOAT32)))));
    ls_module_free(net);
}
