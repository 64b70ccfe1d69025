/* SPDX-License-Identifier: Apache-2.0 */
/* Non-temporal stores. The C library has them in memcpy, too, but only for pieces that are as large
 * as the last cache by themselves; a caller that copies much in small pieces has to ask for them.
 */
#include "base/copy.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/compiler.h"

#if defined(__SSE2__)
#include <emmintrin.h>

#define UNIT sizeof(__m128i)
#define BLOCK (4 * UNIT) /* a cache line */

/* Sixteen bytes at a time; `to` must be aligned to them, `from` need not be. */
static void copy_block(unsigned char *to, const unsigned char *from)
{
    for (size_t i = 0; i < BLOCK; i += UNIT) {
        _mm_stream_si128((__m128i *)(void *)(to + i),
                         _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
    }
}

/* Copies whole cache lines and returns the bytes copied. `to` must lie on the border of a line. */
static size_t copy_lines(unsigned char *to, const unsigned char *from, size_t bytes)
{
    size_t done = 0;
    for (; bytes - done >= BLOCK; done += BLOCK) {
        copy_block(to + done, from + done);
    }
    /* Non-temporal stores are not ordered with later ones, which may announce this copy. */
    _mm_sfence();
    return done;
}
#else
#define BLOCK ((size_t)64)

/* Without such stores a plain copy is correct, only slower. */
static size_t copy_lines(unsigned char *to, const unsigned char *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return bytes;
}
#endif

/* The C library copies with the processor's own string instruction up to a size that depends on the
 * processor, and with vectors above it, which took 1.3 times as long for a copy of 10 MB that lay
 * in another core's caches (Zen 4: 2 MiB at once 700 to 850 us, 32 to 512 KiB 530 to 600 us). */
#define PIECE_BYTES ((size_t)256 << 10)
#define CLAIMED_BYTES ((size_t)8 << 10) /* claimed while it is in the first-level cache */

/* Stores a word of each line back, atomically, since another reader may do the same. The first line
 * may have begun as somebody else's memory, so only words inside the range are stored. */
static void claim(const unsigned char *at, const unsigned char *end)
{
    const size_t word_bytes = sizeof(uint64_t);
    uintptr_t next = ((uintptr_t)at + word_bytes - 1) & ~(uintptr_t)(word_bytes - 1);
    for (; next + word_bytes <= (uintptr_t)end; next = (next | (LS__CACHE_LINE - 1)) + 1) {
        _Atomic uint64_t *word = (_Atomic uint64_t *)next;
        const uint64_t same = atomic_load_explicit(word, memory_order_relaxed);
        atomic_store_explicit(word, same, memory_order_relaxed);
    }
}

/* Note [Claimed lines] */
static bool claims_pay(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_is("amd");
#else
    return false;
#endif
}

void ls__claim_lines(const void *at, size_t bytes)
{
    if (claims_pay()) {
        claim(at, (const unsigned char *)at + bytes);
    }
}

/* Head and tail outside whole lines are copied normally. */
static void copy_past_caches(void *to, const void *from, size_t bytes)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    const size_t off = (uintptr_t)out % BLOCK, gap = off == 0 ? 0 : BLOCK - off;
    const size_t head = gap < bytes ? gap : bytes;
    memcpy(out, in, head);
    const size_t done = head + copy_lines(out + head, in + head, bytes - head);
    memcpy(out + done, in + done, bytes - done);
}

void ls__copy(void *to, const void *from, size_t bytes, unsigned how)
{
    const bool claiming = (how & LS__COPY_CLAIM) != 0 && claims_pay();
    const size_t most = claiming ? CLAIMED_BYTES : PIECE_BYTES;
    for (size_t done = 0; done < bytes; done += most) {
        const size_t piece = bytes - done < most ? bytes - done : most;
        unsigned char *out = (unsigned char *)to + done;
        const unsigned char *in = (const unsigned char *)from + done;
        if ((how & LS__COPY_PAST_CACHES) != 0) {
            copy_past_caches(out, in, piece);
        } else {
            memcpy(out, in, piece);
        }
        if (claiming) {
            ls__claim_lines(in, piece);
        }
    }
}
