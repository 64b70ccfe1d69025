/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax and layer norm over the last dimension of [rows,n]; formulas in ref/norm.c. Each row
 * is read into the first-level cache once and passed over there; rows of bfloat16 are widened
 * into a buffer on the stack and their results rounded once.
 *
 * Order of sums: those within a row are float32 by lanes, mean and variance as moments.h has them;
 * dw and db of layer norm are summed over the rows of a block in order, up to NORM_BLOCKS blocks
 * whose number follows from the rows alone, and the blocks as sum_rows does (reduce.c). No order
 * depends on the threads. */
#include <math.h>

#include "base/assert.h"
#include "kernel/cpu/halves.h"
#include "kernel/cpu/moments.h"
#include "kernel/cpu/vmath.h"

#define NORM_BLOCKS 16 /* of rows, for the sums of layer_norm_backward */
#define NORM_BLOCK_ROWS 32

/* Exponentials are written and summed in one pass, then scaled. */
static void softmax_row(float *out, const float *x, int64_t n)
{
    float max = ls__row_max(x, n), sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        float e = ls__exp(x[j] - max);
        out[j] = e;
        sum += e;
    }
    float scale = 1.0f / sum;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        out[j] *= scale;
    }
}

/* x - max - log(sum); the exponentials are not kept. */
static void log_softmax_row(float *out, const float *x, int64_t n)
{
    float max = ls__row_max(x, n), sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        sum += ls__exp(x[j] - max);
    }
    float log_sum = logf(sum);
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        out[j] = (x[j] - max) - log_sum;
    }
}

/* One row of either type, n elements from element `at` on. */
static void softmax_at(ls__real out, ls__real x, int64_t at, int64_t n, bool log)
{
    _Alignas(64) float wide[LS__HALF_ROW_MAX];
    LS_ASSERT(!x.half || n <= LS__HALF_ROW_MAX);
    const float *from = ls__real_read(wide, x, at, n);
    float *to = ls__real_write(wide, out, at);
    if (log) {
        log_softmax_row(to, from, n);
    } else {
        softmax_row(to, from, n);
    }
    ls__real_written(wide, out, at, n);
}

/* A task is a row. */
static void softmax_rows(ls__real out, ls__real x, int64_t rows, int64_t n, bool log)
{
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++,
                     { softmax_at(out, x, i * n, n, log); })
}

void LS__K(softmax)(float *out, const float *x, int64_t rows, int64_t n, bool log,
                    ls_stream *stream)
{
    (void)stream;
    softmax_rows(ls__real_of(out, false), ls__real_of(x, false), rows, n, log);
}

/* Each row is widened, so n is at most LS__HALF_ROW_MAX. */
void LS__K(softmax_bf16)(ls__bfloat16 *out, const ls__bfloat16 *x, int64_t rows, int64_t n,
                         bool log, ls_stream *stream)
{
    (void)stream;
    softmax_rows(ls__real_of(out, true), ls__real_of(x, true), rows, n, log);
}

/* dx of one row from dy and y; the sum runs in float32 by lanes. */
LS__INLINE void softmax_backward_row(float *dx, const float *dy, const float *y, int64_t n,
                                     const bool log, float beta)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        sum += log ? dy[j] : dy[j] * y[j];
    }
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float d = log ? dy[j] - ls__exp(y[j]) * sum : y[j] * (dy[j] - sum);
        dx[j] = beta == 0.0f ? d : d + beta * dx[j];
    }
}

typedef struct gradients { /* of rows of either type */
    ls__real dx, dy, of;   /* of: y or x */
    float beta;
} gradients;

/* Where dx of a row is written: in place, or a buffer, which holds dx as it is where it is added
 * to. */
LS__INLINE float *gradient_write(float *buffer, const gradients *g, int64_t at, int64_t n)
{
    if (g->beta != 0.0f) {
        (void)ls__real_read(buffer, g->dx, at, n);
    }
    return ls__real_write(buffer, g->dx, at);
}

/* One row of either type. */
static void softmax_backward_at(const gradients *g, int64_t at, int64_t n, bool log)
{
    _Alignas(64) float wide[3][LS__HALF_ROW_MAX];
    LS_ASSERT(!g->dy.half || n <= LS__HALF_ROW_MAX);
    float *dx = gradient_write(wide[0], g, at, n);
    const float *dy = ls__real_read(wide[1], g->dy, at, n);
    const float *y = ls__real_read(wide[2], g->of, at, n);
    if (log) {
        softmax_backward_row(dx, dy, y, n, true, g->beta);
    } else {
        softmax_backward_row(dx, dy, y, n, false, g->beta);
    }
    ls__real_written(wide[0], g->dx, at, n);
}

/* A task is a row. */
static void softmax_backward_rows(const gradients *g, int64_t rows, int64_t n, bool log)
{
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++,
                     { softmax_backward_at(g, i * n, n, log); })
}

void LS__K(softmax_backward)(float *dx, const float *dy, const float *y, int64_t rows, int64_t n,
                             bool log, float beta, ls_stream *stream)
{
    (void)stream;
    gradients g = {ls__real_of(dx, false), ls__real_of(dy, false), ls__real_of(y, false), beta};
    softmax_backward_rows(&g, rows, n, log);
}

void LS__K(softmax_backward_bf16)(ls__bfloat16 *dx, const ls__bfloat16 *dy, const ls__bfloat16 *y,
                                  int64_t rows, int64_t n, bool log, float beta, ls_stream *stream)
{
    (void)stream;
    gradients g = {ls__real_of(dx, true), ls__real_of(dy, true), ls__real_of(y, true), beta};
    softmax_backward_rows(&g, rows, n, log);
}

/* h = (x - mean) rstd + shift. The shift is what the mean lost when it was rounded, times -rstd: of
 * 1000.00002 and a deviation of 0.01 that is 0.002 in each h. */
typedef struct standard {
    float mean, rstd, shift;
} standard;

LS__INLINE standard standard_of(float mean, float rest, float rstd)
{
    return (standard){mean, rstd, -rest * rstd};
}

/* y = h w + b, with w and b where given. */
LS__INLINE void normalise_row(float *y, const float *x, const float *w, const float *b, int64_t n,
                              const standard *s)
{
    float mean = s->mean, rstd = s->rstd, shift = s->shift;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float h = (x[j] - mean) * rstd + shift;
        h = w != NULL ? h * w[j] : h;
        y[j] = b != NULL ? h + b[j] : h;
    }
}

/* mean and rstd are outputs for backward, which finds the mean's lost digits again. */
static void layer_norm_row(float *y, float *mean, float *rstd, const float *x, const float *w,
                           const float *b, int64_t n, float eps)
{
    ls__moments of = ls__moments_of(x, n);
    *mean = (float)of.mean;
    *rstd = (float)(1.0 / sqrt(of.variance + (double)eps));
    standard s = standard_of(*mean, (float)(of.mean - (double)*mean), *rstd);
    if (w != NULL && b != NULL) {
        normalise_row(y, x, w, b, n, &s);
    } else if (w != NULL) {
        normalise_row(y, x, w, NULL, n, &s);
    } else if (b != NULL) {
        normalise_row(y, x, NULL, b, n, &s);
    } else {
        normalise_row(y, x, NULL, NULL, n, &s);
    }
}

typedef struct norm_forward { /* y and x of either type */
    ls__real y, x;
    float *mean, *rstd;
    const float *w, *b;
    int64_t rows, n;
    float eps;
} norm_forward;

/* Row i of either type. */
static void layer_norm_at(const norm_forward *f, int64_t i)
{
    _Alignas(64) float wide[LS__HALF_ROW_MAX];
    int64_t n = f->n, at = i * n;
    LS_ASSERT(!f->x.half || n <= LS__HALF_ROW_MAX);
    const float *x = ls__real_read(wide, f->x, at, n);
    float *y = ls__real_write(wide, f->y, at);
    layer_norm_row(y, f->mean + i, f->rstd + i, x, f->w, f->b, n, f->eps);
    ls__real_written(wide, f->y, at, n);
}

/* A task is a row. */
static void layer_norm_rows(const norm_forward *f)
{
    LS__PARALLEL_FOR(f->rows * f->n >= LS__PARALLEL_MIN, int64_t i = 0, i < f->rows, i++,
                     { layer_norm_at(f, i); })
}

/* mean and rstd [rows] are outputs for backward. */
void LS__K(layer_norm)(float *y, float *mean, float *rstd, const float *x, const float *w,
                       const float *b, int64_t rows, int64_t n, float eps, ls_stream *stream)
{
    (void)stream;
    layer_norm_rows(&(norm_forward){ls__real_of(y, false), ls__real_of(x, false), mean, rstd, w, b,
                                    rows, n, eps});
}

/* y and x of bfloat16; mean and rstd stay float32, because backward needs their digits. */
void LS__K(layer_norm_bf16)(ls__bfloat16 *y, float *mean, float *rstd, const ls__bfloat16 *x,
                            const float *w, const float *b, int64_t rows, int64_t n, float eps,
                            ls_stream *stream)
{
    (void)stream;
    layer_norm_rows(&(norm_forward){ls__real_of(y, true), ls__real_of(x, true), mean, rstd, w, b,
                                    rows, n, eps});
}

typedef struct row_means {
    standard s;
    float g, gh; /* g = dy w */
} row_means;

/* Sums in float32 by lanes; that of x - mean tells what the mean lost. `weighted` says whether w is
 * there. */
LS__INLINE row_means means_of(const float *dy, const float *x, const float *w, const bool weighted,
                              int64_t n, float mean, float rstd)
{
    float sum_d = 0.0f, sum_g = 0.0f, sum_gd = 0.0f;
#pragma omp simd reduction(+ : sum_d, sum_g, sum_gd)
    for (int64_t j = 0; j < n; j++) {
        float g = weighted ? dy[j] * w[j] : dy[j], d = x[j] - mean;
        sum_d += d;
        sum_g += g;
        sum_gd += g * (d * rstd);
    }
    row_means m = {.s = standard_of(mean, sum_d / (float)n, rstd), .g = sum_g / (float)n};
    m.gh = sum_gd / (float)n + m.s.shift * m.g;
    return m;
}

/* dx of one row: rstd (g - mean(g) - h mean(g h)). */
LS__INLINE void backward_row(float *dx, float beta, const float *dy, const float *x, const float *w,
                             const bool weighted, int64_t n, const row_means *m)
{
    float mean = m->s.mean, rstd = m->s.rstd, shift = m->s.shift, mean_g = m->g, mean_gh = m->gh;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float g = weighted ? dy[j] * w[j] : dy[j];
        float h = (x[j] - mean) * rstd + shift;
        float d = rstd * (g - mean_g - h * mean_gh);
        dx[j] = beta == 0.0f ? d : d + beta * dx[j];
    }
}

/* dw += dy h, db += dy of one row. */
LS__INLINE void add_weights(float *restrict dw, float *restrict db, const float *dy, const float *x,
                            int64_t n, const standard *s)
{
    float mean = s->mean, rstd = s->rstd, shift = s->shift;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        dw[j] += dy[j] * ((x[j] - mean) * rstd + shift);
        db[j] += dy[j];
    }
}

/* Blocks of rows for the sums of dw and db; the shape alone decides, since their order shows in
 * the result. */
static int64_t norm_blocks(int64_t rows)
{
    return ls__min(NORM_BLOCKS, (rows + NORM_BLOCK_ROWS - 1) / NORM_BLOCK_ROWS);
}

/* Bytes: dw and db of each block. */
size_t LS__K(layer_norm_workspace)(int64_t rows, int64_t n)
{
    return (size_t)norm_blocks(rows) * (size_t)n * 2 * sizeof(float);
}

/* Of layer norm's backward pass, the same for all rows. */
typedef struct norm_args {
    gradients g; /* dx.at NULL: not wanted */
    const float *mean, *rstd, *w;
    int64_t n;
} norm_args;

/* Row i: dx, and its terms of dw and db. */
static void backward_at(const norm_args *a, int64_t i, float *dw, float *db)
{
    _Alignas(64) float wide[3][LS__HALF_ROW_MAX];
    int64_t n = a->n, at = i * n;
    LS_ASSERT(!a->g.dy.half || n <= LS__HALF_ROW_MAX);
    const float *dy = ls__real_read(wide[1], a->g.dy, at, n);
    const float *x = ls__real_read(wide[2], a->g.of, at, n);
    row_means m = a->w != NULL ? means_of(dy, x, a->w, true, n, a->mean[i], a->rstd[i])
                               : means_of(dy, x, NULL, false, n, a->mean[i], a->rstd[i]);
    add_weights(dw, db, dy, x, n, &m.s);
    if (a->g.dx.at == NULL) {
        return;
    }
    float *dx = gradient_write(wide[0], &a->g, at, n);
    if (a->w != NULL) {
        backward_row(dx, a->g.beta, dy, x, a->w, true, n, &m);
    } else {
        backward_row(dx, a->g.beta, dy, x, NULL, false, n, &m);
    }
    ls__real_written(wide[0], a->g.dx, at, n);
}

/* Rows [from,end): dx, and the block's own sums for dw and db. */
static void backward_rows(const norm_args *a, int64_t from, int64_t end, float *dw, float *db)
{
    int64_t n = a->n;
    for (int64_t j = 0; j < n; j++) {
        dw[j] = db[j] = 0.0f;
    }
    for (int64_t i = from; i < end; i++) {
        backward_at(a, i, dw, db);
    }
}

/* dx of all rows and the blocks' sums in parallel, then dw and db from the sums. */
static void norm_backward(const norm_args *args, float *dw, float *db, float beta_w, int64_t rows,
                          void *workspace, ls_stream *stream)
{
    int64_t blocks = norm_blocks(rows), n = args->n;
    float *block_dw = workspace, *block_db = block_dw + blocks * n;
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < blocks, i++, {
        backward_rows(args, rows * i / blocks, rows * (i + 1) / blocks, block_dw + i * n,
                      block_db + i * n);
    })
    if (dw != NULL) {
        LS__K(sum_rows)(dw, block_dw, blocks, n, beta_w, stream);
    }
    if (db != NULL) {
        LS__K(sum_rows)(db, block_db, blocks, n, beta_w, stream);
    }
}

/* dx, dw and db, each NULL where not wanted; workspace as layer_norm_workspace says. */
void LS__K(layer_norm_backward)(float *dx, float beta_x, float *dw, float *db, float beta_w,
                                const float *dy, const float *x, const float *mean,
                                const float *rstd, const float *w, int64_t rows, int64_t n,
                                void *workspace, ls_stream *stream)
{
    gradients g = {ls__real_of(dx, false), ls__real_of(dy, false), ls__real_of(x, false), beta_x};
    norm_backward(&(norm_args){g, mean, rstd, w, n}, dw, db, beta_w, rows, workspace, stream);
}

/* dx, dy and x of bfloat16; dw and db are float32 sums. */
void LS__K(layer_norm_backward_bf16)(ls__bfloat16 *dx, float beta_x, float *dw, float *db,
                                     float beta_w, const ls__bfloat16 *dy, const ls__bfloat16 *x,
                                     const float *mean, const float *rstd, const float *w,
                                     int64_t rows, int64_t n, void *workspace, ls_stream *stream)
{
    gradients g = {ls__real_of(dx, true), ls__real_of(dy, true), ls__real_of(x, true), beta_x};
    norm_backward(&(norm_args){g, mean, rstd, w, n}, dw, db, beta_w, rows, workspace, stream);
}
