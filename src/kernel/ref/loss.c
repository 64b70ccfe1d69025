/* Cross-entropy of logits against class indices: nll_i = log sum_j exp(x_ij) - x_i,target. */
#include <math.h>

#include "kernel/ref/ref.h"

static double row_loss(float *dx, const float *x, int64_t target, int64_t rows, int64_t n)
{
    double max = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j < n; j++) {
        max = (double)x[j] > max ? (double)x[j] : max;
    }
    for (int64_t j = 0; j < n; j++) {
        sum += exp((double)x[j] - max);
    }
    double nll = max + log(sum) - (double)x[target]; /* before dx, which may be x */
    for (int64_t j = 0; dx != NULL && j < n; j++) {
        double p = exp((double)x[j] - max) / sum;
        dx[j] = (float)((p - (j == target ? 1.0 : 0.0)) / (double)rows);
    }
    return nll;
}

double ls__ref_cross_entropy(float *dlogits, const float *logits, const void *target,
                             size_t index_bytes, int64_t rows, int64_t n, ls_stream *stream)
{
    (void)stream;
    double sum = 0.0;
    for (int64_t i = 0; i < rows; i++) {
        float *dx = dlogits != NULL ? dlogits + i * n : NULL;
        sum += row_loss(dx, logits + i * n, ls__ref_index(target, index_bytes, i), rows, n);
    }
    return sum / (double)rows; /* NaN for no rows, as a mean is */
}
