/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over rows, columns, everything, or chosen dimensions; float64, in index order, rounded
 * once.
 *
 *   add_rows  y[i,j] += bias[j]         sum_rows  out[j] = sum over i of x[i,j]
 *   sum_cols  out[i] = sum over j of x[i,j]
 *   sum_dims  out = the sum of x over the dimensions where keep is 0
 */
#include "kernel/ref/ref.h"

/* The bias is added to every row. */
void ls__ref_add_rows(float *y, const float *bias, int64_t rows, int64_t n, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < n; j++) {
            y[i * n + j] += bias[j];
        }
    }
}

/* out[j] = sum over i of x[i,j] + beta out[j]. */
void ls__ref_sum_rows(float *out, const float *x, int64_t rows, int64_t n, float beta,
                      ls_stream *stream)
{
    (void)stream;
    for (int64_t j = 0; j < n; j++) {
        double sum = 0.0;
        for (int64_t i = 0; i < rows; i++) {
            sum += (double)x[i * n + j];
        }
        ls__ref_store(&out[j], sum, beta);
    }
}

double ls__ref_total(const float *x, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)x[i];
    }
    return sum;
}

/* out[i] = sum over j of x[i,j] + beta out[i]. */
void ls__ref_sum_cols(float *out, const float *x, int64_t rows, int64_t n, float beta,
                      ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < rows; i++) {
        ls__ref_store(&out[i], ls__ref_total(x + i * n, n), beta);
    }
}

/* Rounded once, after the division. */
void ls__ref_sum(float *out, const float *x, int64_t count, double divisor, ls_stream *stream)
{
    (void)stream;
    *out = (float)(ls__ref_total(x, count) / divisor);
}

/* Not rounded to float32: norms of whole models are sums of these. */
void ls__ref_sum_squares(double *out, const float *x, int64_t count, ls_stream *stream)
{
    (void)stream;
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    *out = sum;
}

/* NaN for no elements, as a mean is. */
void ls__ref_mean_squares(float *out, const float *x, int64_t count, ls_stream *stream)
{
    double sum;
    ls__ref_sum_squares(&sum, x, count, stream);
    *out = (float)(sum / (double)count);
}

void ls__ref_sum_squares_bf16(double *out, const ls__bfloat16 *x, int64_t count, ls_stream *stream)
{
    (void)stream;
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        const double v = (double)ls__bfloat16_widen(x[i]);
        sum += v * v;
    }
    *out = sum;
}

/* Splits shape into the dims kept and the dims summed over, each with its strides in x. */
static int split(int ndim, const int64_t *shape, const uint8_t *keep, bool want_kept,
                 int64_t *out_shape, ls__strided *out_strides)
{
    int n = 0;
    for (int d = 0; d < ndim; d++) {
        if ((keep[d] != 0) == want_kept) {
            out_shape[n] = shape[d];
            out_strides->stride[n++] = ls__ref_count(ndim - d - 1, shape + d + 1);
        }
    }
    return n;
}

/* Every element is added to the result that its kept coordinates name. */
void ls__ref_sum_dims(float *out, const float *x, int ndim, const int64_t *shape,
                      const uint8_t *keep, float beta, ls_stream *stream)
{
    (void)stream;
    int64_t kept[LS__KERNEL_DIMS_MAX], summed[LS__KERNEL_DIMS_MAX];
    ls__strided kept_strides, summed_strides;
    int kept_dims = split(ndim, shape, keep, true, kept, &kept_strides);
    int summed_dims = split(ndim, shape, keep, false, summed, &summed_strides);
    int64_t outputs = ls__ref_count(kept_dims, kept);
    int64_t terms = ls__ref_count(summed_dims, summed);

    int64_t at[LS__KERNEL_DIMS_MAX] = {0};
    for (int64_t i = 0; i < outputs; i++) {
        const float *from = x + ls__ref_offset(at, kept_strides, kept_dims);
        int64_t inner[LS__KERNEL_DIMS_MAX] = {0};
        double sum = 0.0;
        for (int64_t j = 0; j < terms; j++) {
            sum += (double)from[ls__ref_offset(inner, summed_strides, summed_dims)];
            ls__ref_next(inner, summed_dims, summed);
        }
        ls__ref_store(&out[i], sum, beta);
        ls__ref_next(at, kept_dims, kept);
    }
}
