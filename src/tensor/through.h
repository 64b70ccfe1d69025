/* SPDX-License-Identifier: Apache-2.0 */
/* Where dimensions go in an operation, for those who plan with it (plan/intra/). */
#ifndef LS_TENSOR_THROUGH_H
#define LS_TENSOR_THROUGH_H

#include "tensor/op.h"

/* The dimension of the result that dimension d of input i becomes, or one of LS__TO_SUM and so on
 * (placement.h). */
int ls__place_through(const ls__call *call, int i, int d, const ls__record *out);

#endif
