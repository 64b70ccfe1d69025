/* Non-temporal stores. The C library has them in memcpy, too, but only for pieces that are as large
 * as the last cache by themselves; a caller that copies much in small pieces has to ask for them.
 */
#include "base/copy.h"

#include <stdint.h>
#include <string.h>

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

/* Head and tail outside whole lines are copied normally. */
void ls__copy_past_caches(void *to, const void *from, size_t bytes)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    const size_t off = (uintptr_t)out % BLOCK, gap = off == 0 ? 0 : BLOCK - off;
    const size_t head = gap < bytes ? gap : bytes;
    memcpy(out, in, head);
    const size_t done = head + copy_lines(out + head, in + head, bytes - head);
    memcpy(out + done, in + done, bytes - done);
}
