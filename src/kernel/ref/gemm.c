/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix product: C[i,j] = sum over p of op(A)[i,p] op(B)[p,j] + bias[j] + beta C[i,j], and a
 * function of that. op(A) is [m,k], op(B) [k,n]; C lies row-major with row stride ldc. Sums are
 * float64 in the order of p; C is rounded once, and the function reads the rounded value, as
 * backward will. */
#include "base/half.h"
#include "kernel/ref/halves.h"
#include "kernel/ref/ref.h"

/* Element [row,col] of op(X). */
static double element(const float *x, int64_t ld, bool trans, int64_t row, int64_t col)
{
    return (double)(trans ? x[col * ld + row] : x[row * ld + col]);
}

/* C = op(A) op(B) + beta C, then bias and activation. Sums are float64. */
void ls__ref_gemm(const ls__gemm *g, ls_stream *stream)
{
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            double sum = 0.0;
            for (int64_t p = 0; p < g->k; p++) {
                sum += element(g->a, g->lda, g->trans_a, i, p) *
                       element(g->b, g->ldb, g->trans_b, p, j);
            }
            float *c = &g->c[i * g->ldc + j], *out = g->then.out;
            ls__ref_store(c, sum + (g->bias != NULL ? (double)g->bias[j] : 0.0), g->beta);
            if (g->then.on) {
                ls__ref_unary(g->then.op, out != NULL ? &out[i * g->ldc + j] : c, c, 1, stream);
            }
        }
    }
}

/* A stride of 0 repeats an operand. */
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

/* Element [row,col] of op(X) of bfloat16. */
static double half_element(const ls__bfloat16 *x, int64_t ld, bool trans, int64_t row, int64_t col)
{
    return (double)ls__bfloat16_widen(trans ? x[col * ld + row] : x[row * ld + col]);
}

/* The only rounding of an element; bias is part of the value. */
static void half_store(const ls__gemm_bf16 *g, int64_t at, double value)
{
    float *full = (float *)g->c + at;
    ls__bfloat16 *half = (ls__bfloat16 *)g->c + at;
    if (!g->half) {
        ls__ref_store(full, value, g->beta);
    } else {
        double before = g->beta == 0.0f ? 0.0 : (double)g->beta * (double)ls__bfloat16_widen(*half);
        *half = ls__bfloat16_round((float)(value + before));
    }
}

/* From the rounded value of C, as backward will read it. */
static void half_activate(const ls__gemm_bf16 *g, int64_t at, ls_stream *stream)
{
    const ls__activation *then = &g->then;
    void *out = then->out != NULL ? then->out : g->c;
    if (then->on && g->half) {
        ls__ref_unary_bf16(then->op, (ls__bfloat16 *)out + at, (ls__bfloat16 *)g->c + at, 1,
                           stream);
    } else if (then->on) {
        ls__ref_unary(then->op, (float *)out + at, (float *)g->c + at, 1, stream);
    }
}

/* Element [i,j] of matrix `at` of the batch. */
static double half_product(const ls__gemm_bf16 *g, int64_t at, int64_t i, int64_t j)
{
    double sum = g->bias != NULL ? (double)g->bias[j] : 0.0;
    for (int64_t p = 0; p < g->k; p++) {
        sum += half_element(g->a + at * g->stride_a, g->lda, g->trans_a, i, p) *
               half_element(g->b + at * g->stride_b, g->ldb, g->trans_b, p, j);
    }
    return sum;
}

/* As ls__ref_gemm, on widened elements. */
void ls__ref_gemm_bf16(const ls__gemm_bf16 *g, ls_stream *stream)
{
    for (int64_t at = 0; at < g->batch; at++) {
        for (int64_t i = 0; i < g->m; i++) {
            for (int64_t j = 0; j < g->n; j++) {
                half_store(g, at * g->stride_c + i * g->ldc + j, half_product(g, at, i, j));
                half_activate(g, at * g->stride_c + i * g->ldc + j, stream);
            }
        }
    }
}

/* Nothing: sums are locals. */
size_t ls__ref_gemm_bf16_workspace(const ls__gemm_bf16 *g)
{
    (void)g;
    return 0;
}

/* Weight [j,p], as it stands in the product. */
static double weight(const ls__linear_rounded *l, int64_t j, int64_t p)
{
    const int64_t at = j * l->k + p;
    return l->scale != NULL ? (double)l->scale[j] * (double)((const int8_t *)l->w)[at]
                            : (double)ls__bfloat16_widen(((const ls__bfloat16 *)l->w)[at]);
}

void ls__ref_linear_rounded(const ls__linear_rounded *l, ls_stream *stream)
{
    for (int64_t i = 0; i < l->m; i++) {
        for (int64_t j = 0; j < l->n; j++) {
            float *y = &l->y[i * l->n + j];
            double sum = l->bias != NULL ? (double)l->bias[j] : 0.0;
            for (int64_t p = 0; p < l->k; p++) {
                sum += (double)l->x[i * l->k + p] * weight(l, j, p);
            }
            *y = (float)sum;
            if (l->activates) {
                ls__ref_unary(l->op, y, y, 1, stream);
            }
        }
    }
}
