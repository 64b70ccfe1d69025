/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm whose statistics are those of several ranks' batches (torch.nn.SyncBatchNorm). This
 * layer knows no groups: the caller brings the exchange. */
#ifndef LS_TENSOR_BATCH_NORM_H
#define LS_TENSOR_BATCH_NORM_H

#include <lockstep/vision.h>

#include "kernel/kernels.h"
#include "tensor/tensor.h"

/* The exchange. It lies in a storage, which a graph keeps alive for its backward pass. */
typedef struct ls__norm_sync ls__norm_sync;
struct ls__norm_sync {
    ls__storage *self; /* this struct's own memory */
    int ranks;
    uint64_t begun; /* exchanges of this rank, whatever became of them */
    /* all[ranks * count] becomes the blocks in[count] of the ranks, in their order; `what` is for
     * reports. Collective. */
    ls_status (*gather)(ls__norm_sync *sync, const double *in, double *all, int64_t count,
                        const char *what);
};

/* ls_batch_norm, in training over the elements of all ranks; sync NULL: over this rank's. Every
 * rank calls it, in the same order, and goes through it in backward, also with an empty batch. */
ls_tensor *ls__batch_norm_over(ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                               const ls_batch_norm_options *options, ls__norm_sync *sync);

/* mean, variance [C] (on `on`) and *count come in as those of this rank's elements, and become
 * those of all; the variance is the biased one. */
ls_status ls__norm_sync_stats(ls__norm_sync *sync, ls__pool *on, int64_t channels, float *mean,
                              float *variance, int64_t *count);
/* Backward with the sums of all ranks. `n` has all but the workspace and is complete for a rank
 * alone; dw and db remain sums over this rank's elements. wants_dx: the same on all ranks. */
ls_status ls__norm_sync_backward(ls__norm_sync *sync, ls__pool *on, ls__batch_norm *n,
                                 int64_t count, bool wants_dx);
/* How many forward passes of this thread have begun such an exchange. */
uint64_t ls__norm_sync_begun(void);

#endif
