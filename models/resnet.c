/* SPDX-License-Identifier: Apache-2.0 */
/* ResNet, written with public headers only.
 *
 *     x -> conv1, bn1, relu, maxpool -> layer1 … layer4 -> mean over pixels -> fc
 *
 *     a block:  x --- conv, bn, relu, …, conv, bn --(+)-- relu
 *                \___________ downsample ___________/
 *
 * The names of parameters are torchvision's ("layer1.0.bn1.running_mean",
 * "layer2.0.downsample.0.weight").
 */
#include <lockstep/models/resnet.h>

#include <stdio.h>

/* ---- parts -------------------------------------------------------------------------------- */

/* No bias: a batch norm follows, which has one. Initialised for ReLU by the outputs of an input. */
static ls_module *conv(int64_t in, int64_t out, int64_t kernel, int64_t stride)
{
    ls_module *layer = NULL;
    ls_param weight;
    {
        LS_SKIP_INIT(true);
        layer = ls_conv2d_new(in, out, kernel,
                              LS_OPTIONS(ls_conv2d_layer_options, .stride = stride,
                                         .padding = kernel / 2, .bias = false));
    }
    if (layer != NULL && ls_module_params(layer, &weight, 1) == 1 &&
        ls_fill_kaiming_normal(weight.value, true) < 0) {
        ls_module_free(layer);
        return NULL;
    }
    return layer;
}

static ls_module *norm(int64_t channels)
{
    return ls_batch_norm2d_new(channels, 1e-5, 0.1);
}

/* ---- one block ---------------------------------------------------------------------------- */

typedef struct block {
    ls_module base;
    ls_module *conv[3], *norm[3];
    int count;             /* of convolutions: 2, or 3 in a bottleneck */
    ls_module *downsample; /* NULL: x itself is added */
} block;

static ls_tensor *block_forward(ls_module *m, ls_tensor *x) /* [N,C,H,W] -> [N,C',H',W'] */
{
    block *self = (block *)m;
    ls_tensor *y = x;
    int last = self->count - 1;
    for (int i = 0; i < last; i++) {
        y = ls_batch_norm2d_relu(self->norm[i], ls_forward(self->conv[i], y), NULL);
    }
    return ls_batch_norm2d_relu(self->norm[last], ls_forward(self->conv[last], y),
                                self->downsample ? ls_forward(self->downsample, x) : x);
}

static const ls_module_class block_class =
    LS_MODULE_CLASS(.name = "block", .forward = block_forward);

static void add_conv(block *self, int64_t in, int64_t out, int64_t kernel, int64_t stride)
{
    char name[16];
    int i = self->count++;
    (void)snprintf(name, sizeof name, "conv%d", i + 1);
    self->conv[i] = ls_module_add(&self->base, name, conv(in, out, kernel, stride));
    (void)snprintf(name, sizeof name, "bn%d", i + 1);
    self->norm[i] = ls_module_add(&self->base, name, norm(out));
}

static ls_module *block_new(int64_t in, int64_t width, int64_t stride, bool bottleneck)
{
    block *self = ls_module_new(sizeof *self, &block_class);
    int64_t out = bottleneck ? 4 * width : width;
    if (self == NULL) {
        return NULL;
    }
    if (bottleneck) {
        add_conv(self, in, width, 1, 1);
        add_conv(self, width, width, 3, stride);
        add_conv(self, width, out, 1, 1);
    } else {
        add_conv(self, in, width, 3, stride);
        add_conv(self, width, width, 3, 1);
    }
    if (in != out || stride != 1) {
        ls_module *parts[] = {conv(in, out, 1, stride), norm(out)};
        self->downsample = ls_module_add(&self->base, "downsample", ls_sequential_new(parts, 2));
    }
    return &self->base; /* its status is its parent's */
}

/* ---- the model ---------------------------------------------------------------------------- */

typedef struct resnet {
    ls_module base;
    ls_module *conv1, *bn1, *maxpool, *layer[4], *avgpool, *fc;
} resnet;

static ls_tensor *stem(ls_module *m, ls_tensor *const *x) /* [N,3,H,W] -> [N,64,H',W'] */
{
    resnet *self = (resnet *)m;
    ls_tensor *y = ls_batch_norm2d_relu(self->bn1, ls_forward(self->conv1, x[0]), NULL);
    return self->maxpool ? ls_forward(self->maxpool, y) : y;
}

static ls_tensor *head(ls_module *m, ls_tensor *const *x) /* [N,C,H,W] -> [N,classes] */
{
    resnet *self = (resnet *)m;
    ls_tensor *y = ls_forward(self->avgpool, x[0]); /* [N,C,1,1] */
    return ls_forward(self->fc, ls_reshape(y, LS_SHAPE(ls_size(y, 0), ls_size(y, 1))));
}

static ls_tensor *resnet_forward(ls_module *m, ls_tensor *x) /* [N,3,H,W] -> [N,classes] */
{
    resnet *self = (resnet *)m;
    x = stem(m, &x);
    for (int i = 0; i < 4; i++) {
        x = ls_forward(self->layer[i], x);
    }
    return head(m, &x);
}

static void resnet_parts(ls_module *m, ls_parts *parts)
{
    resnet *self = (resnet *)m;
    ls_parts_add(parts, &LS_PART(.name = "stem", .run = stem,
                                 .uses = self->maxpool ? "conv1 bn1 maxpool" : "conv1 bn1"));
    for (int i = 0; i < 4; i++) {
        ls_parts_add_children(parts, self->layer[i]);
    }
    ls_parts_add(parts, &LS_PART(.name = "head", .run = head, .uses = "avgpool fc"));
}

static const ls_module_class resnet_class =
    LS_MODULE_CLASS(.name = "resnet", .forward = resnet_forward, .parts = resnet_parts);

typedef struct shape {
    int depth;
    bool bottleneck;
    int blocks[4];
} shape;

static const shape shapes[] = {
    {18, false, {2, 2, 2, 2}},  {34, false, {3, 4, 6, 3}},  {50, true, {3, 4, 6, 3}},
    {101, true, {3, 4, 23, 3}}, {152, true, {3, 8, 36, 3}},
};

static ls_module *layer_new(const shape *s, int i, int64_t *in)
{
    ls_module *layer = ls_sequential_new(NULL, 0);
    int64_t width = (int64_t)64 << i;
    for (int b = 0; layer != NULL && b < s->blocks[i]; b++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%d", b);
        (void)ls_module_add(layer, name,
                            block_new(*in, width, b == 0 && i > 0 ? 2 : 1, s->bottleneck));
        *in = s->bottleneck ? 4 * width : width;
    }
    return layer;
}

static void build(resnet *self, const shape *s, int64_t classes, bool cifar_stem)
{
    ls_module *m = &self->base;
    int64_t channels = 64;
    self->conv1 = ls_module_add(m, "conv1", conv(3, 64, cifar_stem ? 3 : 7, cifar_stem ? 1 : 2));
    self->bn1 = ls_module_add(m, "bn1", norm(64));
    if (!cifar_stem) {
        self->maxpool = ls_module_add(m, "maxpool", ls_max_pool2d_new(3, 2, 1));
    }
    for (int i = 0; i < 4; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "layer%d", i + 1);
        self->layer[i] = ls_module_add(m, name, layer_new(s, i, &channels));
    }
    self->avgpool = ls_module_add(m, "avgpool", ls_adaptive_avg_pool2d_new(1, 1));
    self->fc = ls_module_add(m, "fc", ls_linear_new(channels, classes, NULL));
}

ls_module *ls_resnet_new(int depth, int64_t classes, bool cifar_stem)
{
    const shape *s = NULL;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        s = shapes[i].depth == depth ? &shapes[i] : s;
    }
    resnet *self = ls_module_new(sizeof *self, &resnet_class);
    if (self == NULL) {
        return NULL;
    }
    if (s != NULL) {
        build(self, s, classes, cifar_stem);
    } else { /* fails, with that name in the message */
        (void)ls_module_add_param(&self->base, "shape of this depth; give 18, 34, 50, 101 or 152",
                                  NULL);
    }
    if (ls_module_status(&self->base) < 0) {
        ls_module_free(&self->base);
        return NULL;
    }
    return &self->base;
}
