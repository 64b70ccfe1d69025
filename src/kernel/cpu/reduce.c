/* Sums. Each has one association, fixed by the shape:
 *   sum, sum_squares  up to 64 equal blocks in float64, block sums added in order
 *   sum_rows          leaves of 16 rows, then a binary tree over the leaves (adjacent pairs first)
 *   sum_cols          each row as `sum`
 */
#include <string.h>

#include "kernel/cpu/halves.h"

#define SUM_BLOCKS 64
#define LEAF_ROWS 16
#define TILE 256  /* columns of one task of sum_rows */
#define LEVELS 40 /* of the tree: 2^40 leaves */

LS__INLINE void add_into(float *out, const float *x, int64_t width)
{
#pragma omp simd
    for (int64_t j = 0; j < width; j++) {
        out[j] += x[j];
    }
}

void LS__K(add_rows)(float *y, const float *bias, int64_t rows, int64_t n, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++,
                     { add_into(y + i * n, bias, n); })
}

LS__INLINE double sum_block(const float *x, int64_t count, const bool squares)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        double v = (double)x[i];
        sum += squares ? v * v : v;
    }
    return sum;
}

LS__INLINE double sum_all(const float *x, int64_t count, const bool squares)
{
    double partial[SUM_BLOCKS];
    int64_t blocks = ls__min(SUM_BLOCKS, (count + LS__BLOCK - 1) / LS__BLOCK);
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < blocks, i++, {
        int64_t from = count * i / blocks, end = count * (i + 1) / blocks;
        partial[i] = sum_block(x + from, end - from, squares);
    })
    double sum = 0.0;
    for (int64_t i = 0; i < blocks; i++) {
        sum += partial[i];
    }
    return sum;
}

double LS__K(sum)(const float *x, int64_t count)
{
    return sum_all(x, count, false);
}

double LS__K(sum_squares)(const float *x, int64_t count)
{
    return sum_all(x, count, true);
}

/* acc[width] = sum of `rows` <= LEAF_ROWS rows. */
LS__INLINE void sum_leaf(float *restrict acc, const float *x, int64_t rows, int64_t n,
                         int64_t width)
{
#pragma omp simd
    for (int64_t j = 0; j < width; j++) {
        acc[j] = x[j];
    }
    int64_t i = 1;
    for (; i + 3 <= rows; i += 3) {
        const float *a = x + i * n, *b = a + n, *c = b + n;
#pragma omp simd
        for (int64_t j = 0; j < width; j++) {
            acc[j] = (acc[j] + a[j]) + (b[j] + c[j]);
        }
    }
    for (; i < rows; i++) {
#pragma omp simd
        for (int64_t j = 0; j < width; j++) {
            acc[j] += x[i * n + j];
        }
    }
}

/* The same of rows that lie from element `at` on, of either type. */
static void leaf_of(float *restrict acc, ls__real x, int64_t at, int64_t rows, int64_t n,
                    int64_t width)
{
    _Alignas(64) float wide[LEAF_ROWS * TILE];
    if (!x.half) {
        sum_leaf(acc, (const float *)x.at + at, rows, n, width);
        return;
    }
    for (int64_t i = 0; i < rows; i++) {
        ls__halves_widen(wide + i * TILE, (const ls__bfloat16 *)x.at + at + i * n, width);
    }
    sum_leaf(acc, wide, rows, TILE, width);
}

/* Columns [0,width): leaf number `leaf` joins as many finished subtrees as it has trailing ones. */
static void sum_tile(float *out, ls__real x, int64_t at, int64_t rows, int64_t n, int64_t width,
                     float beta)
{
    float stack[LEVELS][TILE];
    int depth = 0;
    int64_t leaf = 0;
    for (int64_t i = 0; i < rows; i += LEAF_ROWS, leaf++) {
        leaf_of(stack[depth++], x, at + i * n, ls__min(LEAF_ROWS, rows - i), n, width);
        for (int64_t bits = leaf; (bits & 1) != 0; bits >>= 1, depth--) {
            add_into(stack[depth - 2], stack[depth - 1], width);
        }
    }
    for (; depth > 1; depth--) {
        add_into(stack[depth - 2], stack[depth - 1], width);
    }
    for (int64_t j = 0; j < width; j++) {
        float sum = rows > 0 ? stack[0][j] : 0.0f;
        out[j] = beta == 0.0f ? sum : sum + beta * out[j];
    }
}

static void sum_real(float *out, ls__real x, int64_t rows, int64_t n, float beta)
{
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t j = 0, j < n, j += TILE,
                     { sum_tile(out + j, x, j, rows, n, ls__min(TILE, n - j), beta); })
}

void LS__K(sum_rows)(float *out, const float *x, int64_t rows, int64_t n, float beta,
                     ls_stream *stream)
{
    (void)stream;
    sum_real(out, (ls__real){.at = (void *)(uintptr_t)x}, rows, n, beta);
}

void LS__K(sum_rows_bf16)(float *out, const ls__bfloat16 *x, int64_t rows, int64_t n, float beta,
                          ls_stream *stream)
{
    (void)stream;
    sum_real(out, (ls__real){.at = (void *)(uintptr_t)x, .half = true}, rows, n, beta);
}

void LS__K(sum_cols)(float *out, const float *x, int64_t rows, int64_t n, float beta,
                     ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(rows > 1 && rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++, {
        float sum = (float)sum_all(x + i * n, n, false);
        out[i] = beta == 0.0f ? sum : sum + beta * out[i];
    })
}

/* Merges neighbouring dims that are both kept or both summed; drops those of size 1. */
static int merge(int ndim, const int64_t *shape, const uint8_t *keep, int64_t *out_shape,
                 bool *out_keep)
{
    int n = 0;
    for (int d = 0; d < ndim; d++) {
        bool kept = keep[d] != 0;
        if (shape[d] == 1) {
            continue;
        }
        if (n > 0 && out_keep[n - 1] == kept) {
            out_shape[n - 1] *= shape[d];
        } else {
            out_shape[n] = shape[d];
            out_keep[n++] = kept;
        }
    }
    return n;
}

/* [K], [S], [K,S], [S,K] and [K,S,K] after merging (K kept, S summed) are rows or columns; longer
 * alternations are rare and go to the plain loop. */
void LS__K(sum_dims)(float *out, const float *x, int ndim, const int64_t *shape,
                     const uint8_t *keep, float beta, ls_stream *stream)
{
    int64_t size[LS__KERNEL_DIMS_MAX] = {0};
    bool kept[LS__KERNEL_DIMS_MAX] = {false};
    int n = merge(ndim, shape, keep, size, kept);
    if (n == 0) {
        LS__K(sum_rows)(out, x, 1, 1, beta, stream);
    } else if (n == 1 && kept[0]) {
        LS__K(sum_rows)(out, x, 1, size[0], beta, stream);
    } else if (n == 1) {
        LS__K(sum_cols)(out, x, 1, size[0], beta, stream);
    } else if (n == 2 && kept[0]) {
        LS__K(sum_cols)(out, x, size[0], size[1], beta, stream);
    } else if (n == 2) {
        LS__K(sum_rows)(out, x, size[0], size[1], beta, stream);
    } else if (n == 3 && kept[0]) {
        for (int64_t i = 0; i < size[0]; i++) {
            LS__K(sum_rows)
            (out + i * size[2], x + i * size[1] * size[2], size[1], size[2], beta, stream);
        }
    } else {
        ls__kernels_ref()->sum_dims(out, x, ndim, shape, keep, beta, stream);
    }
}
