/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by server.c (connections) and serve.c (requests). One thread, the owner's, calls all of
 * it. */
#ifndef LS_JOB_STORE_SERVER_H
#define LS_JOB_STORE_SERVER_H

#include "base/error.h"
#include "base/list.h"
#include "job/store/buffer.h"
#include "job/store/store.h"
#include "job/store/table.h"
#include "job/store/wire.h"

/* A request that cannot be answered yet: a GET, WAIT or GET_FD whose key does not exist, or any
 * request that was sent on to the server of node 0. */
typedef struct ls__store_waiter {
    ls__list link; /* in the peer's `waiting` */
    uint64_t id, deadline_ns;
    uint64_t upstream_id; /* the request's number on its way to node 0; 0: it waits here */
    ls__wire_type type;
    size_t key_bytes;
    char key[LS_STORE_KEY_MAX];
} ls__store_waiter;

/* A peer of the server: the connection of a local rank, or another host. Its state:
 *
 *     pending (!ready) ─▶ ready ─▶ lost ─▶ freed at the end of the turn
 *
 * `lost` is also reached from pending. Another host is ready from the start. */
struct ls__store_peer {
    ls__list link; /* in the server's `all` */
    ls__store_server *server;
    int fd;                 /* -1: another host, whose requests arrive by ls__store_peer_request */
    ls__store_reply *reply; /* another host: sends a reply to it; a local rank: NULL */
    void *reply_arg;
    int received_fd;      /* arrived with the frame that is being read; -1: none */
    bool ready;           /* has proved that it knows the secret */
    bool invited;         /* made by the owner for a rank that it started: not counted as pending */
    bool lost;            /* to be dropped at the end of the turn */
    uint64_t deadline_ns; /* for the proof */
    uint8_t hello[LS__WIRE_HELLO];
    size_t hello_bytes;
    ls__store_buffer in, out;
    int waiters, waiters_max;
    ls__list waiting;
};

struct ls__store_server {
    const ls__env *env;
    uint8_t secret[LS__STORE_SECRET_BYTES];
    uid_t uid;
    ls__store_table *table;
    int clients,
        pending; /* all peers; those that have not proved the secret, except invited ones */
    ls__list all;
    char *failure; /* the message with which every request fails; NULL: the job has not failed */
    size_t failure_bytes;
    ls_status failure_status;
    ls__store_ask_upstream *upstream; /* sends a request to node 0; NULL: this is the job's store */
    void *upstream_arg;
    uint64_t upstream_id; /* of the last request sent to node 0 */
};

/* serve.c */
/* Answers a request, makes it wait, or sends it on to node 0. `request` points into the caller's
 * buffer and is copied as far as it is kept. */
void ls__store_serve(ls__store_server *server, ls__store_peer *c, uint64_t id,
                     const ls__wire_request *request);
/* Sends a reply; a peer that does not read its replies becomes lost. */
void ls__store_reply_to(ls__store_server *server, ls__store_peer *c, uint64_t id,
                        const ls__wire_reply *reply);
/* Fails the peer's waiting requests whose deadline has passed. */
void ls__store_expire(ls__store_server *server, ls__store_peer *c, uint64_t now_ns);
void ls__store_waiter_free(ls__store_server *server, ls__store_peer *c, ls__store_waiter *w);
/* Writes queued replies as far as the connection accepts them now. */
void ls__store_flush(ls__store_server *server, ls__store_peer *c);

#endif
