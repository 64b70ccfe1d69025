/* SPDX-License-Identifier: Apache-2.0 */
/* What losses of logits against class indices share: input 0 logits [..,C], input 1 targets
 * [..]. */
#ifndef LS_TENSOR_CLASS_LOSS_H
#define LS_TENSOR_CLASS_LOSS_H

#include <lockstep/ops.h>

#include "tensor/op.h"

/* Logits of a float type, targets that are indices, shapes that agree. Rows of bfloat16 of at most
 * half_max stay so, others become float32. False with call->failed set, as of the next two. */
bool ls__class_loss_check(ls__call *call, int64_t half_max);
bool ls__class_loss_options(ls__call *call, const ls_cross_entropy_options *given);
/* Each target lies in [0,n) or is `ignore`. */
bool ls__class_targets(ls__call *call, const ls__dense *target, int64_t n, int64_t ignore);

#endif
