/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C: by the processor's instruction where there is one, else by a table of a nibble. The
 * instruction has a latency of three cycles and a throughput of one, so long inputs are cut into
 * three parts that run side by side; a part's checksum is carried over the part behind it by
 * multiplication with x^(8*length) modulo the polynomial (a fixed length, so a fixed factor).
 * Where carry-less products of 512 bits exist, long inputs are folded instead: 256 bytes are
 * carried over the 256 behind them, again and again, and what is left is summed by the instruction
 * (Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ", Intel 2009). */
#include "base/crc32c.h"

#include <stdbool.h>
#include <string.h>

/* table[n]: the checksum of the four bits n. */
static const uint32_t table[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
    0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};

/* Four bits at a time with a table of 64 bytes: the twin that tests compare with. */
uint32_t ls__crc32c_plain(uint32_t crc, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

#if defined(__x86_64__)
#include <immintrin.h>

#define PART ((size_t)1024) /* bytes */
/* x^(8*PART-33) and x^(16*PART-33) modulo the polynomial, reflected: a carry-less product with them
 * followed by the instruction moves a checksum over PART or 2*PART bytes. */
#define OVER_ONE 0x170076faull
#define OVER_TWO 0xa51b6135ull

/* Sums by the instruction alone. Takes and returns the inverted checksum. */
__attribute__((target("sse4.2"))) static uint64_t words(uint64_t crc, const unsigned char *at,
                                                        size_t bytes)
{
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        crc = _mm_crc32_u64(crc, word);
    }
    for (; bytes > 0; at++, bytes--) {
        crc = _mm_crc32_u8((uint32_t)crc, *at);
    }
    return crc;
}

/* Moves the checksum `crc` over the distance that `factor` stands for. */
__attribute__((target("sse4.2,pclmul"))) static uint64_t carried(uint64_t crc, uint64_t factor)
{
    const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)crc),
                                                 _mm_cvtsi64_si128((int64_t)factor), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

/* Three parts of PART bytes run side by side; the first two are carried over those behind them. */
__attribute__((target("sse4.2,pclmul"))) static uint32_t fast(uint32_t before, const void *data,
                                                              size_t bytes)
{
    const unsigned char *at = data;
    uint64_t crc = ~before;
    for (; bytes >= 3 * PART; at += 3 * PART, bytes -= 3 * PART) {
        uint64_t second = 0, third = 0;
        for (size_t i = 0; i < PART; i += 8) {
            uint64_t a, b, c;
            memcpy(&a, at + i, sizeof a);
            memcpy(&b, at + PART + i, sizeof b);
            memcpy(&c, at + 2 * PART + i, sizeof c);
            crc = _mm_crc32_u64(crc, a);
            second = _mm_crc32_u64(second, b);
            third = _mm_crc32_u64(third, c);
        }
        crc = carried(crc, OVER_TWO) ^ carried(second, OVER_ONE) ^ third;
    }
    return ~(uint32_t)words(crc, at, bytes);
}

/* x^(n+32) and x^(n-32) modulo the polynomial, reflected: a product of 128 bits with them carries
 * them over n bits. */
#define CARRY_2048 0xb9e02b86ll, 0xdcb17aa4ll
#define CARRY_512 0x9e4addf8ll, 0x740eef02ll
#define CARRY_128 0x14cd00bd6ll, 0xf20c0dfell
#define FOLD ((size_t)256) /* bytes at a time */
#define WIDE __attribute__((target("avx512f,avx512bw,vpclmulqdq,pclmul,sse4.2")))

/* Carries four lanes of 128 bits over the distance of `by`, and adds what lies there. */
WIDE static __m512i carry_wide(__m512i over, __m512i by, __m512i onto)
{
    const __m512i low = _mm512_clmulepi64_epi128(over, by, 0x00);
    const __m512i high = _mm512_clmulepi64_epi128(over, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, onto, 0x96); /* all three by xor */
}

/* One lane of 128 bits. */
WIDE static __m128i carry(__m128i over, __m128i by, __m128i onto)
{
    const __m128i low = _mm_clmulepi64_si128(over, by, 0x00);
    const __m128i high = _mm_clmulepi64_si128(over, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), onto);
}

/* Folds the four registers into one lane, and reduces that to 32 bits with the instruction. */
WIDE static uint64_t folded(const __m512i x[4])
{
    const __m512i wide = _mm512_broadcast_i32x4(_mm_set_epi64x(CARRY_512));
    const __m128i narrow = _mm_set_epi64x(CARRY_128);
    const __m512i all =
        carry_wide(carry_wide(carry_wide(x[0], wide, x[1]), wide, x[2]), wide, x[3]);
    __m128i one =
        carry(_mm512_extracti32x4_epi32(all, 0), narrow, _mm512_extracti32x4_epi32(all, 1));
    one = carry(one, narrow, _mm512_extracti32x4_epi32(all, 2));
    one = carry(one, narrow, _mm512_extracti32x4_epi32(all, 3));
    const uint64_t crc = _mm_crc32_u64(0, (uint64_t)_mm_extract_epi64(one, 0));
    return _mm_crc32_u64(crc, (uint64_t)_mm_extract_epi64(one, 1));
}

/* `bytes` must be at least FOLD; the rest that is shorter than FOLD is summed by `words`. */
WIDE static uint32_t widest(uint32_t before, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    const __m512i by = _mm512_broadcast_i32x4(_mm_set_epi64x(CARRY_2048));
    __m512i x[4];
    for (int i = 0; i < 4; i++) {
        x[i] = _mm512_loadu_si512(at + 64 * i);
    }
    x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~before)));
    for (at += FOLD, bytes -= FOLD; bytes >= FOLD; at += FOLD, bytes -= FOLD) {
        for (int i = 0; i < 4; i++) {
            x[i] = carry_wide(x[i], by, _mm512_loadu_si512(at + 64 * i));
        }
    }
    return ~(uint32_t)words(folded(x), at, bytes);
}

/* Whether the processor has carry-less products of 512 bits. */
static bool has_wide(void)
{
    return __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512bw");
}

static bool has_fast(void)
{
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

/* All three paths give the same sum. */
uint32_t ls__crc32c(uint32_t crc, const void *data, size_t bytes)
{
    if (bytes >= FOLD && has_wide()) {
        return widest(crc, data, bytes);
    }
    return has_fast() ? fast(crc, data, bytes) : ls__crc32c_plain(crc, data, bytes);
}

const char *ls__crc32c_path(void)
{
    if (has_wide()) {
        return "built-in, carry-less products of AVX-512";
    }
    return has_fast() ? "built-in, CRC instructions of SSE4.2" : "a table";
}

#elif defined(__aarch64__)
#include <sys/auxv.h>

#define HAS_CRC32 (1ul << 7) /* HWCAP_CRC32 of <asm/hwcap.h>, which musl does not have */

/* By name, since the compilers' intrinsics ask for a flag that holds for a whole file. */
static uint32_t add_word(uint32_t crc, uint64_t word)
{
    __asm__(".arch_extension\tcrc\n\tcrc32cx\t%w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}

static uint32_t add_byte(uint32_t crc, unsigned char byte)
{
    __asm__(".arch_extension\tcrc\n\tcrc32cb\t%w0, %w0, %w1" : "+r"(crc) : "r"(byte));
    return crc;
}

/* One chain of instructions: two or three cycles for eight bytes. */
static uint32_t fast(uint32_t crc, const unsigned char *at, size_t bytes)
{
    crc = ~crc;
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        crc = add_word(crc, word);
    }
    for (; bytes > 0; at++, bytes--) {
        crc = add_byte(crc, *at);
    }
    return ~crc;
}

/* The instruction is optional in ARMv8.0 and always there from ARMv8.1 on. */
uint32_t ls__crc32c(uint32_t crc, const void *data, size_t bytes)
{
    return (getauxval(AT_HWCAP) & HAS_CRC32) != 0 ? fast(crc, data, bytes)
                                                  : ls__crc32c_plain(crc, data, bytes);
}

const char *ls__crc32c_path(void)
{
    return (getauxval(AT_HWCAP) & HAS_CRC32) != 0 ? "built-in, CRC instructions" : "a table";
}

#else

uint32_t ls__crc32c(uint32_t crc, const void *data, size_t bytes)
{
    return ls__crc32c_plain(crc, data, bytes);
}

const char *ls__crc32c_path(void)
{
    return "a table";
}

#endif
