/* BLAKE2b with 32 bytes of output (RFC 7693), so that `b2sum -l 256 FILE` checks our files. */
#ifndef LS_CHECKPOINT_HASH_H
#define LS_CHECKPOINT_HASH_H

#include <stddef.h>
#include <stdint.h>

#define LS__HASH_BYTES 32
#define LS__HASH_HEX (2 * LS__HASH_BYTES)
#define LS__HASH_NAME "blake2b-256"

typedef struct ls__hash {
    uint64_t state[8];
    uint64_t length; /* bytes taken in; 2^64 are more than any file holds */
    uint8_t block[128];
    size_t filled; /* of `block` */
} ls__hash;

void ls__hash_init(ls__hash *hash);
void ls__hash_add(ls__hash *hash, const void *data, size_t bytes);
void ls__hash_end(ls__hash *hash, uint8_t out[LS__HASH_BYTES]);

void ls__hash_hex(const uint8_t hash[LS__HASH_BYTES], char out[LS__HASH_HEX + 1]);

#endif
