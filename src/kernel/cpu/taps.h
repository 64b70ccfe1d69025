/* Which outputs of a window's tap lie within the image. */
#ifndef LS_KERNEL_CPU_TAPS_H
#define LS_KERNEL_CPU_TAPS_H

#include "kernel/cpu/isa.h"

/* Outputs j in [from,end) of `outs` whose position j*stride + first lies within [0,size). */
static inline void ls__outputs_within(int64_t size, int64_t outs, int64_t stride, int64_t first,
                                      int64_t *from, int64_t *end)
{
    *from = first >= 0 ? 0 : ls__min(outs, (stride - 1 - first) / stride);
    *end = first >= size ? 0 : ls__min(outs, (size - first + stride - 1) / stride);
    *end = *end < *from ? *from : *end;
}

#endif
