/* SPDX-License-Identifier: Apache-2.0 */
/* What the constructors of linear and convolution layers have in common. */
#include "nn/layer.h"

#include <math.h>

bool ls__layer_groups_fit(const char *layer, int64_t in, int64_t out, int64_t kernel,
                          int64_t groups)
{
    if (!ls__layer_positive(layer, "in", in) || !ls__layer_positive(layer, "out", out) ||
        !ls__layer_positive(layer, "kernel", kernel) ||
        !ls__layer_positive(layer, "groups", groups)) {
        return false;
    }
    if (in % groups != 0 || out % groups != 0) {
        (void)ls__fail(LS_ERR_INVALID,
                       "%s: %lld groups of %lld inputs and %lld outputs; the groups must divide "
                       "both",
                       layer, (long long)groups, (long long)in, (long long)out);
        return false;
    }
    return true;
}

/* Here and not only in the first forward pass, which may be in another function. */
bool ls__layer_window_fits(const char *layer, int64_t stride, int64_t padding, int64_t dilation)
{
    if (padding < 0) {
        (void)ls__fail(LS_ERR_INVALID, "%s: padding is %lld; it must be at least 0", layer,
                       (long long)padding);
        return false;
    }
    return ls__layer_positive(layer, "stride", stride) &&
           ls__layer_positive(layer, "dilation", dilation);
}

/* Both are drawn from U(-b, b) with b = 1/sqrt(inputs of one output): PyTorch's
 * kaiming_uniform(a = sqrt(5)). Inputs are counted as PyTorch does, weight.size(1) times the
 * window, so within a group. */
void ls__layer_add_weights(ls_module *module, ls_tensor **weight, ls_tensor **bias, ls_shape shape,
                           int64_t out)
{
    double inputs = 1.0;
    for (int d = 1; d < shape.ndim; d++) {
        inputs *= (double)shape.dim[d];
    }
    const double bound = 1.0 / sqrt(inputs);
    *weight = ls__layer_param(module, "weight", shape);
    if (module->status < 0) {
        return; /* the bias alone may take as long as a hang */
    }
    ls__layer_note(module, ls_fill_uniform(*weight, -bound, bound));
    if (bias != NULL) {
        *bias = ls__layer_param(module, "bias", LS_SHAPE(out));
        ls__layer_note(module, ls_fill_uniform(*bias, -bound, bound));
    }
}
