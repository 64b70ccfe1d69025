/* SPDX-License-Identifier: Apache-2.0 */
/* exp, tanh and friends as straight-line code, so that `omp simd` turns them into vectors.
 *
 * Errors are stated against libm in float64 and tested over dense ranges; NaN and infinities come
 * out as in libm. The coefficients are minimax fits in the relative error of the whole function.
 */
#ifndef LS_KERNEL_CPU_VMATH_H
#define LS_KERNEL_CPU_VMATH_H

#include <math.h>
#include <string.h>

#include "kernel/cpu/isa.h"

#define LS__LOG2_E 1.44269504088896341f
#define LS__LN2_HIGH 0.693359375f /* few bits: n * it is exact */
#define LS__LN2_LOW (-2.12194440e-4f)
#define LS__ROUND 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
#define LS__SQRT_TWO_OVER_PI 0.797884560802865356f
#define LS__GELU_CUBIC 0.044715f
#define LS__ONE_OVER_SQRT_TWO_PI 0.398942280401432678f

LS__INLINE float ls__as_float(uint32_t bits)
{
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

LS__INLINE uint32_t ls__as_bits(float x)
{
    uint32_t out;
    memcpy(&out, &x, sizeof out);
    return out;
}

/* 2^n for n in -126...127, given as n + 127. */
LS__INLINE float ls__power_of_two(uint32_t biased)
{
    return ls__as_float(biased << 23);
}

/* exp(r) - 1 for |r| <= ln(2)/2: r + r^2 P(r), 1.3e-8 relative. */
LS__INLINE float ls__expm1_part(float r)
{
    float p = 1.39465306e-3f;
    p = p * r + 8.36663138e-3f;
    p = p * r + 4.16662811e-2f;
    p = p * r + 1.66665427e-1f;
    p = p * r + 5.00000006e-1f;
    return p * r * r + r;
}

/* exp(x), 2 ulp; underflows through the denormals to 0, overflows to infinity. */
LS__INLINE float ls__exp(float x)
{
    x = x < -104.0f ? -104.0f : x; /* written so that NaN stays */
    x = x > 89.0f ? 89.0f : x;
    float rounded = x * LS__LOG2_E + LS__ROUND;
    float n = rounded - LS__ROUND;
    float r = (x - n * LS__LN2_HIGH) - n * LS__LN2_LOW;
    int32_t exponent = (int32_t)(ls__as_bits(rounded) - ls__as_bits(LS__ROUND));
    int32_t half = exponent >> 1; /* two factors, because 2^-150 is not a float32 */
    float first = ls__power_of_two((uint32_t)(half + 127));
    float second = ls__power_of_two((uint32_t)(exponent - half + 127));
    return (ls__expm1_part(r) * first + first) * second;
}

/* tanh(x), 4 ulp: e/(e+2) with e = exp(2|x|) - 1 kept accurate near 0. */
LS__INLINE float ls__tanh(float x)
{
    float twice = 2.0f * fabsf(x);
    twice = twice > 19.0f ? 19.0f : twice; /* tanh(9.5) rounds to 1 */
    float rounded = twice * LS__LOG2_E + LS__ROUND;
    float n = rounded - LS__ROUND;
    float r = (twice - n * LS__LN2_HIGH) - n * LS__LN2_LOW;
    float power = ls__power_of_two(ls__as_bits(rounded) - ls__as_bits(LS__ROUND) + 127u);
    float e = ls__expm1_part(r) * power + (power - 1.0f);
    return copysignf(e / (e + 2.0f), x);
}

LS__INLINE float ls__sigmoid(float x)
{
    return 1.0f / (1.0f + ls__exp(-x));
}

/* of x sigmoid(x) */
LS__INLINE float ls__silu_derivative(float x)
{
    float s = ls__sigmoid(x);
    return s + x * s * (1.0f - s);
}

/* The normal distribution: density is exp(-x^2/2), returned with Phi(x), which near 0 and in the
 * lower tail is accurate relative to itself.
 * Phi(-a) = exp(-a^2/2) t P(t) with t = 1/(1 + 0.35 a), 3.2e-8 relative for a in 0...14. */
LS__INLINE float ls__normal_cdf(float x, float *density)
{
    float a = fabsf(x);
    float t = 1.0f / (1.0f + 0.35f * a);
    float p = -2.91459386e-2f;
    p = p * t + 1.43971737e-1f;
    p = p * t - 2.55714335e-1f;
    p = p * t + 1.59174251e-1f;
    p = p * t - 2.31098968e-2f;
    p = p * t + 1.05508030e-1f;
    p = p * t + 1.19832861e-1f;
    p = p * t + 1.39861871e-1f;
    p = p * t + 1.39621404e-1f;
    *density = ls__exp(-0.5f * x * x);
    float tail = *density * (p * t);
    return x > 0.0f ? 1.0f - tail : tail;
}

LS__INLINE float ls__gelu_erf(float x)
{
    float density;
    return x * ls__normal_cdf(x, &density);
}

LS__INLINE float ls__gelu_erf_derivative(float x)
{
    float density;
    float cdf = ls__normal_cdf(x, &density);
    return cdf + x * density * LS__ONE_OVER_SQRT_TWO_PI;
}

/* 0.5 (1 + tanh(u)) = sigmoid(2u), which keeps the lower tail accurate. */
LS__INLINE float ls__gelu_tanh(float x)
{
    float u = LS__SQRT_TWO_OVER_PI * (x + LS__GELU_CUBIC * x * x * x);
    return x * ls__sigmoid(2.0f * u);
}

LS__INLINE float ls__gelu_tanh_derivative(float x)
{
    x = x < -30.0f ? -30.0f : x; /* the derivative is 0 and 1 beyond; x^3 must not overflow */
    x = x > 30.0f ? 30.0f : x;
    float u = LS__SQRT_TWO_OVER_PI * (x + LS__GELU_CUBIC * x * x * x);
    float du = LS__SQRT_TWO_OVER_PI * (1.0f + 3.0f * LS__GELU_CUBIC * x * x);
    float s = ls__sigmoid(2.0f * u);
    return s + 2.0f * x * s * (1.0f - s) * du;
}

/* max(a, b) by lane; b where a is NaN. */
LS__INLINE ls__vec ls__vec_max(ls__vec a, ls__vec b)
{
    ls__vec_mask above = a > b;
    return (ls__vec)((above & (ls__vec_mask)a) | (~above & (ls__vec_mask)b));
}

/* The largest of x[n]; NaN is passed over (it reaches the result through the sum of exp). Written
 * out because not every compiler vectorises a float maximum. */
LS__INLINE float ls__row_max(const float *x, int64_t n)
{
    ls__vec lanes = (ls__vec){0.0f} - INFINITY;
    int64_t j = 0;
    for (; j + LS__LANES <= n; j += LS__LANES) {
        lanes = ls__vec_max(ls__load(x + j), lanes);
    }
    float max = lanes[0];
    for (int i = 1; i < LS__LANES; i++) {
        max = lanes[i] > max ? lanes[i] : max;
    }
    for (; j < n; j++) {
        max = x[j] > max ? x[j] : max;
    }
    return max;
}

#endif
