/* SPDX-License-Identifier: Apache-2.0 */
/* bfloat16 from and to float32: the upper half of a float32, rounded to nearest even. `beta` 1
 * adds to the output: the sum is formed in the wider of the two types and rounded once to the
 * output's. */
#include "base/half.h"
#include "kernel/ref/ref.h"

/* Exact: every bfloat16 is a float32. */
void ls__ref_bfloat16_widen(float *out, const ls__bfloat16 *in, int64_t count, float beta,
                            ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < count; i++) {
        ls__ref_store(&out[i], (double)ls__bfloat16_widen(in[i]), beta);
    }
}

/* To nearest, ties to even; a sum is rounded once. */
void ls__ref_bfloat16_narrow(ls__bfloat16 *out, const float *in, int64_t count, float beta,
                             ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < count; i++) {
        float before = beta == 0.0f ? 0.0f : ls__bfloat16_widen(out[i]);
        out[i] = ls__bfloat16_round(beta == 0.0f ? in[i] : in[i] + before);
    }
}
