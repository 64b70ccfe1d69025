/* SPDX-License-Identifier: Apache-2.0 */
/* Indices from users are checked before a kernel follows them. */
#ifndef LS_TENSOR_INDICES_H
#define LS_TENSOR_INDICES_H

#include "tensor/op.h"

/* Fails the call for number `at[0]` of its index `i`, [shape], whose value is at[1]. */
typedef void ls__index_words(ls__call *call, int i, const char *shape, const ls__index_check *check,
                             const int64_t at[2]);

/* False when an element of `index` (row-major, of input i's dtype) fails the check, of which the
 * caller gives n and `ignore`; `words` name the first one. Waits for the answer, since a kernel
 * must not follow it; but where the kernels that follow are `guarded`, as they write NaN or nothing
 * for it, a captured step has its answer later (device/captured.h). */
bool ls__call_inside(ls__call *call, int i, const ls__dense *index, ls__index_check *check,
                     bool guarded, ls__index_words *words);
/* The same of an index that must be in [0, limit). */
bool ls__call_indices(ls__call *call, int i, const ls__dense *index, int64_t limit, bool guarded);
/* The rest of ls_embedding of inputs 0, the weight, and 1, the index. The weight is part number
 * `part` of so many equal ones; rows of the others are 0. */
ls_tensor *ls__call_embed(ls__call *call, int part, int parts);

#endif
