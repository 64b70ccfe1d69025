/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of an element and two numbers p and q: powers x^p, limits min(max(x, p), q), Huber's
 * loss, leaky ReLU; formulas in ref/elementwise.c. The numbers are rounded to float32 once; each
 * element is computed on its own. */
#include "kernel/cpu/vmath.h"

/* x^2 is the usual power; others go through libm, which compilers do not vectorise. */
static void power(float *out, const float *a, int64_t count, float exponent)
{
    if (exponent == 2.0f) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            out[i] = a[i] * a[i];
        }
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        out[i] = powf(a[i], exponent);
    }
}

/* Comparisons with NaN are false, so NaN passes through unchanged. */
static void limit(float *out, const float *a, int64_t count, float low, float high)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float x = a[i] < low ? low : a[i]; /* written so that NaN stays */
        out[i] = x > high ? high : x;
    }
}

/* x^2/2 up to delta, linear beyond it. */
static void huber(float *out, const float *a, int64_t count, float delta)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float size = fabsf(a[i]);
        out[i] = size > delta ? delta * (size - 0.5f * delta) : 0.5f * a[i] * a[i];
    }
}

static void leaky(float *out, const float *a, int64_t count, float slope)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        out[i] = a[i] > 0.0f ? a[i] : slope * a[i];
    }
}

/* The operator is chosen once a block; gradients likewise. */
void LS__K(map)(ls__map op, const double *arg, float *out, const float *a, int64_t count,
                ls_stream *stream)
{
    (void)stream;
    float p = (float)arg[0], q = (float)arg[1];
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK, {
        int64_t n = ls__min(LS__BLOCK, count - i);
        if (op == LS__MAP_POW) {
            power(out + i, a + i, n, p);
        } else if (op == LS__MAP_CLAMP) {
            limit(out + i, a + i, n, p, q);
        } else if (op == LS__MAP_LEAKY) {
            leaky(out + i, a + i, n, p);
        } else {
            huber(out + i, a + i, n, p);
        }
    })
}

/* value + beta *to. A beta of 0 does not read the memory, which may hold NaN. */
LS__INLINE float add(float value, float beta, const float *to)
{
    return beta == 0.0f ? value : value + beta * *to;
}

/* dx = dy p x^(p-1); an exponent of 0 has a gradient of zeros, also at 0. */
static void power_backward(float *dx, const float *dy, const float *x, int64_t count,
                           float exponent, float beta)
{
    if (exponent == 2.0f) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            dx[i] = add(dy[i] * (2.0f * x[i]), beta, dx + i);
        }
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        float slope = exponent == 0.0f ? 0.0f : exponent * powf(x[i], exponent - 1.0f);
        dx[i] = add(dy[i] * slope, beta, dx + i);
    }
}

/* dy passes where x lies within the limits, both included. */
static void limit_backward(float *dx, const float *dy, const float *x, int64_t count, float low,
                           float high, float beta)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float passed = x[i] >= low && x[i] <= high ? dy[i] : 0.0f;
        dx[i] = add(passed, beta, dx + i);
    }
}

/* dy times x, limited to -delta … delta. */
static void huber_backward(float *dx, const float *dy, const float *x, int64_t count, float delta,
                           float beta)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float slope = x[i] < -delta ? -delta : x[i]; /* written so that NaN stays */
        slope = slope > delta ? delta : slope;
        dx[i] = add(dy[i] * slope, beta, dx + i);
    }
}

static void leaky_backward(float *dx, const float *dy, const float *x, int64_t count, float slope,
                           float beta)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        dx[i] = add(x[i] > 0.0f ? dy[i] : slope * dy[i], beta, dx + i);
    }
}

/* dx = dy f'(x) + beta dx; dx may be dy. */
void LS__K(map_backward)(ls__map op, const double *arg, float *dx, const float *dy, const float *x,
                         int64_t count, float beta, ls_stream *stream)
{
    (void)stream;
    float p = (float)arg[0], q = (float)arg[1];
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK, {
        int64_t n = ls__min(LS__BLOCK, count - i);
        if (op == LS__MAP_POW) {
            power_backward(dx + i, dy + i, x + i, n, p, beta);
        } else if (op == LS__MAP_CLAMP) {
            limit_backward(dx + i, dy + i, x + i, n, p, q, beta);
        } else if (op == LS__MAP_LEAKY) {
            leaky_backward(dx + i, dy + i, x + i, n, p, beta);
        } else {
            huber_backward(dx + i, dy + i, x + i, n, p, beta);
        }
    })
}
