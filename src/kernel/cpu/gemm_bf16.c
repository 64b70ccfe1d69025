/* Products of bfloat16 matrices: through oneDNN, where it has a kernel for this processor, or the
 * built-in one. */
#include "kernel/cpu/gemm_cut.h"
#include "kernel/cpu/isa.h"
#include "kernel/cpu/onednn.h"

#define BUILTIN_MAX (24 * 24 * 24) /* below, oneDNN's call costs more than its kernel gains */

/* k = 0: the product is zero, the bias is not. */
static bool is_builtin(const ls__gemm_bf16 *g)
{
    return g->k <= 0 || g->m * g->n * g->k <= BUILTIN_MAX;
}

void LS__K(gemm_bf16)(const ls__gemm_bf16 *g, ls_stream *stream)
{
    (void)stream;
    if (g->m <= 0 || g->n <= 0 || g->batch <= 0 || (!is_builtin(g) && ls__onednn_gemm_bf16(g))) {
        return;
    }
    ls__gemm_cut cut = ls__gemm_cut_of(g);
    int64_t pieces = cut.parts * g->batch;
    bool parallel = pieces > 1 && g->m * g->n * g->k * g->batch >= LS__CUT_WORK;
    LS__PARALLEL_FOR(parallel, int64_t i = 0, i < pieces, i++, {
        ls__gemm_bf16 piece = ls__gemm_piece(g, &cut, i);
        LS__K(gemm_bf16_builtin)(&piece);
    })
}

size_t LS__K(gemm_bf16_workspace)(const ls__gemm_bf16 *g)
{
    bool empty = g->m <= 0 || g->n <= 0 || g->batch <= 0;
    return empty || is_builtin(g) ? 0 : ls__onednn_gemm_bf16_workspace(g);
}
