/* Between server.c (connections) and serve.c (requests). */
#ifndef LS_JOB_STORE_SERVER_H
#define LS_JOB_STORE_SERVER_H

#include "base/error.h"
#include "base/list.h"
#include "job/store/buffer.h"
#include "job/store/store.h"
#include "job/store/table.h"
#include "job/store/wire.h"

/* A GET, WAIT or GET_FD whose key is not there yet; or any request that another host's server has
 * been asked. */
typedef struct ls__waiter {
    ls__list link; /* of its client */
    uint64_t id, deadline_ns;
    uint64_t upstream_id; /* 0: waits here */
    ls__wire_type type;
    size_t key_bytes;
    char key[LS_STORE_KEY_MAX];
} ls__waiter;

struct ls__store_guest {
    ls__list link;
    ls__store_server *server;
    int fd;                 /* -1: of another host */
    ls__store_reply *reply; /* of another host: where its replies go */
    void *reply_arg;
    int got_fd; /* came with the frame being read; -1: none */
    bool ready; /* has proven the secret */
    bool invited;
    bool lost; /* to be dropped at the end of the turn */
    uint64_t deadline_ns;
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
    int clients, pending;
    ls__list all;
    char *failure; /* NULL: none; else what every request is answered with */
    size_t failure_bytes;
    ls__store_ask_upstream *upstream; /* NULL: this is the job's store */
    void *upstream_arg;
    uint64_t upstream_id; /* of the last request sent there */
};

/* serve.c */
void ls__store_serve(ls__store_server *server, ls__store_guest *c, uint64_t id,
                     const ls__wire_request *request);
void ls__store_reply_to(ls__store_server *server, ls__store_guest *c, uint64_t id,
                        const ls__wire_reply *reply);
void ls__store_expire(ls__store_server *server, ls__store_guest *c, uint64_t now_ns);
void ls__store_waiter_free(ls__store_server *server, ls__store_guest *c, ls__waiter *w);
/* Writes what the connection takes now. */
void ls__store_flush(ls__store_server *server, ls__store_guest *c);

#endif
