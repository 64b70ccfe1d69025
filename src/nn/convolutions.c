/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of sequences and of images that grow: convolution of one dimension, transposed
 * convolution, upsampling, group norm. Parameters, names, shapes and initial distributions are
 * PyTorch's. Arguments are checked before the module is made; a failure to fill a parameter is
 * noted on it, and ls__layer_finished turns it into NULL. */
#include <lockstep/ops.h>
#include <lockstep/vision.h>

#include "base/options.h"
#include "nn/layer.h"

/* ---- convolution of sequences ------------------------------------------------------------- */

/* `bias` is NULL in a layer without one. */
typedef struct conv1d {
    ls_module base;
    ls_tensor *weight, *bias;
    ls_conv1d_options options;
} conv1d;

static ls_tensor *conv1d_forward(ls_module *m, ls_tensor *x) /* [N,C,L] -> [N,O,L'] */
{
    const conv1d *self = (const conv1d *)m;
    return ls_conv1d(x, self->weight, self->bias, &self->options);
}

static const ls_module_class conv1d_class =
    LS_MODULE_CLASS(.name = "Conv1d", .forward = conv1d_forward);

/* The weight is [out, in / groups, kernel]. */
ls_module *ls_conv1d_new(int64_t in, int64_t out, int64_t kernel,
                         const ls_conv1d_layer_options *options)
{
    LS__OPTIONS_OR(NULL, ls_conv1d_layer_options, given, options);
    if (!ls__layer_groups_fit("Conv1d", in, out, kernel, given.groups) ||
        !ls__layer_window_fits("Conv1d", given.stride, given.padding, given.dilation)) {
        return NULL;
    }
    conv1d *self = ls_module_new(sizeof *self, &conv1d_class);
    if (self == NULL) {
        return NULL;
    }
    self->options = (ls_conv1d_options){.size = sizeof self->options,
                                        .stride = given.stride,
                                        .padding = given.padding,
                                        .dilation = given.dilation,
                                        .groups = given.groups};
    ls__layer_add_weights(&self->base, &self->weight, given.bias ? &self->bias : NULL,
                          LS_SHAPE(out, in / given.groups, kernel), out);
    return ls__layer_finished(&self->base);
}

/* ---- transposed convolution --------------------------------------------------------------- */

/* Its forward is the gradient of a convolution with respect to its input. */
typedef struct conv_transpose2d {
    ls_module base;
    ls_tensor *weight, *bias;
    ls_conv_transpose2d_options options;
} conv_transpose2d;

static ls_tensor *transpose_forward(ls_module *m, ls_tensor *x) /* [N,C,H,W] -> [N,O,H',W'] */
{
    const conv_transpose2d *self = (const conv_transpose2d *)m;
    return ls_conv_transpose2d(x, self->weight, self->bias, &self->options);
}

static const ls_module_class transpose_class =
    LS_MODULE_CLASS(.name = "ConvTranspose2d", .forward = transpose_forward);

/* The weight is [in, out / groups, ..]: the layout of the convolution it transposes. */
ls_module *ls_conv_transpose2d_new(int64_t in, int64_t out, int64_t kernel,
                                   const ls_conv_transpose2d_layer_options *options)
{
    LS__OPTIONS_OR(NULL, ls_conv_transpose2d_layer_options, given, options);
    if (!ls__layer_groups_fit("ConvTranspose2d", in, out, kernel, given.groups) ||
        !ls__layer_window_fits("ConvTranspose2d", given.stride, given.padding, given.dilation)) {
        return NULL;
    }
    conv_transpose2d *self = ls_module_new(sizeof *self, &transpose_class);
    if (self == NULL) {
        return NULL;
    }
    self->options = (ls_conv_transpose2d_options){
        .size = sizeof self->options,
        .stride = {given.stride, given.stride},
        .padding = {given.padding, given.padding},
        .dilation = {given.dilation, given.dilation},
        .output_padding = {given.output_padding, given.output_padding},
        .groups = given.groups};
    ls__layer_add_weights(&self->base, &self->weight, given.bias ? &self->bias : NULL,
                          LS_SHAPE(in, out / given.groups, kernel, kernel), out);
    return ls__layer_finished(&self->base);
}

/* ---- upsampling --------------------------------------------------------------------------- */

/* Has no parameters. */
typedef struct upsample {
    ls_module base;
    ls_upsample_options options;
} upsample;

static ls_tensor *upsample_forward(ls_module *m, ls_tensor *x) /* [N,C,H,W] -> [N,C,H',W'] */
{
    return ls_upsample(x, &((const upsample *)m)->options);
}

static const ls_module_class upsample_class =
    LS_MODULE_CLASS(.name = "Upsample", .forward = upsample_forward);

/* The options are checked by the operation in the first forward, which knows the input. */
ls_module *ls_upsample_new(const ls_upsample_options *options)
{
    LS__OPTIONS_OR(NULL, ls_upsample_options, given, options);
    upsample *self = ls_module_new(sizeof *self, &upsample_class);
    if (self != NULL) {
        self->options = given;
        self->options.size = sizeof given;
    }
    return self != NULL ? &self->base : NULL;
}

/* ---- group norm --------------------------------------------------------------------------- */

/* Normalises each group of channels of each sample (Wu & He 2018), so it does not depend on the
 * batch. */
typedef struct group_norm {
    ls_module base;
    ls_tensor *weight, *bias; /* NULL: not affine */
    int64_t groups;
    double eps;
} group_norm;

static ls_tensor *group_norm_forward(ls_module *m, ls_tensor *x) /* [N,C,..], same */
{
    const group_norm *self = (const group_norm *)m;
    return ls_group_norm(x, self->groups, self->weight, self->bias, self->eps);
}

static const ls_module_class group_norm_class =
    LS_MODULE_CLASS(.name = "GroupNorm", .forward = group_norm_forward);

/* Affine parameters start as the identity. */
ls_module *ls_group_norm_new(int64_t groups, int64_t channels, const ls_group_norm_options *options)
{
    LS__OPTIONS_OR(NULL, ls_group_norm_options, given, options);
    if (!ls__layer_positive("GroupNorm", "groups", groups) ||
        !ls__layer_positive("GroupNorm", "channels", channels)) {
        return NULL;
    }
    if (channels % groups != 0 || !(given.eps > 0.0)) {
        (void)ls__fail(LS_ERR_INVALID,
                       "GroupNorm: %lld groups of %lld channels, eps %g; the groups must divide "
                       "the channels, and eps be above 0",
                       (long long)groups, (long long)channels, given.eps);
        return NULL;
    }
    group_norm *self = ls_module_new(sizeof *self, &group_norm_class);
    if (self == NULL) {
        return NULL;
    }
    self->groups = groups;
    self->eps = given.eps;
    if (given.affine) {
        const ls_shape shape = LS_SHAPE(channels);
        self->weight = ls_module_add_param(&self->base, "weight", ls_ones(shape, LS_FLOAT32));
        self->bias = ls_module_add_param(&self->base, "bias", ls_zeros(shape, LS_FLOAT32));
    }
    return ls__layer_finished(&self->base);
}
