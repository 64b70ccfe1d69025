/* SPDX-License-Identifier: Apache-2.0 */
/* Along one dimension of [outer,n,inner]: running sums, extremes, variance; formulas in
 * ref/cumulative.c. Columns are taken COLUMNS at a time, so that rows are read in order; running
 * sums are in float64, from element to element. A task owns its columns, or its row, so the
 * number of threads changes no bit. */
#include "base/assert.h"
#include "kernel/cpu/moments.h"

#define COLUMNS 64

typedef struct columns { /* columns [first,first+width) of one [n,inner] */
    int64_t n, inner, width;
} columns;

/* A sum of its own for each column: rows are read in order, and each sum grows in the order of k.
 * */
static void cumsum_columns(float *out, const float *x, const columns *c, bool reverse, float beta)
{
    double sum[COLUMNS] = {0.0};
    for (int64_t k = 0; k < c->n; k++) {
        int64_t at = (reverse ? c->n - 1 - k : k) * c->inner;
        for (int64_t j = 0; j < c->width; j++) {
            sum[j] += (double)x[at + j];
            float value = (float)sum[j];
            out[at + j] = beta == 0.0f ? value : value + beta * out[at + j];
        }
    }
}

/* A task is up to COLUMNS columns of one of `outer`. */
void LS__K(cumsum)(float *out, const float *x, int64_t outer, int64_t n, int64_t inner,
                   bool reverse, float beta, ls_stream *stream)
{
    (void)stream;
    int64_t parts = (inner + COLUMNS - 1) / COLUMNS;
    LS__PARALLEL_FOR(outer * n * inner >= LS__PARALLEL_MIN, int64_t task = 0, task < outer * parts,
                     task++, {
                         int64_t first = task % parts * COLUMNS;
                         int64_t at = task / parts * n * inner + first;
                         columns c = {n, inner, ls__min(COLUMNS, inner - first)};
                         cumsum_columns(out + at, x + at, &c, reverse, beta);
                     })
}

/* The first NaN wins and stays; of equal elements the first one stays. */
LS__INLINE void extreme_columns(float *best, int64_t *index, const float *x, const columns *c,
                                const bool least)
{
    for (int64_t j = 0; j < c->width; j++) {
        best[j] = x[j];
        index[j] = 0;
    }
    for (int64_t k = 1; k < c->n; k++) {
        for (int64_t j = 0; j < c->width; j++) {
            float v = x[k * c->inner + j];
            bool wins = least ? v < best[j] : v > best[j];
            if ((wins || v != v) && best[j] == best[j]) {
                best[j] = v;
                index[j] = k;
            }
        }
    }
}

/* The places are always written, the values where out is not NULL. `least` is a constant in each
 * instance of the loop. */
void LS__K(extreme)(float *out, int64_t *index, const float *x, int64_t outer, int64_t n,
                    int64_t inner, bool least, ls_stream *stream)
{
    (void)stream;
    LS_ASSERT(n >= 1 || outer * inner == 0);
    int64_t parts = (inner + COLUMNS - 1) / COLUMNS;
    LS__PARALLEL_FOR(outer * n * inner >= LS__PARALLEL_MIN, int64_t task = 0, task < outer * parts,
                     task++, {
                         float best[COLUMNS];
                         int64_t first = task % parts * COLUMNS, row = task / parts;
                         const float *from = x + row * n * inner + first;
                         columns c = {n, inner, ls__min(COLUMNS, inner - first)};
                         if (least) {
                             extreme_columns(best, index + row * inner + first, from, &c, true);
                         } else {
                             extreme_columns(best, index + row * inner + first, from, &c, false);
                         }
                         for (int64_t j = 0; out != NULL && j < c.width; j++) {
                             out[row * inner + first + j] = best[j];
                         }
                     })
}

/* Mean and sum of squares of a row in float64, by lanes in the order of memory. Two passes over
 * a row that the first one brought into the cache: the difference of large sums would lose small
 * variances. */
static void variance_row(float *out, float *mean, const float *x, int64_t n, double divisor)
{
    double sum = 0.0, squares = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        sum += (double)x[j];
    }
    double m = sum / (double)n;
#pragma omp simd reduction(+ : squares)
    for (int64_t j = 0; j < n; j++) {
        squares += ((double)x[j] - m) * ((double)x[j] - m);
    }
    *out = (float)(squares / divisor);
    *mean = (float)m;
}

/* A task is a row. */
void LS__K(variance)(float *out, float *mean, const float *x, int64_t rows, int64_t n,
                     double divisor, ls_stream *stream)
{
    (void)stream;
    LS_ASSERT(n >= 1 || rows == 0);
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++,
                     { variance_row(out + i, mean + i, x + i * n, n, divisor); })
}

/* dx = dy 2 (x - mean) / divisor + beta dx, in float32; the mean of x - mean is what the mean lost
 * when it was rounded. */
void LS__K(variance_backward)(float *dx, const float *dy, const float *x, const float *mean,
                              int64_t rows, int64_t n, double divisor, float beta,
                              ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++, {
        float factor = (float)(2.0 * (double)dy[i] / divisor);
        double sum, unused;
        ls__sum_about(&sum, &unused, x + i * n, n, mean[i]);
        float rest = (float)(sum / (double)n);
        for (int64_t j = 0; j < n; j++) {
            float d = factor * (x[i * n + j] - mean[i] - rest);
            dx[i * n + j] = beta == 0.0f ? d : d + beta * dx[i * n + j];
        }
    })
}
