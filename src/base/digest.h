/* SPDX-License-Identifier: Apache-2.0 */
/* Fingerprints of bytes, by OpenSSL's libcrypto: SHA-256 of a stream, and HMAC-SHA256 under a key.
 *
 * SHA-256 because every libcrypto has it (FIPS builds too), processors have instructions for it,
 * and `sha256sum` lets people check our files without us. Neither function reports anything but
 * "no memory": data cannot make them fail.
 */
#ifndef LS_BASE_DIGEST_H
#define LS_BASE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lockstep/status.h>

#define LS__DIGEST_BYTES 32
#define LS__DIGEST_HEX (2 * LS__DIGEST_BYTES)
#define LS__DIGEST_NAME "sha256"

typedef struct ls__digest {
    void *context; /* libcrypto's; NULL after a failure, which ls__digest_end reports */
} ls__digest;

/* Every init has one end, which also frees; `out` may be NULL to throw the result away. */
void ls__digest_init(ls__digest *digest);
void ls__digest_add(ls__digest *digest, const void *data, size_t bytes);
ls_status ls__digest_end(ls__digest *digest, uint8_t out[LS__DIGEST_BYTES]);

void ls__digest_hex(const uint8_t digest[LS__DIGEST_BYTES], char out[LS__DIGEST_HEX + 1]);

/* HMAC-SHA256 (RFC 2104): a code that only a holder of the key can compute for these bytes. */
#define LS__MAC_BYTES 32
ls_status ls__mac(const void *key, size_t key_bytes, const void *data, size_t bytes,
                  uint8_t out[LS__MAC_BYTES]);
/* Takes equally long wherever the two differ, so that nobody can guess a code byte by byte. */
bool ls__mac_equal(const uint8_t a[LS__MAC_BYTES], const uint8_t b[LS__MAC_BYTES]);

#endif
