/* SPDX-License-Identifier: Apache-2.0 */
/* FNV-1a, 64 bits (Fowler, Noll, Vo): compares texts and tables of ranks that trust each other. For
 * tables of texts that strangers choose: siphash.h. */
#ifndef LS_BASE_HASH_H
#define LS_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LS__HASH_START UINT64_C(0xcbf29ce484222325)

static inline uint64_t ls__hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static inline uint64_t ls__hash_text(const char *text)
{
    return ls__hash_bytes(LS__HASH_START, text, strlen(text));
}

#endif
