/* BLAKE2b (RFC 7693), 32 bytes of output, no key.
 *
 * Written here rather than taken from OpenSSL because every build must be able to check every
 * checkpoint, and the library needs no cryptography otherwise; it guards against damage, not
 * against an adversary. Tested against the RFC's and b2sum's results.
 */
#include "checkpoint/hash.h"

#include <stdbool.h>
#include <string.h>

#define ROUNDS 12

static const uint64_t iv[8] = {0x6a09e667f3bcc908u, 0xbb67ae8584caa73bu, 0x3c6ef372fe94f82bu,
                               0xa54ff53a5f1d36f1u, 0x510e527fade682d1u, 0x9b05688c2b3e6c1fu,
                               0x1f83d9abfb41bd6bu, 0x5be0cd19137e2179u};

static const uint8_t sigma[10][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                      {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
                                      {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
                                      {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
                                      {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
                                      {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
                                      {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
                                      {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
                                      {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
                                      {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

static inline uint64_t rotate(uint64_t x, int bits)
{
    return (x >> bits) | (x << (64 - bits));
}

static inline void mix(uint64_t *a, uint64_t *b, uint64_t *c, uint64_t *d, uint64_t x, uint64_t y)
{
    *a += *b + x;
    *d = rotate(*d ^ *a, 32);
    *c += *d;
    *b = rotate(*b ^ *c, 24);
    *a += *b + y;
    *d = rotate(*d ^ *a, 16);
    *c += *d;
    *b = rotate(*b ^ *c, 63);
}

static uint64_t load64(const uint8_t *at)
{
    uint64_t word = 0;
    for (int i = 7; i >= 0; i--) {
        word = word << 8 | at[i];
    }
    return word;
}

static void compress(ls__hash *h, const uint8_t *block, bool last)
{
    uint64_t v[16], m[16];
    for (int i = 0; i < 16; i++) {
        m[i] = load64(block + 8 * i);
        v[i] = i < 8 ? h->state[i] : iv[i - 8];
    }
    v[12] ^= h->length;
    v[14] = last ? ~v[14] : v[14];
    for (int r = 0; r < ROUNDS; r++) {
        const uint8_t *s = sigma[r % 10];
        mix(&v[0], &v[4], &v[8], &v[12], m[s[0]], m[s[1]]);
        mix(&v[1], &v[5], &v[9], &v[13], m[s[2]], m[s[3]]);
        mix(&v[2], &v[6], &v[10], &v[14], m[s[4]], m[s[5]]);
        mix(&v[3], &v[7], &v[11], &v[15], m[s[6]], m[s[7]]);
        mix(&v[0], &v[5], &v[10], &v[15], m[s[8]], m[s[9]]);
        mix(&v[1], &v[6], &v[11], &v[12], m[s[10]], m[s[11]]);
        mix(&v[2], &v[7], &v[8], &v[13], m[s[12]], m[s[13]]);
        mix(&v[3], &v[4], &v[9], &v[14], m[s[14]], m[s[15]]);
    }
    for (int i = 0; i < 8; i++) {
        h->state[i] ^= v[i] ^ v[i + 8];
    }
}

void ls__hash_init(ls__hash *h)
{
    memset(h, 0, sizeof *h);
    memcpy(h->state, iv, sizeof iv);
    h->state[0] ^= 0x01010000u ^ LS__HASH_BYTES; /* fan-out 1, depth 1, no key */
}

void ls__hash_add(ls__hash *h, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    while (bytes > 0) {
        if (h->filled == sizeof h->block) { /* kept back until more comes: it may be the last */
            h->length += sizeof h->block;
            compress(h, h->block, false);
            h->filled = 0;
        }
        for (; h->filled == 0 && bytes > sizeof h->block; bytes -= sizeof h->block) {
            h->length += sizeof h->block;
            compress(h, at, false);
            at += sizeof h->block;
        }
        size_t room = sizeof h->block - h->filled;
        size_t part = bytes < room ? bytes : room;
        memcpy(h->block + h->filled, at, part);
        h->filled += part;
        at += part;
        bytes -= part;
    }
}

void ls__hash_end(ls__hash *h, uint8_t out[LS__HASH_BYTES])
{
    memset(h->block + h->filled, 0, sizeof h->block - h->filled);
    h->length += h->filled;
    compress(h, h->block, true);
    for (int i = 0; i < LS__HASH_BYTES; i++) {
        out[i] = (uint8_t)(h->state[i / 8] >> (8 * (i % 8)));
    }
}

void ls__hash_hex(const uint8_t hash[LS__HASH_BYTES], char out[LS__HASH_HEX + 1])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < LS__HASH_BYTES; i++) {
        out[2 * i] = digits[hash[i] >> 4];
        out[2 * i + 1] = digits[hash[i] & 15];
    }
    out[LS__HASH_HEX] = '\0';
}
