/* Between store.c (the public calls) and the two ways to answer them: a connection (client.c) and a
 * table in memory (local.c). */
#ifndef LS_JOB_STORE_CLIENT_H
#define LS_JOB_STORE_CLIENT_H

#include <stdatomic.h>

#include "base/list.h"
#include "job/store/table.h"
#include "job/store/wire.h"

/* What a call asks and gets. `value` is the caller's memory. */
typedef struct ls__store_ask {
    ls__wire_request request; /* number of a waiting one: set from timeout_ms */
    int64_t timeout_ms;
    int put_fd;      /* -1: none; borrowed */
    void *value;     /* out, of GET */
    size_t capacity; /* of value */
    size_t bytes;    /* out: length of the value */
    int64_t number;  /* out */
    int got_fd;      /* out, of GET_FD: the caller's */
} ls__store_ask;

struct ls_store {
    const ls__env *env;
    ls_status (*call)(ls_store *store, ls__store_ask *ask);
    _Atomic uint32_t lock; /* 0 free, 1 held, 2 held and wanted */

    /* connection. Sync: under `lock`, but the input by the thread that has `reading` */
    int fd; /* -1: none */
    uint64_t next_id;
    ls__list calls; /* waiting for a reply */
    bool reading;   /* a caller is in poll or recv, on behalf of all */
    bool broken;    /* protocol or connection lost: nothing more will come */
    int in_fd;      /* came with the bytes in `in`; -1: none */
    uint8_t *in;    /* [LS__WIRE_HEADER + LS__WIRE_PAYLOAD_MAX] */
    size_t in_bytes;

    /* in memory. Sync: under `lock` */
    ls__store_table *table;
    _Atomic uint32_t version; /* bumped by each change; waiters park on it */
    _Atomic uint32_t waiters;
};

ls_status ls__store_new(const ls__env *env, ls_store **out); /* neither way yet */
/* -ETIMEDOUT or 0. Held for short times only. */
int ls__store_lock(ls_store *store, uint64_t deadline_ns);
void ls__store_unlock(ls_store *store);

ls_status ls__store_client_call(ls_store *store, ls__store_ask *ask);
ls_status ls__store_local_call(ls_store *store, ls__store_ask *ask);

#endif
