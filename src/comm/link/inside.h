/* A link's insides, shared by link.c (life and bytes), proof.c (the secret) and tls.c. */
#ifndef LS_COMM_LINK_INSIDE_H
#define LS_COMM_LINK_INSIDE_H

#include "comm/link/link.h"

#define LS__PROOF_NONCE 32
#define LS__PROOF_MAC 32

typedef struct ls__proof_hello { /* the first message of either side; fixed size, no padding */
    uint32_t magic;
    uint16_t version;
    uint8_t client; /* 1: of the side that connected */
    uint8_t reserved;
    uint8_t nonce[LS__PROOF_NONCE];
} ls__proof_hello;

typedef enum ls__link_state {
    LS__LINK_CONNECTING,
    LS__LINK_HELLO, /* the other side's hello is awaited */
    LS__LINK_MAC,   /* and its code */
    LS__LINK_LAST,  /* what is left of the proof is sent */
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

#endif
