/* SPDX-License-Identifier: Apache-2.0 */
/* The layers of images: convolution, pooling, flatten; batch norm is in batch_norm.c. Parameters,
 * names, shapes and initial distributions are PyTorch's; kernels, strides and paddings of layers
 * are square, those of the operations need not be. */
#include <lockstep/vision.h>

#include "base/options.h"
#include "nn/layer.h"

/* ---- convolution -------------------------------------------------------------------------- */

/* `bias` is NULL in a layer without one. */
typedef struct conv2d {
    ls_module base;
    ls_tensor *weight, *bias;
    ls_conv2d_options options;
} conv2d;

static ls_tensor *conv2d_forward(ls_module *m, ls_tensor *x) /* [N,C,H,W] -> [N,O,H',W'] */
{
    conv2d *self = (conv2d *)m;
    return ls_conv2d(x, self->weight, self->bias, &self->options);
}

static const ls_module_class conv2d_class =
    LS_MODULE_CLASS(.name = "Conv2d", .forward = conv2d_forward);

/* The weight is [out, in / groups, kernel, kernel]. */
ls_module *ls_conv2d_new(int64_t in, int64_t out, int64_t kernel,
                         const ls_conv2d_layer_options *options)
{
    LS__OPTIONS_OR(NULL, ls_conv2d_layer_options, given, options);
    if (!ls__layer_groups_fit("Conv2d", in, out, kernel, given.groups) ||
        !ls__layer_window_fits("Conv2d", given.stride, given.padding, given.dilation)) {
        return NULL;
    }
    conv2d *self = ls_module_new(sizeof *self, &conv2d_class);
    if (self == NULL) {
        return NULL;
    }
    self->options = (ls_conv2d_options){.size = sizeof self->options,
                                        .stride = {given.stride, given.stride},
                                        .padding = {given.padding, given.padding},
                                        .dilation = {given.dilation, given.dilation},
                                        .groups = given.groups,
                                        .relu = given.relu};
    ls__layer_add_weights(&self->base, &self->weight, given.bias ? &self->bias : NULL,
                          LS_SHAPE(out, in / given.groups, kernel, kernel), out);
    return ls__layer_finished(&self->base);
}

/* ---- pooling ------------------------------------------------------------------------------ */

/* Pooling has no parameters. An adaptive layer has the size of its output, the others options. */
typedef struct pool2d {
    ls_module base;
    ls_pool2d_options options;
    int64_t height, width;
} pool2d;

/* The forwards of pooling: one operation each, on x [N,C,H,W]. Windows that padding cuts off count
 * as full ones in the average, as in PyTorch's default. */
static ls_tensor *max_pool2d_forward(ls_module *m, ls_tensor *x)
{
    return ls_max_pool2d(x, &((pool2d *)m)->options);
}

static ls_tensor *avg_pool2d_forward(ls_module *m, ls_tensor *x)
{
    return ls_avg_pool2d(x, &((pool2d *)m)->options);
}

/* Sizes of the output are fixed; windows follow from the input. */
static ls_tensor *adaptive_forward(ls_module *m, ls_tensor *x)
{
    return ls_adaptive_avg_pool2d(x, ((pool2d *)m)->height, ((pool2d *)m)->width);
}

static const ls_module_class max_class =
    LS_MODULE_CLASS(.name = "MaxPool2d", .forward = max_pool2d_forward);
static const ls_module_class avg_class =
    LS_MODULE_CLASS(.name = "AvgPool2d", .forward = avg_pool2d_forward);
static const ls_module_class adaptive_class =
    LS_MODULE_CLASS(.name = "AdaptiveAvgPool2d", .forward = adaptive_forward);

/* Maximum and average share the constructor; `cls` selects the operation. */
static ls_module *pool_new(const ls_module_class *cls, int64_t kernel, int64_t stride,
                           int64_t padding)
{
    if (!ls__layer_positive(cls->name, "kernel", kernel)) {
        return NULL;
    }
    pool2d *self = ls_module_new(sizeof *self, cls);
    if (self == NULL) {
        return NULL;
    }
    self->options = (ls_pool2d_options){.size = sizeof self->options,
                                        .kernel = {kernel, kernel},
                                        .stride = {stride, stride},
                                        .padding = {padding, padding},
                                        .count_include_pad = true};
    return &self->base;
}

/* Arguments that leave no output are refused by the operation, which knows the size of x. */
ls_module *ls_max_pool2d_new(int64_t kernel, int64_t stride, int64_t padding)
{
    return pool_new(&max_class, kernel, stride, padding);
}

ls_module *ls_avg_pool2d_new(int64_t kernel, int64_t stride, int64_t padding)
{
    return pool_new(&avg_class, kernel, stride, padding);
}

/* The last pooling of a ResNet: 1 x 1 whatever the size of the image. */
ls_module *ls_adaptive_avg_pool2d_new(int64_t height, int64_t width)
{
    if (!ls__layer_positive("AdaptiveAvgPool2d", "height", height) ||
        !ls__layer_positive("AdaptiveAvgPool2d", "width", width)) {
        return NULL;
    }
    pool2d *self = ls_module_new(sizeof *self, &adaptive_class);
    if (self == NULL) {
        return NULL;
    }
    self->height = height;
    self->width = width;
    return &self->base;
}

/* ---- flatten ------------------------------------------------------------------------------ */

/* A scalar has no batch dimension and is returned as it is. */
static ls_tensor *flatten_forward(ls_module *m, ls_tensor *x) /* [N,..] -> [N,D] */
{
    (void)m;
    ls_shape shape = ls_shape_of(x);
    int64_t rest = 1;
    for (int d = 1; d < shape.ndim; d++) {
        rest *= shape.dim[d];
    }
    return shape.ndim > 0 ? ls_reshape(x, LS_SHAPE(shape.dim[0], rest)) : x;
}

static const ls_module_class flatten_class =
    LS_MODULE_CLASS(.name = "Flatten", .forward = flatten_forward);

/* Stands between the convolutions and the linear layers of a classifier. */
ls_module *ls_flatten_new(void)
{
    return ls_module_new(sizeof(ls_module), &flatten_class);
}
