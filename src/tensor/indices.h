/* Indices from users are checked before a kernel follows them. */
#ifndef LS_TENSOR_INDICES_H
#define LS_TENSOR_INDICES_H

#include "tensor/op.h"

/* False when an element of `index` (row-major, of input i's dtype) lies outside [0, limit): the
 * call fails and names the first one. */
bool ls__call_indices(ls__call *call, int i, const ls__dense *index, int64_t limit);

#endif
