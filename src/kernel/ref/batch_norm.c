/* SPDX-License-Identifier: Apache-2.0 */
/* Batch normalisation (Ioffe & Szegedy 2015), for each channel over the M = N pixels elements of
 * it:
 *
 *     mean = sum x / M, variance = sum (x - mean)^2 / M, h = (x - mean) rstd, y = h w + b
 *     gradient: g = dy w; dw = sum dy h; db = sum dy
 *       training:   dx = rstd (g - mean(g) - h mean(g h))
 *       evaluation: dx = rstd g, because mean and rstd do not depend on x
 *
 * A residual is added to y, and all that may go through relu; then dy is 0 where y <= 0, before
 * anything else, and the residual's gradient is that.
 */
#include <math.h>

#include "kernel/ref/ref.h"

/* Offset of element i of a channel. */
static int64_t place(const ls__batch_norm *n, int64_t channel, int64_t i)
{
    return i * n->channels + channel;
}

/* Element `at` of an operand of x's shape, of either type, as float64. */
static double get(const ls__batch_norm *n, const float *x, int64_t at)
{
    return ls__ref_read(x, n->half, at);
}

/* mean = sum x / count, variance = sum (x - mean)^2 / count, the biased one; [C] each. Two
 * passes over each channel, samples first, then pixels. */
void ls__ref_batch_norm_stats(const ls__batch_norm *n, float *mean, float *variance,
                              ls_stream *stream)
{
    (void)stream;
    int64_t count = n->batch * n->pixels;
    for (int64_t c = 0; c < n->channels; c++) {
        double m = 0.0, v = 0.0;
        for (int64_t i = 0; i < count; i++) {
            m += get(n, n->x, place(n, c, i)) / (double)count;
        }
        for (int64_t i = 0; i < count; i++) {
            double d = get(n, n->x, place(n, c, i)) - m;
            v += d * d / (double)count;
        }
        mean[c] = (float)m;
        variance[c] = (float)v;
    }
}

/* rstd = 1 / sqrt(variance + eps). */
void ls__ref_batch_norm_rstd(float *rstd, const float *variance, int64_t channels, double eps,
                             ls_stream *stream)
{
    (void)stream;
    for (int64_t c = 0; c < channels; c++) {
        rstd[c] = (float)(1.0 / sqrt((double)variance[c] + eps));
    }
}

/* y = (x - mean) rstd w + b, then the residual, then ReLU. */
void ls__ref_batch_norm(const ls__batch_norm *n, ls_stream *stream)
{
    (void)stream;
    for (int64_t c = 0; c < n->channels; c++) {
        double w = n->w != NULL ? (double)n->w[c] : 1.0, b = n->b != NULL ? (double)n->b[c] : 0.0;
        for (int64_t i = 0; i < n->batch * n->pixels; i++) {
            int64_t at = place(n, c, i);
            double h = (get(n, n->x, at) - (double)n->mean[c]) * (double)n->rstd[c];
            double y = h * w + b + (n->residual != NULL ? get(n, n->residual, at) : 0.0);
            ls__ref_write(n->y, n->half, at, n->relu && y < 0.0 ? 0.0 : y, 0.0f);
        }
    }
}

/* dy before the activation. */
static double dy_at(const ls__batch_norm *n, int64_t at)
{
    return n->relu && get(n, n->out, at) <= 0.0 ? 0.0 : get(n, n->dy, at);
}

/* In training dx = w rstd (g - mean(g) - h mean(g h)) with h = (x - mean) rstd; in evaluation the
 * means are constants and drop out. */
static void backward_x(const ls__batch_norm *n, int64_t c, double sum_dy, double sum_dyh)
{
    const int64_t here = n->batch * n->pixels, count = n->sums != NULL ? n->count : here;
    double w = n->w != NULL ? (double)n->w[c] : 1.0, rstd = (double)n->rstd[c];
    for (int64_t i = 0; i < here; i++) {
        int64_t at = place(n, c, i);
        double h = (get(n, n->x, at) - (double)n->mean[c]) * rstd, g = dy_at(n, at);
        if (n->training) {
            g -= (sum_dy + h * sum_dyh) / (double)count;
        }
        ls__ref_write(n->dx, n->half, at, w * rstd * g, n->beta_x);
    }
}

/* dw = sum g h, db = sum g, with g the gradient before the activation. */
void ls__ref_batch_norm_backward(const ls__batch_norm *n, ls_stream *stream)
{
    (void)stream;
    for (int64_t c = 0; c < n->channels; c++) {
        double sum_dy = 0.0, sum_dyh = 0.0;
        for (int64_t i = 0; i < n->batch * n->pixels; i++) {
            int64_t at = place(n, c, i);
            sum_dy += dy_at(n, at);
            sum_dyh += dy_at(n, at) * (get(n, n->x, at) - (double)n->mean[c]) * (double)n->rstd[c];
        }
        if (n->dw != NULL) {
            ls__ref_store(&n->dw[c], sum_dyh, n->beta_w);
        }
        if (n->db != NULL) {
            ls__ref_store(&n->db[c], sum_dy, n->beta_b);
        }
        if (n->sums != NULL) {
            sum_dy = n->sums[c];
            sum_dyh = n->sums[n->channels + c];
        }
        if (n->dx != NULL) {
            backward_x(n, c, sum_dy, sum_dyh);
        }
    }
    for (int64_t i = 0; n->dresidual != NULL && i < n->batch * n->channels * n->pixels; i++) {
        ls__ref_write(n->dresidual, n->half, i, dy_at(n, i), n->beta_residual);
    }
}

/* The plain loops keep their sums in locals. */
size_t ls__ref_batch_norm_workspace(const ls__batch_norm *n)
{
    (void)n;
    return 0;
}
