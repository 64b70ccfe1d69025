/* SPDX-License-Identifier: Apache-2.0 */
/* One step of long short-term memory; formulas in ref/lstm.c. A row's four gates lie side by side,
 * so each loop walks six or more streams of n elements and everything between them stays in
 * registers. */
#include "kernel/cpu/vmath.h"

/* One row: i, f, g, o of n cells each, before their functions and after them on return; backward
 * needs the latter only. `started` is false where c would be zeros. */
LS__INLINE void step_row(float *gates, float *h, float *c_next, const float *c, const bool started,
                         int64_t n)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float i = ls__sigmoid(gates[j]), f = ls__sigmoid(gates[n + j]);
        float g = ls__tanh(gates[2 * n + j]), o = ls__sigmoid(gates[3 * n + j]);
        float next = started ? f * c[j] + i * g : i * g;
        gates[j] = i;
        gates[n + j] = f;
        gates[2 * n + j] = g;
        gates[3 * n + j] = o;
        c_next[j] = next;
        h[j] = o * ls__tanh(next);
    }
}

/* c is NULL in the first step of a sequence that starts from zeros. */
void LS__K(lstm_step)(float *gates, float *h, float *c_next, const float *c, int64_t rows,
                      int64_t n, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(4 * rows * n >= LS__PARALLEL_MIN, int64_t r = 0, r < rows, r++, {
        if (c != NULL) {
            step_row(gates + r * 4 * n, h + r * n, c_next + r * n, c + r * n, true, n);
        } else {
            step_row(gates + r * 4 * n, h + r * n, c_next + r * n, NULL, false, n);
        }
    })
}

/* dc holds the gradient of c_next on entry and that of c on return, so one buffer serves a whole
 * sequence. */
LS__INLINE void backward_row(float *dgates, float *dc, const float *dh, const float *gates,
                             const float *c_next, const float *c, const bool started, int64_t n)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float i = gates[j], f = gates[n + j], g = gates[2 * n + j], o = gates[3 * n + j];
        float t = ls__tanh(c_next[j]);
        float through = dc[j] + dh[j] * o * (1.0f - t * t);
        dgates[j] = through * g * (i * (1.0f - i));
        dgates[n + j] = started ? through * c[j] * (f * (1.0f - f)) : 0.0f;
        dgates[2 * n + j] = through * i * (1.0f - g * g);
        dgates[3 * n + j] = dh[j] * t * (o * (1.0f - o));
        dc[j] = through * f;
    }
}

/* gates are those that lstm_step left; c as there. */
void LS__K(lstm_step_backward)(float *dgates, float *dc, const float *dh, const float *gates,
                               const float *c_next, const float *c, int64_t rows, int64_t n,
                               ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(4 * rows * n >= LS__PARALLEL_MIN, int64_t r = 0, r < rows, r++, {
        if (c != NULL) {
            backward_row(dgates + r * 4 * n, dc + r * n, dh + r * n, gates + r * 4 * n,
                         c_next + r * n, c + r * n, true, n);
        } else {
            backward_row(dgates + r * 4 * n, dc + r * n, dh + r * n, gates + r * 4 * n,
                         c_next + r * n, NULL, false, n);
        }
    })
}
