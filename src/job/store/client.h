/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by store.c (the public calls) and the two implementations behind them: a connection to the
 * server (client.c) and a table in this process (local.c). */
#ifndef LS_JOB_STORE_CLIENT_H
#define LS_JOB_STORE_CLIENT_H

#include <stdatomic.h>

#include "base/list.h"
#include "job/store/table.h"
#include "job/store/wire.h"

/* One call: its arguments and its results. `value` is the caller's memory. */
typedef struct ls__store_ask {
    ls__wire_request request; /* of GET, WAIT, GET_FD, `number` is set from timeout_ms */
    int64_t timeout_ms;
    int put_fd;      /* -1: none; borrowed */
    void *value;     /* out, of GET */
    size_t capacity; /* of value */
    size_t bytes;    /* out: length of the value */
    int64_t number;  /* out */
    int received_fd; /* out, of GET_FD: owned by the caller */
} ls__store_ask;

struct ls_store {
    const ls__env *env;
    ls_status (*call)(ls_store *store, ls__store_ask *ask);
    _Atomic uint32_t lock; /* 0 free, 1 held, 2 held and a thread waits for it */

    /* Of a connection. Sync: `lock`. */
    int fd; /* -1: none */
    uint64_t next_id;
    ls__list calls; /* waiting for a reply */
    bool reading;   /* a caller polls on behalf of all, without `lock`; the others park */
    bool broken;    /* the connection is lost or violated the protocol: no reply will arrive */
    int in_fd;      /* the descriptor that arrived with the bytes in `in`; -1: none */
    uint8_t *in;    /* [LS__WIRE_HEADER + LS__WIRE_PAYLOAD_MAX] */
    size_t in_bytes;

    /* Of a store in memory. Sync: `lock`. */
    ls__store_table *table;
    _Atomic uint32_t version; /* incremented by each change; waiters park on it */
};

/* An empty store; the caller sets `call` and the fields of one implementation. */
ls_status ls__store_new(const ls__env *env, ls_store **out);
/* 0, or -ETIMEDOUT. No thread holds the lock while it waits for the server. */
int ls__store_lock(ls_store *store, uint64_t deadline_ns);
void ls__store_unlock(ls_store *store);

/* The two implementations of `call`: they block until the reply is there or the call's time is
 * over, and set the message of a failure. Any thread may call them. */
ls_status ls__store_client_call(ls_store *store, ls__store_ask *ask);
ls_status ls__store_local_call(ls_store *store, ls__store_ask *ask);

#endif
