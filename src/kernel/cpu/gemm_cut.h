/* How a product of bfloat16 matrices is cut among threads: by its shape alone, because the bits of
 * a library may change with the size of a part.
 *
 * Every matrix of the batch is cut along the rows of C into parts, for then C and A, unless it is
 * transposed, stay dense (onednn_bf16.c, Note [Two kernels]); along the columns where there are few
 * rows. A part and its operands are a product of their own. Parts are larger than those of float32
 * (gemm.c), because a unit of matrices is some five times as fast while packing the other operand
 * again costs the same. */
#ifndef LS_KERNEL_CPU_GEMM_CUT_H
#define LS_KERNEL_CPU_GEMM_CUT_H

#include "kernel/kernels.h"

#define LS__CUT_WORK ((int64_t)1 << 26) /* multiply-adds from which threads are worth waking */
#define LS__CUT_MIN 512
#define LS__CUT_MAX 1024

typedef struct ls__gemm_cut {
    bool rows; /* along C's rows, else its columns */
    int64_t side, step, parts;
} ls__gemm_cut;

static inline ls__gemm_cut ls__gemm_cut_of(const ls__gemm_bf16 *g)
{
    ls__gemm_cut cut = {.rows = g->m >= g->n || g->m >= 2 * LS__CUT_MIN};
    cut.side = cut.rows ? g->m : g->n;
    cut.step = cut.side / 8 / 64 * 64;
    cut.step = cut.step < LS__CUT_MIN ? LS__CUT_MIN : cut.step;
    cut.step = cut.step > LS__CUT_MAX ? LS__CUT_MAX : cut.step;
    cut.step = g->m * g->n * g->k < LS__CUT_WORK || cut.step > cut.side ? cut.side : cut.step;
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
