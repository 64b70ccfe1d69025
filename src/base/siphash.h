/* SPDX-License-Identifier: Apache-2.0 */
/* A hash of texts under a secret key, for tables of texts that strangers choose: without the key
 * nobody can choose texts that share a slot. SipHash-1-3 (Aumasson & Bernstein, INDOCRYPT 2012),
 * the variant that Rust and Python use for their tables. */
#ifndef LS_BASE_SIPHASH_H
#define LS_BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct ls__siphash_key {
    uint64_t word[2];
} ls__siphash_key;

uint64_t ls__siphash(const ls__siphash_key *key, const void *data, size_t bytes);

#endif
