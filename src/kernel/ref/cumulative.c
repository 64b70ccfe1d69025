/* SPDX-License-Identifier: Apache-2.0 */
/* Along one dimension of [outer,n,inner]: running sums, extremes, variance.
 *
 *   cumsum:     y_k = x_0 + … + x_k, or from the end; added in that order, in float64
 *   extreme:    the first of the largest (or least) elements; the first NaN before all others
 *   variance:   v = sum (x - m)^2 / c, m = sum x / n;  gradient: dx = dy 2 (x - m) / c, because the
 *               part through m is sum (x - m) = 0
 */
#include "kernel/ref/ref.h"

/* Each column by itself, in the order of the sum; `reverse` starts at the end. */
void ls__ref_cumsum(float *out, const float *x, int64_t outer, int64_t n, int64_t inner,
                    bool reverse, float beta, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < outer * inner; i++) {
        int64_t first = i / inner * n * inner + i % inner;
        double sum = 0.0;
        for (int64_t k = 0; k < n; k++) {
            int64_t at = first + (reverse ? n - 1 - k : k) * inner;
            sum += (double)x[at];
            ls__ref_store(&out[at], sum, beta);
        }
    }
}

/* The first NaN is beyond everything, and nothing is beyond it. */
static bool beyond(float x, float best, bool least)
{
    bool is_nan = x != x, best_is_nan = best != best;
    return !best_is_nan && (is_nan || (least ? x < best : x > best));
}

/* index [outer,inner] and, unless NULL, out: the first NaN wins; of equal elements the first
 * one. */
void ls__ref_extreme(float *out, int64_t *index, const float *x, int64_t outer, int64_t n,
                     int64_t inner, bool least, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < outer * inner; i++) {
        const float *from = x + i / inner * n * inner + i % inner;
        int64_t best = 0;
        for (int64_t k = 1; k < n; k++) {
            best = beyond(from[k * inner], from[best * inner], least) ? k : best;
        }
        index[i] = best;
        if (out != NULL) {
            out[i] = from[best * inner];
        }
    }
}

/* sum (x - mean)^2 / divisor of each row [n], in two passes; mean [rows] is an output, too. */
void ls__ref_variance(float *out, float *mean, const float *x, int64_t rows, int64_t n,
                      double divisor, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < rows; i++) {
        double m = ls__ref_total(x + i * n, n) / (double)n, sum = 0.0;
        for (int64_t j = 0; j < n; j++) {
            sum += ((double)x[i * n + j] - m) * ((double)x[i * n + j] - m);
        }
        out[i] = (float)(sum / divisor);
        mean[i] = (float)m;
    }
}

/* dx = 2 dy (x - mean) / divisor; the mean's own gradient cancels. */
void ls__ref_variance_backward(float *dx, const float *dy, const float *x, const float *mean,
                               int64_t rows, int64_t n, double divisor, float beta,
                               ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < rows; i++) {
        double factor = 2.0 * (double)dy[i] / divisor;
        for (int64_t j = 0; j < n; j++) {
            ls__ref_store(&dx[i * n + j], factor * ((double)x[i * n + j] - (double)mean[i]), beta);
        }
    }
}
