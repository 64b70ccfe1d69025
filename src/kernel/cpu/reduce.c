/* SPDX-License-Identifier: Apache-2.0 */
/* Sums, and the gradient of an activation, which is summed over rows at once. Each sum has one
 * order, fixed by shape and instruction set (the lanes of a vector):
 *
 *   sum, sum_squares  up to 64 equal blocks in float64 (by lanes), block sums added in order
 *   sum_rows          x [rows,n] -> [n]: leaves of 16 rows, then a binary tree over the leaves
 *                     (adjacent pairs first), float32
 *   sum_cols          x [rows,n] -> [rows]: each row as `sum`
 *   sum_dims          merged to one of these where possible; else float64 in the order of the
 *                     index, but for a last dimension that is summed, which goes by lanes
 *
 * Neither the number of threads nor the tile of columns that a task works on changes it. */
#include <string.h>

#include "base/assert.h"
#include "kernel/cpu/halves.h"

#define SUM_BLOCKS 64
#define LEAF_ROWS 16
#define TILE 256                 /* columns of one task of sum_rows */
#define LEVELS 40                /* of the tree: 2^40 leaves */
#define CHUNK_BYTES (256 * 1024) /* of three matrices that lie beside each other in the L2 */
#define CHUNK_ROWS_MAX (64 * LEAF_ROWS)

/* out += x. */
LS__INLINE void add_into(float *out, const float *x, int64_t width)
{
#pragma omp simd
    for (int64_t j = 0; j < width; j++) {
        out[j] += x[j];
    }
}

/* The bias is added to every row. */
void LS__K(add_rows)(float *y, const float *bias, int64_t rows, int64_t n, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++,
                     { add_into(y + i * n, bias, n); })
}

/* Elements [from,end); float64, because a block may be long. */
LS__INLINE double sum_block(const float *x, int64_t from, int64_t end, const bool half,
                            const bool squares)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = from; i < end; i++) {
        double v = (double)ls__get(x, i, half);
        sum += squares ? v * v : v;
    }
    return sum;
}

/* The blocks follow from the count alone and are added in order, so the sum is the same for any
 * number of threads. */
LS__INLINE double sum_all(const float *x, int64_t count, const bool half, const bool squares)
{
    double partial[SUM_BLOCKS];
    int64_t blocks = ls__min(SUM_BLOCKS, (count + LS__BLOCK - 1) / LS__BLOCK);
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < blocks, i++, {
        partial[i] = sum_block(x, count * i / blocks, count * (i + 1) / blocks, half, squares);
    })
    double sum = 0.0;
    for (int64_t i = 0; i < blocks; i++) {
        sum += partial[i];
    }
    return sum;
}

/* Rounded once, after the division. */
void LS__K(sum)(float *out, const float *x, int64_t count, double divisor, ls_stream *stream)
{
    (void)stream;
    *out = (float)(sum_all(x, count, false, false) / divisor);
}

/* NaN for no elements, as a mean is. */
void LS__K(mean_squares)(float *out, const float *x, int64_t count, ls_stream *stream)
{
    (void)stream;
    *out = (float)(sum_all(x, count, false, true) / (double)count);
}

/* Float64, not rounded: norms of whole models are sums of these. */
void LS__K(sum_squares)(double *out, const float *x, int64_t count, ls_stream *stream)
{
    (void)stream;
    *out = sum_all(x, count, false, true);
}

/* The squares of bfloat16 are exact in float64. */
void LS__K(sum_squares_bf16)(double *out, const ls__bfloat16 *x, int64_t count, ls_stream *stream)
{
    (void)stream;
    *out = sum_all((const float *)(const void *)x, count, true, true);
}

/* acc[width] = sum of `rows` <= LEAF_ROWS rows, three at a time: (acc + a) + (b + c). */
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

/* The operands of sum_tile. */
typedef struct matrix {
    ls__real x; /* [rows,n] */
    int64_t rows, n;
    int64_t leaf; /* rows of a leaf */
} matrix;

/* Columns [at,at+width): leaf number `leaf` joins as many finished subtrees as it has trailing
 * ones. */
static void sum_tile(float *out, const matrix *m, int64_t at, int64_t width, float beta)
{
    const int64_t rows = m->rows, n = m->n;
    float stack[LEVELS][TILE];
    LS_ASSERT(width <= TILE && m->leaf >= 1 && m->leaf <= LEAF_ROWS);
    int depth = 0;
    int64_t leaf = 0;
    for (int64_t i = 0; i < rows; i += m->leaf, leaf++) {
        int64_t count = ls__min(m->leaf, rows - i);
        leaf_of(stack[depth++], m->x, at + i * n, count, n, width);
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

/* A task is a range of columns, which sums all rows in the order of its tree. */
static void sum_matrix(float *out, const matrix *m, float beta)
{
    LS__PARALLEL_FOR(m->rows * m->n >= LS__PARALLEL_MIN, int64_t j = 0, j < m->n, j += TILE,
                     { sum_tile(out + j, m, j, ls__min(TILE, m->n - j), beta); })
}

/* As the head of the file says; columns are shared among the threads. */
void LS__K(sum_rows)(float *out, const float *x, int64_t rows, int64_t n, float beta,
                     ls_stream *stream)
{
    (void)stream;
    const matrix m = {{.at = (void *)(uintptr_t)x}, rows, n, LEAF_ROWS};
    sum_matrix(out, &m, beta);
}

/* The same order of sums on widened elements; out is float32. */
void LS__K(sum_rows_bf16)(float *out, const ls__bfloat16 *x, int64_t rows, int64_t n, float beta,
                          ls_stream *stream)
{
    (void)stream;
    const matrix m = {{.at = (void *)(uintptr_t)x, .half = true}, rows, n, LEAF_ROWS};
    sum_matrix(out, &m, beta);
}

/* ---- the gradient of an activation -------------------------------------------------------- */

/* Rows are taken in chunks that stay in the cache between the two halves of the work. A chunk is
 * 2^k leaves, hence a subtree of sum_rows' tree; its sum is a row of the workspace. */
static int64_t chunk_rows(const ls__activation_grad *g)
{
    int64_t bytes = g->n * (int64_t)(g->half ? sizeof(ls__bfloat16) : sizeof(float));
    int64_t rows = LEAF_ROWS;
    while (rows < CHUNK_ROWS_MAX && 2 * rows * bytes <= CHUNK_BYTES) {
        rows *= 2;
    }
    return rows;
}

/* The number follows from the shape alone, for the order of db's sums. */
static int64_t chunks_of(const ls__activation_grad *g)
{
    int64_t step = chunk_rows(g);
    return (g->rows + step - 1) / step;
}

/* Bytes: one row of db for each chunk. */
size_t LS__K(activation_backward_workspace)(const ls__activation_grad *g)
{
    return g->db != NULL ? (size_t)(chunks_of(g) * g->n) * sizeof(float) : 0;
}

/* dz of some rows; they are summed for db while they lie in the cache. */
static void make_chunk(const ls__activation_grad *g, int64_t from, int64_t rows)
{
    const void *z = ls__unary_reads(g->op, g->dy, g->x, g->y);
    int64_t at = from * g->n, count = rows * g->n;
    if (g->half) {
        LS__K(unary_backward_block_bf16)
        (g->op, (ls__bfloat16 *)g->dz + at, (const ls__bfloat16 *)g->dy + at,
         (const ls__bfloat16 *)z + at, count, 0.0f);
    } else {
        LS__K(unary_backward_block)
        (g->op, (float *)g->dz + at, (const float *)g->dy + at, (const float *)z + at, count, 0.0f);
    }
}

/* dz = dy f'(z) and its column sums db in one pass; db may be NULL. */
void LS__K(activation_backward)(const ls__activation_grad *g, ls_stream *stream)
{
    const int64_t step = chunk_rows(g), chunks = chunks_of(g);
    float *sums = g->workspace;
    (void)stream;
    LS__PARALLEL_FOR(g->rows * g->n >= LS__PARALLEL_MIN, int64_t i = 0, i < chunks, i++, {
        matrix m = {{g->dz, g->half}, ls__min(step, g->rows - i * step), g->n, LEAF_ROWS};
        make_chunk(g, i * step, m.rows);
        for (int64_t j = 0; g->db != NULL && j < g->n; j += TILE) {
            sum_tile(sums + i * g->n + j, &m, i * step * g->n + j, ls__min(TILE, g->n - j), 0.0f);
        }
    })
    if (g->db != NULL) {
        const matrix m = {{sums, false}, chunks, g->n, 1};
        sum_matrix(g->db, &m, g->beta);
    }
}

/* One row's sum each. A single row shares its blocks among the threads instead. */
void LS__K(sum_cols)(float *out, const float *x, int64_t rows, int64_t n, float beta,
                     ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(rows > 1 && rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++, {
        float sum = (float)sum_all(x + i * n, n, false, false);
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

/* ---- sums over chosen dimensions ---------------------------------------------------------- */

typedef struct dim_walk { /* over some of the dims of a contiguous array */
    int ndim;
    int64_t size[LS__KERNEL_DIMS_MAX], stride[LS__KERNEL_DIMS_MAX];
    int64_t count; /* of positions */
} dim_walk;

/* The dims before the last that are kept, or those that are summed. */
static dim_walk walk_of(int ndim, const int64_t *size, const bool *kept, bool want_kept)
{
    dim_walk w = {.count = 1};
    for (int d = 0; d < ndim - 1; d++) {
        if (kept[d] == want_kept) {
            w.size[w.ndim] = size[d];
            w.stride[w.ndim] = 1;
            for (int e = d + 1; e < ndim; e++) {
                w.stride[w.ndim] *= size[e];
            }
            w.count *= size[d];
            w.ndim++;
        }
    }
    return w;
}

/* Where position i lies; once for each row of the last dimension, so a division does no harm. */
static int64_t walk_at(const dim_walk *w, int64_t i)
{
    int64_t at = 0;
    for (int d = w->ndim - 1; d >= 0; d--) {
        at += i % w->size[d] * w->stride[d];
        i /= w->size[d];
    }
    return at;
}

LS__INLINE void store_sum(float *out, double sum, float beta)
{
    *out = beta == 0.0f ? (float)sum : (float)(sum + (double)beta * (double)*out);
}

/* The last dimension is kept: `width` <= TILE of its columns, rows added in the order of the
 * index. */
static void sum_rows_at(float *out, const float *x, const dim_walk *summed, int64_t width,
                        float beta)
{
    double acc[TILE] = {0.0};
    for (int64_t i = 0; i < summed->count; i++) {
        const float *row = x + walk_at(summed, i);
#pragma omp simd
        for (int64_t j = 0; j < width; j++) {
            acc[j] += (double)row[j];
        }
    }
    for (int64_t j = 0; j < width; j++) {
        store_sum(&out[j], acc[j], beta);
    }
}

/* Any alternation of kept and summed dims. A task is some columns, or one sum, so the threads do
 * not change the bits. */
static void sum_alternation(float *out, const float *x, int ndim, const int64_t *size,
                            const bool *kept, float beta)
{
    const dim_walk outer = walk_of(ndim, size, kept, true),
                   summed = walk_of(ndim, size, kept, false);
    const int64_t n = size[ndim - 1], tiles = kept[ndim - 1] ? (n + TILE - 1) / TILE : 1;
    const bool parallel = outer.count * summed.count * n >= LS__PARALLEL_MIN;
    LS__PARALLEL_FOR(parallel, int64_t i = 0, i < outer.count * tiles, i++, {
        const float *from = x + walk_at(&outer, i / tiles);
        const int64_t column = i % tiles * TILE;
        double sum = 0.0;
        if (kept[ndim - 1]) {
            sum_rows_at(out + i / tiles * n + column, from + column, &summed,
                        ls__min(TILE, n - column), beta);
            continue;
        }
        for (int64_t j = 0; j < summed.count; j++) {
            sum += sum_block(from + walk_at(&summed, j), 0, n, false, false);
        }
        store_sum(&out[i], sum, beta);
    })
}

/* [K,S,K]: each [S,K] as sum_rows; the threads share all of them. */
static void sum_middle(float *out, const float *x, const int64_t *size, float beta)
{
    const matrix m = {{.at = (void *)(uintptr_t)x}, size[1], size[2], LEAF_ROWS};
    const int64_t tiles = (m.n + TILE - 1) / TILE;
    LS__PARALLEL_FOR(size[0] * m.rows * m.n >= LS__PARALLEL_MIN, int64_t i = 0, i < size[0] * tiles,
                     i++, {
                         const int64_t at = i / tiles, column = i % tiles * TILE;
                         sum_tile(out + at * m.n + column, &m, at * m.rows * m.n + column,
                                  ls__min(TILE, m.n - column), beta);
                     })
}

/* After merging [K], [S], [K,S], [S,K] and [K,S,K] are rows or columns (K kept, S summed). */
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
        sum_middle(out, x, size, beta);
    } else {
        sum_alternation(out, x, n, size, kept, beta);
    }
}
