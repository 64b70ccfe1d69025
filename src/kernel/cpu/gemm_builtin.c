/* SPDX-License-Identifier: Apache-2.0 */
/* The built-in matrix product, for builds without oneDNN and for shapes where it is faster.
 *
 * B is packed by blocks of K_BLOCK rows into panels two vectors wide; a register tile of ROWS
 * rows by two vectors of C then runs down the block (Goto & van de Geijn 2008, section 4; A is read
 * in place, because a row of the tile only broadcasts its elements):
 *
 *        p ->          | panel |              each C element is summed over p in order, block after
 *     A  [ROWS] x  B   | 2 vec |  = C tile    block, wherever its tile lies: so cutting rows or
 *                                             columns of C among threads never changes a bit.
 */
#include "kernel/cpu/gemm_tile.h"

#define DIRECT_ROWS_MAX 32 /* below, packing B costs more than it gains */

/* packed[p][j] = op(B)[p, j] for j < width, zero beyond. */
static void pack_panel(float *packed, const ls__gemm *g, int64_t p0, int64_t k, int64_t j0,
                       int64_t width)
{
    for (int64_t p = 0; !g->trans_b && p < k; p++) {
        const float *from = g->b + (p0 + p) * g->ldb + j0;
        for (int64_t j = 0; j < LS__PANEL; j++) {
            packed[p * LS__PANEL + j] = j < width ? from[j] : 0.0f;
        }
    }
    if (!g->trans_b) {
        return;
    }
    for (int64_t j = 0; j < LS__PANEL; j++) {
        const float *from = g->b + (j0 + j) * g->ldb + p0;
        for (int64_t p = 0; p < k; p++) {
            packed[p * LS__PANEL + j] = j < width ? from[p] : 0.0f;
        }
    }
}

/* C[:, j0 : j0+width] = or += op(A)[:, p0 : p0+k] times one panel, tile by tile down the rows;
 * the first block of k overwrites C unless beta is set. */
static void run_panel(const ls__gemm *g, const float *panel, int64_t panel_row, int64_t p0,
                      int64_t k, int64_t j0, int64_t width)
{
    ls__tile t = {.k = k, .b = panel, .b_row = panel_row, .c_row = g->ldc, .width = width};
    t.a_row = g->trans_a ? 1 : g->lda;
    t.a_col = g->trans_a ? g->lda : 1;
    t.accumulate = p0 > 0 || g->beta != 0.0f;
    for (int64_t i = 0; i < g->m; i += LS__ROWS) {
        t.a = g->a + i * t.a_row + p0 * t.a_col;
        t.c = g->c + i * g->ldc + j0;
        if (width > LS__LANES) {
            ls__tile_run_rows(&t, ls__min(LS__ROWS, g->m - i), 2);
        } else {
            ls__tile_run_rows(&t, ls__min(LS__ROWS, g->m - i), 1);
        }
    }
}

/* One thread. B is read in place where A has few rows, because each packed panel would be used only
 * once or twice. */
void LS__K(gemm_builtin)(const ls__gemm *g)
{
    _Alignas(64) float packed[LS__K_BLOCK * LS__PANEL];
    bool direct = !g->trans_b && g->m <= DIRECT_ROWS_MAX;
    for (int64_t p0 = 0; p0 < g->k; p0 += LS__K_BLOCK) {
        int64_t k = ls__min(LS__K_BLOCK, g->k - p0);
        for (int64_t j0 = 0; j0 < g->n; j0 += LS__PANEL) {
            int64_t width = ls__min(LS__PANEL, g->n - j0);
            if (direct && width == LS__PANEL) {
                run_panel(g, g->b + p0 * g->ldb + j0, g->ldb, p0, k, j0, width);
            } else {
                pack_panel(packed, g, p0, k, j0, width);
                run_panel(g, packed, LS__PANEL, p0, k, j0, width);
            }
        }
    }
}
