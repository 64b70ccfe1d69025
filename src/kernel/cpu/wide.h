/* Products of 32-bit lanes into 64-bit lanes: one instruction everywhere, but compilers do not find
 * it from the plain expression (gcc 12 makes three to six of it). */
#ifndef LS_KERNEL_CPU_WIDE_H
#define LS_KERNEL_CPU_WIDE_H

#include "kernel/cpu/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LS__WIDE_LANES (LS__LANES / 2)
typedef uint64_t ls__wide __attribute__((vector_size(LS__VEC_BYTES)));
/* The same over an array of 32-bit words, anywhere */
typedef uint64_t ls__wide_words __attribute__((vector_size(LS__VEC_BYTES), aligned(4), may_alias));

/* The lower halves of a and b, multiplied. */
LS__INLINE ls__wide ls__wide_multiply(ls__wide a, ls__wide b)
{
#if defined(__AVX512F__)
    return (ls__wide)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (ls__wide)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
    return (ls__wide)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (a & UINT32_MAX) * (b & UINT32_MAX);
#endif
}

#endif
