/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on images: convolution, resizing, pooling, batch normalisation.
 *
 * Images are [N,C,H,W]: batch, channels, height, width. Semantics, names and defaults are PyTorch's
 * (torch.nn.functional); pairs are {height, width}. Errors, poisoned tensors and dtypes are those
 * of tensor.h, and all operations are differentiable. The layers are in nn.h.
 *
 * Results may be stored with their channels last ([N,H,W,C], as with torch.channels_last), the
 * layout in which convolutions are fast; their shape is still [N,C,H,W]. Operations accept both
 * layouts. ls_data needs row-major elements: use ls_data(ls_contiguous(t)), or ls_copy_out.
 */
#ifndef LOCKSTEP_VISION_H
#define LOCKSTEP_VISION_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_conv2d_options {
    size_t size;
    int64_t stride[2], padding[2], dilation[2]; /* in pixels; padding with zeros, on both sides */
    int64_t groups;                             /* a divisor of C and O */
    bool relu; /* applies a ReLU to the result, without storing its input */
} ls_conv2d_options;
#define LS_DEFAULTS_ls_conv2d_options .stride = {1, 1}, .dilation = {1, 1}, .groups = 1,
LS_DEFAULTS_FUNCTION(conv2d)
/* Convolution, as a cross-correlation (torch.nn.functional.conv2d): x [N,C,H,W], weight
 * [O,C/groups,kh,kw], bias [O] or NULL -> [N,O,H',W'] with H' = (H + 2 padding - dilation (kh - 1)
 * - 1) / stride + 1, rounded down, and W' likewise. */
LS_API ls_tensor *ls_conv2d(ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                            const ls_conv2d_options *options);

typedef struct ls_conv1d_options {
    size_t size;
    int64_t stride, padding, dilation, groups;
} ls_conv1d_options;
#define LS_DEFAULTS_ls_conv1d_options .stride = 1, .dilation = 1, .groups = 1,
LS_DEFAULTS_FUNCTION(conv1d)
/* The same for sequences: x [N,C,L], weight [O,C/groups,k], bias [O] or NULL -> [N,O,L']. */
LS_API ls_tensor *ls_conv1d(ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                            const ls_conv1d_options *options);

typedef struct ls_conv_transpose2d_options {
    size_t size;
    int64_t stride[2], padding[2], dilation[2]; /* those of the convolution */
    int64_t output_padding[2]; /* additional rows and columns; less than the stride */
    int64_t groups;            /* a divisor of C and O */
} ls_conv_transpose2d_options;
#define LS_DEFAULTS_ls_conv_transpose2d_options .stride = {1, 1}, .dilation = {1, 1}, .groups = 1,
LS_DEFAULTS_FUNCTION(conv_transpose2d)
/* Transposed convolution, the gradient of ls_conv2d with respect to its images (Zeiler et al.
 * 2010): x [N,C,H,W], weight [C,O/groups,kh,kw], bias [O] or NULL -> [N,O,H',W'] with H' = (H - 1)
 * stride - 2 padding + dilation (kh - 1) + output_padding + 1, and W' likewise. */
LS_API ls_tensor *ls_conv_transpose2d(ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                                      const ls_conv_transpose2d_options *options);

typedef enum ls_upsample_mode {
    LS_UPSAMPLE_NEAREST = 0,
    LS_UPSAMPLE_BILINEAR = 1
} ls_upsample_mode;
typedef struct ls_upsample_options {
    size_t size;
    int64_t output[2];     /* height and width of the result in pixels; 0: `scale` decides */
    double scale[2];       /* factor of height and width, rounded down; 0: `output` decides */
    ls_upsample_mode mode; /* takes the nearest pixel, or interpolates linearly along both axes */
    bool align_corners;    /* bilinear: the centres of the corner pixels are aligned */
} ls_upsample_options;
#define LS_DEFAULTS_ls_upsample_options
LS_DEFAULTS_FUNCTION(upsample)
/* Resizes x [N,C,H,W] -> [N,C,H',W'] (torch.nn.functional.interpolate). Each axis needs either an
 * output or a scale. */
LS_API ls_tensor *ls_upsample(ls_tensor *x, const ls_upsample_options *options);

typedef struct ls_pool2d_options {
    size_t size;
    int64_t kernel[2], stride[2]; /* in pixels; stride 0: the kernel's size */
    int64_t padding[2];           /* at most half of the kernel */
    bool count_include_pad;       /* averages count padding as elements of value 0; default true */
} ls_pool2d_options;
#define LS_DEFAULTS_ls_pool2d_options .count_include_pad = true,
LS_DEFAULTS_FUNCTION(pool2d)
/* The largest element, or the average, of each window: [N,C,H,W] -> [N,C,H',W'] with H' = (H + 2
 * padding
 * - kernel) / stride + 1, rounded down, and W' likewise. NaN is the largest; the gradient goes to
 *   the
 * first of equal elements. */
LS_API ls_tensor *ls_max_pool2d(ls_tensor *x, const ls_pool2d_options *options);
LS_API ls_tensor *ls_avg_pool2d(ls_tensor *x, const ls_pool2d_options *options);
/* [N,C,H,W] -> [N,C,height,width]: output row i is the average of rows floor(i H/height) to
 * ceil((i+1) H/height) - 1, and columns likewise (torch.nn.functional.adaptive_avg_pool2d). */
LS_API ls_tensor *ls_adaptive_avg_pool2d(ls_tensor *x, int64_t height, int64_t width);

typedef struct ls_batch_norm_options {
    size_t size;
    ls_tensor *running_mean,
        *running_var; /* [C], contiguous float32 outside the graph; NULL: none */
    bool training;    /* default false: uses the running statistics, which must be given */
    double momentum, eps;
    ls_tensor *residual; /* of x's shape; is added to the result; NULL: none */
    bool relu;           /* applies a ReLU to the result, after the residual was added */
} ls_batch_norm_options;
#define LS_DEFAULTS_ls_batch_norm_options .momentum = 0.1, .eps = 1e-5,
LS_DEFAULTS_FUNCTION(batch_norm)
/* Batch normalisation (Ioffe & Szegedy 2015): x [N,C,..] -> the same shape. Each channel is
 * normalised to mean 0 and variance 1 over all other dimensions; then weight [C] and bias [C]
 * (NULL: none) are applied. Training uses the statistics of the batch (of at least 2 elements per
 * channel; an empty batch is returned unchanged), and the running statistics, if given, become (1 -
 * momentum) running + momentum batch, with the unbiased variance. Evaluation uses the running
 * statistics. `residual` and `relu` fuse the operations that often follow: relu(batch_norm(x) +
 * residual), the end of a residual block (He et al. 2016). Gradients are those of the separate
 * operations. */
LS_API ls_tensor *ls_batch_norm(ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                                const ls_batch_norm_options *options);

#if !defined(LS_NO_SITES)
#define ls_conv2d(...) LS_AT(ls_conv2d(__VA_ARGS__))
#define ls_conv1d(...) LS_AT(ls_conv1d(__VA_ARGS__))
#define ls_conv_transpose2d(...) LS_AT(ls_conv_transpose2d(__VA_ARGS__))
#define ls_upsample(...) LS_AT(ls_upsample(__VA_ARGS__))
#define ls_max_pool2d(...) LS_AT(ls_max_pool2d(__VA_ARGS__))
#define ls_avg_pool2d(...) LS_AT(ls_avg_pool2d(__VA_ARGS__))
#define ls_adaptive_avg_pool2d(...) LS_AT(ls_adaptive_avg_pool2d(__VA_ARGS__))
#define ls_batch_norm(...) LS_AT(ls_batch_norm(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
