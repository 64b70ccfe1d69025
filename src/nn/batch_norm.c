/* SPDX-License-Identifier: Apache-2.0 */
/* The batch norm layer. Its parameters and buffers, and their names, are PyTorch's. */
#include "nn/batch_norm.h"

#include "base/options.h"
#include "device/captured.h"
#include "nn/layer.h"

static void count_batch(ls__batch_norm_layer *self)
{
    ls__pool *on = NULL;
    int64_t *batches = ls__tensor_elements(self->batches, &on);
    if (batches != NULL) {
        on->k->increment(batches, on->stream);
        ls__tensor_changed(self->batches);
    }
}

/* A replay of a recomputed segment must not count the batch a second time. */
static ls_tensor *batch_norm_forward(ls_module *m, ls_tensor *x) /* [N,C,H,W], same */
{
    ls__batch_norm_layer *self = (ls__batch_norm_layer *)m;
    if (m->training && self->sync != NULL) {
        ls__captured_refuse("batch norm over ranks, whose statistics are added on the host");
    }
    if (m->training && !ls_recomputing()) {
        count_batch(self);
    }
    const uint64_t begun = self->sync != NULL ? self->sync->begun : 0;
    ls_tensor *y = ls__batch_norm_over(x, self->weight, self->bias,
                                       LS_OPTIONS(ls_batch_norm_options, .running_mean = self->mean,
                                                  .running_var = self->var, .training = m->training,
                                                  .momentum = self->momentum, .eps = self->eps,
                                                  .residual = self->residual, .relu = self->relu),
                                       self->sync);
    if (self->sync != NULL && m->training && self->sync->begun == begun &&
        ls_tensor_status(y) < 0) { /* the other ranks wait in the exchange */
        ls__norm_sync_abort(self->sync, ls_error_message());
    }
    return y;
}

static void batch_norm_free(ls_module *m)
{
    ls__batch_norm_unsync((ls__batch_norm_layer *)m);
}

const ls_module_class ls__batch_norm_class =
    LS_MODULE_CLASS(.name = "BatchNorm2d", .forward = batch_norm_forward, .free = batch_norm_free);

/* The running statistics are buffers: they are saved and broadcast, but not optimized. */
ls_module *ls_batch_norm2d_new(int64_t channels, double eps, double momentum)
{
    if (!ls__layer_positive("BatchNorm2d", "channels", channels)) {
        return NULL;
    }
    if (!(eps > 0.0) || !(momentum >= 0.0 && momentum <= 1.0)) {
        (void)ls__fail(LS_ERR_INVALID,
                       "BatchNorm2d: eps %g, momentum %g; eps must be above 0, the momentum 0 to 1",
                       eps, momentum);
        return NULL;
    }
    ls__batch_norm_layer *self = ls_module_new(sizeof *self, &ls__batch_norm_class);
    if (self == NULL) {
        return NULL;
    }
    ls_module *m = &self->base;
    ls_shape shape = LS_SHAPE(channels);
    self->eps = eps;
    self->momentum = momentum;
    self->weight = ls_module_add_param(m, "weight", ls_ones(shape, LS_FLOAT32));
    self->bias = ls_module_add_param(m, "bias", ls_zeros(shape, LS_FLOAT32));
    self->mean = ls_module_add_buffer(m, "running_mean", ls_zeros(shape, LS_FLOAT32));
    self->var = ls_module_add_buffer(m, "running_var", ls_ones(shape, LS_FLOAT32));
    self->batches = ls_module_add_buffer(m, "num_batches_tracked", ls_zeros(LS_SCALAR, LS_INT64));
    return ls__layer_finished(m);
}

/* The residual travels in the module for the duration of the call, so that hooks and the activity
 * record see an ordinary forward. Two threads must not call one layer at once. */
ls_tensor *ls_batch_norm2d_relu(ls_module *layer, ls_tensor *x, ls_tensor *residual)
{
    if (layer != NULL && layer->cls != &ls__batch_norm_class) {
        ls_status status = ls__fail(LS_ERR_INVALID,
                                    "batch_norm2d_relu: the module's class is %s; give what "
                                    "ls_batch_norm2d_new made",
                                    layer->cls->name);
        (void)ls__fail_at_site(status);
        ls__tensors *tensors = ls__tensors_get("batch_norm2d_relu");
        return tensors != NULL ? ls__poison(tensors) : ls__poison_fixed(status);
    }
    ls__batch_norm_layer *self = (ls__batch_norm_layer *)layer;
    if (self != NULL) {
        self->residual = residual;
        self->relu = true;
    }
    ls_tensor *y = ls_forward(layer, x);
    if (self != NULL) {
        self->residual = NULL;
        self->relu = false;
    }
    return y;
}
