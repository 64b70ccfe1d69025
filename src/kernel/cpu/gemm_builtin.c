/* The built-in matrix product, for builds without oneDNN and for shapes where it is faster.
 *
 * B is packed by blocks of K_BLOCK x N_BLOCK into panels two vectors wide; a register tile of ROWS
 * rows by two vectors of C then runs down the block (Goto & van de Geijn 2008, section 4; A is read
 * in place, because a row of the tile only broadcasts its elements):
 *
 *        p ->          | panel |              each C element is summed over p in order, block after
 *     A  [ROWS] x  B   | 2 vec |  = C tile    block, wherever its tile lies: so cutting rows or
 *                                             columns of C among threads never changes a bit.
 */
#include <string.h>

#include "kernel/cpu/isa.h"

#define PANEL (2 * LS__LANES)
#define K_BLOCK 256
#define N_BLOCK (4 * PANEL)
#define DIRECT_ROWS_MAX 32 /* below, packing B costs more than it gains */
#if LS__LANES == 16
#define ROWS 8 /* 16 of 32 registers accumulate */
#else
#define ROWS 6 /* 12 of 16 */
#endif

typedef struct tile { /* one register tile: C[rows, width] += A[rows, k] B[k, width] */
    int64_t k;
    const float *a;
    int64_t a_row, a_col; /* strides */
    const float *b;
    int64_t b_row;
    float *c;
    int64_t c_row;
    int64_t width; /* <= PANEL */
    bool accumulate;
} tile;

LS__INLINE void store_vec(float *c, ls__vec sum, int64_t width, bool accumulate)
{
    if (width >= LS__LANES) {
        ls__store(c, accumulate ? ls__load(c) + sum : sum);
        return;
    }
    for (int64_t j = 0; j < width; j++) {
        c[j] = accumulate ? c[j] + sum[j] : sum[j];
    }
}

/* rows and vecs are constants where this is inlined, so the sums stay in registers. */
LS__INLINE void run_tile(const tile *t, const int rows, const int vecs)
{
    ls__vec sums[ROWS][2];
    memset(sums, 0, sizeof sums);
    const float *a = t->a, *b = t->b;
    for (int64_t p = 0; p < t->k; p++) {
        for (int v = 0; v < vecs; v++) {
            ls__vec y = ls__load(b + v * LS__LANES);
            for (int i = 0; i < rows; i++) {
                sums[i][v] += a[i * t->a_row] * y;
            }
        }
        a += t->a_col;
        b += t->b_row;
    }
    for (int i = 0; i < rows; i++) {
        for (int v = 0; v < vecs; v++) {
            store_vec(t->c + i * t->c_row + v * LS__LANES, sums[i][v], t->width - v * LS__LANES,
                      t->accumulate);
        }
    }
}

LS__INLINE void run_rows(const tile *t, int64_t rows, const int vecs)
{
    switch (rows) {
    case 1:
        run_tile(t, 1, vecs);
        break;
    case 2:
        run_tile(t, 2, vecs);
        break;
    case 3:
        run_tile(t, 3, vecs);
        break;
    case 4:
        run_tile(t, 4, vecs);
        break;
    case 5:
        run_tile(t, 5, vecs);
        break;
#if ROWS == 8
    case 6:
        run_tile(t, 6, vecs);
        break;
    case 7:
        run_tile(t, 7, vecs);
        break;
#endif
    default:
        run_tile(t, ROWS, vecs);
        break;
    }
}

/* packed[p][j] = op(B)[p, j] for j < width, zero beyond. */
static void pack_panel(float *packed, const ls__gemm *g, int64_t p0, int64_t k, int64_t j0,
                       int64_t width)
{
    for (int64_t p = 0; !g->trans_b && p < k; p++) {
        const float *from = g->b + (p0 + p) * g->ldb + j0;
        for (int64_t j = 0; j < PANEL; j++) {
            packed[p * PANEL + j] = j < width ? from[j] : 0.0f;
        }
    }
    if (!g->trans_b) {
        return;
    }
    for (int64_t j = 0; j < PANEL; j++) {
        const float *from = g->b + (j0 + j) * g->ldb + p0;
        for (int64_t p = 0; p < k; p++) {
            packed[p * PANEL + j] = j < width ? from[p] : 0.0f;
        }
    }
}

/* C[:, j0 : j0+width] += op(A)[:, p0 : p0+k] times one panel. */
static void run_panel(const ls__gemm *g, const float *panel, int64_t panel_row, int64_t p0,
                      int64_t k, int64_t j0, int64_t width)
{
    tile t = {.k = k, .b = panel, .b_row = panel_row, .c_row = g->ldc, .width = width};
    t.a_row = g->trans_a ? 1 : g->lda;
    t.a_col = g->trans_a ? g->lda : 1;
    t.accumulate = p0 > 0 || g->beta != 0.0f;
    for (int64_t i = 0; i < g->m; i += ROWS) {
        t.a = g->a + i * t.a_row + p0 * t.a_col;
        t.c = g->c + i * g->ldc + j0;
        if (width > LS__LANES) {
            run_rows(&t, ls__min(ROWS, g->m - i), 2);
        } else {
            run_rows(&t, ls__min(ROWS, g->m - i), 1);
        }
    }
}

void LS__K(gemm_builtin)(const ls__gemm *g)
{
    _Alignas(64) float packed[K_BLOCK * PANEL];
    bool direct = !g->trans_b && g->m <= DIRECT_ROWS_MAX;
    for (int64_t p0 = 0; p0 < g->k; p0 += K_BLOCK) {
        int64_t k = ls__min(K_BLOCK, g->k - p0);
        for (int64_t j0 = 0; j0 < g->n; j0 += PANEL) {
            int64_t width = ls__min(PANEL, g->n - j0);
            if (direct && width == PANEL) {
                run_panel(g, g->b + p0 * g->ldb + j0, g->ldb, p0, k, j0, width);
            } else {
                pack_panel(packed, g, p0, k, j0, width);
                run_panel(g, packed, PANEL, p0, k, j0, width);
            }
        }
    }
}
