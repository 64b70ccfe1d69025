/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that the ranks of an axis compute together, each with a part of one input. */
#ifndef LS_PLACEMENT_SHARDED_H
#define LS_PLACEMENT_SHARDED_H

#include "tensor/op.h"

/* The axis of this name, along which input 0 has to be sharded along `dim` and input 1 to be the
 * same on all ranks; the result is `place` there. NULL with call->failed set. `instead` says what
 * takes an input 0 that is whole. */
ls__axis_in_force *ls__sharded_begin(ls__call *call, const char *axis, int dim, int place,
                                     const char *instead);

#endif
