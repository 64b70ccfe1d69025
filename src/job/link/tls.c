/* SPDX-License-Identifier: Apache-2.0 */
/* TLS 1.3 on a link whose ends have proved the secret; the only file that calls libssl.
 *
 *     key  = HMAC(secret, "key", purpose, job, both hellos)   a pre-shared key of this link alone
 *     TLS  = that key + an ephemeral Diffie-Hellman           recorded traffic stays unreadable
 *                                                             even if the secret leaks later
 *
 * One cipher; no certificates, tickets or early data.
 *
 * All bytes go through the env table: libssl reads by a BIO that calls its recv, and writes into
 * `out`, from which flush sends. A record is only made when `out` has room for it, so bytes that
 * were taken are never asked for again. Nothing here blocks.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/assert.h"
#include "base/compiler.h"
#include "base/error.h"
#include "job/link/internal.h"

/* A record carries 16 KiB of data at most (RFC 8446, 5.1). Full records cost the least per byte. */
#define RECORD ((size_t)SSL3_RT_MAX_PLAIN_LENGTH)
#define RECORD_ROOM (RECORD + 256) /* with head, tag and padding */
/* Four records per system call, and room for the messages of TLS itself (a hello of a few hundred
 * bytes, the next key, the close alert). */
#define OUT_BYTES (4 * RECORD_ROOM + 4096)
#define IN_BYTES 65536 /* read ahead: several records a call */
/* RFC 8446, 5.5: at most 2^24.5 records under one AES-GCM key. */
#define UPDATE_RECORDS ((uint64_t)1 << 23)
#define SUITE "TLS_AES_128_GCM_SHA256"

/* All of one link's TLS. The sending side: data ─▶ SSL_write ─▶ bio_write ─▶ out[put, end) ─▶
 * socket. The receiving side: socket ─▶ bio_read ─▶ libssl's buffer of IN_BYTES ─▶ SSL_read ─▶ the
 * caller. */
struct ls__tls {
    const ls__env *env;
    int fd;
    bool client;
    SSL_CTX *context;
    SSL *ssl;
    BIO_METHOD *method;
    uint8_t key[LS__PROOF_MAC];
    char identity[96];
    int error;                        /* the last error of the system, -errno */
    int broken;                       /* the error that ended the link, which stays; 0: none */
    bool ended;                       /* end of file */
    uint64_t update_in, update_every; /* records until the next key, and between two keys */
    size_t put, end;                  /* `out` holds the bytes from put to end */
    uint8_t out[OUT_BYTES];
};

ls_status ls__tls_available(void)
{
    return LS_OK;
}

/* ---- bytes from and to the env table --------------------------------------------------------- */

/* libssl's read. The errors that libssl cannot carry are kept in the link: -errno, and an end of
 * file, which TLS must tell from its own close alert. */
static int bio_read(BIO *bio, char *out, int bytes)
{
    ls__tls *tls = BIO_get_data(bio);
    const ssize_t got = tls->env->recv(tls->env, tls->fd, out, (size_t)bytes, NULL);
    BIO_clear_retry_flags(bio);
    if (got == -EAGAIN) {
        BIO_set_retry_read(bio);
    } else if (got < 0) {
        tls->error = (int)got;
    }
    tls->ended = tls->ended || got == 0;
    return got < 0 ? -1 : (int)got;
}

/* libssl's write: takes a record whole or not at all. Only ls__tls_flush sends to the socket. */
static int bio_write(BIO *bio, const char *in, int bytes)
{
    ls__tls *tls = BIO_get_data(bio);
    LS_ASSERT(tls->put <= tls->end && tls->end <= sizeof tls->out);
    BIO_clear_retry_flags(bio);
    if ((size_t)bytes > sizeof tls->out - tls->end) {
        BIO_set_retry_write(bio);
        return -1;
    }
    memcpy(tls->out + tls->end, in, (size_t)bytes);
    tls->end += (size_t)bytes;
    return bytes;
}

/* The two controls without which libssl refuses to work; all others are unknown to it. */
static long bio_control(BIO *bio, int what, long number LS__UNUSED, void *pointer LS__UNUSED)
{
    const ls__tls *tls = BIO_get_data(bio);
    switch (what) {
    case BIO_CTRL_FLUSH:
        return 1; /* ls__tls_flush does it */
    case BIO_CTRL_EOF:
        return tls->ended;
    default:
        return 0;
    }
}

/* 0: `out` is empty; -EAGAIN: the socket is full; else -errno. */
int ls__tls_flush(ls__tls *tls)
{
    while (tls->put < tls->end) {
        const ls__env_span span = {.at = tls->out + tls->put, .bytes = tls->end - tls->put};
        const ssize_t put = tls->env->send_spans(tls->env, tls->fd, &span, 1);
        if (put < 0) {
            return (int)put;
        }
        tls->put += (size_t)put;
    }
    tls->put = tls->end = 0;
    return 0;
}

/* ---- the pre-shared key ---------------------------------------------------------------------- */

/* A session made of the pre-shared key alone: TLS 1.3 carries an external key as the session
 * that is resumed (RFC 8446, 2.2). NULL: libssl has no memory or lacks the cipher. */
static SSL_SESSION *session_of(SSL *ssl, const ls__tls *tls)
{
    static const unsigned char suite[2] = {0x13, 0x01}; /* SUITE */
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, suite);
    SSL_SESSION *session = SSL_SESSION_new();
    if (session != NULL &&
        (cipher == NULL || SSL_SESSION_set1_master_key(session, tls->key, sizeof tls->key) != 1 ||
         SSL_SESSION_set_cipher(session, cipher) != 1 ||
         SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1)) {
        SSL_SESSION_free(session);
        session = NULL;
    }
    return session;
}

/* The client's side of the pre-shared key; libssl takes over the session. */
static int use_key(SSL *ssl, const EVP_MD *digest LS__UNUSED, const unsigned char **identity,
                   size_t *bytes, SSL_SESSION **session)
{
    const ls__tls *tls = SSL_get_app_data(ssl);
    *session = session_of(ssl, tls);
    *identity = (const unsigned char *)tls->identity;
    *bytes = strlen(tls->identity);
    return *session != NULL;
}

/* The server's side. Without the key there is no handshake, because this side has no
 * certificate. An unknown identity is not an error for libssl: the handshake then fails for want
 * of a key. */
static int find_key(SSL *ssl, const unsigned char *identity, size_t bytes, SSL_SESSION **session)
{
    const ls__tls *tls = SSL_get_app_data(ssl);
    const bool same = bytes == strlen(tls->identity) && memcmp(identity, tls->identity, bytes) == 0;
    *session = same ? session_of(ssl, tls) : NULL;
    return !same || *session != NULL;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* TLS 1.3 with one cipher. Tickets, compression and the session cache are off: every link has a
 * key of its own, so none of them could help, and each is code that an attacker could reach. */
static bool make_context(ls__tls *tls)
{
    (void)OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, NULL); /* base/digest.c says why */
    SSL_CTX *c = tls->context = SSL_CTX_new(TLS_method());
    if (c == NULL || SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(c, SUITE) != 1 || SSL_CTX_set_num_tickets(c, 0) != 1) {
        return false;
    }
    (void)SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
    (void)SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    /* No certificate is trusted, and none is asked for: only the pre-shared key authenticates. */
    SSL_CTX_set_verify(c, tls->client ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
    SSL_CTX_set_read_ahead(c, 1);
    SSL_CTX_set_default_read_buffer_len(c, IN_BYTES);
    SSL_CTX_set_psk_use_session_callback(c, use_key);
    SSL_CTX_set_psk_find_session_callback(c, find_key);
    return true;
}

/* Connects libssl to this link's bytes. SSL_free frees the BIO too once SSL_set_bio has it. */
static bool make_stream(ls__tls *tls)
{
    tls->method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "lockstep link");
    if (tls->method == NULL || BIO_meth_set_read(tls->method, bio_read) != 1 ||
        BIO_meth_set_write(tls->method, bio_write) != 1 ||
        BIO_meth_set_ctrl(tls->method, bio_control) != 1) {
        return false;
    }
    BIO *bio = BIO_new(tls->method);
    tls->ssl = bio != NULL ? SSL_new(tls->context) : NULL;
    if (tls->ssl == NULL) {
        BIO_free(bio);
        return false;
    }
    BIO_set_data(bio, tls);
    BIO_set_init(bio, 1);
    SSL_set_bio(tls->ssl, bio, bio); /* takes it */
    (void)SSL_set_app_data(tls->ssl, tls);
    if (tls->client) {
        SSL_set_connect_state(tls->ssl);
    } else {
        SSL_set_accept_state(tls->ssl);
    }
    return true;
}

/* The proof is complete. On failure link->tls may exist in part; ls__tls_end frees it. */
ls_status ls__tls_begin(ls__link *link)
{
    ls__tls *tls = link->env->allocate(link->env, sizeof *tls);
    if (tls == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory to encrypt the connection with %s", link->peer);
    }
    memset(tls, 0, offsetof(ls__tls, out));
    tls->env = link->env;
    tls->fd = link->fd;
    tls->client = link->client;
    tls->update_in = tls->update_every = UPDATE_RECORDS;
    snprintf(tls->identity, sizeof tls->identity, "lockstep/%.48s/%llu", link->spec.purpose,
             (unsigned long long)link->spec.job);
    link->tls = tls;
    LS_TRY(ls__proof_key(link, tls->key));
    ERR_clear_error();
    if (!make_context(tls) || !make_stream(tls)) {
        return ls__fail(LS_ERR_SYSTEM,
                        "cannot encrypt the connection with %s: OpenSSL offers no TLS 1.3 with "
                        "%s here: %s",
                        link->peer, SUITE, ERR_reason_error_string(ERR_peek_last_error()));
    }
    return LS_OK;
}

/* Sends the close alert and the bytes that were taken, as far as the socket accepts them without
 * blocking; nothing is retried afterwards. Erases the keys. */
void ls__tls_end(ls__tls *tls)
{
    if (tls == NULL) {
        return;
    }
    if (tls->ssl != NULL && tls->broken == 0 && SSL_is_init_finished(tls->ssl)) {
        ERR_clear_error();
        (void)SSL_shutdown(tls->ssl);
        (void)ls__tls_flush(tls);
    }
    SSL_free(tls->ssl);
    SSL_CTX_free(tls->context);
    BIO_meth_free(tls->method);
    ERR_clear_error();
    const ls__env *env = tls->env;
    OPENSSL_cleanse(tls, sizeof *tls);
    env->release(env, tls, sizeof *tls);
}

/* ---- bytes --------------------------------------------------------------------------------- */

/* Translates libssl's `result` to the error numbers of link.h. -ECONNRESET without an error of
 * the system: the stream ended without a close alert, so it was cut off, or the peer's process
 * is gone. */
static int reason_of(ls__tls *tls, int result)
{
    const int why = SSL_get_error(tls->ssl, result);
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) {
        return -EAGAIN;
    }
    if (why == SSL_ERROR_ZERO_RETURN) {
        return 0;
    }
    const int reason = ERR_GET_REASON(ERR_peek_error());
    if (tls->error != 0) {
        tls->broken = tls->error;
    } else if (tls->ended) {
        tls->broken = -ECONNRESET;
    } else {
        tls->broken = reason == SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC ? -EBADMSG
                      : reason == SSL_R_SSLV3_ALERT_BAD_RECORD_MAC        ? -EREMOTEIO
                                                                          : -EPROTO;
    }
    return tls->broken;
}

/* One step. A handshake that succeeded with anything but the pre-shared key is refused: it would
 * prove nothing. It counts as complete only when its last bytes are sent. */
ls_status ls__tls_handshake(ls__link *link)
{
    ls__tls *tls = link->tls;
    ERR_clear_error();
    const int result = SSL_do_handshake(tls->ssl);
    const unsigned long error = ERR_peek_error();
    const int reason = result == 1 ? 0 : reason_of(tls, result);
    const int sent = ls__tls_flush(tls);
    if (result == 1 && sent == 0) {
        return SSL_session_reused(tls->ssl) == 1
                   ? LS_OK
                   : ls__fail(LS_ERR_AUTH, "%s did not use this job's key for TLS", link->peer);
    }
    if ((result == 1 || reason == -EAGAIN) && (sent == 0 || sent == -EAGAIN)) {
        return LS_IN_PROGRESS;
    }
    const char *text = error != 0 ? ERR_reason_error_string(error) : NULL;
    return ls__fail(tls->ended || tls->error != 0 ? LS_ERR_PEER : LS_ERR_AUTH,
                    "encrypting the connection with %s failed: %s", link->peer,
                    tls->ended     ? "it was closed"
                    : text != NULL ? text
                                   : strerror(-(reason != 0 && reason != -EAGAIN ? reason : sent)));
}

/* Reading may make libssl send something (an alert, an answer to a key update), so the output is
 * flushed too; an error of that shows with the next send. */
ssize_t ls__tls_read(ls__tls *tls, void *out, size_t bytes)
{
    if (tls->broken != 0) {
        return tls->broken;
    }
    ERR_clear_error();
    const int got = SSL_read(tls->ssl, out, bytes < INT_MAX ? (int)bytes : INT_MAX);
    const int reason = got > 0 ? 0 : reason_of(tls, got);
    (void)ls__tls_flush(tls);
    return got > 0 ? got : reason;
}

/* Encrypts one record of at most RECORD bytes; `out` has room for it. The key is replaced after
 * `update_every` records, long before the limit of AES-GCM. */
static int seal(ls__tls *tls, const void *at, size_t bytes)
{
    LS_ASSERT(bytes > 0 && bytes <= RECORD);
    ERR_clear_error();
    if (tls->update_in-- == 0) {
        tls->update_in = tls->update_every;
        if (SSL_key_update(tls->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1) {
            return tls->broken = -EPROTO;
        }
    }
    const int put = SSL_write(tls->ssl, at, (int)bytes);
    if (put == (int)bytes) {
        return 0;
    }
    const int reason = reason_of(tls, put);
    tls->broken = reason == 0 || reason == -EAGAIN ? -EPROTO : reason; /* there was room */
    return tls->broken;
}

/* Empties `out` first if the record and a message of TLS itself might not fit. */
static int seal_with_room(ls__tls *tls, const void *at, size_t bytes)
{
    if (sizeof tls->out - tls->end < RECORD_ROOM + 1024) {
        const int error = ls__tls_flush(tls);
        if (error != 0) {
            return error;
        }
    }
    return seal(tls, at, bytes);
}

/* Seals record after record until the socket is full. Returns the bytes that were taken, which
 * may still lie in `out`; an error that came after them is returned by the next call. */
ssize_t ls__tls_send(ls__tls *tls, const ls__env_span *spans, int count)
{
    size_t taken = 0;
    int error = tls->broken != 0 ? tls->broken : ls__tls_flush(tls);
    for (int i = 0; i < count && error == 0; i++) {
        const uint8_t *at = spans[i].at;
        for (size_t left = spans[i].bytes; left > 0 && error == 0;) {
            const size_t bytes = left < RECORD ? left : RECORD;
            error = seal_with_room(tls, at, bytes);
            if (error == 0) {
                at += bytes;
                left -= bytes;
                taken += bytes;
            }
        }
    }
    if (taken == 0) {
        return error;
    }
    (void)ls__tls_flush(tls);
    return (ssize_t)taken;
}

/* ---- state --------------------------------------------------------------------------------- */

/* Whether ls__tls_flush has work left, so that the owner polls for writing. */
bool ls__tls_holds(const ls__tls *tls)
{
    return tls->put < tls->end;
}

/* For the line that a job prints at its start; names what protects the data. */
const char *ls__tls_protection(const ls__tls *tls LS__UNUSED)
{
    return "TLS 1.3, " SUITE ", the secret as pre-shared key";
}

/* For tests, which cannot send 2^23 records. */
void ls__tls_update_after(ls__tls *tls, uint64_t records)
{
    tls->update_in = tls->update_every = records;
}
