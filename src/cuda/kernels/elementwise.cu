/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of one or two elements at a time, and casts. Formulas are those of kernel/ref, in forms
 * that lose no digits in float32: gelu as x times a logistic function, or through erfc. */
#include "common.cuh"

#define inline LS__CUDA_INLINE
#include "kernel/rotary.h"
#undef inline

#define SQRT_HALF 0.70710678f
#define SQRT_TWO_OVER_PI 0.79788456f
#define ONE_OVER_SQRT_TWO_PI 0.39894228f
#define GELU_CUBIC 0.044715f

static __device__ __inline__ float logistic(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* s (1 - s), of both signs alike. */
static __device__ __inline__ float logistic_slope(float x)
{
    const float e = expf(-fabsf(x));
    return e / ((1.0f + e) * (1.0f + e));
}

static __device__ __inline__ float gelu_twice_inner(float x)
{
    return 2.0f * SQRT_TWO_OVER_PI * (x + GELU_CUBIC * x * x * x);
}

static __device__ float unary_of(ls__unary op, float x)
{
    switch (op) {
    case LS__UNARY_NEG:
        return -x;
    case LS__UNARY_EXP:
        return expf(x);
    case LS__UNARY_LOG:
        return logf(x);
    case LS__UNARY_SQRT:
        return sqrtf(x);
    case LS__UNARY_TANH:
        return tanhf(x);
    case LS__UNARY_SIGMOID:
        return logistic(x);
    case LS__UNARY_RELU:
        return x < 0.0f ? 0.0f : x; /* keeps NaN */
    case LS__UNARY_GELU_ERF:
        return 0.5f * x * erfcf(-x * SQRT_HALF);
    case LS__UNARY_GELU_TANH:
        return x * logistic(gelu_twice_inner(x));
    case LS__UNARY_ABS:
        return fabsf(x);
    case LS__UNARY_SILU:
        return x * logistic(x);
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

static __device__ float derivative(ls__unary op, float x, float y)
{
    switch (op) {
    case LS__UNARY_NEG:
        return -1.0f;
    case LS__UNARY_EXP:
        return y;
    case LS__UNARY_LOG:
        return 1.0f / x;
    case LS__UNARY_SQRT:
        return 0.5f / y;
    case LS__UNARY_TANH:
        return (1.0f - y) * (1.0f + y);
    case LS__UNARY_SIGMOID:
        return y * (1.0f - y);
    case LS__UNARY_RELU:
        return x <= 0.0f ? 0.0f : 1.0f;
    case LS__UNARY_GELU_ERF:
        return 0.5f * erfcf(-x * SQRT_HALF) + x * ONE_OVER_SQRT_TWO_PI * expf(-0.5f * x * x);
    case LS__UNARY_GELU_TANH: {
        const float u = gelu_twice_inner(x);
        const float slope = 2.0f * SQRT_TWO_OVER_PI * (1.0f + 3.0f * GELU_CUBIC * x * x);
        return logistic(u) + x * logistic_slope(u) * slope;
    }
    case LS__UNARY_ABS:
        return (float)((x > 0.0f) - (x < 0.0f));
    case LS__UNARY_SILU:
        return logistic(x) + x * logistic_slope(x);
    case LS__UNARY_SIN:
        return cosf(x);
    case LS__UNARY_COS:
        return -sinf(x);
    case LS__UNARY_XLOGX:
        return logf(x) + 1.0f;
    case LS__UNARY_COUNT:
        break;
    }
    return 0.0f;
}

/* Element [j,p] of the weight, without its scale. */
static __device__ __inline__ float weight_of(const ls__linear_rounded &l, int64_t at)
{
    return l.scale != NULL ? (float)((const int8_t *)l.w)[at] : get((const ls__bfloat16 *)l.w, at);
}

KERNEL(linear_rounded)
{
    ROWS(r, k.args.m * k.args.n)
    {
        const ls__linear_rounded &l = k.args;
        const int64_t i = r / l.n, j = r % l.n;
        float sum = 0.0f;
        WITHIN(p, l.k)
        {
            sum += l.x[i * l.k + p] * weight_of(l, j * l.k + p);
        }
        sum = sum_of(sum);
        if (threadIdx.x == 0) {
            sum = l.scale != NULL ? sum * l.scale[j] : sum;
            sum = l.bias != NULL ? sum + l.bias[j] : sum;
            l.y[r] = l.activates ? unary_of(l.op, sum) : sum;
        }
    }
}

KERNEL(unary)
{
    EACH(i, k.count)
    {
        k.out[i] = unary_of(k.op, k.a[i]);
    }
}

KERNEL(unary_bf16)
{
    EACH(i, k.count)
    {
        put(k.out, i, unary_of(k.op, get(k.a, i)));
    }
}

template <class K> static __device__ __inline__ void unary_gradient(const K &k)
{
    EACH(i, k.count)
    {
        const float x = k.x != NULL ? get(k.x, i) : 0.0f, y = k.y != NULL ? get(k.y, i) : 0.0f;
        store(k.dx, i, get(k.dy, i) * derivative(k.op, x, y), k.beta);
    }
}

KERNEL(unary_backward)
{
    unary_gradient(k);
}

KERNEL(unary_backward_bf16)
{
    unary_gradient(k);
}

static __device__ __inline__ float map_of(ls__map op, float p, float q, float x)
{
    const float above = x < p ? p : x; /* written so that NaN stays */
    switch (op) {
    case LS__MAP_POW:
        return powf(x, p);
    case LS__MAP_CLAMP:
        return above > q ? q : above;
    case LS__MAP_HUBER:
        return fabsf(x) > p ? p * (fabsf(x) - 0.5f * p) : 0.5f * x * x;
    case LS__MAP_LEAKY:
        return x > 0.0f ? x : p * x;
    case LS__MAP_COUNT:
        break;
    }
    return 0.0f;
}

static __device__ __inline__ float map_derivative(ls__map op, float p, float q, float x)
{
    const float slope = x < -p ? -p : x; /* of Huber's loss */
    switch (op) {
    case LS__MAP_POW:
        return p == 0.0f ? 0.0f : p * powf(x, p - 1.0f);
    case LS__MAP_CLAMP:
        return x >= p && x <= q ? 1.0f : 0.0f;
    case LS__MAP_HUBER:
        return slope > p ? p : slope;
    case LS__MAP_LEAKY:
        return x > 0.0f ? 1.0f : p;
    case LS__MAP_COUNT:
        break;
    }
    return 0.0f;
}

KERNEL(map)
{
    EACH(i, k.count)
    {
        k.out[i] = map_of(k.op, (float)k.arg[0], (float)k.arg[1], k.a[i]);
    }
}

KERNEL(map_backward)
{
    EACH(i, k.count)
    {
        store(k.dx, i, k.dy[i] * map_derivative(k.op, (float)k.arg[0], (float)k.arg[1], k.x[i]),
              k.beta);
    }
}

static __device__ __inline__ float binary_of(ls__binary op, float a, float b)
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

KERNEL(binary)
{
    int64_t count = 1;
    for (int d = 0; d < k.ndim; d++) {
        count *= k.shape[d];
    }
    EACH(i, count)
    {
        k.out[i] = binary_of(k.op, k.a[offset_of(i, k.a_strides, k.ndim, k.shape)],
                             k.b[offset_of(i, k.b_strides, k.ndim, k.shape)]);
    }
}

KERNEL(binary_bf16)
{
    EACH(i, k.count)
    {
        put(k.out, i, binary_of(k.op, get(k.a, i), get(k.b, i)));
    }
}

KERNEL(where)
{
    int64_t count = 1;
    for (int d = 0; d < k.ndim; d++) {
        count *= k.shape[d];
    }
    EACH(i, count)
    {
        const bool chosen = k.c[offset_of(i, k.c_strides, k.ndim, k.shape)] != 0;
        k.out[i] = chosen ? k.a[offset_of(i, k.a_strides, k.ndim, k.shape)]
                          : k.b[offset_of(i, k.b_strides, k.ndim, k.shape)];
    }
}

KERNEL(axpby)
{
    EACH(i, k.count)
    {
        store(k.out, i, k.alpha * k.a[i], k.beta);
    }
}

KERNEL(axpby_bf16)
{
    EACH(i, k.count)
    {
        store(k.out, i, k.alpha * get(k.a, i), k.beta);
    }
}

KERNEL(axpby_by)
{
    const float alpha = factor_of(k.alpha);
    EACH(i, k.count)
    {
        store(k.out, i, alpha * k.a[i], k.beta);
    }
}

KERNEL(axpby_bf16_by)
{
    const float alpha = factor_of(k.alpha);
    EACH(i, k.count)
    {
        store(k.out, i, alpha * get(k.a, i), k.beta);
    }
}

KERNEL(add_scalar)
{
    EACH(i, k.count)
    {
        k.out[i] = k.a[i] + k.value;
    }
}

KERNEL(fill)
{
    EACH(i, k.count)
    {
        k.out[i] = k.value;
    }
}

KERNEL(fill_by)
{
    const float value = factor_of(k.value);
    EACH(i, k.count)
    {
        k.out[i] = value;
    }
}

KERNEL(increment)
{
    EACH(i, 1)
    {
        k.number[i] += 1;
    }
}

KERNEL(add_rows)
{
    EACH(i, k.rows * k.n)
    {
        k.y[i] += k.bias[i % k.n];
    }
}

KERNEL(bfloat16_widen)
{
    EACH(i, k.count)
    {
        store(k.out, i, get(k.in, i), k.beta);
    }
}

KERNEL(bfloat16_narrow)
{
    EACH(i, k.count)
    {
        store(k.out, i, k.in[i], k.beta);
    }
}

/* What cuBLASLt leaves to be done: of an element of C that is complete but for bias and beta. */
KERNEL(finish_product)
{
    const ls__real c = real_of(k.c, k.half), out = real_of(k.out != NULL ? k.out : k.c, k.half);
    EACH(i, k.m * k.n)
    {
        const int64_t row = i / k.n, column = i % k.n, at = row * k.ldc + column;
        float value = k.acc != NULL ? k.acc[row * k.ld_acc + column] : get(c, at);
        value += k.bias != NULL ? k.bias[column] : 0.0f;
        store(c, at, value, k.beta);
        if (k.activates) {
            put(out, at,
                unary_of(k.op, get(c, at))); /* of the rounded value, as backward reads it */
        }
    }
}

/* ---- long short-term memory ----------------------------------------------------------------- */

KERNEL(lstm_step)
{
    EACH(at, k.rows * k.n)
    {
        float *gate = k.gates + at / k.n * 4 * k.n + at % k.n;
        const float i = logistic(gate[0]), f = logistic(gate[k.n]);
        const float g = tanhf(gate[2 * k.n]), o = logistic(gate[3 * k.n]);
        const float next = i * g + (k.c != NULL ? f * k.c[at] : 0.0f);
        gate[0] = i, gate[k.n] = f, gate[2 * k.n] = g, gate[3 * k.n] = o;
        k.c_next[at] = next;
        k.h[at] = o * tanhf(next);
    }
}

KERNEL(lstm_step_backward)
{
    EACH(at, k.rows * k.n)
    {
        const int64_t place = at / k.n * 4 * k.n + at % k.n;
        const float *gate = k.gates + place;
        float *d = k.dgates + place;
        const float i = gate[0], f = gate[k.n], g = gate[2 * k.n], o = gate[3 * k.n];
        const float t = tanhf(k.c_next[at]), above = k.dh[at];
        const float through = k.dc[at] + above * o * (1.0f - t) * (1.0f + t);
        const float before = k.c != NULL ? k.c[at] : 0.0f;
        d[0] = through * g * i * (1.0f - i);
        d[k.n] = through * before * f * (1.0f - f);
        d[2 * k.n] = through * i * (1.0f - g) * (1.0f + g);
        d[3 * k.n] = above * t * o * (1.0f - o);
        k.dc[at] = through * f;
    }
}

/* ---- gated recurrent units ------------------------------------------------------------------ */

KERNEL(gru_step)
{
    EACH(at, k.rows * k.n)
    {
        const int64_t place = at / k.n * 3 * k.n + at % k.n;
        float *gate = k.gates + place;
        const float *p = k.product + place;
        const float r = logistic(gate[0] + p[0]), z = logistic(gate[k.n] + p[k.n]);
        const float value = tanhf(gate[2 * k.n] + r * p[2 * k.n]);
        k.fresh[at] = p[2 * k.n];
        gate[0] = r, gate[k.n] = z, gate[2 * k.n] = value;
        k.h[at] = k.before != NULL ? value + z * (k.before[at] - value) : value - z * value;
    }
}

KERNEL(gru_step_backward)
{
    EACH(at, k.rows * k.n)
    {
        const int64_t place = at / k.n * 3 * k.n + at % k.n;
        const float *gate = k.gates + place;
        float *d = k.dgates + place, *dp = k.dproduct + place;
        const float r = gate[0], z = gate[k.n], value = gate[2 * k.n], above = k.dh[at];
        const float before = k.before != NULL ? k.before[at] : 0.0f;
        const float dn = above * (1.0f - z) * (1.0f - value * value);
        const float dr = dn * k.fresh[at] * (r * (1.0f - r));
        const float dz = above * (before - value) * (z * (1.0f - z));
        d[0] = dp[0] = dr;
        d[k.n] = dp[k.n] = dz;
        d[2 * k.n] = dn;
        dp[2 * k.n] = dn * r;
        k.dh[at] = above * z;
    }
}

/* ---- rotary positions ----------------------------------------------------------------------- */

/* Angles of late positions need float64. */
KERNEL(rotary)
{
    const ls__rotary &r = k.args;
    const int64_t half = r.dim / 2;
    EACH(i, r.batch * r.heads * r.time * half)
    {
        const int64_t d = i % half, row = i / half, t = row % r.time;
        const int64_t h = row / r.time % r.heads, b = row / r.time / r.heads;
        const float *x = r.x + b * r.x_b + h * r.x_h + t * r.x_t;
        float *y = r.y + row * r.dim;
        const double angle = (double)(r.first + t) * ls__rotary_frequency(&r, d);
        const float c = (float)cos(angle), s = (float)(r.back ? -sin(angle) : sin(angle));
        const float low = x[d], high = x[d + half];
        store(y, d, low * c - high * s, r.beta);
        store(y, d + half, high * c + low * s, r.beta);
    }
}
