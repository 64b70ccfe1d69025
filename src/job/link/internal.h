/* SPDX-License-Identifier: Apache-2.0 */
/* A link's insides, shared by link.c (life and bytes), proof.c (the secret) and tls.c (encryption).
 *
 *     CONNECTING ─▶ HELLO ─▶ MAC ─▶ LAST ─▶ (TLS: SEALING) ─▶ OPEN
 *
 * TLS begins only after the proof: libssl never parses a byte from a peer that does not know the
 * secret, and takes no memory for such a peer.
 */
#ifndef LS_JOB_LINK_INTERNAL_H
#define LS_JOB_LINK_INTERNAL_H

#include "job/link/link.h"

#define LS__PROOF_NONCE 32
#define LS__PROOF_MAC 32

typedef struct ls__proof_hello { /* the first message of either side; fixed size, no padding */
    uint32_t magic;
    uint16_t version;
    uint8_t client; /* 1: of the side that connected */
    uint8_t mode;   /* ls__link_mode: the two sides must want the same */
    uint8_t nonce[LS__PROOF_NONCE];
} ls__proof_hello;

typedef enum ls__link_state {
    LS__LINK_CONNECTING,
    LS__LINK_HELLO, /* the other side's hello is awaited */
    LS__LINK_MAC,   /* and its code */
    LS__LINK_LAST,  /* the rest of the proof is being sent */
    LS__LINK_SEALING,
    LS__LINK_OPEN,
    LS__LINK_FAILED
} ls__link_state;

typedef struct ls__tls ls__tls;

struct ls__link {
    ls__link_spec spec;
    const ls__env *env;
    uint8_t secret[LS__LINK_SECRET];
    int fd;
    bool client;
    ls__link_state state;
    ls__proof_hello own, other;
    uint8_t in[64], out[128]; /* of the proof */
    size_t got, put, queued;
    ls__tls *tls; /* NULL: plain */
    char peer[LS__ADDRESS_MAX + 8];
};

/* proof.c: moves the proof on; as ls__link_handshake. */
ls_status ls__proof_begin(ls__link *link);
ls_status ls__proof_advance(ls__link *link);
/* Once the proof is complete: a key that only its two sides can compute. */
ls_status ls__proof_key(const ls__link *link, uint8_t out[LS__PROOF_MAC]);

/* tls.c, or tls_none.c where OpenSSL 3 is missing. They return what link.h says. */
ls_status ls__tls_available(void);
ls_status ls__tls_begin(ls__link *link); /* makes link->tls */
ls_status ls__tls_handshake(ls__link *link);
ssize_t ls__tls_read(ls__tls *tls, void *out, size_t bytes);
ssize_t ls__tls_send(ls__tls *tls, const ls__env_span *spans, int count);
int ls__tls_flush(ls__tls *tls);
bool ls__tls_holds(const ls__tls *tls); /* bytes that are not sent yet */
const char *ls__tls_protection(const ls__tls *tls);
void ls__tls_update_after(ls__tls *tls, uint64_t records); /* the next key; tests hurry it */
void ls__tls_end(ls__tls *tls); /* sends the close alert if that does not block, and frees */

#endif
