/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over raw memory, in the canonical association (docs/design.md, D5).
 *
 * The association of n operands is a binary tree over their index: adjacent pairs first, split at
 * the largest power of two below n. tree(0,6) = ((0+1)+(2+3)) + (4+5). Every element is combined on
 * its own, so cutting the work into pieces never changes a bit. 16-bit floats are widened to
 * float32 at the leaves and rounded once at the root. Integers that are averaged are added in a
 * wider type, so that no sum overflows, and divided and narrowed at the root.
 */
#ifndef LS_KERNEL_REDUCE_H
#define LS_KERNEL_REDUCE_H

#include <lockstep/types.h>

#include "base/cpu.h"

#define LS__REDUCE_OPERANDS_MAX 1024

/* The loops of one instruction set. Bits do not depend on it. ls__reduce_kernels_get reads the
 * environment (base/cpu.h), so call it once and keep the answer; NULL for a variant this build or
 * this processor lacks. */
typedef struct ls__reduce_kernels ls__reduce_kernels;
const ls__reduce_kernels *ls__reduce_kernels_get(void);
const ls__reduce_kernels *ls__reduce_kernels_of(ls__isa isa);

/* dst[d][i] = op-tree over s of src[s][i], for all d in [0,dst_count), i in [0,count); divided once
 * by `divisor` when it is not 0 (not bool; AVG must be given as SUM with a divisor). dst[d] may
 * equal any src[s]; other overlaps are not allowed. dtype/op must pass ls__reduce_supported.
 * Operands marked wide hold elements of the accumulator (ls__accumulator_bytes) instead of dtype:
 * partial sums that are to be rounded later. A wide and a narrow operand may not overlap. */
typedef struct ls__reduce_user { /* an operator of the user's */
    ls_reduce_fn fn;             /* NULL: none */
    void *arg;
} ls__reduce_user;

typedef struct ls__reduce_args {
    void *const *dst;
    int dst_count;
    const void *const *src;
    int src_count;
    int64_t count;
    ls_dtype dtype;
    ls_reduce_op op;
    double divisor;
    bool averages;                   /* the sum is divided, by this call or a later one */
    ls__reduce_user user;            /* in place of `op`, which is LS_SUM then; no divisor */
    const bool *src_wide;            /* [src_count]; NULL: none is */
    bool dst_wide;                   /* all destinations */
    const ls__reduce_kernels *table; /* NULL: looked up by this call, which costs some 100 ns */
} ls__reduce_args;
void ls__reduce(const ls__reduce_args *args);

/* dst = op(dst, src). */
void ls__reduce_into(void *dst, const void *src, int64_t count, ls_dtype dtype, ls_reduce_op op);

/* x[i] /= divisor, in the dtype (16-bit floats through float32); not of integers. */
void ls__divide(void *x, int64_t count, ls_dtype dtype, double divisor);

/* to[i] = from[i] * factor, rounded once to the dtype; integers wrap, and need a whole factor below
 * 2^63. Not of bool. `to` may be `from`. */
void ls__scale(void *to, const void *from, int64_t count, ls_dtype dtype, double factor);

/* to[i] = from[i], rounded to `dtype`, of which from's type is the accumulator; and back, which is
 * exact. They do not overlap. */
void ls__round(void *to, const void *from, int64_t count, ls_dtype dtype);
void ls__widen(void *to, const void *from, int64_t count, ls_dtype dtype);

/* Elements of any type, which do not overlap; all bits clear. Nothing for 0 bytes. */
void ls__elements_copy(void *to, const void *from, size_t bytes);
void ls__elements_zero(void *to, size_t bytes);

/* The type in which elements of `dtype` are combined: float32 for 16-bit floats, otherwise the
 * dtype itself. */
ls_dtype ls__reduce_accumulator(ls_dtype dtype);
/* Bytes of an accumulator. Averages of integers have wider ones: int32 for those of 8 and 16 bits,
 * int64 for 32 bits, and 128 bits for 64. */
size_t ls__accumulator_bytes(ls_dtype dtype, bool averages);
bool ls__reduce_widens(ls_dtype dtype); /* averages of integers */

/* Whether (dtype, op) is a meaningful pair: AVG, PREMUL_SUM and divisors need numbers, bit
 * operators integers. */
bool ls__reduce_supported(ls_dtype dtype, ls_reduce_op op);

#endif
