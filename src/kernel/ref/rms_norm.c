/* SPDX-License-Identifier: Apache-2.0 */
/* Root mean square normalisation over the last dimension (Zhang & Sennrich 2019, equation 4):
 *
 *   h = x rstd, rstd = 1/sqrt(mean(x^2) + eps), y = h w
 *   gradient:  g = dy w, dx = rstd (g - h mean(g h)), dw = sum dy h
 */
#include <math.h>

#include "kernel/ref/ref.h"

/* y = x rstd w with rstd = 1 / sqrt(mean(x^2) + eps); w may be NULL (Zhang & Sennrich 2019,
 * equation 4). */
void ls__ref_rms_norm(float *y, float *rstd, const float *x, const float *w, int64_t rows,
                      int64_t n, float eps, ls_stream *stream)
{
    for (int64_t i = 0; i < rows; i++) {
        double squares;
        ls__ref_sum_squares(&squares, x + i * n, n, stream);
        double r = 1.0 / sqrt(squares / (double)n + (double)eps);
        for (int64_t j = 0; j < n; j++) {
            double h = (double)x[i * n + j] * r;
            y[i * n + j] = (float)(w != NULL ? h * (double)w[j] : h);
        }
        rstd[i] = (float)r;
    }
}

/* With g = dy w and h = x rstd: dx = rstd (g - h mean(g h)). */
static void row_backward(float *dx, float beta, const float *dy, const float *x, double rstd,
                         const float *w, int64_t n)
{
    double mean_gh = 0.0;
    for (int64_t j = 0; j < n; j++) {
        double g = (double)dy[j] * (w != NULL ? (double)w[j] : 1.0);
        mean_gh += g * (double)x[j] * rstd / (double)n;
    }
    for (int64_t j = 0; j < n; j++) {
        double g = (double)dy[j] * (w != NULL ? (double)w[j] : 1.0);
        ls__ref_store(&dx[j], rstd * (g - (double)x[j] * rstd * mean_gh), beta);
    }
}

/* dw = sum dy x rstd over the rows; dx or dw may be NULL. */
void ls__ref_rms_norm_backward(float *dx, float beta_x, float *dw, float beta_w, const float *dy,
                               const float *x, const float *rstd, const float *w, int64_t rows,
                               int64_t n, void *workspace, ls_stream *stream)
{
    (void)workspace, (void)stream;
    for (int64_t j = 0; dw != NULL && j < n; j++) {
        double sum = 0.0;
        for (int64_t i = 0; i < rows; i++) {
            sum += (double)dy[i * n + j] * (double)x[i * n + j] * (double)rstd[i];
        }
        ls__ref_store(&dw[j], sum, beta_w);
    }
    for (int64_t i = 0; dx != NULL && i < rows; i++) {
        row_backward(dx + i * n, beta_x, dy + i * n, x + i * n, (double)rstd[i], w, n);
    }
}
