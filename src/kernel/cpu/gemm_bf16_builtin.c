/* SPDX-License-Identifier: Apache-2.0 */
/* The built-in product of bfloat16 matrices: blocks are widened on the way into the buffers that
 * the float32 tiles read (gemm_builtin.c), and C is summed in float32 until it is complete.
 *
 *        p ->       | panel |       for each panel of C, for each ROW_BLOCK of its rows: all of k
 *     A  [rows] x B | 2 vec |  = C  block after block, then bias, what was there, one rounding
 */
#include "base/half.h"
#include "kernel/cpu/gemm_tile.h"

#define ROW_BLOCK (16 * LS__ROWS)

typedef struct buffers { /* on the stack of the thread; a block of each operand as float32 */
    _Alignas(64) float b[LS__K_BLOCK * LS__PANEL];
    _Alignas(64) float a[LS__ROWS * LS__K_BLOCK];
    _Alignas(64) float c[ROW_BLOCK * LS__PANEL];
} buffers;

/* b[p][j] = op(B)[p0 + p, j0 + j] for j < width, zero beyond. */
static void pack_b(float *b, const ls__gemm_bf16 *g, int64_t p0, int64_t k, int64_t j0,
                   int64_t width)
{
    int64_t row = g->trans_b ? 1 : g->ldb, col = g->trans_b ? g->ldb : 1;
    const ls__bfloat16 *from = g->b + p0 * row + j0 * col;
    for (int64_t p = 0; width < LS__PANEL && p < k; p++) {
        for (int64_t j = width; j < LS__PANEL; j++) {
            b[p * LS__PANEL + j] = 0.0f;
        }
    }
    if (col == 1) {
        for (int64_t p = 0; p < k; p++) {
#pragma omp simd
            for (int64_t j = 0; j < width; j++) {
                b[p * LS__PANEL + j] = ls__bfloat16_widen(from[p * row + j]);
            }
        }
        return;
    }
    for (int64_t j = 0; j < width; j++) {
        for (int64_t p = 0; p < k; p++) {
            b[p * LS__PANEL + j] = ls__bfloat16_widen(from[j * col + p * row]);
        }
    }
}

/* a[i][p] = op(A)[i0 + i, p0 + p] */
static void pack_a(float *a, const ls__gemm_bf16 *g, int64_t i0, int64_t rows, int64_t p0,
                   int64_t k)
{
    int64_t row = g->trans_a ? 1 : g->lda, col = g->trans_a ? g->lda : 1;
    const ls__bfloat16 *from = g->a + i0 * row + p0 * col;
    for (int64_t i = 0; i < rows; i++) {
        if (col == 1) {
#pragma omp simd
            for (int64_t p = 0; p < k; p++) {
                a[i * LS__K_BLOCK + p] = ls__bfloat16_widen(from[i * row + p]);
            }
        } else {
            for (int64_t p = 0; p < k; p++) {
                a[i * LS__K_BLOCK + p] = ls__bfloat16_widen(from[i * row + p * col]);
            }
        }
    }
}

/* The float32 sums of ROW_BLOCK rows stay in s->c over all blocks of k; the first block overwrites
 * them. */
static void add_block(buffers *s, const ls__gemm_bf16 *g, int64_t i0, int64_t rows, int64_t p0,
                      int64_t k)
{
    ls__tile t = {.k = k,
                  .a = s->a,
                  .a_row = LS__K_BLOCK,
                  .a_col = 1,
                  .b = s->b,
                  .b_row = LS__PANEL,
                  .c_row = LS__PANEL,
                  .width = LS__PANEL,
                  .accumulate = p0 > 0};
    for (int64_t i = 0; i < rows; i += LS__ROWS) {
        int64_t count = ls__min(LS__ROWS, rows - i);
        pack_a(s->a, g, i0 + i, count, p0, k);
        t.c = s->c + i * LS__PANEL;
        ls__tile_run_rows(&t, count, 2);
    }
}

/* The only rounding of an element, after bias and the value that was there. */
static void store(const ls__gemm_bf16 *g, const float *sum, int64_t row, int64_t j0, int64_t width)
{
    ls__bfloat16 *half = (ls__bfloat16 *)g->c + row * g->ldc + j0;
    float *full = (float *)g->c + row * g->ldc + j0;
    for (int64_t j = 0; j < width; j++) {
        float value = g->bias != NULL ? sum[j] + g->bias[j0 + j] : sum[j];
        if (g->beta != 0.0f) {
            value += g->half ? ls__bfloat16_widen(half[j]) : full[j];
        }
        if (g->half) {
            half[j] = ls__bfloat16_round(value);
        } else {
            full[j] = value;
        }
    }
}

/* One thread: the caller has cut the product into pieces (gemm_cut.h). */
void LS__K(gemm_bf16_builtin)(const ls__gemm_bf16 *g)
{
    buffers s;
    for (int64_t j0 = 0; j0 < g->n; j0 += LS__PANEL) {
        int64_t width = ls__min(LS__PANEL, g->n - j0);
        for (int64_t i0 = 0; i0 < g->m; i0 += ROW_BLOCK) {
            int64_t rows = ls__min(ROW_BLOCK, g->m - i0);
            if (g->k <= 0) {
                memset(s.c, 0, sizeof s.c);
            }
            for (int64_t p0 = 0; p0 < g->k; p0 += LS__K_BLOCK) {
                int64_t k = ls__min(LS__K_BLOCK, g->k - p0);
                pack_b(s.b, g, p0, k, j0, width);
                add_block(&s, g, i0, rows, p0, k);
            }
            for (int64_t i = 0; i < rows; i++) {
                store(g, s.c + i * LS__PANEL, i0 + i, j0, width);
            }
        }
    }
}
