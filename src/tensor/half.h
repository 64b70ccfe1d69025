/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by operations with kernels for bfloat16. */
#ifndef LS_TENSOR_HALF_H
#define LS_TENSOR_HALF_H

#include "tensor/op.h"

/* Whether a product is to be one of bfloat16 matrices: its inputs are bfloat16, or float32 under
 * ls_set_autocast. */
bool ls__call_is_half(const ls__call *call);
/* Under ls_set_autocast float32 inputs become bfloat16, with casts in the graph. */
bool ls__call_autocast(ls__call *call);
/* Row-major bfloat16 elements of an input: its own, or a rounded copy that is outside the graph,
 * for a rule that minds the input's type. */
ls__dense ls__call_half(ls__call *call, int i);
/* Row-major float32 elements, likewise. */
ls__dense ls__call_full(ls__call *call, int i);
/* g with workspace of the pool's. */
ls_status ls__gemm_half(ls__pool *on, ls__gemm_bf16 *g);
/* A gradient of either type: to = sum over rows of x[rows,n] + beta to, summed in float32. */
ls_status ls__sum_rows_half(ls__tensor_rule *r, const ls__gradient *to, const void *x, int64_t rows,
                            int64_t n);
void ls__fill_zero(ls__pool *on, void *data, ls_dtype dtype, int64_t numel);

#endif
