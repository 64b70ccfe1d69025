/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over parameters of which a rank has a part each: every element counts once, wherever it is.
 *
 *     sharded along      in a sum of its own, that is added over
 *     nothing            nothing: every rank has all of them
 *     tp                 tp
 *     ep and tp          ep, then tp
 *
 * The ranks' terms are gathered and added in the order of the ranks, so all ranks of the mesh get
 * the same bits, whichever way the gathers go. One gather for each axis along which any parameter
 * is sharded. */
#ifndef LS_NN_CLIP_AXES_H
#define LS_NN_CLIP_AXES_H

#include <lockstep/nn.h>

#include "base/axes.h"

#define LS__CLIP_EPS 1e-6 /* PyTorch's */

typedef struct ls__norm_axes {
    const ls__axes_in_force *axes; /* NULL: no mesh is in force */
    unsigned summed;               /* bit a: some parameter is sharded along axis a */
    unsigned outside;              /* … and the ranks of the axis are not in the caller's group */
    double sums[1 << LS__AXES_MAX]; /* by the axes along which parameters are sharded */
    const ls__axis_in_force *odd;   /* an axis along which a sum is not finite; NULL: none … */
    int odd_rank;                   /* … the first rank of it whose sum is so */
} ls__norm_axes;

/* Axes whose ranks are in `group` (which may be NULL) are left to it. */
void ls__norm_axes_init(ls__norm_axes *n, const ls_group *group);
void ls__norm_axes_add(ls__norm_axes *n, const ls_tensor *param, double squares);
/* Collective over the axes along which any parameter that was added is sharded. */
ls_status ls__norm_axes_sum(ls__norm_axes *n, double *out);

#endif
