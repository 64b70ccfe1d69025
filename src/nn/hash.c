/* SPDX-License-Identifier: Apache-2.0 */
/* A 64-bit hash of a model: equal names and bytes give equal hashes, so replicas can be compared by
 * eight bytes. It is xxh64's round over 8-byte words and its final mixing (Collet); not meant
 * against an adversary. Four lanes, because one would wait for its own multiplication.
 */
#include "nn/module.h"
#include "tensor/tensor.h"

#include <string.h>

#include "base/error.h"

#define PRIME_1 0x9E3779B185EBCA87u
#define PRIME_2 0xC2B2AE3D27D4EB4Fu
#define PRIME_3 0x165667B19E3779F9u

/* To the left; 0 < bits < 64. */
static uint64_t rotate(uint64_t x, int bits)
{
    return (x << bits) | (x >> (64 - bits));
}

/* One round of xxh64. */
static uint64_t mix_word(uint64_t hash, uint64_t word)
{
    return rotate(hash + word * PRIME_2, 31) * PRIME_1;
}

/* The final mixing: every bit of the input reaches every bit of the result. */
static uint64_t finish_hash(uint64_t hash)
{
    hash = (hash ^ (hash >> 33)) * PRIME_2;
    hash = (hash ^ (hash >> 29)) * PRIME_3;
    return hash ^ (hash >> 32);
}

/* The last piece is padded with zeros; the length is mixed in, so that padding cannot stand for
 * data. */
uint64_t ls__hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    uint64_t word[4], lane[4] = {hash, hash + PRIME_1, hash + PRIME_2, hash + PRIME_3};
    size_t left = bytes;
    for (; left >= sizeof word; left -= sizeof word, at += sizeof word) {
        memcpy(word, at, sizeof word);
        for (int i = 0; i < 4; i++) {
            lane[i] = mix_word(lane[i], word[i]);
        }
    }
    for (int i = 0; i < 4; i++) {
        hash = mix_word(hash, lane[i]);
    }
    memset(word, 0, sizeof word);
    memcpy(word, at, left);
    for (int i = 0; i < 4; i++) {
        hash = mix_word(hash, word[i]);
    }
    return finish_hash(hash ^ bytes);
}

uint64_t ls__module_item_hash(uint64_t hash, const ls__module_item *item)
{
    const size_t bytes = (size_t)ls_numel(item->value) * ls_dtype_size(ls_dtype_of(item->value));
    ls__host_view view;
    hash = ls__hash_bytes(hash, item->name, strlen(item->name));
    if (ls__host_view_of(item->value, &view) < 0) {
        return 0;
    }
    hash = ls__hash_bytes(hash, view.data, bytes);
    ls__host_view_close(&view, false);
    return hash;
}

/* Covers parameters and buffers in the order of their addition; 0 when they cannot be listed. */
uint64_t ls_module_hash(ls_module *module)
{
    int count = 0;
    const ls__module_item *items = ls__module_items(module, &count);
    uint64_t hash = items != NULL ? PRIME_3 : 0;
    for (int i = 0; i < count && hash != 0; i++) {
        hash = ls__module_item_hash(hash, &items[i]);
    }
    return hash;
}
