/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of two operands with broadcasting, and the simple one-pass loops; formulas in
 * ref/elementwise.c. Every element is computed on its own in float32, so neither threads nor
 * vectors change a bit. Large outputs are cut into blocks of LS__BLOCK elements, a task each. */
#include "kernel/cpu/halves.h"
#include "kernel/cpu/walk.h"

/* A NaN in either operand is the result of MAX and MIN, as in PyTorch. SHARE is b's part of a
 * maximum's gradient, which equal operands share. */
LS__INLINE float apply(const ls__binary op, float a, float b)
{
    switch (op) {
    case LS__BINARY_ADD:
        return a + b;
    case LS__BINARY_SUB:
        return a - b;
    case LS__BINARY_MUL:
        return a * b;
    case LS__BINARY_DIV:
        return a / b;
    case LS__BINARY_MAX:
        return a != a || a > b ? a : b;
    case LS__BINARY_MIN:
        return a != a || a < b ? a : b;
    case LS__BINARY_SHARE:
        return a < b ? 0.0f : a == b ? 0.5f : 1.0f;
    case LS__BINARY_COUNT:
        break;
    }
    return 0.0f;
}

/* One row; the usual strides are constants where this is inlined. */
LS__INLINE void row_strided(const ls__binary op, float *out, const float *a, int64_t sa,
                            const float *b, int64_t sb, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        out[i] = apply(op, a[i * sa], b[i * sb]);
    }
}

/* The layouts of broadcasting get loops of their own; only those with constant strides become
 * vector loops. */
LS__INLINE void row_of(const ls__binary op, float *out, const float *a, int64_t sa, const float *b,
                       int64_t sb, int64_t count)
{
    if (sa == 1 && sb == 1) {
        row_strided(op, out, a, 1, b, 1, count);
    } else if (sa == 1 && sb == 0) {
        row_strided(op, out, a, 1, b, 0, count);
    } else if (sa == 0 && sb == 1) {
        row_strided(op, out, a, 0, b, 1, count);
    } else {
        row_strided(op, out, a, sa, b, sb, count);
    }
}

/* One switch a row: inside, the operator is a constant and the loop a vector loop. */
static void row(ls__binary op, float *out, const float *a, int64_t sa, const float *b, int64_t sb,
                int64_t count)
{
    switch (op) {
    case LS__BINARY_ADD:
        row_of(LS__BINARY_ADD, out, a, sa, b, sb, count);
        break;
    case LS__BINARY_SUB:
        row_of(LS__BINARY_SUB, out, a, sa, b, sb, count);
        break;
    case LS__BINARY_MUL:
        row_of(LS__BINARY_MUL, out, a, sa, b, sb, count);
        break;
    case LS__BINARY_DIV:
        row_of(LS__BINARY_DIV, out, a, sa, b, sb, count);
        break;
    case LS__BINARY_MAX:
        row_of(LS__BINARY_MAX, out, a, sa, b, sb, count);
        break;
    case LS__BINARY_MIN:
        row_of(LS__BINARY_MIN, out, a, sa, b, sb, count);
        break;
    case LS__BINARY_SHARE:
        row_of(LS__BINARY_SHARE, out, a, sa, b, sb, count);
        break;
    case LS__BINARY_COUNT:
        break;
    }
}

/* Long rows are cut into pieces, so that a single row still occupies all threads. out is contiguous
 * and may be a or b where those are not broadcast. */
void LS__K(binary)(ls__binary op, float *out, const float *a, ls__strided a_strides, const float *b,
                   ls__strided b_strides, int ndim, const int64_t *shape, ls_stream *stream)
{
    (void)stream;
    ls__kernel_walk w = ls__walk_of(ndim, shape, a_strides, b_strides);
    int64_t sa = w.a.stride[w.ndim - 1], sb = w.b.stride[w.ndim - 1];
    int64_t pieces = (w.width + LS__BLOCK - 1) / LS__BLOCK; /* of a row */
    LS__PARALLEL_FOR(w.rows * w.width >= LS__PARALLEL_MIN, int64_t task = 0, task < w.rows * pieces,
                     task++, {
                         int64_t i = task / pieces, from = task % pieces * LS__BLOCK, at_a, at_b;
                         ls__walk_row(&w, i, &at_a, &at_b);
                         row(op, out + i * w.width + from, a + at_a + from * sa, sa,
                             b + at_b + from * sb, sb, ls__min(LS__BLOCK, w.width - from));
                     })
}

/* A beta of 0 does not read out, which may hold NaN. */
static void axpby_block(float *out, const float *a, int64_t count, float alpha, float beta)
{
    if (beta == 0.0f) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            out[i] = alpha * a[i];
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            out[i] = alpha * a[i] + beta * out[i];
        }
    }
}

/* out = alpha a + beta out, for any beta. */
void LS__K(axpby)(float *out, const float *a, int64_t count, float alpha, float beta,
                  ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK,
                     { axpby_block(out + i, a + i, ls__min(LS__BLOCK, count - i), alpha, beta); })
}

/* One task of add_scalar. */
static void add_block(float *out, const float *a, int64_t count, float value)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        out[i] = a[i] + value;
    }
}

/* out = a + value. */
void LS__K(add_scalar)(float *out, const float *a, int64_t count, float value, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK,
                     { add_block(out + i, a + i, ls__min(LS__BLOCK, count - i), value); })
}

/* One task of fill. */
static void fill_block(float *out, int64_t count, float value)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        out[i] = value;
    }
}

/* Every element becomes `value`. */
void LS__K(fill)(float *out, int64_t count, float value, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK,
                     { fill_block(out + i, ls__min(LS__BLOCK, count - i), value); })
}

/* The number is read here, when the kernel runs. */
static float value_of(ls__factor f)
{
    return (float)(f.times * (double)*f.at / f.over);
}

void LS__K(axpby_by)(float *out, const float *a, int64_t count, ls__factor alpha, float beta,
                     ls_stream *stream)
{
    LS__K(axpby)(out, a, count, value_of(alpha), beta, stream);
}

void LS__K(fill_by)(float *out, int64_t count, ls__factor value, ls_stream *stream)
{
    LS__K(fill)(out, count, value_of(value), stream);
}

/* ---- bfloat16 ----------------------------------------------------------------------------- */

/* Operands of either type are brought to float32 block by block; a float32 operand is read where it
 * lies. */
static void row_real(ls__binary op, ls__real out, ls__real a, ls__real b, int64_t from, int64_t end)
{
    _Alignas(64) float wide_out[LS__HALF_BLOCK], wide_a[LS__HALF_BLOCK], wide_b[LS__HALF_BLOCK];
    for (int64_t i = from; i < end; i += LS__HALF_BLOCK) {
        int64_t n = ls__min(LS__HALF_BLOCK, end - i);
        const float *x = ls__real_read(wide_a, a, i, n), *y = ls__real_read(wide_b, b, i, n);
        row(op, ls__real_write(wide_out, out, i), x, 1, y, 1, n);
        ls__real_written(wide_out, out, i, n);
    }
}

/* Operands of one shape; broadcasting is the caller's. Each element is rounded once. */
void LS__K(binary_bf16)(ls__binary op, ls__real out, ls__real a, ls__real b, int64_t count,
                        ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK,
                     { row_real(op, out, a, b, i, i + ls__min(LS__BLOCK, count - i)); })
}

/* The sum is float32 and is rounded once an element. */
static void axpby_halves(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count, float alpha,
                         float beta)
{
    _Alignas(64) float sum[LS__HALF_BLOCK], x[LS__HALF_BLOCK];
    for (int64_t i = 0; i < count; i += LS__HALF_BLOCK) {
        int64_t n = ls__min(LS__HALF_BLOCK, count - i);
        ls__halves_widen(x, a + i, n);
        if (beta != 0.0f) {
            ls__halves_widen(sum, out + i, n);
        }
        axpby_block(sum, x, n, alpha, beta);
        ls__halves_narrow(out + i, sum, n);
    }
}

/* As axpby, of bfloat16: float32 inside, rounded once an element. */
void LS__K(axpby_bf16)(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count, float alpha,
                       float beta, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK,
                     { axpby_halves(out + i, a + i, ls__min(LS__BLOCK, count - i), alpha, beta); })
}

void LS__K(axpby_bf16_by)(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count, ls__factor alpha,
                          float beta, ls_stream *stream)
{
    LS__K(axpby_bf16)(out, a, count, value_of(alpha), beta, stream);
}
