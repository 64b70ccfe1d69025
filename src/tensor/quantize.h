/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of products in fewer bits, for inference.
 *
 * Note [Rounded weights]
 * A parameter for which ls__quantize asks keeps its float32 elements: they are what is saved,
 * looked up and trained. The first product that reads it makes a copy as the product's kernel takes
 * it, [out,in] of bfloat16, or of int8 with a scale for each row; a matrix that lies transposed is
 * turned on the way, which only the product knows. Later products read the copy, until the
 * elements have another version. */
#ifndef LS_TENSOR_QUANTIZE_H
#define LS_TENSOR_QUANTIZE_H

#include "tensor/op.h"

typedef struct ls__rounded {
    ls__storage *storage; /* holds a reference; NULL: failed */
    const void *w;        /* [out,in] */
    const float *scale;   /* [out] of int8; NULL: w is bfloat16 */
} ls__rounded;

/* From now on products without gradients read `t`, a parameter, rounded to `dtype`, LS_BFLOAT16 or
 * LS_INT8; LS_FLOAT32: as it is. */
ls_status ls__quantize(ls_tensor *t, ls_dtype dtype);
/* The type in which products shall read input i: a dense matrix and all of a storage; else, and for
 * all that nobody asked for, LS_FLOAT32. */
ls_dtype ls__call_rounding(const ls__call *call, int i);
/* Input i so, as [out,in]; `turned`: it lies [in,out]. After a failure of no storage, with
 * call->failed set. The caller drops the storage. */
ls__rounded ls__call_rounded(ls__call *call, int i, bool turned);

#endif
