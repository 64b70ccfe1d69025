/* SPDX-License-Identifier: Apache-2.0 */
/* How a product is cut among threads: by its shape alone, because the bits of a library may change
 * with the size of a part. The parts are equal up to LS__CUT_UNIT and an even number, so that two
 * threads have the same to do at any size; large float32 products have four, eight, twelve ….
 *
 * float32: along the longer side of C.
 *
 * bfloat16: every matrix of the batch is cut along the rows of C into parts, for then C and A,
 * unless it is transposed, stay dense (onednn_bf16.c, Note [Two kernels]); along the columns where
 * there are few rows. The last part may be smaller than the others, which have one size, because a
 * library plans for each. A part and its operands are a product of their own. Parts are larger than
 * those of float32, because a unit of matrices is some five times as fast while packing the other
 * operand again costs the same. */
#ifndef LS_KERNEL_CPU_GEMM_CUT_H
#define LS_KERNEL_CPU_GEMM_CUT_H

#include "kernel/kernels.h"

#define LS__CUT_WORK ((int64_t)1 << 26) /* multiply-adds from which threads are worth waking */
#define LS__CUT_MIN 512
#define LS__CUT_MAX 1024
#define LS__CUT_UNIT 16 /* parts begin at multiples of it: a cache line, the rows of a tile */

#define LS__PART_MIN 256 /* of float32 */
#define LS__PART_MAX 512

/* How many parts a float32 product has. One whose A is transposed has parts of LS__PART_MIN, which
 * is what fits the buffer it is transposed in. */
static inline int64_t ls__parts_of(int64_t side, bool transposed)
{
    if (transposed) {
        return (side + 2 * LS__PART_MIN - 1) / (2 * LS__PART_MIN) * 2;
    }
    return side < 4 * LS__PART_MIN ? 2 : (side + 4 * LS__PART_MAX - 1) / (4 * LS__PART_MAX) * 4;
}

/* Where part i begins; the end of the last one is the side. */
static inline int64_t ls__part_from(int64_t side, int64_t parts, int64_t i)
{
    return i < parts ? side * i / parts / LS__CUT_UNIT * LS__CUT_UNIT : side;
}

typedef struct ls__gemm_cut {
    bool rows; /* along C's rows, else its columns */
    int64_t side, step, parts;
} ls__gemm_cut;

/* Two parts of some 512 rows each, up to eight; more where they would be larger than 1024. */
static inline int64_t ls__gemm_parts_of(int64_t side)
{
    int64_t pairs = (side + LS__CUT_MIN) / (2 * LS__CUT_MIN);
    int64_t least = (side + 2 * LS__CUT_MAX - 1) / (2 * LS__CUT_MAX);
    pairs = pairs > 4 ? 4 : pairs;
    return 2 * (pairs > least ? pairs : least);
}

static inline ls__gemm_cut ls__gemm_cut_of(const ls__gemm_bf16 *g)
{
    ls__gemm_cut cut = {.rows = g->m >= g->n || g->m >= 2 * LS__CUT_MIN};
    cut.side = cut.rows ? g->m : g->n;
    cut.step = cut.side;
    if (g->m * g->n * g->k >= LS__CUT_WORK && cut.side > LS__CUT_MIN) {
        int64_t parts = ls__gemm_parts_of(cut.side);
        cut.step = (cut.side + parts - 1) / parts;
        cut.step = (cut.step + LS__CUT_UNIT - 1) / LS__CUT_UNIT * LS__CUT_UNIT;
    }
    cut.parts = (cut.side + cut.step - 1) / cut.step;
    return cut;
}

/* Whether part `at` of a matrix is shorter than the others. */
static inline bool ls__gemm_cut_is_rest(const ls__gemm_cut *cut, int64_t at)
{
    return at == cut->parts - 1 && cut->side % cut->step != 0;
}

/* The product of piece `at` in [0, batch * parts). */
static inline ls__gemm_bf16 ls__gemm_piece(const ls__gemm_bf16 *g, const ls__gemm_cut *cut,
                                           int64_t at)
{
    ls__gemm_bf16 one = *g;
    int64_t matrix = at / cut->parts, part = at % cut->parts, from = part * cut->step;
    int64_t count = ls__gemm_cut_is_rest(cut, part) ? cut->side % cut->step : cut->step;
    int64_t c = matrix * g->stride_c + (cut->rows ? from * g->ldc : from);
    one.batch = 1;
    one.a += matrix * g->stride_a;
    one.b += matrix * g->stride_b;
    one.c = (char *)g->c + c * (g->half ? 2 : 4);
    if (cut->rows) {
        one.m = count;
        one.a += g->trans_a ? from : from * g->lda;
    } else {
        one.n = count;
        one.b += g->trans_b ? from * g->ldb : from;
        one.bias = g->bias != NULL ? g->bias + from : NULL;
    }
    return one;
}

#endif
