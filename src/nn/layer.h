/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers shared by the constructors of layers. They work on a module that is NULL or has failed
 * already, so a constructor checks once, by ls__layer_finished. */
#ifndef LS_NN_LAYER_H
#define LS_NN_LAYER_H

#include "base/error.h"
#include "nn/module.h"

/* The result of a constructor: the module, or NULL with its first error set. */
static inline ls_module *ls__layer_finished(ls_module *module)
{
    if (module != NULL && ls_module_status(module) < 0) {
        ls_module_free(module);
        return NULL;
    }
    return module;
}

/* A failure becomes the module's, unless it has one. */
static inline void ls__layer_note(ls_module *module, ls_status status)
{
    if (status < 0) {
        ls__module_fail(module, status);
    }
}

/* False with the error set. */
static inline bool ls__layer_positive(const char *layer, const char *name, int64_t value)
{
    if (value < 1) {
        (void)ls__fail(LS_ERR_INVALID, "%s: %s is %lld; it must be at least 1", layer, name,
                       (long long)value);
    }
    return value >= 1;
}

/* A new tensor that lives on as a parameter. */
static inline ls_tensor *ls__layer_param(ls_module *module, const char *name, ls_shape shape)
{
    return ls_module_add_param(module, name, ls_empty(shape, LS_FLOAT32));
}

/* Whether the sizes of a convolution are positive and the groups divide both numbers of channels;
 * false with the error set. */
bool ls__layer_groups_fit(const char *layer, int64_t in, int64_t out, int64_t kernel,
                          int64_t groups);

/* Whether a window of these numbers can move at all; false with the error set. */
bool ls__layer_window_fits(const char *layer, int64_t stride, int64_t padding, int64_t dilation);

/* Adds "weight" and, unless `bias` is NULL, "bias" [out], with PyTorch's initial values for linear
 * and convolution layers. */
void ls__layer_add_weights(ls_module *module, ls_tensor **weight, ls_tensor **bias, ls_shape shape,
                           int64_t out);

#endif
