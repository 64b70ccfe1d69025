/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP transport's insides: tcp.c (readiness, the table), tcp_out.c and tcp_in.c (frames),
 * tcp_join.c (making connections). */
#ifndef LS_COMM_TRANSPORT_TCP_WIRE_H
#define LS_COMM_TRANSPORT_TCP_WIRE_H

#include <stdatomic.h>

#include "base/size.h"
#include "comm/transport/tcp.h"

#define LS__FRAME_MAGIC 0x4c534652u /* "LSFR" */
#define LS__FRAME_MAX ((size_t)(sizeof(ls__frame) + sizeof(ls__message) + LS__TCP_PAYLOAD + 8))
#define LS__TCP_SLOTS 8 /* frames that wait to be sent on a connection */
#define LS__TCP_IN_BYTES ((2 * LS__FRAME_MAX + 63) / 64 * 64)
#define LS__TCP_SLOT_BYTES ((LS__FRAME_MAX + 63) / 64 * 64)
#define LS__TCP_CONNECTION_BYTES (LS__TCP_IN_BYTES + LS__TCP_SLOTS * LS__TCP_SLOT_BYTES)
/* Shorter payloads are copied: that costs less than borrowing them. */
#define LS__TCP_BORROWED_MIN ((size_t)16 << 10)
#define LS__TCP_BELL UINT64_MAX /* the tag of the bell */

typedef struct ls__frame {
    uint32_t magic;
    uint32_t bytes;    /* of the frame, a multiple of 8 */
    uint64_t number;   /* among the pair's frames in this direction, from 1 */
    uint32_t checksum; /* over the frame with this field 0 */
    uint32_t reserved;
    /* ls__message */
} ls__frame;

/* A frame that waits to be sent: `head` bytes at `at`, then the borrowed payload, then the rest
 * (padding), which lies behind the head. */
typedef struct ls__tcp_slot {
    unsigned char *at; /* LS__TCP_SLOT_BYTES: room for a whole frame */
    size_t head, bytes;
    const unsigned char *borrowed; /* NULL: nothing, so all lies here */
    size_t borrowed_bytes;
    uint32_t *in_use; /* counter of its owner, lowered when the payload is no longer read */
} ls__tcp_slot;

typedef struct ls__tcp_connection {
    ls__link *link;
    _Atomic uint32_t ready; /* LS__READY_…, set by any poller; taken with the progress lock */
    bool can_read, can_write;
    bool held;         /* the link has accepted bytes that it has not sent (TLS) */
    unsigned char *in; /* owned; the memory of the slots lies behind it */
    size_t start, end; /* bytes of `in` that were received and not released */
    /* Of the frame at `start`: */
    bool checked;         /* it is whole and verified */
    bool asked;           /* the transport's user was asked for a place of its payload */
    bool apart;           /* the payload goes to `place`, and only the rest to `in` */
    unsigned char *place; /* apart; NULL: the payload is thrown away */
    size_t placed;        /* apart: bytes of the payload that have arrived */
    uint32_t crc;         /* apart: of the frame so far */
    ls__tcp_slot slot[LS__TCP_SLOTS];
    uint64_t queued, sent; /* frames; frame i lies in slot i % LS__TCP_SLOTS */
    size_t moved;          /* bytes sent of frame `sent` */
} ls__tcp_connection;

typedef struct ls__tcp_peer {
    ls__tcp_connection connection[LS__TCP_CONNECTIONS_MAX];
    uint64_t next_out, next_in; /* frame numbers */
    int reserved;               /* connection of the reservation, or -1 */
    int latest;                 /* connection of the last frame sent */
    int current;                /* connection of the message that was peeked */
    uint64_t heard_ns;
    bool is_broken;
    bool is_damaged;   /* what arrived cannot have been sent: no more is read */
    bool says_damaged; /* broken because the peer says so of what it was sent */
    char broken[192];  /* why, of either */
} ls__tcp_peer;

typedef struct ls__tcp {
    ls__transport base;
    const ls__env *env;
    int rank, size, connections;
    int poller, bell;
    const bool *remote; /* [size], copied */
    ls__tcp_peer *peer; /* [size] */
} ls__tcp;

#define LS__TCP_DAMAGED_RECORD                                                                     \
    "a TLS record arrived damaged; look for bad memory or a bad network card on either host"

/* tcp.c */
void ls__tcp_set_broken(ls__tcp *tcp, ls__tcp_peer *peer, const ls__tcp_connection *c,
                        const char *why);
void ls__tcp_set_damaged(ls__tcp_peer *peer, const ls__tcp_connection *c, const char *why);
void ls__tcp_refresh(ls__tcp_connection *c); /* takes over readiness found by polling */
const char *ls__tcp_reason(ssize_t error);   /* 0: closed; else -errno */

/* tcp_out.c */
ls__message *ls__tcp_reserve(ls__transport *t, int rank);
void ls__tcp_commit(ls__transport *t, int rank);
void ls__tcp_commit_borrowed(ls__transport *t, int rank, const void *payload, uint32_t *in_use);
bool ls__tcp_flush(ls__tcp *tcp, ls__tcp_peer *peer, ls__tcp_connection *c); /* anything sent? */
void ls__tcp_out_return_buffers(ls__tcp_connection *c, uint32_t group);

/* tcp_in.c */
const ls__message *ls__tcp_peek(ls__transport *t, int rank, const void **payload);
void ls__tcp_release(ls__transport *t, int rank);
void ls__tcp_in_return_buffers(ls__tcp_connection *c, uint32_t group);

/* tcp_join.c */
ls_status ls__tcp_join(ls__tcp *tcp, const ls__tcp_spec *spec,
                       void (*known)(void *arg, int peer, const char *about), void *arg);
/* Takes an authenticated link in as connection `index` to `peer`, in place of one that has carried
 * nothing. */
ls_status ls__tcp_adopt(ls__tcp *tcp, int peer, int index, ls__link *link);

#endif
