/* SPDX-License-Identifier: Apache-2.0 */
/* One step of long short-term memory (Hochreiter & Schmidhuber 1997, with the forget gate of
 * Gers et al. 2000). gates [rows,4n] in PyTorch's order i, f, g, o; h, c, c' [rows,n]:
 *
 *     c' = s(f) c + s(i) tanh(g)        h = s(o) tanh(c')        s: the logistic function
 *
 * With the gates behind their functions, t = tanh(c') and u = dc' + dh o (1 - t^2):
 *
 *     di = u g i (1 - i)    df = u c f (1 - f)    dg = u i (1 - g^2)    do = dh t o (1 - o)
 *     dc = u f
 */
#include <math.h>

#include "kernel/ref/ref.h"

/* 1 / (1 + e^-x). */
static double logistic(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/* c' = f c + i g, h = o tanh c'; gates are overwritten with their activations. c is NULL for a
 * state of zeros. */
void ls__ref_lstm_step(float *gates, float *h, float *c_next, const float *c, int64_t rows,
                       int64_t n, ls_stream *stream)
{
    (void)stream;
    for (int64_t r = 0; r < rows; r++) {
        float *at = gates + r * 4 * n;
        for (int64_t j = 0; j < n; j++) {
            double i = logistic((double)at[j]), f = logistic((double)at[n + j]);
            double g = tanh((double)at[2 * n + j]), o = logistic((double)at[3 * n + j]);
            double next = i * g + (c != NULL ? f * (double)c[r * n + j] : 0.0);
            at[j] = (float)i;
            at[n + j] = (float)f;
            at[2 * n + j] = (float)g;
            at[3 * n + j] = (float)o;
            c_next[r * n + j] = (float)next;
            h[r * n + j] = (float)(o * tanh(next));
        }
    }
}

/* dc holds the gradient of c' on entry and that of c on return. */
void ls__ref_lstm_step_backward(float *dgates, float *dc, const float *dh, const float *gates,
                                const float *c_next, const float *c, int64_t rows, int64_t n,
                                ls_stream *stream)
{
    (void)stream;
    for (int64_t r = 0; r < rows; r++) {
        const float *at = gates + r * 4 * n;
        float *d = dgates + r * 4 * n;
        for (int64_t j = 0; j < n; j++) {
            double i = (double)at[j], f = (double)at[n + j], g = (double)at[2 * n + j];
            double o = (double)at[3 * n + j], t = tanh((double)c_next[r * n + j]);
            double above = (double)dh[r * n + j];
            double through = (double)dc[r * n + j] + above * o * (1.0 - t * t);
            double before = c != NULL ? (double)c[r * n + j] : 0.0;
            d[j] = (float)(through * g * i * (1.0 - i));
            d[n + j] = (float)(through * before * f * (1.0 - f));
            d[2 * n + j] = (float)(through * i * (1.0 - g * g));
            d[3 * n + j] = (float)(above * t * o * (1.0 - o));
            dc[r * n + j] = (float)(through * f);
        }
    }
}
