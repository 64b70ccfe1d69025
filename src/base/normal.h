/* SPDX-License-Identifier: Apache-2.0 */
/* Two standard normal numbers of two 32-bit words, as straight-line float32 code: the public
 * function and the kernels of every instruction set include it, so their bits are equal. For that
 * it must be compiled without contraction (-ffp-contract=off) and rounds after each operation.
 *
 * Box & Muller 1958: sqrt(-2 ln u) cos a and sqrt(-2 ln u) sin a of u in (0,1] and a in [0,2 pi),
 * both of 32 bits, none of which is lost where it matters: neither near u = 1, where the logarithm
 * is as small as 2^-32, nor in the tails (up to 6.66), nor near the zeros of cos and sin. So each
 * number is within 4e-7 of what its words mean, relative to itself; tested against float64. The
 * coefficients are minimax fits in the relative error of the whole function.
 *
 * A change here changes the meaning of every seed: the first weights of a model depend on no
 * mathematics library, compiler or processor (tests/unit/nn/initial.c stores their hashes).
 */
#ifndef LS_BASE_NORMAL_H
#define LS_BASE_NORMAL_H

#include <math.h>

#include "base/half.h"

#define LS__SQRT_HALF_BITS 0x3f3504f3u /* of the float32 next to sqrt(1/2) */
#define LS__MANTISSA_BITS 23

/* ln((word + 1) 2^-32), 2e-7: of 2^e (1 + f) with 1 + f in sqrt(1/2) ... sqrt(2). */
static inline float ls__normal_log(uint32_t word)
{
    /* halves, because a word may be more than an int32 holds; rounded once */
    const float high = (float)(int32_t)(word >> 16) * 65536.0f;
    const float u = (high + (float)(int32_t)((word & 0xffffu) + 1u)) * 0x1p-32f;
    uint32_t bits = ls__float_bits(u) - LS__SQRT_HALF_BITS;
    const int32_t exponent = (int32_t)bits >> LS__MANTISSA_BITS;
    bits = (bits & ((1u << LS__MANTISSA_BITS) - 1u)) + LS__SQRT_HALF_BITS;
    /* u - 1 from the word itself, of which u has lost bits */
    const float f = exponent == 0 ? (float)(int32_t)~word * -0x1p-32f : ls__bits_float(bits) - 1.0f;
    const float square = f * f;
    float p = -7.63571411e-2f; /* (ln(1 + f) - f + f^2/2) / f^3, 5.9e-9 */
    p = p * f + 1.27619430e-1f;
    p = p * f - 1.31597251e-1f;
    p = p * f + 1.42016217e-1f;
    p = p * f - 1.66234046e-1f;
    p = p * f + 2.00012401e-1f;
    p = p * f - 2.50008196e-1f;
    p = p * f + 3.33333313e-1f;
    const float e = (float)exponent;
    const float low = p * f * square - 0.5f * square + e * -2.12194440e-4f; /* ln 2 in two parts, */
    return (low + f) + e * 0.693359375f; /* of which e times the larger is exact */
}

/* cos and sin of 2 pi word 2^-32, 2e-7: of the nearest quarter turn and the rest, within pi/4. */
static inline void ls__normal_turn(uint32_t word, float *cosine, float *sine)
{
    const uint32_t quarter = (word + (1u << 29)) >> 30;
    const float a = (float)(int32_t)(word - (quarter << 30)) * 1.46291807926715968e-9f;
    const float z = a * a;
    float s = -1.95182889e-4f; /* (sin a - a) / a^3, 4e-9 */
    s = s * z + 8.33218917e-3f;
    s = s * z - 1.66666552e-1f;
    s = s * z * a + a;
    float c = 2.44323273e-5f; /* (cos a - 1 + a^2/2) / a^4, 1.2e-10 */
    c = c * z - 1.38873095e-3f;
    c = c * z + 4.16666456e-2f;
    c = c * z * z - 0.5f * z + 1.0f;
    const float across = (quarter & 1u) != 0 ? s : c, along = (quarter & 1u) != 0 ? c : s;
    *cosine = ((quarter + 1u) & 2u) != 0 ? -across : across;
    *sine = (quarter & 2u) != 0 ? -along : along;
}

/* first, second: words 2k and 2k+1 of a stream; *even, *odd: its normal numbers 2k and 2k+1. */
static inline void ls__normal_pair(uint32_t first, uint32_t second, float *even, float *odd)
{
    float cosine, sine;
    ls__normal_turn(second, &cosine, &sine);
    const float radius = sqrtf(-2.0f * ls__normal_log(first));
    *even = radius * cosine;
    *odd = radius * sine;
}

#endif
