/* SPDX-License-Identifier: Apache-2.0 */
/* Philox4x32-10, a vector of blocks at once: the words of ls_philox4x32 (base/random.c cites the
 * paper), whose words 0 and 2 of the blocks come out as one array, 1 and 3 as another: first[i] and
 * second[i] are words 2i and 2i+1 of the stream from the first block on. */
#ifndef LS_KERNEL_CPU_PHILOX_H
#define LS_KERNEL_CPU_PHILOX_H

#include "base/philox.h"
#include "kernel/cpu/isa.h"

/* Products of 32-bit lanes into 64-bit lanes: one instruction everywhere, but compilers do not find
 * it from the plain expression (gcc 12 makes three to six of it). */
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

#define LS__PHILOX_PAIRS 128 /* of words made at a time, of 64 blocks */
#define LS__PHILOX_WORDS (2 * LS__PHILOX_PAIRS)

typedef struct ls__philox_key {
    uint64_t seed, stream_id;
} ls__philox_key;

typedef struct ls__philox_words {
    _Alignas(64) uint32_t first[LS__PHILOX_PAIRS];
    _Alignas(64) uint32_t second[LS__PHILOX_PAIRS];
} ls__philox_words;

/* LS__WIDE_LANES blocks; upper halves of the state hold what no later step reads. */
LS__INLINE void ls__philox_group(uint32_t *first, uint32_t *second, ls__wide block,
                                 const ls__philox_key *key)
{
    const ls__wide zero = {0};
    const ls__wide m0 = zero + (uint64_t)LS__PHILOX_M0, m1 = zero + (uint64_t)LS__PHILOX_M1;
    ls__wide c0 = block, c1 = block >> 32, c2 = zero + key->stream_id, c3 = c2 >> 32;
    uint32_t k0 = (uint32_t)key->seed, k1 = (uint32_t)(key->seed >> 32);
    for (int i = 0; i < LS__PHILOX_ROUNDS; i++) {
        ls__wide p0 = ls__wide_multiply(m0, c0), p1 = ls__wide_multiply(m1, c2);
        c0 = (p1 >> 32) ^ c1 ^ (uint64_t)k0;
        c2 = (p0 >> 32) ^ c3 ^ (uint64_t)k1;
        c1 = p1;
        c3 = p0;
        k0 += LS__PHILOX_W0;
        k1 += LS__PHILOX_W1;
    }
    *(ls__wide_words *)first = (c0 & UINT32_MAX) | c2 << 32;
    *(ls__wide_words *)second = (c1 & UINT32_MAX) | c3 << 32;
}

/* Of the blocks from `block` on. */
LS__INLINE void ls__philox_make(ls__philox_words *words, uint64_t block, const ls__philox_key *key)
{
    ls__wide lane;
    for (int i = 0; i < LS__WIDE_LANES; i++) {
        lane[i] = (uint64_t)i;
    }
    for (int b = 0; b < LS__PHILOX_PAIRS / 2; b += LS__WIDE_LANES) {
        ls__philox_group(words->first + 2 * b, words->second + 2 * b, lane + (block + (uint64_t)b),
                         key);
    }
}

#endif
