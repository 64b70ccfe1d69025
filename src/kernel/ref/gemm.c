/* Matrix product: C[i,j] = sum over p of op(A)[i,p] op(B)[p,j] + beta C[i,j]. */
#include "kernel/ref/ref.h"

static double element(const float *x, int64_t ld, bool trans, int64_t row, int64_t col)
{
    return (double)(trans ? x[col * ld + row] : x[row * ld + col]);
}

void ls__ref_gemm(const ls__gemm *g, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            double sum = 0.0;
            for (int64_t p = 0; p < g->k; p++) {
                sum += element(g->a, g->lda, g->trans_a, i, p) *
                       element(g->b, g->ldb, g->trans_b, p, j);
            }
            ls__ref_store(&g->c[i * g->ldc + j], sum, g->beta);
        }
    }
}

void ls__ref_gemm_batch(const ls__gemm *g, int64_t batch, int64_t stride_a, int64_t stride_b,
                        int64_t stride_c, ls_stream *stream)
{
    for (int64_t i = 0; i < batch; i++) {
        ls__gemm one = *g;
        one.a = g->a + i * stride_a;
        one.b = g->b + i * stride_b;
        one.c = g->c + i * stride_c;
        ls__ref_gemm(&one, stream);
    }
}
