/* Root mean square normalisation; formulas in ref/rms_norm.c. Rows are cut into blocks by shape
 * alone, each with its own sum for dw, as in layer norm (norm.c), whose workspace it shares. */
#include <math.h>

#include "kernel/cpu/isa.h"

#define NORM_BLOCKS 16
#define NORM_BLOCK_ROWS 32

LS__INLINE void scale_row(float *y, const float *x, const float *w, const bool weighted, int64_t n,
                          float rstd)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float h = x[j] * rstd;
        y[j] = weighted ? h * w[j] : h;
    }
}

static void rms_norm_row(float *y, float *rstd, const float *x, const float *w, int64_t n,
                         float eps)
{
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int64_t j = 0; j < n; j++) {
        squares += x[j] * x[j];
    }
    *rstd = 1.0f / sqrtf(squares / (float)n + eps);
    if (w != NULL) {
        scale_row(y, x, w, true, n, *rstd);
    } else {
        scale_row(y, x, NULL, false, n, *rstd);
    }
}

void LS__K(rms_norm)(float *y, float *rstd, const float *x, const float *w, int64_t rows, int64_t n,
                     float eps, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++,
                     { rms_norm_row(y + i * n, rstd + i, x + i * n, w, n, eps); })
}

LS__INLINE void backward_row(float *dx, float beta, const float *dy, const float *x, const float *w,
                             const bool weighted, int64_t n, float rstd)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        sum += (weighted ? dy[j] * w[j] : dy[j]) * x[j];
    }
    float factor = rstd * rstd * sum / (float)n; /* h mean(g h) = x factor */
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float d = rstd * ((weighted ? dy[j] * w[j] : dy[j]) - x[j] * factor);
        dx[j] = beta == 0.0f ? d : d + beta * dx[j];
    }
}

static void add_weights(float *restrict dw, const float *dy, const float *x, int64_t n, float rstd)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        dw[j] += dy[j] * (x[j] * rstd);
    }
}

typedef struct norm_args {
    float *dx;
    float beta;
    const float *dy, *x, *rstd, *w;
    int64_t n;
} norm_args;

/* Rows [from,end): dx, and the block's own sum for dw. */
static void backward_rows(const norm_args *a, int64_t from, int64_t end, float *dw)
{
    int64_t n = a->n;
    for (int64_t j = 0; j < n; j++) {
        dw[j] = 0.0f;
    }
    for (int64_t i = from; i < end; i++) {
        const float *dy = a->dy + i * n, *x = a->x + i * n;
        add_weights(dw, dy, x, n, a->rstd[i]);
        if (a->dx != NULL && a->w != NULL) {
            backward_row(a->dx + i * n, a->beta, dy, x, a->w, true, n, a->rstd[i]);
        } else if (a->dx != NULL) {
            backward_row(a->dx + i * n, a->beta, dy, x, NULL, false, n, a->rstd[i]);
        }
    }
}

void LS__K(rms_norm_backward)(float *dx, float beta_x, float *dw, float beta_w, const float *dy,
                              const float *x, const float *rstd, const float *w, int64_t rows,
                              int64_t n, void *workspace, ls_stream *stream)
{
    norm_args args = {dx, beta_x, dy, x, rstd, w, n};
    int64_t blocks = ls__min(NORM_BLOCKS, (rows + NORM_BLOCK_ROWS - 1) / NORM_BLOCK_ROWS);
    float *sums = workspace;
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < blocks, i++, {
        backward_rows(&args, rows * i / blocks, rows * (i + 1) / blocks, sums + i * n);
    })
    if (dw != NULL) {
        LS__K(sum_rows)(dw, sums, blocks, n, beta_w, stream);
    }
}
