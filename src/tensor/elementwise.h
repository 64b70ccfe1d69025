/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of elements that losses are made of; tensors as those of ops.h. */
#ifndef LS_TENSOR_ELEMENTWISE_H
#define LS_TENSOR_ELEMENTWISE_H

#include <lockstep/tensor.h>

ls_tensor *ls__xlogx(ls_tensor *a); /* a log a, 0 at 0 */
/* a^2/2 where |a| <= delta, else delta (|a| - delta/2) */
ls_tensor *ls__huber(ls_tensor *a, double delta);

#endif
