/* SPDX-License-Identifier: Apache-2.0 */
/* The only file that calls libcrypto's hashes; by EVP and HMAC(), which 1.1 and 3 both have.
 *
 * Note [Why libcrypto is required]
 * Every build must be able to check every checkpoint and to prove that it knows its job's secret.
 * Both need a hash, and nobody should have to trust a hand-written one. Encryption of links (TLS)
 * needs OpenSSL 3 and stays optional. */
#include "base/digest.h"

#include <limits.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/error.h"

/* Before the first use. exit() would free what the thread that writes a checkpoint is hashing with,
 * and the crash would be the job's cause in place of the error that led to exit(). Has no effect in
 * a process that has used libcrypto before. */
static void begin_libcrypto(void)
{
    (void)OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
}

/* Frees a context that has failed; every later call on the digest then does nothing, and its end
 * reports the failure. */
static void drop(ls__digest *digest)
{
    EVP_MD_CTX_free(digest->context);
    digest->context = NULL;
}

/* A failure is reported only by ls__digest_end, so that callers check once. */
void ls__digest_init(ls__digest *digest)
{
    begin_libcrypto();
    digest->context = EVP_MD_CTX_new();
    if (digest->context && EVP_DigestInit_ex(digest->context, EVP_sha256(), NULL) != 1) {
        drop(digest);
    }
}

/* Does nothing on a digest that has failed. */
void ls__digest_add(ls__digest *digest, const void *data, size_t bytes)
{
    if (digest->context && EVP_DigestUpdate(digest->context, data, bytes) != 1) {
        drop(digest);
    }
}

/* Frees the context on every path; `out` NULL drops the hash. */
ls_status ls__digest_end(ls__digest *digest, uint8_t out[LS__DIGEST_BYTES])
{
    uint8_t unused[LS__DIGEST_BYTES];
    bool good =
        digest->context && EVP_DigestFinal_ex(digest->context, out ? out : unused, NULL) == 1;
    drop(digest);
    return good ? LS_OK
                : ls__fail(LS_ERR_MEMORY,
                           "cannot compute SHA-256: memory is short, or this libcrypto (%s) does "
                           "not offer it",
                           OpenSSL_version(OPENSSL_VERSION));
}

/* In lower case, as sha256sum prints. */
void ls__digest_hex(const uint8_t digest[LS__DIGEST_BYTES], char out[LS__DIGEST_HEX + 1])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < LS__DIGEST_BYTES; i++) {
        out[2 * i] = digits[digest[i] >> 4];
        out[2 * i + 1] = digits[digest[i] & 15];
    }
    out[LS__DIGEST_HEX] = '\0';
}

/* One call of HMAC(), which OpenSSL 1.1 and 3 both have; an empty key is allowed. */
ls_status ls__mac(const void *key, size_t key_bytes, const void *data, size_t bytes,
                  uint8_t out[LS__MAC_BYTES])
{
    /* HMAC() takes a NULL key for "the key of the call before". */
    const void *given = key != NULL ? key : "";
    begin_libcrypto();
    if (key_bytes > INT_MAX || !HMAC(EVP_sha256(), given, (int)key_bytes, data, bytes, out, NULL)) {
        return ls__fail(LS_ERR_MEMORY, "no memory for a message authentication code");
    }
    return LS_OK;
}

/* Takes the same time wherever the first difference lies, so that a peer cannot guess byte by
 * byte. */
bool ls__mac_equal(const uint8_t a[LS__MAC_BYTES], const uint8_t b[LS__MAC_BYTES])
{
    return CRYPTO_memcmp(a, b, LS__MAC_BYTES) == 0;
}
