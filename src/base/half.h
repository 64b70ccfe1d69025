/* SPDX-License-Identifier: Apache-2.0 */
/* float16 and bfloat16 to float32 and back, in integer arithmetic without branches: the compiler
 * vectorises it, and the bits are the same on every instruction set. Rounding is to nearest even;
 * a NaN stays a NaN (made quiet), with its sign and the upper bits of its payload. */
#ifndef LS_BASE_HALF_H
#define LS_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t ls__float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float ls__bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float ls__bfloat16_widen(uint16_t h)
{
    return ls__bits_float((uint32_t)h << 16);
}

static inline uint16_t ls__bfloat16_round(float x)
{
    const uint32_t bits = ls__float_bits(x);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t nan = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

static inline float ls__float16_widen(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t bits = (uint32_t)(h & 0x7fffu) << 13; /* exponent and mantissa in place */
    /* A subnormal m * 2^-24 is (2^-14 * (1 + m/1024)) - 2^-14, which is exact. */
    const uint32_t tiny =
        ls__float_bits(ls__bits_float(bits + 0x38800000u) - ls__bits_float(0x38800000u));
    const uint32_t normal = bits + 0x38000000u; /* the bias grows from 15 to 127 */
    uint32_t out = bits < 0x00800000u ? tiny : normal;
    out = bits >= 0x0f800000u ? (bits | 0x7f800000u) : out;
    return ls__bits_float(out | sign);
}

static inline uint16_t ls__float16_round(float x)
{
    const uint32_t bits = ls__float_bits(x);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t size = bits & 0x7fffffffu;
    /* Below 2^-14: adding 0.5, whose last place is 2^-24, lets the adder round. */
    const uint32_t tiny = ls__float_bits(ls__bits_float(size) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13;
    uint32_t out = size < 0x38800000u ? tiny : normal;
    out = size >= 0x47800000u ? 0x7c00u : out;
    out = size > 0x7f800000u ? (0x7e00u | ((size >> 13) & 0x3ffu)) : out;
    return (uint16_t)(out | sign);
}

#endif
