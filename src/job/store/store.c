/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls of the store. This file checks their arguments and names the call in error
 * messages; the answer comes from elsewhere.
 *
 * A call becomes an ls__store_ask, which goes through store->call: over the connection to the
 * process that serves the job's store (client.c), or, in a world of one rank, to a table in this
 * process (local.c).
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/runtime.h"
#include "job/store/client.h"

#define TIMEOUT_DEFAULT_MS 300000 /* before ls_init: LOCKSTEP_TIMEOUT's default */

/* ---- life ---------------------------------------------------------------------------------- */

/* The simulator and the tests give their own env, so memory comes from it. */
ls_status ls__store_new(const ls__env *env, ls_store **out)
{
    ls_store *store = env->allocate(env, sizeof *store);
    if (store == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for the store's client (%zu bytes)",
                        sizeof *store);
    }
    memset(store, 0, sizeof *store);
    store->env = env;
    store->fd = -1;
    store->in_fd = -1;
    ls__list_init(&store->calls);
    *out = store;
    return LS_OK;
}

/* No call may be in progress. */
void ls__store_close(ls_store *store)
{
    if (store == NULL) {
        return;
    }
    const ls__env *env = store->env;
    if (store->fd >= 0) {
        env->close(env, store->fd);
    }
    if (store->in_fd >= 0) {
        env->close(env, store->in_fd);
    }
    if (store->in != NULL) {
        env->release(env, store->in, LS__WIRE_HEADER + LS__WIRE_PAYLOAD_MAX);
    }
    ls__store_table_free(store->table);
    env->release(env, store, sizeof *store);
}

/* ---- the lock: a word to park on ----------------------------------------------------------- */

/* The three-state mutex of Drepper, "Futexes Are Tricky", with a deadline. The env table
 * has park and wake but no mutex, so that the simulator can schedule every wait. */
int ls__store_lock(ls_store *store, uint64_t deadline_ns)
{
    uint32_t free = 0;
    if (atomic_compare_exchange_strong_explicit(&store->lock, &free, 1, memory_order_acquire,
                                                memory_order_relaxed)) {
        return 0;
    }
    /* Each waiter stores 2, so that unlock wakes one; at worst unlock wakes without need. */
    while (atomic_exchange_explicit(&store->lock, 2, memory_order_acquire) != 0) {
        if (store->env->park(store->env, &store->lock, 2, deadline_ns) == -ETIMEDOUT) {
            return -ETIMEDOUT;
        }
    }
    return 0;
}

/* Wakes one waiter, which stores 2 again on behalf of the others. */
void ls__store_unlock(ls_store *store)
{
    const uint32_t former = atomic_exchange_explicit(&store->lock, 0, memory_order_release);
    LS_ASSERT(former != 0);
    if (former == 2) {
        store->env->wake(store->env, &store->lock, 1);
    }
}

/* ---- calls --------------------------------------------------------------------------------- */

/* Checks the arguments that all calls share; `call` is the public name, for the message. */
static ls_status check(const ls_store *store, const char *call, const char *key)
{
    if (store == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "%s: the store is NULL; call ls_init and use ls_runtime_store()", call);
    }
    const size_t bytes = key == NULL ? 0 : strnlen(key, LS_STORE_KEY_MAX + 1);
    if (bytes == 0 || bytes > LS_STORE_KEY_MAX) {
        return ls__fail(LS_ERR_INVALID, "%s: the key \"%.40s\" must have 1 to %d bytes", call,
                        key == NULL ? "" : key, LS_STORE_KEY_MAX);
    }
    return LS_OK;
}

/* The bound keeps the store a place for coordination; data belongs into collectives. */
static ls_status check_value(const char *call, const char *key, ls_store_value value)
{
    if (value.bytes > LS_STORE_VALUE_MAX) {
        return ls__fail(
            LS_ERR_LIMIT,
            "%s \"%s\": the value has %zu bytes, and at most %zu are allowed: store the "
            "name of a file, or use ls_broadcast for data",
            call, key, value.bytes, LS_STORE_VALUE_MAX);
    }
    if (value.data == NULL && value.bytes > 0) {
        return ls__fail(LS_ERR_INVALID, "%s \"%s\": the value is NULL but has %zu bytes", call, key,
                        value.bytes);
    }
    return LS_OK;
}

/* Makes the call. A negative timeout_ms means the runtime's. GET, WAIT and GET_FD carry their
 * timeout to the server, which answers when it is over. The messages of public calls ("ls_…") get
 * name and key in front; those of the library's own calls do not, as their keys mean nothing to a
 * user. */
static ls_status call(ls_store *store, const char *name, ls__store_ask *ask, const char *key,
                      int64_t timeout_ms)
{
    LS_ASSERT(store->call != NULL);
    const int64_t otherwise =
        ls__self.runtime != NULL ? ls__self.runtime->timeout_ms : TIMEOUT_DEFAULT_MS;
    ask->timeout_ms = timeout_ms < 0 ? otherwise : timeout_ms;
    ask->timeout_ms = ask->timeout_ms > INT32_MAX ? INT32_MAX : ask->timeout_ms;
    ask->request.key = key;
    ask->request.key_bytes = strlen(key);
    ask->received_fd = -1;
    if (ask->request.type == LS__WIRE_GET || ask->request.type == LS__WIRE_WAIT ||
        ask->request.type == LS__WIRE_GET_FD) {
        ask->request.number = ask->timeout_ms;
    }
    const ls_status status = store->call(store, ask);
    if (status == LS_ERR_TIMEOUT) {
        return ls__fail_within(status, "%s \"%s\" (waited up to %lld ms)", name, key,
                               (long long)ask->timeout_ms);
    }
    return status < 0 && strncmp(name, "ls_", 3) == 0
               ? ls__fail_within(status, "%s \"%s\"", name, key)
               : status;
}

ls_status ls_store_set(ls_store *store, const char *key, const void *value, size_t bytes,
                       int64_t timeout_ms)
{
    LS_TRY(check(store, "ls_store_set", key));
    LS_TRY(check_value("ls_store_set", key, (ls_store_value){value, bytes}));
    ls__store_ask ask = {.request = {.type = LS__WIRE_SET, .first = value, .first_bytes = bytes},
                         .put_fd = -1};
    return call(store, "ls_store_set", &ask, key, timeout_ms);
}

/* A value that does not fit is not copied in part: *bytes becomes its length, and the caller can
 * come again with more room. */
ls_status ls_store_get(ls_store *store, const char *key, void *value, size_t *bytes,
                       int64_t timeout_ms)
{
    LS_TRY(check(store, "ls_store_get", key));
    if (bytes == NULL || (value == NULL && *bytes > 0)) {
        return ls__fail(LS_ERR_INVALID, "ls_store_get \"%s\": value and bytes must not be NULL",
                        key);
    }
    ls__store_ask ask = {
        .request = {.type = LS__WIRE_GET}, .put_fd = -1, .value = value, .capacity = *bytes};
    LS_TRY(call(store, "ls_store_get", &ask, key, timeout_ms));
    const size_t room = *bytes;
    *bytes = ask.bytes;
    if (ask.bytes > room) {
        return ls__fail(LS_ERR_LIMIT,
                        "ls_store_get \"%s\": the value has %zu bytes and there is room for %zu; "
                        "nothing was copied",
                        key, ask.bytes, room);
    }
    return LS_OK;
}

/* One request, executed by the server between two others: the addition is atomic. */
ls_status ls_store_add(ls_store *store, const char *key, int64_t amount, int64_t *result,
                       int64_t timeout_ms)
{
    LS_TRY(check(store, "ls_store_add", key));
    ls__store_ask ask = {.request = {.type = LS__WIRE_ADD, .number = amount}, .put_fd = -1};
    LS_TRY(call(store, "ls_store_add", &ask, key, timeout_ms));
    if (result != NULL) {
        *result = ask.number;
    }
    return LS_OK;
}

ls_status ls_store_wait(ls_store *store, const char *key, int64_t timeout_ms)
{
    LS_TRY(check(store, "ls_store_wait", key));
    ls__store_ask ask = {.request = {.type = LS__WIRE_WAIT}, .put_fd = -1};
    return call(store, "ls_store_wait", &ask, key, timeout_ms);
}

/* Atomic, as ls_store_add. The result says whether this call's value is in the store now. */
ls_status ls_store_compare_set(ls_store *store, const char *key, ls_store_value expected,
                               ls_store_value desired, bool *swapped, int64_t timeout_ms)
{
    LS_TRY(check(store, "ls_store_compare_set", key));
    LS_TRY(check_value("ls_store_compare_set", key, expected));
    LS_TRY(check_value("ls_store_compare_set", key, desired));
    ls__store_ask ask = {.request = {.type = LS__WIRE_COMPARE_SET,
                                     .first = expected.data,
                                     .first_bytes = expected.bytes,
                                     .second = desired.data,
                                     .second_bytes = desired.bytes},
                         .put_fd = -1};
    LS_TRY(call(store, "ls_store_compare_set", &ask, key, timeout_ms));
    if (swapped != NULL) {
        *swapped = ask.number != 0;
    }
    return LS_OK;
}

/* Deleting a missing key succeeds, with *deleted == false. */
ls_status ls_store_delete(ls_store *store, const char *key, bool *deleted, int64_t timeout_ms)
{
    LS_TRY(check(store, "ls_store_delete", key));
    ls__store_ask ask = {.request = {.type = LS__WIRE_DELETE}, .put_fd = -1};
    LS_TRY(call(store, "ls_store_delete", &ask, key, timeout_ms));
    if (deleted != NULL) {
        *deleted = ask.number != 0;
    }
    return LS_OK;
}

/* The two calls of the library's own: rank heaps travel as descriptors between the ranks of a
 * host. */
ls_status ls__store_put_fd(ls_store *store, const char *key, int fd, int64_t timeout_ms)
{
    LS_TRY(check(store, "store put_fd", key));
    ls__store_ask ask = {.request = {.type = LS__WIRE_PUT_FD}, .put_fd = fd};
    return call(store, "store put_fd", &ask, key, timeout_ms);
}

ls_status ls__store_get_fd(ls_store *store, const char *key, int *out, int64_t timeout_ms)
{
    LS_TRY(check(store, "store get_fd", key));
    ls__store_ask ask = {.request = {.type = LS__WIRE_GET_FD}, .put_fd = -1};
    LS_TRY(call(store, "store get_fd", &ask, key, timeout_ms));
    *out = ask.received_fd;
    return LS_OK;
}
