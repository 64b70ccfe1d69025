/* SPDX-License-Identifier: Apache-2.0 */
/* The leaf loops of reductions: one table for each instruction set, from one source (loops.c).
 *
 * Bits do not depend on the table: products and sums are never contracted, and each element is
 * computed by the same operations in the same order.
 */
#ifndef LS_KERNEL_REDUCE_LOOPS_H
#define LS_KERNEL_REDUCE_LOOPS_H

#include "kernel/reduce/reduce.h"

#define LS__REDUCE_FUSED_MAX 8 /* operands that have a loop of their own */

/* How the root of a tree is scaled. A power of two is multiplied by its reciprocal, which gives the
 * same bits as the division and is several times faster. */
typedef struct ls__reduce_scale {
    double divisor; /* 0: not at all */
    double factor;  /* exact reciprocal, or 0 */
} ls__reduce_scale;

/* One element type. Values are combined in the accumulator's type: float32 for 16-bit floats, a
 * wider one for averages of integers, the type itself otherwise (then widen and narrow are NULL).
 * Outputs may equal inputs. */
typedef struct ls__reduce_loops {
    size_t size;
    size_t accumulator_size;
    void (*widen)(void *accumulator, const void *src, int64_t count);
    void (*narrow)(void *dst, const void *accumulator, int64_t count);
    void (*scale)(void *accumulator, int64_t count, const ls__reduce_scale *scale); /* NULL: bool */
    void (*combine[LS_REDUCE_OP_COUNT])(void *dst, const void *a, const void *b, int64_t count);
} ls__reduce_loops;

struct ls__reduce_kernels {
    ls__reduce_loops dtype[LS_DTYPE_COUNT];
    ls__reduce_loops average[LS_DTYPE_COUNT]; /* of integers; size 0: as dtype[] */
    /* sum_float32[n]: the whole tree of n operands in registers, stored to every destination. */
    void (*sum_float32[LS__REDUCE_FUSED_MAX + 1])(const ls__reduce_args *args,
                                                  const ls__reduce_scale *scale);
};

extern const ls__reduce_kernels ls__reduce_kernels_base;
extern const ls__reduce_kernels ls__reduce_kernels_v3;
extern const ls__reduce_kernels ls__reduce_kernels_v4;

#endif
