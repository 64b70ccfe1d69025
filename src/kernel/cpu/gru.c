/* SPDX-License-Identifier: Apache-2.0 */
/* One step of gated recurrent units; formulas in ref/gru.c. As in lstm.c a row's gates lie side by
 * side. */
#include "kernel/cpu/vmath.h"

/* One row; `started` is false where h before would be zeros. */
LS__INLINE void step_row(float *restrict gates, float *restrict h, float *restrict fresh,
                         const float *restrict p, const float *before, const bool started,
                         int64_t n)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float r = ls__sigmoid(gates[j] + p[j]), z = ls__sigmoid(gates[n + j] + p[n + j]);
        float value = ls__tanh(gates[2 * n + j] + r * p[2 * n + j]);
        fresh[j] = p[2 * n + j];
        gates[j] = r;
        gates[n + j] = z;
        gates[2 * n + j] = value;
        h[j] = started ? value + z * (before[j] - value) : value - z * value;
    }
}

/* `before` is NULL in the first step of a sequence that starts from zeros. */
void LS__K(gru_step)(float *gates, float *h, float *fresh, const float *product,
                     const float *before, int64_t rows, int64_t n, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(3 * rows * n >= LS__PARALLEL_MIN, int64_t r = 0, r < rows, r++, {
        float *at = gates + r * 3 * n;
        if (before != NULL) {
            step_row(at, h + r * n, fresh + r * n, product + r * 3 * n, before + r * n, true, n);
        } else {
            step_row(at, h + r * n, fresh + r * n, product + r * 3 * n, NULL, false, n);
        }
    })
}

LS__INLINE void backward_row(float *restrict da, float *restrict dp, float *restrict dh,
                             const float *gates, const float *fresh, const float *before,
                             const bool started, int64_t n)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float r = gates[j], z = gates[n + j], value = gates[2 * n + j], above = dh[j];
        float h = started ? before[j] : 0.0f;
        float dn = above * (1.0f - z) * (1.0f - value * value);
        float dr = dn * fresh[j] * (r * (1.0f - r));
        float dz = above * (h - value) * (z * (1.0f - z));
        da[j] = dp[j] = dr;
        da[n + j] = dp[n + j] = dz;
        da[2 * n + j] = dn;
        dp[2 * n + j] = dn * r;
        dh[j] = above * z;
    }
}

/* gates and fresh are those that gru_step left; `before` as there. */
void LS__K(gru_step_backward)(float *dgates, float *dproduct, float *dh, const float *gates,
                              const float *fresh, const float *before, int64_t rows, int64_t n,
                              ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(3 * rows * n >= LS__PARALLEL_MIN, int64_t r = 0, r < rows, r++, {
        const int64_t at = r * n;
        if (before != NULL) {
            backward_row(dgates + 3 * at, dproduct + 3 * at, dh + at, gates + 3 * at, fresh + at,
                         before + at, true, n);
        } else {
            backward_row(dgates + 3 * at, dproduct + 3 * at, dh + at, gates + 3 * at, fresh + at,
                         NULL, false, n);
        }
    })
}
