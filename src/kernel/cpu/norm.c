/* Softmax and layer norm over the last dimension; formulas in ref/norm.c. Each row is read into the
 * first-level cache once and passed over there. */
#include "kernel/cpu/vmath.h"

#define NORM_BLOCKS 16 /* of rows, for the sums of layer_norm_backward */
#define NORM_BLOCK_ROWS 32

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

void LS__K(softmax)(float *out, const float *x, int64_t rows, int64_t n, bool log,
                    ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++, {
        if (log) {
            log_softmax_row(out + i * n, x + i * n, n);
        } else {
            softmax_row(out + i * n, x + i * n, n);
        }
    })
}

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

void LS__K(softmax_backward)(float *dx, const float *dy, const float *y, int64_t rows, int64_t n,
                             bool log, float beta, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++, {
        if (log) {
            softmax_backward_row(dx + i * n, dy + i * n, y + i * n, n, true, beta);
        } else {
            softmax_backward_row(dx + i * n, dy + i * n, y + i * n, n, false, beta);
        }
    })
}

/* y = h w + b, with w and b where given. */
LS__INLINE void normalise_row(float *y, const float *x, const float *w, const float *b, int64_t n,
                              float mean, float rstd)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float h = (x[j] - mean) * rstd;
        h = w != NULL ? h * w[j] : h;
        y[j] = b != NULL ? h + b[j] : h;
    }
}

static void layer_norm_row(float *y, float *mean, float *rstd, const float *x, const float *w,
                           const float *b, int64_t n, float eps)
{
    float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        sum += x[j];
    }
    float m = sum / (float)n;
#pragma omp simd reduction(+ : squares)
    for (int64_t j = 0; j < n; j++) {
        squares += (x[j] - m) * (x[j] - m);
    }
    float r = 1.0f / sqrtf(squares / (float)n + eps);
    if (w != NULL && b != NULL) {
        normalise_row(y, x, w, b, n, m, r);
    } else if (w != NULL) {
        normalise_row(y, x, w, NULL, n, m, r);
    } else if (b != NULL) {
        normalise_row(y, x, NULL, b, n, m, r);
    } else {
        normalise_row(y, x, NULL, NULL, n, m, r);
    }
    *mean = m;
    *rstd = r;
}

void LS__K(layer_norm)(float *y, float *mean, float *rstd, const float *x, const float *w,
                       const float *b, int64_t rows, int64_t n, float eps, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++,
                     { layer_norm_row(y + i * n, mean + i, rstd + i, x + i * n, w, b, n, eps); })
}

/* dx of one row; `weighted` says whether w is there. */
LS__INLINE void backward_row(float *dx, float beta, const float *dy, const float *x, const float *w,
                             const bool weighted, int64_t n, float mean, float rstd)
{
    float sum_g = 0.0f, sum_gh = 0.0f;
#pragma omp simd reduction(+ : sum_g, sum_gh)
    for (int64_t j = 0; j < n; j++) {
        float g = weighted ? dy[j] * w[j] : dy[j];
        sum_g += g;
        sum_gh += g * ((x[j] - mean) * rstd);
    }
    float mean_g = sum_g / (float)n, mean_gh = sum_gh / (float)n;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float g = weighted ? dy[j] * w[j] : dy[j];
        float h = (x[j] - mean) * rstd;
        float d = rstd * (g - mean_g - h * mean_gh);
        dx[j] = beta == 0.0f ? d : d + beta * dx[j];
    }
}

/* dw += dy h, db += dy of one row. */
LS__INLINE void add_weights(float *restrict dw, float *restrict db, const float *dy, const float *x,
                            int64_t n, float mean, float rstd)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        dw[j] += dy[j] * ((x[j] - mean) * rstd);
        db[j] += dy[j];
    }
}

static int64_t norm_blocks(int64_t rows)
{
    return ls__min(NORM_BLOCKS, (rows + NORM_BLOCK_ROWS - 1) / NORM_BLOCK_ROWS);
}

size_t LS__K(layer_norm_workspace)(int64_t rows, int64_t n)
{
    return (size_t)norm_blocks(rows) * (size_t)n * 2 * sizeof(float);
}

typedef struct norm_args {
    float *dx;
    float beta;
    const float *dy, *x, *mean, *rstd, *w;
    int64_t n;
} norm_args;

/* Rows [from,end): dx, and the block's own sums for dw and db. */
static void backward_rows(const norm_args *a, int64_t from, int64_t end, float *dw, float *db)
{
    int64_t n = a->n;
    for (int64_t j = 0; j < n; j++) {
        dw[j] = db[j] = 0.0f;
    }
    for (int64_t i = from; i < end; i++) {
        const float *dy = a->dy + i * n, *x = a->x + i * n;
        add_weights(dw, db, dy, x, n, a->mean[i], a->rstd[i]);
        if (a->dx != NULL && a->w != NULL) {
            backward_row(a->dx + i * n, a->beta, dy, x, a->w, true, n, a->mean[i], a->rstd[i]);
        } else if (a->dx != NULL) {
            backward_row(a->dx + i * n, a->beta, dy, x, NULL, false, n, a->mean[i], a->rstd[i]);
        }
    }
}

void LS__K(layer_norm_backward)(float *dx, float beta_x, float *dw, float *db, float beta_w,
                                const float *dy, const float *x, const float *mean,
                                const float *rstd, const float *w, int64_t rows, int64_t n,
                                void *workspace, ls_stream *stream)
{
    norm_args args = {dx, beta_x, dy, x, mean, rstd, w, n};
    int64_t blocks = norm_blocks(rows);
    float *block_dw = workspace, *block_db = block_dw + blocks * n;
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < blocks, i++, {
        backward_rows(&args, rows * i / blocks, rows * (i + 1) / blocks, block_dw + i * n,
                      block_db + i * n);
    })
    if (dw != NULL) {
        LS__K(sum_rows)(dw, block_dw, blocks, n, beta_w, stream);
    }
    if (db != NULL) {
        LS__K(sum_rows)(db, block_db, blocks, n, beta_w, stream);
    }
}
