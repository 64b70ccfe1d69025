/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of one element, and their gradients: y = f(x), dx = dy f'; formulas in
 * ref/elementwise.c, approximations in vmath.h. `op` is a constant where the loops are inlined,
 * so each case becomes one vector loop. Elements are computed on their own, in float32; of
 * bfloat16 each is widened and rounded once. */
#include "kernel/cpu/halves.h"
#include "kernel/cpu/vmath.h"

/* f(x) in float32; `op` is a constant where this is inlined. NaN stays NaN. */
LS__INLINE float value(const ls__unary op, float x)
{
    switch (op) {
    case LS__UNARY_NEG:
        return -x;
    case LS__UNARY_EXP:
        return ls__exp(x);
    case LS__UNARY_LOG:
        return logf(x);
    case LS__UNARY_SQRT:
        return sqrtf(x);
    case LS__UNARY_TANH:
        return ls__tanh(x);
    case LS__UNARY_SIGMOID:
        return ls__sigmoid(x);
    case LS__UNARY_RELU:
        return x < 0.0f ? 0.0f : x; /* keeps NaN */
    case LS__UNARY_GELU_ERF:
        return ls__gelu_erf(x);
    case LS__UNARY_GELU_TANH:
        return ls__gelu_tanh(x);
    case LS__UNARY_ABS:
        return fabsf(x);
    case LS__UNARY_SILU:
        return x * ls__sigmoid(x);
    case LS__UNARY_SIN:
        return sinf(x);
    case LS__UNARY_COS:
        return cosf(x);
    case LS__UNARY_XLOGX:
        return x == 0.0f ? 0.0f : x * logf(x);
    case LS__UNARY_COUNT:
        break;
    }
    return 0.0f;
}

/* dy op'(x); `z` is y = op(x) for exp, sqrt, tanh and sigmoid, x for the others. */
LS__INLINE float gradient(const ls__unary op, float dy, float z)
{
    switch (op) {
    case LS__UNARY_NEG:
        return -dy;
    case LS__UNARY_EXP:
        return dy * z;
    case LS__UNARY_LOG:
        return dy / z;
    case LS__UNARY_SQRT:
        return dy * 0.5f / z;
    case LS__UNARY_TANH:
        return dy * (1.0f - z * z);
    case LS__UNARY_SIGMOID:
        return dy * (z * (1.0f - z));
    case LS__UNARY_RELU:
        return dy * (z <= 0.0f ? 0.0f : 1.0f);
    case LS__UNARY_GELU_ERF:
        return dy * ls__gelu_erf_derivative(z);
    case LS__UNARY_GELU_TANH:
        return dy * ls__gelu_tanh_derivative(z);
    case LS__UNARY_ABS:
        return dy * ((z > 0.0f ? 1.0f : 0.0f) - (z < 0.0f ? 1.0f : 0.0f));
    case LS__UNARY_SILU:
        return dy * ls__silu_derivative(z);
    case LS__UNARY_SIN:
        return dy * cosf(z);
    case LS__UNARY_COS:
        return -dy * sinf(z);
    case LS__UNARY_XLOGX:
        return dy * (logf(z) + 1.0f);
    case LS__UNARY_COUNT:
        break;
    }
    return 0.0f;
}

/* The operator is a constant in each instance, so the loop has no switch. */
LS__INLINE void forward(const ls__unary op, float *out, const float *a, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        out[i] = value(op, a[i]);
    }
}

/* dx = dy f'(z) + beta dx. Two loops, because the usual one (beta 0) must not read dx, which may
 * hold anything. */
LS__INLINE void backward(const ls__unary op, float *dx, const float *dy, const float *z,
                         int64_t count, float beta)
{
    if (beta == 0.0f) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            dx[i] = gradient(op, dy[i], z[i]);
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            dx[i] = gradient(op, dy[i], z[i]) + beta * dx[i];
        }
    }
}

/* One case an operator, calling `loop` with the operator as a constant. */
#define CASE(op, loop, ...)                                                                        \
    case op:                                                                                       \
        loop(op, __VA_ARGS__);                                                                     \
        break;
#define EACH(loop, ...)                                                                            \
    CASE(LS__UNARY_NEG, loop, __VA_ARGS__)                                                         \
    CASE(LS__UNARY_EXP, loop, __VA_ARGS__)                                                         \
    CASE(LS__UNARY_LOG, loop, __VA_ARGS__)                                                         \
    CASE(LS__UNARY_SQRT, loop, __VA_ARGS__)                                                        \
    CASE(LS__UNARY_TANH, loop, __VA_ARGS__)                                                        \
    CASE(LS__UNARY_SIGMOID, loop, __VA_ARGS__)                                                     \
    CASE(LS__UNARY_RELU, loop, __VA_ARGS__)                                                        \
    CASE(LS__UNARY_GELU_ERF, loop, __VA_ARGS__)                                                    \
    CASE(LS__UNARY_GELU_TANH, loop, __VA_ARGS__)                                                   \
    CASE(LS__UNARY_ABS, loop, __VA_ARGS__)                                                         \
    CASE(LS__UNARY_SILU, loop, __VA_ARGS__)                                                        \
    CASE(LS__UNARY_SIN, loop, __VA_ARGS__)                                                         \
    CASE(LS__UNARY_COS, loop, __VA_ARGS__)                                                         \
    CASE(LS__UNARY_XLOGX, loop, __VA_ARGS__)

/* One thread: for callers that have a block of their own in the cache. */
void LS__K(unary_block)(ls__unary op, float *out, const float *a, int64_t count)
{
    switch (op) {
        EACH(forward, out, a, count)
    case LS__UNARY_COUNT:
        break;
    }
}

/* z is x or y, as ls__unary_reads says for the operator. */
void LS__K(unary_backward_block)(ls__unary op, float *dx, const float *dy, const float *z,
                                 int64_t count, float beta)
{
    switch (op) {
        EACH(backward, dx, dy, z, count, beta)
    case LS__UNARY_COUNT:
        break;
    }
}

/* By blocks of LS__BLOCK elements, a task each. */
void LS__K(unary)(ls__unary op, float *out, const float *a, int64_t count, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK, {
        LS__K(unary_block)(op, out + i, a + i, ls__min(LS__BLOCK, count - i));
    })
}

/* dx = dy f' + beta dx, by blocks; dx may be dy. x or y may be NULL where the operator does not
 * read it. */
void LS__K(unary_backward)(ls__unary op, float *dx, const float *dy, const float *x, const float *y,
                           int64_t count, float beta, ls_stream *stream)
{
    (void)stream;
    const float *z = ls__unary_reads(op, dy, x, y);
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK, {
        LS__K(unary_backward_block)(op, dx + i, dy + i, z + i, ls__min(LS__BLOCK, count - i), beta);
    })
}

/* c += bias, out = op(c); out may be c. */
LS__INLINE void biased(const ls__unary op, float *c, float *out, const float *bias, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float z = c[i] + bias[i];
        c[i] = z;
        out[i] = value(op, z);
    }
}

/* c keeps c + bias, which backward may read, unless out is c and overwrites it. */
void LS__K(unary_biased_block)(ls__unary op, float *c, float *out, const float *bias, int64_t count)
{
    switch (op) {
        EACH(biased, c, out, bias, count)
    case LS__UNARY_COUNT:
        break;
    }
}

/* ---- bfloat16 ----------------------------------------------------------------------------- */

/* Widened and rounded element by element inside one loop: nothing is written in between. */
LS__INLINE void forward_halves(const ls__unary op, ls__bfloat16 *out, const ls__bfloat16 *a,
                               int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        out[i] = ls__bfloat16_round(value(op, ls__bfloat16_widen(a[i])));
    }
}

/* One thread, as unary_block. */
void LS__K(unary_block_bf16)(ls__unary op, ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count)
{
    switch (op) {
        EACH(forward_halves, out, a, count)
    case LS__UNARY_COUNT:
        break;
    }
}

/* By blocks, as unary. */
void LS__K(unary_bf16)(ls__unary op, ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count,
                       ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK, {
        LS__K(unary_block_bf16)(op, out + i, a + i, ls__min(LS__BLOCK, count - i));
    })
}

/* Computed in float32 and rounded once. */
LS__INLINE void backward_halves(const ls__unary op, ls__bfloat16 *dx, const ls__bfloat16 *dy,
                                const ls__bfloat16 *z, int64_t count, float beta)
{
    if (beta == 0.0f) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            dx[i] = ls__bfloat16_round(
                gradient(op, ls__bfloat16_widen(dy[i]), ls__bfloat16_widen(z[i])));
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            float d = gradient(op, ls__bfloat16_widen(dy[i]), ls__bfloat16_widen(z[i]));
            dx[i] = ls__bfloat16_round(d + beta * ls__bfloat16_widen(dx[i]));
        }
    }
}

/* One thread, as unary_backward_block. */
void LS__K(unary_backward_block_bf16)(ls__unary op, ls__bfloat16 *dx, const ls__bfloat16 *dy,
                                      const ls__bfloat16 *z, int64_t count, float beta)
{
    switch (op) {
        EACH(backward_halves, dx, dy, z, count, beta)
    case LS__UNARY_COUNT:
        break;
    }
}

/* By blocks, as unary_backward. */
void LS__K(unary_backward_bf16)(ls__unary op, ls__bfloat16 *dx, const ls__bfloat16 *dy,
                                const ls__bfloat16 *x, const ls__bfloat16 *y, int64_t count,
                                float beta, ls_stream *stream)
{
    (void)stream;
    const ls__bfloat16 *z = ls__unary_reads(op, dy, x, y);
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK, {
        LS__K(unary_backward_block_bf16)
        (op, dx + i, dy + i, z + i, ls__min(LS__BLOCK, count - i), beta);
    })
}
