/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's connection to the store.
 *
 * Calls of several threads share it: each sends its frame with a number of its own, and then one of
 * the waiting callers reads for all. Therefore a thread that waits for a key for minutes does not
 * keep another thread from setting that key.
 *
 *     caller A   send ─▶ reads: polls, receives, delivers replies … has its own: passes reading on
 *     caller B   send ─▶ parks ……………………………… woken: its reply is there, or it reads now
 *
 * The server answers a waiting call when the call's time is over. If the server itself does not
 * answer, the caller gives up ANSWER_MS later; a reply that arrives after that matches no number
 * and is dropped.
 */
#include <errno.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "job/store/client.h"

#define ANSWER_MS 5000 /* in addition to a call's own time, for a busy host */
#define STOPPED_NS UINT64_C(1000000000)
#define FRAME_MAX (LS__WIRE_HEADER + LS__WIRE_PAYLOAD_MAX)
#define FRAME_SMALL 512 /* frames up to this are built on the stack */

/* A call that waits for its reply. It lives on the caller's stack and is in store->calls until the
 * reply has been delivered or the caller has given up. Sync: store->lock. */
typedef struct pending {
    ls__list link;
    uint64_t id;
    _Atomic uint32_t changes; /* the caller parks on it; incremented to wake the caller */
    bool done;
    ls_status status;
    ls__store_ask *ask;
    char message[512]; /* of a failure */
} pending;

static ls_status connection_lost(void)
{
    return ls__fail(LS_ERR_PEER,
                    "the connection to the job's store is lost: the process that serves it (the "
                    "launcher, or local rank 0) has ended or has dropped this rank");
}

/* ---- sending ------------------------------------------------------------------------------- */

/* Sends a whole frame before the deadline. Needs the lock. After a part of a frame the connection
 * cannot be used for another one, so a deadline then breaks it. */
static ls_status send_all(ls_store *store, const uint8_t *frame, size_t bytes, int fd,
                          uint64_t deadline)
{
    const ls__env *env = store->env;
    for (size_t sent = 0; sent < bytes;) {
        ssize_t put = env->send(env, store->fd, frame + sent, bytes - sent, sent == 0 ? fd : -1);
        if (put > 0) {
            sent += (size_t)put;
            continue;
        }
        if (put != -EAGAIN) {
            store->broken = true;
            return connection_lost();
        }
        ls__env_poll item = {.fd = store->fd, .want_write = true};
        int ready = env->poll(env, &item, 1, deadline);
        if (ready <= 0 && env->now_ns(env) >= deadline) {
            store->broken = sent > 0;
            return ls__fail(LS_ERR_TIMEOUT, "the job's store did not accept the request");
        }
    }
    return LS_OK;
}

/* Small frames, which is nearly all of them, are built without an allocation. Needs the lock. */
static ls_status send_request(ls_store *store, const ls__store_ask *ask, uint64_t id,
                              uint64_t deadline)
{
    const ls__env *env = store->env;
    uint8_t small[FRAME_SMALL];
    const size_t bytes = ls__wire_request_bytes(&ask->request);
    uint8_t *frame = bytes <= sizeof small ? small : env->allocate(env, bytes);
    if (frame == NULL) {
        return ls__fail(LS_ERR_MEMORY, "a request of %zu bytes", bytes);
    }
    ls__wire_request_write(frame, id, &ask->request);
    const ls_status status = send_all(store, frame, bytes, ask->put_fd, deadline);
    if (frame != small) {
        env->release(env, frame, bytes);
    }
    return status;
}

/* ---- receiving ----------------------------------------------------------------------------- */

/* Wakes one caller. Needs the lock: a caller that finds its reply returns, and `p` ends with it. */
static void notify(ls_store *store, pending *p)
{
    /* Sync: release; pairs with the acquire in await. */
    atomic_fetch_add_explicit(&p->changes, 1, memory_order_release);
    store->env->wake(store->env, &p->changes, 1);
}

/* Copies a reply to its caller and wakes it. The value is copied only if it fits completely; the
 * caller learns the length in any case. Statuses that this version does not know count as success,
 * as no server sends them. */
static void finish_request(ls_store *store, pending *p, const ls__wire_reply *reply)
{
    LS_ASSERT(!p->done);
    ls__store_ask *ask = p->ask;
    p->status =
        reply->status < 0 && reply->status >= LS_ERR_INTERNAL ? (ls_status)reply->status : LS_OK;
    if (p->status < 0) {
        size_t bytes = reply->bytes < sizeof p->message ? reply->bytes : sizeof p->message - 1;
        memcpy(p->message, reply->value, bytes);
        p->message[bytes] = '\0';
    } else {
        ask->number = reply->number;
        ask->bytes = reply->bytes;
        if (ask->value != NULL && reply->bytes > 0 && reply->bytes <= ask->capacity) {
            memcpy(ask->value, reply->value, reply->bytes);
        }
        if (ask->request.type == LS__WIRE_GET_FD) {
            ask->received_fd = store->in_fd;
            store->in_fd = -1;
        }
    }
    p->done = true;
    ls__list_remove(&p->link);
    notify(store, p);
}

/* Delivers a reply to its caller. A caller that gave up has left the list; its reply is dropped,
 * and so is a descriptor that no caller took. */
static void deliver(ls_store *store, uint64_t id, const ls__wire_reply *reply)
{
    LS__LIST_EACH (at, &store->calls) {
        pending *p = LS__LIST_ITEM(at, pending, link);
        if (p->id == id) {
            finish_request(store, p, reply);
            break;
        }
    }
    if (store->in_fd >= 0) {
        store->env->close(store->env, store->in_fd);
        store->in_fd = -1;
    }
}

/* The length of the frame at the start of the input; that of its header while the header is not
 * complete. 0: the input is not a reply. */
static size_t frame_bytes(const ls_store *store, ls__wire_header *header)
{
    if (store->in_bytes < LS__WIRE_HEADER) {
        return LS__WIRE_HEADER;
    }
    bool sound = ls__wire_header_read(store->in, header) && header->type == LS__WIRE_REPLY_TYPE;
    return sound ? LS__WIRE_HEADER + header->length : 0;
}

/* Receives at most up to the end of the current frame, so that a descriptor always belongs to this
 * frame. Returns whether there may be more to receive. */
static bool receive_part(ls_store *store)
{
    ls__wire_header header;
    const ls__env *env = store->env;
    size_t bytes = frame_bytes(store, &header);
    int fd = -1;
    LS_ASSERT(bytes >= store->in_bytes && bytes <= FRAME_MAX);
    ssize_t received =
        env->recv(env, store->fd, store->in + store->in_bytes, bytes - store->in_bytes, &fd);
    if (fd >= 0 && store->in_fd >= 0) { /* a second one in a frame: the last one counts */
        env->close(env, store->in_fd);
    }
    store->in_fd = fd >= 0 ? fd : store->in_fd;
    store->in_bytes += received > 0 ? (size_t)received : 0;
    bytes = frame_bytes(store, &header);
    store->broken = bytes == 0 || received == 0 || (received < 0 && received != -EAGAIN);
    return received > 0 && !store->broken;
}

/* Receives and delivers at most one frame: the reply may be that of the reading caller, which must
 * then stop reading and return. */
static void receive(ls_store *store)
{
    ls__wire_header header;
    ls__wire_reply reply;
    while (receive_part(store)) {
        size_t bytes = frame_bytes(store, &header);
        if (bytes == LS__WIRE_HEADER || store->in_bytes < bytes) {
            continue;
        }
        store->broken = !ls__wire_reply_read(store->in + LS__WIRE_HEADER, header.length, &reply);
        store->in_bytes = 0;
        if (!store->broken) {
            deliver(store, header.id, &reply);
        }
        return;
    }
}

/* Polls and receives once on behalf of all callers. Needs the lock and releases it while polling;
 * `reading` keeps the input with this thread meanwhile. */
static void read_turn(ls_store *store, uint64_t deadline)
{
    ls__env_poll item = {.fd = store->fd, .want_read = true};
    LS_ASSERT(!store->reading);
    store->reading = true;
    ls__store_unlock(store);
    int ready = store->env->poll(store->env, &item, 1, deadline);
    (void)ls__store_lock(store, LS__NEVER);
    store->reading = false;
    if (ready > 0) {
        receive(store);
    }
}

/* Lets the next waiting caller read; wakes all of them when the connection is broken. Without this
 * call the others would park forever once the reader has its own reply. */
static void pass_reading_on(ls_store *store)
{
    LS__LIST_EACH (at, &store->calls) {
        notify(store, LS__LIST_ITEM(at, pending, link));
        if (!store->broken) {
            return;
        }
    }
}

/* A process that was stopped (Ctrl-Z, a debugger) finds its deadline long past when it goes on, and
 * perhaps the server was stopped, too: the server then has its time again. */
static bool has_time(const ls__env *env, uint64_t *deadline)
{
    const uint64_t now = env->now_ns(env);
    if (now > *deadline && now - *deadline > STOPPED_NS) {
        *deadline = ls__deadline_after(env, ANSWER_MS);
    }
    return now < *deadline;
}

/* Waits for the reply of `p`, which is in store->calls: reads if no other caller does, parks
 * otherwise. Needs the lock and returns with it. */
static ls_status await(ls_store *store, pending *p, uint64_t deadline)
{
    const ls__env *env = store->env;
    while (!p->done && !store->broken && has_time(env, &deadline)) {
        if (!store->reading) {
            read_turn(store, deadline);
            continue;
        }
        /* Sync: acquire, read under the lock: a notification after the unlock makes park return. */
        const uint32_t changes = atomic_load_explicit(&p->changes, memory_order_acquire);
        ls__store_unlock(store);
        (void)env->park(env, &p->changes, changes, deadline);
        (void)ls__store_lock(store, LS__NEVER);
    }
    ls__list_remove(&p->link);
    if (!store->reading) {
        pass_reading_on(store);
    }
    if (p->done) {
        return p->status < 0 ? ls__fail(p->status, "%s", p->message) : LS_OK;
    }
    return store->broken ? connection_lost()
                         : ls__fail(LS_ERR_TIMEOUT, "the job's store did not answer");
}

/* The deadline lies ANSWER_MS after the call's own: normally the server reports that the time is
 * over, with a message that names the key. */
ls_status ls__store_client_call(ls_store *store, ls__store_ask *ask)
{
    const uint64_t deadline = ls__deadline_after(store->env, ask->timeout_ms + ANSWER_MS);
    if (ls__store_lock(store, deadline) != 0) {
        return ls__fail(LS_ERR_TIMEOUT, "the job's store did not accept the request");
    }
    pending p = {.id = ++store->next_id, .ask = ask};
    ls__list_init(&p.link);
    ls_status status = store->broken ? connection_lost() : send_request(store, ask, p.id, deadline);
    if (status == LS_OK) {
        ls__list_push_back(&store->calls, &p.link);
        status = await(store, &p, deadline);
    }
    ls__store_unlock(store);
    return status;
}

/* ---- connecting ---------------------------------------------------------------------------- */

/* A server that is slow says nothing against the secret, so its silence keeps its own status. */
static ls_status fail_handshake(ls_status status, int64_t timeout_ms)
{
    LS_ASSERT(status < 0);
    return status == LS_ERR_TIMEOUT
               ? ls__fail(status,
                          "joining the job's store: the process that serves it (the launcher, or "
                          "local rank 0) did not answer within %g s; check that it is not stopped, "
                          "start fewer ranks on this host, or raise LOCKSTEP_TIMEOUT",
                          (double)timeout_ms * 1e-3)
               : ls__fail_within(LS_ERR_AUTH, "joining the job's store");
}

/* Proves that this process knows the job's secret: sends it and waits for the empty reply. The
 * server drops a connection without a reply if the secret is wrong. On a busy host the server may
 * still be starting ranks, so the wait is as long as any other of ls_init. */
static ls_status handshake(ls_store *store, const uint8_t *secret, int64_t timeout_ms)
{
    uint8_t hello[LS__WIRE_HELLO];
    ls__store_ask nothing = {.put_fd = -1, .received_fd = -1};
    pending p = {.id = ++store->next_id, .ask = &nothing};
    const uint64_t deadline = ls__deadline_after(store->env, timeout_ms);
    ls__wire_header_write(hello,
                          (ls__wire_header){LS__WIRE_HELLO_TYPE, p.id, LS__STORE_SECRET_BYTES});
    memcpy(hello + LS__WIRE_HEADER, secret, LS__STORE_SECRET_BYTES);
    (void)ls__store_lock(store, LS__NEVER);
    ls_status status = send_all(store, hello, sizeof hello, -1, deadline);
    explicit_bzero(hello, sizeof hello);
    if (status == LS_OK) {
        ls__list_push_back(&store->calls, &p.link);
        status = await(store, &p, deadline);
    }
    ls__store_unlock(store);
    return status < 0 ? fail_handshake(status, timeout_ms) : LS_OK;
}

/* No other thread knows the store before this function returns, but the handshake uses the common
 * path for replies, so a server that closes the connection is reported as in any later call. */
ls_status ls__store_connect(const ls__env *env, int fd, const uint8_t secret[32],
                            int64_t timeout_ms, ls_store **out)
{
    ls_store *store = NULL;
    ls_status status = ls__store_new(env, &store);
    if (status < 0) {
        env->close(env, fd);
        return status;
    }
    store->fd = fd;
    store->call = ls__store_client_call;
    store->in = env->allocate(env, FRAME_MAX);
    status =
        store->in != NULL
            ? handshake(store, secret, timeout_ms)
            : ls__fail(LS_ERR_MEMORY, "no memory for the store's client (%zu bytes)", FRAME_MAX);
    if (status < 0) {
        ls__store_close(store);
        return status;
    }
    *out = store;
    return LS_OK;
}
