/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a convolution in oneDNN, made once for each shape and kept (plans.h): the cut of the
 * work into parts, the primitives, and for each thread the memory handles and the stream to run
 * them with. onednn_conv_plan.c makes them, onednn_conv.c runs them. */
#ifndef LS_KERNEL_CPU_ONEDNN_CONV_H
#define LS_KERNEL_CPU_ONEDNN_CONV_H

#include "kernel/cpu/onednn_api.h"
#include "kernel/cpu/plans.h"

#define LS__CONV_SLOTS 64 /* threads that run parts */

enum { LS__CONV_X, LS__CONV_W, LS__CONV_Y, LS__CONV_OPERANDS };

typedef struct ls__conv_operand {
    ls__layout_shape shape;           /* of one part, as the caller has it */
    dnnl_memory_desc_t given, wanted; /* the caller's layout, and the primitive's */
    dnnl_primitive_t reorder;         /* to `wanted`, or back from it; NULL: they are one */
    int64_t stride;                   /* from part to part in the caller's memory, in bytes */
    size_t copy_bytes;                /* of one in the wanted layout; 0 without a reorder */
} ls__conv_operand;

typedef struct ls__conv_slot { /* one thread's memory to run a part */
    dnnl_stream_t stream;
    dnnl_memory_t given[LS__CONV_OPERANDS], wanted[LS__CONV_OPERANDS], bias, scratch;
} ls__conv_slot;

typedef struct ls__conv_request { /* a plan's shape and types */
    ls__conv2d conv;
    ls__conv2d_pass pass;
    bool biased, adds, relu;
    bool half, half_out; /* inputs, and the output, are bfloat16 */
    int threads;
} ls__conv_request;

typedef struct ls__conv_plan {
    ls__conv_request of;
    bool none;       /* oneDNN has no kernel: a kept refusal */
    ls__conv2d part; /* the convolution that one primitive computes */
    int64_t parts;
    int output; /* which operand */
    dnnl_engine_t engine;
    dnnl_primitive_desc_t description;
    dnnl_primitive_t convolution;
    dnnl_memory_desc_t bias, scratch;
    ls__conv_operand operand[LS__CONV_OPERANDS];
    bool summed;      /* each part has a whole output of its own */
    size_t sum_bytes; /* of one */
    size_t shared_bytes, slot_bytes;
    int slots;
    ls__conv_slot slot[LS__CONV_SLOTS];
} ls__conv_plan;

/* Obtains the plan for `r`: from the table, or made into `own` (the caller's memory) where there is
 * no table or another call uses the plan. NULL: oneDNN has no kernel for it. */
ls__conv_plan *ls__conv_plan_take(ls__plans *plans, const ls__conv_request *r, ls__conv_plan *own);
void ls__conv_plan_give(ls__plans *plans, ls__conv_plan *p, const ls__conv_plan *own);

static inline bool ls__conv_is_gradient(const ls__conv_plan *p, int i)
{
    return p->of.pass != LS__CONV2D_FORWARD && (i == LS__CONV_Y || i == p->output);
}

#endif
