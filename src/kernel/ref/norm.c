/* SPDX-License-Identifier: Apache-2.0 */
/* Row-wise normalisations over the last dimension: softmax and layer norm, with gradients.
 *
 * softmax:     y_j = exp(x_j - max) / s, s = sum exp(x - max);  log: x_j - max - log s
 *   gradient:  dx_j = y_j (dy_j - sum dy y);                    log: dy_j - exp(y_j) sum dy
 * layer norm:  h = (x - mean) rstd, y = h w + b               (Ba, Kiros, Hinton 2016)
 *   gradient:  g = dy w, dx = rstd (g - mean(g) - h mean(g h)), dw = sum dy h, db = sum dy
 */
#include <math.h>

#include "kernel/ref/ref.h"

/* The largest of a row; NaN is passed over and reaches the result through the sum. */
static double row_max(const float *x, int64_t n)
{
    double max = -INFINITY;
    for (int64_t j = 0; j < n; j++) {
        max = (double)x[j] > max ? (double)x[j] : max;
    }
    return max;
}

/* Shifted by the largest, so that no exponential overflows. */
static double sum_exp(const float *x, int64_t n, double max)
{
    double sum = 0.0;
    for (int64_t j = 0; j < n; j++) {
        sum += exp((double)x[j] - max);
    }
    return sum;
}

/* y = e^(x - max) / sum, or its logarithm. */
void ls__ref_softmax(float *out, const float *x, int64_t rows, int64_t n, bool log_of_it,
                     ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < rows; i++) {
        const float *row = x + i * n;
        double max = row_max(row, n), sum = sum_exp(row, n, max);
        for (int64_t j = 0; j < n; j++) {
            double shifted = (double)row[j] - max;
            out[i * n + j] = (float)(log_of_it ? shifted - log(sum) : exp(shifted) / sum);
        }
    }
}

/* dx = y (dy - sum dy y), or dy - e^y sum dy for the logarithm. */
void ls__ref_softmax_backward(float *dx, const float *dy, const float *y, int64_t rows, int64_t n,
                              bool log_of_it, float beta, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < rows; i++) {
        const float *g = dy + i * n, *yi = y + i * n;
        double sum = 0.0;
        for (int64_t j = 0; j < n; j++) {
            sum += (double)g[j] * (log_of_it ? 1.0 : (double)yi[j]);
        }
        for (int64_t j = 0; j < n; j++) {
            double d = log_of_it ? (double)g[j] - exp((double)yi[j]) * sum
                                 : (double)yi[j] * ((double)g[j] - sum);
            ls__ref_store(&dx[i * n + j], d, beta);
        }
    }
}

/* y = (x - mean) rstd w + b; w and b may be NULL. */
void ls__ref_layer_norm(float *y, float *mean, float *rstd, const float *x, const float *w,
                        const float *b, int64_t rows, int64_t n, float eps, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < rows; i++) {
        const float *row = x + i * n;
        double m = ls__ref_total(row, n) / (double)n, variance = 0.0;
        for (int64_t j = 0; j < n; j++) {
            variance += ((double)row[j] - m) * ((double)row[j] - m) / (double)n;
        }
        double r = 1.0 / sqrt(variance + (double)eps);
        for (int64_t j = 0; j < n; j++) {
            double h = ((double)row[j] - m) * r;
            double scaled = w != NULL ? h * (double)w[j] : h;
            y[i * n + j] = (float)(b != NULL ? scaled + (double)b[j] : scaled);
        }
        mean[i] = (float)m;
        rstd[i] = (float)r;
    }
}

/* dx of one row; h is recomputed from x, mean and rstd. */
static void layer_norm_row(float *dx, float beta, const float *dy, const float *x, double mean,
                           double rstd, const float *w, int64_t n)
{
    double mean_g = 0.0, mean_gh = 0.0;
    for (int64_t j = 0; j < n; j++) {
        double h = ((double)x[j] - mean) * rstd;
        double g = (double)dy[j] * (w != NULL ? (double)w[j] : 1.0);
        mean_g += g / (double)n;
        mean_gh += g * h / (double)n;
    }
    for (int64_t j = 0; j < n; j++) {
        double h = ((double)x[j] - mean) * rstd;
        double g = (double)dy[j] * (w != NULL ? (double)w[j] : 1.0);
        ls__ref_store(&dx[j], rstd * (g - mean_g - h * mean_gh), beta);
    }
}

/* With g = dy w and h = (x - mean) rstd: dx = rstd (g - mean(g) - h mean(g h)), dw = sum dy h, db =
 * sum dy. */
void ls__ref_layer_norm_backward(float *dx, float beta_x, float *dw, float *db, float beta_w,
                                 const float *dy, const float *x, const float *mean,
                                 const float *rstd, const float *w, int64_t rows, int64_t n,
                                 void *workspace, ls_stream *stream)
{
    (void)workspace, (void)stream;
    for (int64_t j = 0; j < n; j++) {
        double sum_dw = 0.0, sum_db = 0.0;
        for (int64_t i = 0; i < rows; i++) {
            double h = ((double)x[i * n + j] - (double)mean[i]) * (double)rstd[i];
            sum_dw += (double)dy[i * n + j] * h;
            sum_db += (double)dy[i * n + j];
        }
        if (dw != NULL) {
            ls__ref_store(&dw[j], sum_dw, beta_w);
        }
        if (db != NULL) {
            ls__ref_store(&db[j], sum_db, beta_w);
        }
    }
    for (int64_t i = 0; dx != NULL && i < rows; i++) {
        layer_norm_row(dx + i * n, beta_x, dy + i * n, x + i * n, (double)mean[i], (double)rstd[i],
                       w, n);
    }
}

/* Nothing: sums are locals. */
size_t ls__ref_layer_norm_workspace(int64_t rows, int64_t n)
{
    (void)rows, (void)n;
    return 0;
}
