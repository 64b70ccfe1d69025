/* SPDX-License-Identifier: Apache-2.0 */
/* Walking strided operands: dims of size 1 dropped and neighbours that lie one after the other in
 * every operand merged, so that most shapes end as a few long rows. */
#ifndef LS_KERNEL_CPU_WALK_H
#define LS_KERNEL_CPU_WALK_H

#include "base/assert.h"
#include "kernel/cpu/isa.h"

typedef struct ls__kernel_walk {
    int ndim; /* >= 1; the last dim is a row */
    int64_t shape[LS__KERNEL_DIMS_MAX];
    ls__strided a, b;
    int64_t rows, width; /* rows: product of all dims but the last */
} ls__kernel_walk;

LS__INLINE bool ls__walk_joins(const ls__strided *s, int outer, int64_t stride, int64_t size)
{
    return s->stride[outer] == stride * size;
}

static inline ls__kernel_walk ls__walk_of(int ndim, const int64_t *shape, ls__strided a,
                                          ls__strided b)
{
    LS_ASSERT(ndim >= 0 && ndim <= LS__KERNEL_DIMS_MAX);
    ls__kernel_walk w = {.ndim = 0};
    for (int d = 0; d < ndim; d++) {
        if (shape[d] == 1) {
            continue;
        }
        int last = w.ndim - 1;
        if (last >= 0 && ls__walk_joins(&w.a, last, a.stride[d], shape[d]) &&
            ls__walk_joins(&w.b, last, b.stride[d], shape[d])) {
            w.shape[last] *= shape[d];
        } else {
            last = w.ndim++;
            w.shape[last] = shape[d];
        }
        w.a.stride[last] = a.stride[d];
        w.b.stride[last] = b.stride[d];
    }
    if (w.ndim == 0) { /* one element */
        w.ndim = 1;
        w.shape[0] = 1;
        w.a.stride[0] = w.b.stride[0] = 1;
    }
    w.width = w.shape[w.ndim - 1];
    w.rows = 1;
    for (int d = 0; d < w.ndim - 1; d++) {
        w.rows *= w.shape[d];
    }
    return w;
}

/* Offsets of row `row` in a and b. */
LS__INLINE void ls__walk_row(const ls__kernel_walk *w, int64_t row, int64_t *at_a, int64_t *at_b)
{
    *at_a = *at_b = 0;
    for (int d = w->ndim - 2; d >= 0; d--) {
        int64_t i = row % w->shape[d];
        row /= w->shape[d];
        *at_a += i * w->a.stride[d];
        *at_b += i * w->b.stride[d];
    }
}

#endif
