/* SPDX-License-Identifier: Apache-2.0 */
/* The batch norm layer, for sync_batch_norm.c, and what ddp asks of its statistics over ranks. */
#ifndef LS_NN_BATCH_NORM_H
#define LS_NN_BATCH_NORM_H

#include "nn/module.h"
#include "tensor/batch_norm.h"

/* `residual` and `relu` are set only while ls_batch_norm2d_relu calls the layer. */
typedef struct ls__batch_norm_layer {
    ls_module base;
    ls_tensor *weight, *bias, *mean, *var, *batches;
    double eps, momentum;
    ls_tensor *residual;
    bool relu;
    ls__norm_sync *sync; /* holds a reference to its storage; NULL: this rank's statistics */
} ls__batch_norm_layer;

extern const ls_module_class ls__batch_norm_class;

/* Drops the layer's part of the exchange, which the last layer or graph frees; collective then. */
void ls__batch_norm_unsync(ls__batch_norm_layer *layer);

/* Tells the other ranks, which may wait in the exchange, that this one will not come. NULL is
 * allowed. */
void ls__norm_sync_abort(ls__norm_sync *sync, const char *why);

/* The exchange of the first batch norm in the tree with statistics over ranks; NULL: there is not
 * one. */
ls__norm_sync *ls__norm_sync_in(ls_module *module);

#endif
