/* SPDX-License-Identifier: Apache-2.0 */
/* The store of a world of one rank: the table of the server, in this process, shared by its
 * threads.
 *
 * A waiting call tries, parks on `version`, which every successful call increments, and tries
 * again. Only another thread can set the key, so the wait is rare, and waking all waiters is cheap
 * enough.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "job/store/client.h"

ls_status ls__store_local(const ls__env *env, ls_store **out)
{
    ls_store *store;
    LS_TRY(ls__store_new(env, &store));
    ls_status status = ls__store_table_new(env, &store->table);
    if (status < 0) {
        ls__store_close(store);
        return status;
    }
    store->call = ls__store_local_call;
    *out = store;
    return LS_OK;
}

int ls__store_local_fd(const ls_store *store, const char *key)
{
    LS_ASSERT(store->table != NULL);
    return ls__store_table_get_fd(store->table, (ls__store_key){key, strlen(key)});
}

/* A second descriptor of the same file. The env table has no dup, but a descriptor that is sent
 * over a socket arrives as a new one. Returns it, or -errno. */
static int duplicate(const ls__env *env, int fd)
{
    int pair[2], copy = -1;
    char byte = 0;
    const int error = env->socket_pair(env, pair);
    if (error < 0) {
        return error;
    }
    ssize_t moved = env->send(env, pair[0], &byte, 1, fd);
    moved = moved < 0 ? moved : env->recv(env, pair[1], &byte, 1, &copy);
    env->close(env, pair[0]);
    env->close(env, pair[1]);
    return copy >= 0 ? copy : moved < 0 ? (int)moved : -EBADF;
}

/* The caller of put_fd keeps its descriptor, and the caller of get_fd owns the one it receives, so
 * both get a duplicate. */
static ls_status duplicate_for(ls_store *store, int fd, int *out)
{
    *out = duplicate(store->env, fd);
    return *out < 0 ? ls__fail(LS_ERR_SYSTEM, "descriptor %d: %s", fd, strerror(-*out)) : LS_OK;
}

/* GET, WAIT and GET_FD. LS_IN_PROGRESS: the key does not exist yet. Needs the lock. */
static ls_status read_key(ls_store *store, ls__store_ask *ask, ls__store_key key)
{
    ls_store_value value;
    if (ask->request.type == LS__WIRE_GET_FD) {
        const int fd = ls__store_table_get_fd(store->table, key);
        return fd < 0 ? LS_IN_PROGRESS : duplicate_for(store, fd, &ask->received_fd);
    }
    if (!ls__store_table_get(store->table, key, &value)) {
        return LS_IN_PROGRESS;
    }
    ask->bytes = value.bytes;
    if (ask->request.type == LS__WIRE_GET && value.bytes > 0 && value.bytes <= ask->capacity) {
        memcpy(ask->value, value.data, value.bytes);
    }
    return LS_OK;
}

/* Executes one call on the table. LS_IN_PROGRESS: the call must wait. Needs the lock. */
static ls_status execute(ls_store *store, ls__store_ask *ask, ls__store_key key)
{
    const ls__wire_request *r = &ask->request;
    const ls_store_value first = {r->first, r->first_bytes};
    const ls_store_value second = {r->second, r->second_bytes};
    bool swapped = false;
    int fd = -1;
    switch (r->type) {
    case LS__WIRE_SET:
        return ls__store_table_set(store->table, key, first);
    case LS__WIRE_ADD:
        return ls__store_table_add(store->table, key, r->number, &ask->number);
    case LS__WIRE_DELETE:
        ask->number = ls__store_table_delete(store->table, key);
        return LS_OK;
    case LS__WIRE_COMPARE_SET:
        LS_TRY(ls__store_table_compare_set(store->table, key, first, second, &swapped));
        ask->number = swapped;
        return LS_OK;
    case LS__WIRE_PUT_FD:
        LS_TRY(duplicate_for(store, ask->put_fd, &fd));
        return ls__store_table_put_fd(store->table, key, fd);
    default:
        return read_key(store, ask, key);
    }
}

/* Every successful call wakes all waiters, reads too: a world of one has few threads and fewer
 * calls.
 */
ls_status ls__store_local_call(ls_store *store, ls__store_ask *ask)
{
    const ls__env *env = store->env;
    const ls__store_key key = {ask->request.key, ask->request.key_bytes};
    const uint64_t deadline = ls__deadline_after(env, ask->timeout_ms);
    LS_ASSERT(store->table != NULL);
    /* `last`: the deadline has passed, but the key may have been set since the last look. */
    for (bool last = false;; last = last || env->now_ns(env) >= deadline) {
        (void)ls__store_lock(store, LS__NEVER);
        const ls_status status = execute(store, ask, key);
        /* Sync: `lock`; the sequentially consistent order pairs with park, which compares again. */
        const uint32_t version =
            status == LS_OK ? atomic_fetch_add(&store->version, 1) : atomic_load(&store->version);
        ls__store_unlock(store);
        if (status != LS_IN_PROGRESS) {
            env->wake(env, &store->version, INT_MAX);
            return status;
        }
        if (last) {
            return ls__fail(LS_ERR_TIMEOUT,
                            "no thread set it within the deadline, and a world of one has no other "
                            "rank to do so");
        }
        (void)env->park(env, &store->version, version, deadline);
    }
}
