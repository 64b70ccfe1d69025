/* SPDX-License-Identifier: Apache-2.0 */
/* SipHash-1-3: one round a word, three at the end. The state is four words; see the paper's figure
 * 2. */
#include "base/siphash.h"

typedef struct state {
    uint64_t a, b, c, d;
} state;

static uint64_t rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static void mix(state *s)
{
    s->a += s->b;
    s->c += s->d;
    s->b = rotate(s->b, 13) ^ s->a;
    s->d = rotate(s->d, 16) ^ s->c;
    s->a = rotate(s->a, 32);
    s->c += s->b;
    s->a += s->d;
    s->b = rotate(s->b, 17) ^ s->c;
    s->d = rotate(s->d, 21) ^ s->a;
    s->c = rotate(s->c, 32);
}

static void take_word(state *s, uint64_t word)
{
    s->d ^= word;
    mix(s);
    s->a ^= word;
}

/* `count` bytes as a little-endian number. */
static uint64_t load(const unsigned char *from, size_t count)
{
    uint64_t word = 0;
    for (size_t i = 0; i < count; i++) {
        word |= (uint64_t)from[i] << 8 * i;
    }
    return word;
}

uint64_t ls__siphash(const ls__siphash_key *key, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    state s = {key->word[0] ^ 0x736f6d6570736575u, key->word[1] ^ 0x646f72616e646f6du,
               key->word[0] ^ 0x6c7967656e657261u, key->word[1] ^ 0x7465646279746573u};
    size_t left = bytes;
    for (; left >= 8; left -= 8, at += 8) {
        take_word(&s, load(at, 8));
    }
    take_word(&s, (uint64_t)bytes << 56 | load(at, left));
    s.c ^= 0xff;
    for (int i = 0; i < 3; i++) {
        mix(&s);
    }
    return s.a ^ s.b ^ s.c ^ s.d;
}
