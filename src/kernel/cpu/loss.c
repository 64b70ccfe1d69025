/* Softmax and cross-entropy in one pass over the logits, forward and gradient together. */
#include "kernel/cpu/vmath.h"

#define LOSS_BLOCKS 64 /* of rows; their sums are added in order */

/* nll of one row; dx = (softmax - onehot) * scale where wanted, dx may be x. */
LS__INLINE double loss_row(float *dx, const float *x, int64_t target, int64_t n, float scale)
{
    float max = ls__row_max(x, n), sum = 0.0f;
    float shifted = x[target] - max; /* before dx, which may be x */
    if (dx == NULL) {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < n; j++) {
            sum += ls__exp(x[j] - max);
        }
        return log((double)sum) - (double)shifted;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        float e = ls__exp(x[j] - max);
        dx[j] = e;
        sum += e;
    }
    float factor = scale / sum;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        dx[j] *= factor;
    }
    dx[target] -= scale;
    return log((double)sum) - (double)shifted;
}

double LS__K(cross_entropy)(float *dlogits, const float *logits, const void *target,
                            size_t index_bytes, int64_t rows, int64_t n, ls_stream *stream)
{
    (void)stream;
    double partial[LOSS_BLOCKS], sum = 0.0;
    int64_t blocks = ls__min(LOSS_BLOCKS, rows);
    float scale = 1.0f / (float)rows;
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t b = 0, b < blocks, b++, {
        partial[b] = 0.0;
        for (int64_t i = rows * b / blocks; i < rows * (b + 1) / blocks; i++) {
            int64_t t =
                index_bytes == 4 ? ((const int32_t *)target)[i] : ((const int64_t *)target)[i];
            partial[b] +=
                loss_row(dlogits != NULL ? dlogits + i * n : NULL, logits + i * n, t, n, scale);
        }
    })
    for (int64_t b = 0; b < blocks; b++) {
        sum += partial[b];
    }
    return sum / (double)rows;
}
