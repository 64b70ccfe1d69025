/* Functions of one element, and their gradients. `op` is a constant where the loops are inlined, so
 * each case becomes one vector loop. */
#include "kernel/cpu/halves.h"
#include "kernel/cpu/vmath.h"

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
    case LS__UNARY_COUNT:
        break;
    }
    return 0.0f;
}

static bool reads_output(ls__unary op)
{
    return op == LS__UNARY_EXP || op == LS__UNARY_SQRT || op == LS__UNARY_TANH ||
           op == LS__UNARY_SIGMOID;
}

LS__INLINE void forward(const ls__unary op, float *out, const float *a, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        out[i] = value(op, a[i]);
    }
}

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
    CASE(LS__UNARY_SILU, loop, __VA_ARGS__)

static void forward_block(ls__unary op, float *out, const float *a, int64_t count)
{
    switch (op) {
        EACH(forward, out, a, count)
    case LS__UNARY_COUNT:
        break;
    }
}

static void backward_block(ls__unary op, float *dx, const float *dy, const float *z, int64_t count,
                           float beta)
{
    switch (op) {
        EACH(backward, dx, dy, z, count, beta)
    case LS__UNARY_COUNT:
        break;
    }
}

void LS__K(unary)(ls__unary op, float *out, const float *a, int64_t count, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK,
                     { forward_block(op, out + i, a + i, ls__min(LS__BLOCK, count - i)); })
}

void LS__K(unary_backward)(ls__unary op, float *dx, const float *dy, const float *x, const float *y,
                           int64_t count, float beta, ls_stream *stream)
{
    (void)stream;
    const float *z = reads_output(op) ? y : op == LS__UNARY_NEG ? dy : x;
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK, {
        backward_block(op, dx + i, dy + i, z + i, ls__min(LS__BLOCK, count - i), beta);
    })
}

static void forward_halves(ls__unary op, ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count)
{
    _Alignas(64) float x[LS__HALF_BLOCK];
    for (int64_t i = 0; i < count; i += LS__HALF_BLOCK) {
        int64_t n = ls__min(LS__HALF_BLOCK, count - i);
        ls__halves_widen(x, a + i, n);
        forward_block(op, x, x, n);
        ls__halves_narrow(out + i, x, n);
    }
}

void LS__K(unary_bf16)(ls__unary op, ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count,
                       ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK,
                     { forward_halves(op, out + i, a + i, ls__min(LS__BLOCK, count - i)); })
}

static void backward_halves(ls__unary op, ls__bfloat16 *dx, const ls__bfloat16 *dy,
                            const ls__bfloat16 *z, int64_t count, float beta)
{
    _Alignas(64) float wide_dx[LS__HALF_BLOCK], wide_dy[LS__HALF_BLOCK], wide_z[LS__HALF_BLOCK];
    for (int64_t i = 0; i < count; i += LS__HALF_BLOCK) {
        int64_t n = ls__min(LS__HALF_BLOCK, count - i);
        ls__halves_widen(wide_dy, dy + i, n);
        ls__halves_widen(wide_z, z + i, n);
        if (beta != 0.0f) {
            ls__halves_widen(wide_dx, dx + i, n);
        }
        backward_block(op, wide_dx, wide_dy, wide_z, n, beta);
        ls__halves_narrow(dx + i, wide_dx, n);
    }
}

void LS__K(unary_backward_bf16)(ls__unary op, ls__bfloat16 *dx, const ls__bfloat16 *dy,
                                const ls__bfloat16 *x, const ls__bfloat16 *y, int64_t count,
                                float beta, ls_stream *stream)
{
    (void)stream;
    const ls__bfloat16 *z = reads_output(op) ? y : op == LS__UNARY_NEG ? dy : x;
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK, {
        backward_halves(op, dx + i, dy + i, z + i, ls__min(LS__BLOCK, count - i), beta);
    })
}
