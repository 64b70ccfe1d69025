/* SPDX-License-Identifier: Apache-2.0 */
/* Which matrix product runs, and how it is cut among threads.
 *
 * A product above SPLIT_MIN operations is cut along the longer side of C into parts whose number
 * depends on the shape alone, because oneDNN's bits may change with the part (gemm_cut.h). A part
 * of 256 or more costs at most a few percent on one thread (the other operand is packed again for
 * each).
 *
 * Note [A lying the other way]
 * dnnl_sgemm is slow where A is transposed and wide (weight gradients: 60 to 100 GF/s where the
 * plain product makes 120 to 130; 2.6.3, AVX-512). So such an A is transposed piece by piece in a
 * buffer on the stack, which costs some 0.2 ns an element, and the plain product runs on the
 * pieces.
 */
#include "kernel/cpu/gemm_cut.h"
#include "kernel/cpu/isa.h"
#include "kernel/cpu/onednn.h"
#include "kernel/cpu/transpose.h"

#define SPLIT_MIN (1 << 25)        /* multiply-adds: about 0.4 ms on one thread */
#define BUILTIN_MAX (32 * 32 * 32) /* below, oneDNN's call costs more than its kernel gains */
#define TINY_MAX 1024              /* the same where C is narrower than a vector */
#define TRANSPOSED_ROWS (LS__PART_MIN + LS__CUT_UNIT) /* of a part */
#define TRANSPOSED_DEPTH 256 /* with these rows 272 KiB of stack, half of most L2 caches */

/* One product on this thread, C = op(A) op(B) + beta C; bias and activation come later. Both
 * kernels have a range of shapes where their call costs least; the shape alone chooses, so the
 * bits do not depend on the threads. */
static void run_product(const ls__gemm *g)
{
    int64_t work = g->m * g->n * g->k;
    bool tiny = work <= TINY_MAX || (work <= BUILTIN_MAX && g->n >= LS__LANES);
    if (tiny || !ls__onednn_gemm(g)) {
        LS__K(gemm_builtin)(g);
    }
}

/* c += bias, out = op(c). Where then.out is given, C keeps the value before the activation,
 * which backward reads. */
static void finish_row(const ls__gemm *g, int64_t i)
{
    float *c = g->c + i * g->ldc;
    float *out = g->then.out != NULL ? (float *)g->then.out + i * g->ldc : c;
    if (g->then.on && g->bias != NULL) {
        LS__K(unary_biased_block)(g->then.op, c, out, g->bias, g->n);
    } else if (g->then.on) {
        LS__K(unary_block)(g->then.op, out, c, g->n);
    } else {
#pragma omp simd
        for (int64_t j = 0; j < g->n; j++) {
            c[j] += g->bias[j];
        }
    }
}

/* Bias and activation of a complete part. */
static void finish_product(const ls__gemm *g, bool parallel)
{
    if (g->bias != NULL || g->then.on) {
        LS__PARALLEL_FOR(parallel && g->m * g->n >= LS__PARALLEL_MIN, int64_t i = 0, i < g->m, i++,
                         { finish_row(g, i); })
    }
}

static void scale(const ls__gemm *g) /* k = 0: the product is zero */
{
    for (int64_t i = 0; g->beta == 0.0f && i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            g->c[i * g->ldc + j] = 0.0f;
        }
    }
}

/* C[rows of g, n] = A^T B + beta C with g->m <= TRANSPOSED_ROWS; see Note [A lying the other
 * way]. */
static void run_transposed(const ls__gemm *g)
{
    _Alignas(64) float transposed[TRANSPOSED_ROWS * TRANSPOSED_DEPTH];
    for (int64_t p = 0; p < g->k; p += TRANSPOSED_DEPTH) {
        ls__gemm piece = *g;
        piece.k = ls__min(TRANSPOSED_DEPTH, g->k - p);
        ls__transpose(transposed, TRANSPOSED_DEPTH, g->a + p * g->lda, g->lda, piece.k, g->m, 1.0f);
        piece.trans_a = false;
        piece.a = transposed;
        piece.lda = TRANSPOSED_DEPTH;
        piece.b = g->b + p * g->ldb;
        piece.beta = p > 0 ? 1.0f : g->beta;
        run_product(&piece);
    }
}

/* Only oneDNN is slow this way; the built-in product reads A by strides. */
static bool is_transposed(const ls__gemm *g)
{
    return g->trans_a && !g->trans_b && ls__onednn_present();
}

/* Smaller products would lose more by packing the other operand again than threads gain. */
static bool is_split(const ls__gemm *g)
{
    return g->m * g->n * g->k >= SPLIT_MIN && (g->m > LS__PART_MIN || g->n > LS__PART_MIN);
}

/* Part [from, from+count) of C's rows or columns. */
static ls__gemm part_of(const ls__gemm *g, bool rows, int64_t from, int64_t count)
{
    ls__gemm part = *g;
    int64_t at = rows ? from * g->ldc : from;
    part.c += at;
    part.then.out = g->then.out != NULL ? (float *)g->then.out + at : NULL;
    if (rows) {
        part.m = count;
        part.a += g->trans_a ? from : from * g->lda;
    } else {
        part.n = count;
        part.b += g->trans_b ? from * g->ldb : from;
        part.bias = g->bias != NULL ? g->bias + from : NULL;
    }
    return part;
}

/* Parts follow from the shape alone; see the head of the file. Bias and activation run on a part
 * while it lies in the cache. */
static void run_split(const ls__gemm *g)
{
    bool transposed = is_transposed(g), rows = transposed || g->m >= g->n;
    int64_t side = rows ? g->m : g->n, parts = ls__parts_of(side, transposed);
    LS__PARALLEL_FOR(true, int64_t i = 0, i < parts, i++, {
        int64_t from = ls__part_from(side, parts, i);
        ls__gemm part = part_of(g, rows, from, ls__part_from(side, parts, i + 1) - from);
        if (transposed) {
            run_transposed(&part);
        } else {
            run_product(&part);
        }
        finish_product(&part, false);
    })
}

/* With k = 0 the product is zero; bias and activation still run. */
void LS__K(gemm)(const ls__gemm *g, ls_stream *stream)
{
    (void)stream;
    if (g->m <= 0 || g->n <= 0) {
        return;
    }
    if (g->k > 0 && is_split(g)) {
        run_split(g);
        return;
    }
    if (g->k > 0) {
        run_product(g);
    } else {
        scale(g);
    }
    finish_product(g, true);
}

/* Large products share their parts among the threads; many small ones are shared as a whole. Never
 * both, so threads do not nest. */
void LS__K(gemm_batch)(const ls__gemm *g, int64_t batch, int64_t stride_a, int64_t stride_b,
                       int64_t stride_c, ls_stream *stream)
{
    bool parallel = !is_split(g) && batch > 1 && g->m * g->n * g->k * batch >= SPLIT_MIN;
    LS__PARALLEL_FOR(parallel, int64_t i = 0, i < batch, i++, {
        ls__gemm one = *g;
        one.a = g->a + i * stride_a;
        one.b = g->b + i * stride_b;
        one.c = g->c + i * stride_c;
        LS__K(gemm)(&one, stream);
    })
}
