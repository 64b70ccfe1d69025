/* SPDX-License-Identifier: Apache-2.0 */
/* The products of ls_lstm and ls_gru: one of the state with W [wide,H] in each step of time, and
 * one of all steps for its gradient. Where everything came as bfloat16, under autocast say, they
 * are of bfloat16 matrices: W is rounded once for all steps, the other side before each; sums are
 * float32. */
#ifndef LS_TENSOR_RECURRENT_H
#define LS_TENSOR_RECURRENT_H

#include "tensor/half.h"

typedef struct ls__recurrent {
    int64_t time, batch, n; /* T, B, H */
    int64_t wide;           /* the gates of a row: 4H or 3H */
    bool half;              /* products are of bfloat16; so is W as it is saved */
} ls__recurrent;

/* What every product of a pass needs beside its operands. */
typedef struct ls__recurrent_tools {
    ls__pool *on;
    ls__bfloat16 *rounded; /* [B,wide] in backward, [B,H] in forward: a left side as bfloat16 */
} ls__recurrent_tools;

/* Elements of one step of a [T,B,H] tensor. */
static inline int64_t ls__recurrent_step(const ls__recurrent *c)
{
    return c->batch * c->n;
}

/* One step's product. To the gates: out [B,wide] += a [B,H] W^T (forward); back to the state: out
 * [B,H] += a [B,wide] W (backward). W is [wide,H] in both. */
ls_status ls__recurrent_product(const ls__recurrent_tools *with, float *out, const float *a,
                                const void *w, const ls__recurrent *c, bool to_gates);

/* Gives edge `edge` its dW [wide,H]: the sum over all steps of da_t^T h_{t-1}, of da [T,B,wide],
 * the result `out`, which begins with h of all steps, and h before the first, `state`; NULL: 0. */
ls_status ls__recurrent_weight(ls__tensor_rule *r, const ls__recurrent *c, int edge,
                               const float *da, const float *out, const float *state);

#endif
