/* SPDX-License-Identifier: Apache-2.0 */
/* Small nets with convolutions and batch norm: sizes as in make.py. What a rank sees decides its
 * batch statistics, so their numbers differ with the count of ranks. */
#include "nets.h"

/* ---- a plain one -------------------------------------------------------------------------- */

static ls_module *conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, bool bias)
{
    return ls_conv2d_new(
        in, out, kernel,
        LS_OPTIONS(ls_conv2d_layer_options, .stride = stride, .padding = kernel / 2, .bias = bias));
}

static ls_module *batch_norm(int64_t channels)
{
    return ls_batch_norm2d_new(channels, 1e-5, 0.1);
}

static ls_module *cnn_make(void)
{
    ls_module *parts[] = {conv(2, 5, 3, 1, true), batch_norm(5),
                          ls_relu_new(),          ls_max_pool2d_new(2, 2, 0),
                          conv(5, 7, 3, 1, true), batch_norm(7),
                          ls_relu_new(),          ls_adaptive_avg_pool2d_new(1, 1),
                          ls_flatten_new(),       ls_linear_new(7, 4, NULL)};
    ls_module *net = ls_sequential_new(parts, sizeof parts / sizeof *parts);
    CHECK_OK(ls_module_status(net));
    return net;
}

static ls_tensor *cnn_loss(ls_module *net, int64_t first, int64_t count)
{
    ls_tensor *x = formula_floats("x0", first, count, LS_SHAPE(2, 5, 5));
    return ls_cross_entropy(ls_forward(net, x), formula_classes(first, count, 4), NULL);
}

const reference_net cnn_net = {.name = "cnn", .by_ranks = true, .make = cnn_make, .loss = cnn_loss};

/* ---- two residual blocks, with torchvision's names ---------------------------------------- */

typedef struct block {
    ls_module base;
    ls_module *conv1, *bn1, *conv2, *bn2, *downsample; /* the last NULL: x itself */
} block;

static ls_tensor *block_forward(ls_module *m, ls_tensor *x)
{
    block *self = (block *)m;
    ls_tensor *h = ls_relu(ls_forward(self->bn1, ls_forward(self->conv1, x)));
    h = ls_forward(self->bn2, ls_forward(self->conv2, h));
    return ls_relu(ls_add(h, self->downsample ? ls_forward(self->downsample, x) : x));
}

static const ls_module_class block_class =
    LS_MODULE_CLASS(.name = "block", .forward = block_forward);

static ls_module *block_new(int64_t in, int64_t out, int64_t stride)
{
    block *self = ls_module_new(sizeof *self, &block_class);
    CHECK(self != NULL);
    ls_module *m = &self->base;
    self->conv1 = ls_module_add(m, "conv1", conv(in, out, 3, stride, false));
    self->bn1 = ls_module_add(m, "bn1", batch_norm(out));
    self->conv2 = ls_module_add(m, "conv2", conv(out, out, 3, 1, false));
    self->bn2 = ls_module_add(m, "bn2", batch_norm(out));
    if (stride > 1) {
        ls_module *parts[] = {conv(in, out, 1, stride, false), batch_norm(out)};
        self->downsample = ls_module_add(m, "downsample", ls_sequential_new(parts, 2));
    }
    return m;
}

typedef struct resnet {
    ls_module base;
    ls_module *conv1, *bn1, *layer1, *layer2, *pool, *fc;
} resnet;

static ls_tensor *resnet_forward(ls_module *m, ls_tensor *x) /* [N,3,4,4] -> [N,5] */
{
    resnet *self = (resnet *)m;
    x = ls_relu(ls_forward(self->bn1, ls_forward(self->conv1, x)));
    x = ls_forward(self->layer2, ls_forward(self->layer1, x));
    return ls_forward(self->fc, ls_forward(self->pool, x));
}

static const ls_module_class resnet_class =
    LS_MODULE_CLASS(.name = "resnet", .forward = resnet_forward);

static ls_module *resnet_make(void)
{
    resnet *self = ls_module_new(sizeof *self, &resnet_class);
    CHECK(self != NULL);
    ls_module *m = &self->base;
    ls_module *first = block_new(4, 4, 1), *second = block_new(4, 8, 2);
    ls_module *pool[] = {ls_adaptive_avg_pool2d_new(1, 1), ls_flatten_new()};
    self->conv1 = ls_module_add(m, "conv1", conv(3, 4, 3, 1, false));
    self->bn1 = ls_module_add(m, "bn1", batch_norm(4));
    self->layer1 = ls_module_add(m, "layer1", ls_sequential_new(&first, 1));
    self->layer2 = ls_module_add(m, "layer2", ls_sequential_new(&second, 1));
    self->pool = ls_module_add(m, "avgpool", ls_sequential_new(pool, 2));
    self->fc = ls_module_add(m, "fc", ls_linear_new(8, 5, NULL));
    CHECK_OK(ls_module_status(m));
    return m;
}

static ls_tensor *resnet_loss(ls_module *net, int64_t first, int64_t count)
{
    ls_tensor *x = formula_floats("x22", first, count, LS_SHAPE(3, 4, 4));
    return ls_cross_entropy(ls_forward(net, x), formula_classes(first, count, 5), NULL);
}

const reference_net resnet_net = {
    .name = "resnet", .by_ranks = true, .make = resnet_make, .loss = resnet_loss};
