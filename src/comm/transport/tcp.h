/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP transport: a few connections per pair of ranks on different hosts.
 *
 * A message travels in a frame, whole on one connection. Frames of a pair are numbered, so that
 * several connections together keep the order; each carries a CRC-32C over all of it, because
 * TCP's own 16 bits miss what bad memory and network cards do. Connections are made once, all of
 * them in ls_init; after that nothing listens.
 *
 *     frame   magic ▸ bytes ▸ number ▸ checksum ▸ ls__message with its payload ▸ padding to 8
 */
#ifndef LS_COMM_TRANSPORT_TCP_H
#define LS_COMM_TRANSPORT_TCP_H

#include <lockstep/store.h>

#include "comm/join/arrival.h"
#include "comm/transport/transport.h"
#include "job/board.h"
#include "job/link/link.h"

#define LS__TCP_CONNECTIONS_MAX 8
#define LS__TCP_UNANSWERED_MS 5000 /* the limit of the links between launchers, too */
#define LS__TCP_PAYLOAD ((size_t)256 << 10)

typedef struct ls__tcp_spec {
    ls__link_spec link;
    int rank, size;
    const bool *remote; /* [size]: reached by this transport */
    uint32_t generation;
    int connections;        /* per pair */
    const char *address;    /* to listen on */
    ls_store *store;        /* addresses are exchanged through it */
    const char *about;      /* of this process: "host h, pid 12" */
    const char *config;     /* compared with every peer's */
    const ls__board *board; /* of this host: its root cause ends the joining; may be NULL */
    ls__arrival *arrival;   /* the wait for the other ranks, begun by the caller */
    int64_t timeout_ms;
} ls__tcp_spec;

/* Connects this rank with all remote ones. `about` of a peer is handed to known(arg, peer, text).
 * Errors: LS_ERR_TIMEOUT, LS_ERR_MISMATCH (configuration), LS_ERR_PEER, LS_ERR_SYSTEM,
 * LS_ERR_MEMORY. */
ls_status ls__tcp_transport_new(const ls__tcp_spec *spec,
                                void (*known)(void *arg, int peer, const char *about), void *arg,
                                ls__transport **out);

/* Sleeps until something can be read or written, the doorbell given to ls__tcp_watch_bell rings, or
 * the deadline is reached. Needs no progress lock; several threads may sleep here. */
void ls__tcp_sleep(ls__transport *t, uint64_t deadline_ns);
ls_status ls__tcp_watch_bell(ls__transport *t, int bell); /* once; a descriptor of event_open */
/* Whether frames wait here for the network. */
bool ls__tcp_unsent(const ls__transport *t);
/* For a peer from which nothing has been heard: breaks the pair if the network is at fault. Returns
 * whether it is broken now. */
bool ls__tcp_give_up(ls__transport *t, int peer);
/* Time at which the last byte of `peer` arrived. */
uint64_t ls__tcp_heard(const ls__transport *t, int peer);
/* How data from the peer arrived damaged; NULL: it did not. Such a peer can still be sent to, until
 * ls__tcp_end_damaged. */
const char *ls__tcp_damage(const ls__transport *t, int peer);
void ls__tcp_end_damaged(ls__transport *t, int peer);
/* Whether the pair is broken because data from here arrived damaged at the peer. */
bool ls__tcp_peer_says_damaged(const ls__transport *t, int peer);

#endif
