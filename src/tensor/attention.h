/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over a part of the keys, for what merges several: outside the graph. */
#ifndef LS_TENSOR_ATTENTION_H
#define LS_TENSOR_ATTENTION_H

#include "tensor/tensor.h"

typedef struct ls__attention_part { /* all row-major, q, k, v, o and gradients of one type */
    ls_tensor *q, *k, *v;           /* [B,H,T,D], [B,G,S,D]; no size is 0 */
    bool causal;                    /* query t sees keys 0 … t + S - T */
    double scale;                   /* 0: 1/sqrt(D) */
    ls_tensor *o, *lse;             /* [B,T,H,D] and float32 [B,H,T]: those of these keys */
    /* Backward takes o and lse of all keys, and gives what these contribute to the gradients. */
    ls_tensor *d_o, *dq, *dkv; /* as o and q; [2,B,G,S,D] of keys and of values */
} ls__attention_part;

ls_status ls__attention_part_forward(ls__attention_part *p);  /* makes o and lse */
ls_status ls__attention_part_backward(ls__attention_part *p); /* makes dq and dkv */

#endif
