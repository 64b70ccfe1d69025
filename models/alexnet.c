/* SPDX-License-Identifier: Apache-2.0 */
/* AlexNet, written with public headers only: two runs of layers with pooling and a reshape between.
 * The names of parameters are torchvision's ("features.0.weight", "classifier.6.bias"). */
#include <lockstep/models/alexnet.h>

#define COUNT(list) ((int)(sizeof(list) / sizeof((list)[0])))

typedef struct alexnet {
    ls_module base;
    ls_module *features, *avgpool, *classifier;
} alexnet;

static ls_tensor *pooled(ls_module *m, ls_tensor *const *x) /* [N,256,H,W] -> [N,9216] */
{
    alexnet *self = (alexnet *)m;
    ls_tensor *y = ls_forward(self->avgpool, x[0]); /* [N,256,6,6] */
    return ls_reshape(y, LS_SHAPE(ls_size(y, 0), 256 * 6 * 6));
}

static ls_tensor *alexnet_forward(ls_module *m, ls_tensor *x) /* [N,3,H,W] -> [N,classes] */
{
    alexnet *self = (alexnet *)m;
    x = ls_forward(self->features, x);
    return ls_forward(self->classifier, pooled(m, &x));
}

static void alexnet_parts(ls_module *m, ls_parts *parts)
{
    alexnet *self = (alexnet *)m;
    ls_parts_add_children(parts, self->features);
    ls_parts_add(parts, &LS_PART(.name = "pooled", .run = pooled, .uses = "avgpool"));
    ls_parts_add_children(parts, self->classifier);
}

static const ls_module_class alexnet_class =
    LS_MODULE_CLASS(.name = "alexnet", .forward = alexnet_forward, .parts = alexnet_parts);

/* With its ReLU. */
static ls_module *conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding)
{
    return ls_conv2d_new(
        in, out, kernel,
        LS_OPTIONS(ls_conv2d_layer_options, .stride = stride, .padding = padding, .relu = true));
}

/* An identity stands where torchvision has a ReLU. */
static ls_module *features_new(void)
{
    ls_module *layers[] = {
        conv(3, 64, 11, 4, 2),      ls_identity_new(),       ls_max_pool2d_new(3, 2, 0),
        conv(64, 192, 5, 1, 2),     ls_identity_new(),       ls_max_pool2d_new(3, 2, 0),
        conv(192, 384, 3, 1, 1),    ls_identity_new(),       conv(384, 256, 3, 1, 1),
        ls_identity_new(),          conv(256, 256, 3, 1, 1), ls_identity_new(),
        ls_max_pool2d_new(3, 2, 0),
    };
    return ls_sequential_new(layers, COUNT(layers));
}

static ls_module *classifier_new(int64_t classes, double dropout)
{
    const ls_linear_options *with_relu =
        LS_OPTIONS(ls_linear_options, .activation = LS_ACTIVATION_RELU);
    ls_module *layers[] = {
        ls_dropout_new(dropout),
        ls_linear_new(256 * 6 * 6, 4096, with_relu),
        ls_identity_new(),
        ls_dropout_new(dropout),
        ls_linear_new(4096, 4096, with_relu),
        ls_identity_new(),
        ls_linear_new(4096, classes, NULL),
    };
    return ls_sequential_new(layers, COUNT(layers));
}

ls_module *ls_alexnet_new(int64_t classes, double dropout)
{
    alexnet *self = ls_module_new(sizeof *self, &alexnet_class);
    if (self == NULL) {
        return NULL;
    }
    ls_module *m = &self->base;
    self->features = ls_module_add(m, "features", features_new());
    self->avgpool = ls_module_add(m, "avgpool", ls_adaptive_avg_pool2d_new(6, 6));
    self->classifier = ls_module_add(m, "classifier", classifier_new(classes, dropout));
    if (ls_module_status(m) < 0) {
        ls_module_free(m);
        return NULL;
    }
    return m;
}
