/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bfloat16 matrices, C [m,n] = op(A) op(B) + bias + beta C for each matrix of a
 * batch: through oneDNN, where it has a kernel for this processor, or the built-in one. Sums are
 * float32 and rounded once. A product is cut into pieces by its shape alone (gemm_cut.h); an
 * activation runs over the finished C. */
#include "kernel/cpu/gemm_cut.h"
#include "kernel/cpu/halves.h"
#include "kernel/cpu/isa.h"
#include "kernel/cpu/onednn.h"

#define BUILTIN_MAX (24 * 24 * 24) /* below, oneDNN's call costs more than its kernel gains */

/* k = 0: the product is zero, the bias is not. */
static bool is_builtin(const ls__gemm_bf16 *g)
{
    return g->k <= 0 || g->m * g->n * g->k <= BUILTIN_MAX;
}

/* In the type of C; the activation reads the rounded value, as backward will. */
static void finish_row(const ls__gemm_bf16 *g, int64_t i)
{
    int64_t at = i * g->ldc * (int64_t)(g->half ? sizeof(ls__bfloat16) : sizeof(float));
    void *c = (char *)g->c + at, *out = g->then.out != NULL ? (char *)g->then.out + at : c;
    if (g->half) {
        LS__K(unary_block_bf16)(g->then.op, out, c, g->n);
    } else {
        LS__K(unary_block)(g->then.op, out, c, g->n);
    }
}

/* Not after each part: what the function reads and writes would push the other operand, which the
 * next part reads again, out of the cache (2048 x 1536 x 384 with GELU: 12.2 ms so, 11.2 this way;
 * float32 products take long enough for it not to matter). */
static void finish_product(const ls__gemm_bf16 *g)
{
    LS__PARALLEL_FOR(g->m * g->n >= LS__PARALLEL_MIN, int64_t i = 0, i < g->m, i++,
                     { finish_row(g, i); })
}

/* Pieces follow from the shape alone (gemm_cut.h). */
static void run_builtin(const ls__gemm_bf16 *g)
{
    ls__gemm_cut cut = ls__gemm_cut_of(g);
    int64_t pieces = cut.parts * g->batch;
    bool parallel = pieces > 1 && g->m * g->n * g->k * g->batch >= LS__CUT_WORK;
    LS__PARALLEL_FOR(parallel, int64_t i = 0, i < pieces, i++, {
        ls__gemm_bf16 piece = ls__gemm_piece(g, &cut, i);
        LS__K(gemm_bf16_builtin)(&piece);
    })
}

/* The workspace must be of gemm_bf16_workspace's size for the same arguments. */
void LS__K(gemm_bf16)(const ls__gemm_bf16 *g, ls_stream *stream)
{
    (void)stream;
    if (g->m <= 0 || g->n <= 0 || g->batch <= 0) {
        return;
    }
    if (is_builtin(g) || !ls__onednn_gemm_bf16(g)) {
        run_builtin(g);
    }
    if (g->then.on) {
        finish_product(g);
    }
}

/* Bytes; 0 where the built-in product runs, whose buffers lie on the stack. */
size_t LS__K(gemm_bf16_workspace)(const ls__gemm_bf16 *g)
{
    bool empty = g->m <= 0 || g->n <= 0 || g->batch <= 0;
    return empty || is_builtin(g) ? 0 : ls__onednn_gemm_bf16_workspace(g);
}
