/* SPDX-License-Identifier: Apache-2.0 */
/* Root mean square normalisation of rows [rows,n]; formulas in ref/rms_norm.c. The squares of
 * a row are added as moments.h does, other sums within a row in float32 by lanes. Rows are cut into
 * blocks by shape alone, each with its own sum for dw, whose rows are added in order; the blocks'
 * sums are added as sum_rows does. So are those of layer norm (norm.c), whose workspace it
 * shares. */
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "kernel/cpu/halves.h"
#include "kernel/cpu/moments.h"

#define NORM_BLOCKS 16
#define NORM_BLOCK_ROWS 32

/* `weighted` is a constant where this is inlined, so each case is one vector loop. */
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
    double unused, squares;
    ls__sum_about(&unused, &squares, x, n, 0.0f);
    *rstd = (float)(1.0 / sqrt(squares / (double)n + (double)eps));
    if (w != NULL) {
        scale_row(y, x, w, true, n, *rstd);
    } else {
        scale_row(y, x, NULL, false, n, *rstd);
    }
}

typedef struct norm_forward { /* y and x of either type */
    ls__real y, x;
    float *rstd;
    const float *w;
    int64_t rows, n;
    float eps;
} norm_forward;

/* A row of bfloat16 is widened into `wide` and narrowed from it; a row of float32 is read and
 * written where it lies. */
static void rms_norm_at(const norm_forward *f, int64_t i)
{
    _Alignas(64) float wide[LS__HALF_ROW_MAX];
    int64_t n = f->n, at = i * n;
    LS_ASSERT(!f->x.half || n <= LS__HALF_ROW_MAX);
    const float *x = ls__real_read(wide, f->x, at, n);
    rms_norm_row(ls__real_write(wide, f->y, at), f->rstd + i, x, f->w, n, f->eps);
    ls__real_written(wide, f->y, at, n);
}

/* A task is a row. */
static void rms_norm_rows(const norm_forward *f)
{
    LS__PARALLEL_FOR(f->rows * f->n >= LS__PARALLEL_MIN, int64_t i = 0, i < f->rows, i++,
                     { rms_norm_at(f, i); })
}

/* w may be NULL; rstd [rows] is an output for backward. */
void LS__K(rms_norm)(float *y, float *rstd, const float *x, const float *w, int64_t rows, int64_t n,
                     float eps, ls_stream *stream)
{
    (void)stream;
    rms_norm_rows(
        &(norm_forward){ls__real_of(y, false), ls__real_of(x, false), rstd, w, rows, n, eps});
}

/* y and x of bfloat16, w and rstd float32; each element is rounded once. */
void LS__K(rms_norm_bf16)(ls__bfloat16 *y, float *rstd, const ls__bfloat16 *x, const float *w,
                          int64_t rows, int64_t n, float eps, ls_stream *stream)
{
    (void)stream;
    rms_norm_rows(
        &(norm_forward){ls__real_of(y, true), ls__real_of(x, true), rstd, w, rows, n, eps});
}

/* A beta of 0 does not read dx. */
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

/* The rows of a block are added in order, so dw does not depend on who computes which block. */
static void add_weights(float *restrict dw, const float *dy, const float *x, int64_t n, float rstd)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        dw[j] += dy[j] * (x[j] * rstd);
    }
}

typedef struct norm_args { /* dx, dy and x of either type */
    ls__real dx, dy, x;
    float beta;
    const float *rstd, *w;
    int64_t n;
} norm_args;

/* dw is wanted even where dx is not: a frozen input under a trained weight. */
static void backward_at(const norm_args *a, int64_t i, float *dw)
{
    _Alignas(64) float wide_dx[LS__HALF_ROW_MAX], wide_dy[LS__HALF_ROW_MAX];
    _Alignas(64) float wide_x[LS__HALF_ROW_MAX];
    const int64_t n = a->n, at = i * n;
    LS_ASSERT(!a->x.half || n <= LS__HALF_ROW_MAX);
    const float *dy = ls__real_read(wide_dy, a->dy, at, n), *x = ls__real_read(wide_x, a->x, at, n);
    add_weights(dw, dy, x, n, a->rstd[i]);
    if (a->dx.at == NULL) {
        return;
    }
    float *dx = ls__real_write(wide_dx, a->dx, at);
    if (a->dx.half && a->beta != 0.0f) {
        ls__halves_widen(wide_dx, (const ls__bfloat16 *)a->dx.at + at, n);
    }
    if (a->w != NULL) {
        backward_row(dx, a->beta, dy, x, a->w, true, n, a->rstd[i]);
    } else {
        backward_row(dx, a->beta, dy, x, NULL, false, n, a->rstd[i]);
    }
    ls__real_written(wide_dx, a->dx, at, n);
}

/* Rows [from,end): dx, and the block's own sum for dw. */
static void backward_rows(const norm_args *a, int64_t from, int64_t end, float *dw)
{
    memset(dw, 0, (size_t)a->n * sizeof *dw);
    for (int64_t i = from; i < end; i++) {
        backward_at(a, i, dw);
    }
}

/* The blocks depend on the shape alone, so the sum has one order for any number of threads. */
static void norm_backward(const norm_args *args, float *dw, float beta_w, int64_t rows, float *sums)
{
    const int64_t n = args->n;
    int64_t blocks = ls__min(NORM_BLOCKS, (rows + NORM_BLOCK_ROWS - 1) / NORM_BLOCK_ROWS);
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < blocks, i++, {
        backward_rows(args, rows * i / blocks, rows * (i + 1) / blocks, sums + i * n);
    })
    if (dw != NULL) {
        LS__K(sum_rows)(dw, sums, blocks, n, beta_w, NULL);
    }
}

/* dx or dw may be NULL; workspace as layer_norm's. */
void LS__K(rms_norm_backward)(float *dx, float beta_x, float *dw, float beta_w, const float *dy,
                              const float *x, const float *rstd, const float *w, int64_t rows,
                              int64_t n, void *workspace, ls_stream *stream)
{
    (void)stream;
    norm_backward(&(norm_args){ls__real_of(dx, false), ls__real_of(dy, false),
                               ls__real_of(x, false), beta_x, rstd, w, n},
                  dw, beta_w, rows, workspace);
}

/* dx, dy and x of bfloat16; dw is a float32 sum. */
void LS__K(rms_norm_backward_bf16)(ls__bfloat16 *dx, float beta_x, float *dw, float beta_w,
                                   const ls__bfloat16 *dy, const ls__bfloat16 *x, const float *rstd,
                                   const float *w, int64_t rows, int64_t n, void *workspace,
                                   ls_stream *stream)
{
    (void)stream;
    norm_backward(&(norm_args){ls__real_of(dx, true), ls__real_of(dy, true), ls__real_of(x, true),
                               beta_x, rstd, w, n},
                  dw, beta_w, rows, workspace);
}
