/* SPDX-License-Identifier: Apache-2.0 */
/* Indices from users are checked before a kernel follows them. */
#ifndef LS_TENSOR_INDICES_H
#define LS_TENSOR_INDICES_H

#include "tensor/op.h"

/* Whether an element of `index`, likewise, fails the check, of which the caller gives n and
 * `ignore`; *at is its number and its value. Waits for the answer: a kernel must not follow it. */
bool ls__call_outside(ls__call *call, int i, const ls__dense *index, ls__index_check *check,
                      int64_t at[2]);
/* False when an element of `index` (row-major, of input i's dtype) lies outside [0, limit): the
 * call fails and names the first one. */
bool ls__call_indices(ls__call *call, int i, const ls__dense *index, int64_t limit);
/* The rest of ls_embedding of inputs 0, the weight, and 1, the index. The weight is part number
 * `part` of so many equal ones; rows of the others are 0. */
ls_tensor *ls__call_embed(ls__call *call, int part, int parts);

#endif
