/* SPDX-License-Identifier: Apache-2.0 */
/* One step of gated recurrent units (Cho et al. 2014), with the reset gate after the product as in
 * cuDNN and PyTorch. gates [rows,3n] of the input in PyTorch's order r, z, n; p [rows,3n] of the
 * state; h, h' [rows,n]:
 *
 *     r = s(a_r + p_r)   z = s(a_z + p_z)   n = tanh(a_n + r p_n)   h' = (1 - z) n + z h
 *
 * s: the logistic function. With the gates after their functions:
 *
 *     dn = dh' (1 - z) (1 - n^2)    dz = dh' (h - n) z (1 - z)    dr = dn p_n r (1 - r)
 *     of the input dr, dz, dn; of the state dr, dz, dn r; dh = dh' z
 */
#include <math.h>

#include "kernel/ref/ref.h"

/* 1 / (1 + e^-x). */
static double logistic(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

void ls__ref_gru_step(float *gates, float *h, float *fresh, const float *product,
                      const float *before, int64_t rows, int64_t n, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < rows * n; i++) {
        float *at = gates + i / n * 3 * n + i % n;
        const float *p = product + i / n * 3 * n + i % n;
        const double r = logistic((double)at[0] + (double)p[0]);
        const double z = logistic((double)at[n] + (double)p[n]);
        const double value = tanh((double)at[2 * n] + r * (double)p[2 * n]);
        fresh[i] = p[2 * n];
        at[0] = (float)r;
        at[n] = (float)z;
        at[2 * n] = (float)value;
        h[i] = (float)((1.0 - z) * value + (before != NULL ? z * (double)before[i] : 0.0));
    }
}

/* dh holds the gradient of h' on entry, and dh' z on return. */
void ls__ref_gru_step_backward(float *dgates, float *dproduct, float *dh, const float *gates,
                               const float *fresh, const float *before, int64_t rows, int64_t n,
                               ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < rows * n; i++) {
        const int64_t at = i / n * 3 * n + i % n;
        const double r = (double)gates[at], z = (double)gates[at + n];
        const double value = (double)gates[at + 2 * n], above = (double)dh[i];
        const double h = before != NULL ? (double)before[i] : 0.0;
        const double dn = above * (1.0 - z) * (1.0 - value * value);
        const double dr = dn * (double)fresh[i] * r * (1.0 - r);
        const double dz = above * (h - value) * z * (1.0 - z);
        dgates[at] = dproduct[at] = (float)dr;
        dgates[at + n] = dproduct[at + n] = (float)dz;
        dgates[at + 2 * n] = (float)dn;
        dproduct[at + 2 * n] = (float)(dn * r);
        dh[i] = (float)(above * z);
    }
}
