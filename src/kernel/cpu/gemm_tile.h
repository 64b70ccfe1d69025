/* SPDX-License-Identifier: Apache-2.0 */
/* The register tile of the built-in matrix products; see gemm_builtin.c. */
#ifndef LS_KERNEL_CPU_GEMM_TILE_H
#define LS_KERNEL_CPU_GEMM_TILE_H

#include <string.h>

#include "kernel/cpu/isa.h"

#define LS__PANEL (2 * LS__LANES)
#define LS__K_BLOCK 256
#if LS__LANES == 16
#define LS__ROWS 8 /* 16 of 32 registers accumulate */
#else
#define LS__ROWS 6 /* 12 of 16 */
#endif

typedef struct ls__tile { /* one register tile: C[rows, width] += A[rows, k] B[k, width] */
    int64_t k;
    const float *a;
    int64_t a_row, a_col; /* strides */
    const float *b;
    int64_t b_row;
    float *c;
    int64_t c_row;
    int64_t width; /* <= LS__PANEL */
    bool accumulate;
} ls__tile;

LS__INLINE void ls__tile_store(float *c, ls__vec sum, int64_t width, bool accumulate)
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
LS__INLINE void ls__tile_run(const ls__tile *t, const int rows, const int vecs)
{
    ls__vec sums[LS__ROWS][2];
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
            ls__tile_store(t->c + i * t->c_row + v * LS__LANES, sums[i][v],
                           t->width - v * LS__LANES, t->accumulate);
        }
    }
}

LS__INLINE void ls__tile_run_rows(const ls__tile *t, int64_t rows, const int vecs)
{
    switch (rows) {
    case 1:
        ls__tile_run(t, 1, vecs);
        break;
    case 2:
        ls__tile_run(t, 2, vecs);
        break;
    case 3:
        ls__tile_run(t, 3, vecs);
        break;
    case 4:
        ls__tile_run(t, 4, vecs);
        break;
    case 5:
        ls__tile_run(t, 5, vecs);
        break;
#if LS__ROWS == 8
    case 6:
        ls__tile_run(t, 6, vecs);
        break;
    case 7:
        ls__tile_run(t, 7, vecs);
        break;
#endif
    default:
        ls__tile_run(t, LS__ROWS, vecs);
        break;
    }
}

#endif
