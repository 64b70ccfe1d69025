/* SPDX-License-Identifier: Apache-2.0 */
/* bfloat16 from and to float32: integer arithmetic that the compiler turns into vectors, so the
 * bits are the plain twin's on every instruction set. Blocks of elements are shared among
 * threads; each element stands alone. */
#include "base/half.h"
#include "kernel/cpu/isa.h"

/* The same loop with and without adding to the output: beta is a constant in each. */
#define BLOCKS(count, ...)                                                                         \
    LS__PARALLEL_FOR((count) >= LS__PARALLEL_MIN, int64_t from = 0, from < (count),                \
                     from += LS__BLOCK, {                                                          \
                         int64_t end = from + ls__min(LS__BLOCK, (count)-from);                    \
                         _Pragma("omp simd") for (int64_t i = from; i < end; i++)                  \
                         {                                                                         \
                             __VA_ARGS__;                                                          \
                         }                                                                         \
                     })

/* beta is 0 or 1: the output is overwritten or added to. */
void LS__K(bfloat16_widen)(float *out, const ls__bfloat16 *in, int64_t count, float beta,
                           ls_stream *stream)
{
    (void)stream;
    if (beta == 0.0f) {
        BLOCKS(count, out[i] = ls__bfloat16_widen(in[i]))
    } else {
        BLOCKS(count, out[i] += ls__bfloat16_widen(in[i]))
    }
}

/* beta is 0 or 1. A sum is formed in float32 and rounded once. */
void LS__K(bfloat16_narrow)(ls__bfloat16 *out, const float *in, int64_t count, float beta,
                            ls_stream *stream)
{
    (void)stream;
    if (beta == 0.0f) {
        BLOCKS(count, out[i] = ls__bfloat16_round(in[i]))
    } else {
        BLOCKS(count, out[i] = ls__bfloat16_round(in[i] + ls__bfloat16_widen(out[i])))
    }
}
