/* A rank's connection to the store.
 *
 * Calls of several threads share it: each sends its frame with a number of its own, and then one of
 * the waiting callers reads for all. So a thread that waits for a key for minutes does not keep
 * another from setting that key.
 *
 *     caller A   send ─▶ reads: polls, receives, hands out replies … has its own: passes reading on
 *     caller B   send ─▶ parks ……………………………… woken: its reply is there, or it reads now
 *
 * The server answers a waiting call when its time is up. Only when the server itself does not
 * answer, the caller gives up ANSWER_MS later; what comes after that is dropped by its number.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "job/store/client.h"

#define ANSWER_MS 5000 /* on top of a call's own time, for a launcher that gets no processor */
#define FRAME_MAX (LS__WIRE_HEADER + LS__WIRE_PAYLOAD_MAX)
#define FRAME_SMALL 512 /* frames up to this are built on the stack */

typedef struct pending {
    ls__list link;
    uint64_t id;
    _Atomic uint32_t news; /* parked on; bumped when something changed for this caller */
    bool done;
    ls_status status;
    ls__store_ask *ask;
    char message[512]; /* of a failure */
} pending;

static ls_status gone(void)
{
    return ls__fail(LS_ERR_PEER,
                    "the connection to the job's store is lost: the process that keeps "
                    "it (the launcher, or local rank 0) ended or dropped this rank");
}

/* ---- sending ------------------------------------------------------------------------------- */

/* All of it by the deadline, or the connection is of no more use. Called with the lock. */
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
            return gone();
        }
        ls__env_poll item = {.fd = store->fd, .want_write = true};
        int ready = env->poll(env, &item, 1, deadline);
        if (ready <= 0 && env->now_ns(env) >= deadline) {
            store->broken = sent > 0;
            return ls__fail(LS_ERR_TIMEOUT, "the launcher does not take requests");
        }
    }
    return LS_OK;
}

static ls_status send_request(ls_store *store, const ls__store_ask *ask, uint64_t id,
                              uint64_t deadline)
{
    const ls__env *env = store->env;
    uint8_t small[FRAME_SMALL];
    size_t bytes = ls__wire_request_bytes(&ask->request);
    uint8_t *frame = bytes <= sizeof small ? small : env->allocate(env, bytes);
    if (frame == NULL) {
        return ls__fail(LS_ERR_MEMORY, "a request of %zu bytes", bytes);
    }
    ls__wire_request_write(frame, id, &ask->request);
    ls_status status = send_all(store, frame, bytes, ask->put_fd, deadline);
    if (frame != small) {
        env->release(env, frame, bytes);
    }
    return status;
}

/* ---- receiving ----------------------------------------------------------------------------- */

static void tell(ls_store *store, pending *p)
{
    atomic_fetch_add_explicit(&p->news, 1, memory_order_release);
    store->env->wake(store->env, &p->news, 1);
}

static void finish(ls_store *store, pending *p, const ls__wire_reply *reply)
{
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
            ask->got_fd = store->in_fd;
            store->in_fd = -1;
        }
    }
    p->done = true;
    ls__list_remove(&p->link);
    tell(store, p);
}

/* Hands a reply to its caller; one that gave up is not there any more. */
static void deliver(ls_store *store, uint64_t id, const ls__wire_reply *reply)
{
    LS__LIST_EACH (at, &store->calls) {
        pending *p = LS__LIST_ITEM(at, pending, link);
        if (p->id == id) {
            finish(store, p, reply);
            break;
        }
    }
    if (store->in_fd >= 0) {
        store->env->close(store->env, store->in_fd);
        store->in_fd = -1;
    }
}

/* Bytes of the frame at the front of the input: of its header while that is not complete. 0: it is
 * no frame. */
static size_t frame_bytes(const ls_store *store, ls__wire_header *header)
{
    if (store->in_bytes < LS__WIRE_HEADER) {
        return LS__WIRE_HEADER;
    }
    bool sound = ls__wire_header_read(store->in, header) && header->type == LS__WIRE_REPLY_TYPE;
    return sound ? LS__WIRE_HEADER + header->length : 0;
}

/* Receives up to the end of the frame now coming, so that a descriptor is always of this frame.
 * Returns whether there may be more to receive. */
static bool receive_part(ls_store *store)
{
    ls__wire_header header;
    const ls__env *env = store->env;
    size_t bytes = frame_bytes(store, &header);
    int fd = -1;
    ssize_t got =
        env->recv(env, store->fd, store->in + store->in_bytes, bytes - store->in_bytes, &fd);
    if (fd >= 0 && store->in_fd >= 0) {
        env->close(env, store->in_fd);
    }
    store->in_fd = fd >= 0 ? fd : store->in_fd;
    store->in_bytes += got > 0 ? (size_t)got : 0;
    bytes = frame_bytes(store, &header);
    store->broken = bytes == 0 || got == 0 || (got < 0 && got != -EAGAIN);
    return got > 0 && !store->broken;
}

/* At most one frame: its caller may be the one that reads. */
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

/* One turn of reading on behalf of all callers. Called with the lock, released while polling. */
static void read_turn(ls_store *store, uint64_t deadline)
{
    ls__env_poll item = {.fd = store->fd, .want_read = true};
    store->reading = true;
    ls__store_unlock(store);
    int ready = store->env->poll(store->env, &item, 1, deadline);
    (void)ls__store_lock(store, LS__NEVER);
    store->reading = false;
    if (ready > 0) {
        receive(store);
    }
}

/* The next caller reads; when nothing more can come, all see that. */
static void pass_on(ls_store *store)
{
    LS__LIST_EACH (at, &store->calls) {
        tell(store, LS__LIST_ITEM(at, pending, link));
        if (!store->broken) {
            return;
        }
    }
}

static ls_status await(ls_store *store, pending *p, uint64_t deadline)
{
    const ls__env *env = store->env;
    while (!p->done && !store->broken && env->now_ns(env) < deadline) {
        if (!store->reading) {
            read_turn(store, deadline);
            continue;
        }
        uint32_t news = atomic_load_explicit(&p->news, memory_order_acquire);
        ls__store_unlock(store);
        (void)env->park(env, &p->news, news, deadline);
        (void)ls__store_lock(store, LS__NEVER);
    }
    ls__list_remove(&p->link);
    if (!store->reading) {
        pass_on(store);
    }
    if (p->done) {
        return p->status < 0 ? ls__fail(p->status, "%s", p->message) : LS_OK;
    }
    return store->broken ? gone()
                         : ls__fail(LS_ERR_TIMEOUT, "the launcher's store does not answer");
}

ls_status ls__store_client_call(ls_store *store, ls__store_ask *ask)
{
    uint64_t deadline = ls__deadline_after(store->env, ask->timeout_ms + ANSWER_MS);
    if (ls__store_lock(store, deadline) != 0) {
        return ls__fail(LS_ERR_TIMEOUT, "the launcher does not take requests");
    }
    pending p = {.id = ++store->next_id, .ask = ask};
    ls__list_init(&p.link);
    ls_status status = store->broken ? gone() : send_request(store, ask, p.id, deadline);
    if (status == LS_OK) {
        ls__list_push_back(&store->calls, &p.link);
        status = await(store, &p, deadline);
    }
    ls__store_unlock(store);
    return status;
}

/* ---- connecting ---------------------------------------------------------------------------- */

/* Sends the secret and waits for the empty reply. */
static ls_status say_hello(ls_store *store, const uint8_t *secret)
{
    uint8_t hello[LS__WIRE_HELLO];
    ls__store_ask nothing = {.got_fd = -1};
    pending p = {.id = ++store->next_id, .ask = &nothing};
    uint64_t deadline = ls__deadline_after(store->env, LS__STORE_HANDSHAKE_MS + ANSWER_MS);
    ls__wire_header_write(hello,
                          (ls__wire_header){LS__WIRE_HELLO_TYPE, p.id, LS__STORE_SECRET_BYTES});
    memcpy(hello + LS__WIRE_HEADER, secret, LS__STORE_SECRET_BYTES);
    (void)ls__store_lock(store, LS__NEVER);
    ls_status status = send_all(store, hello, sizeof hello, -1, deadline);
    memset(hello, 0, sizeof hello);
    if (status == LS_OK) {
        ls__list_push_back(&store->calls, &p.link);
        status = await(store, &p, deadline);
    }
    ls__store_unlock(store);
    return status < 0 ? ls__fail_within(LS_ERR_AUTH, "joining the launcher's store") : LS_OK;
}

ls_status ls__store_connect(const ls__env *env, int fd, const uint8_t secret[32], ls_store **out)
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
    status = store->in == NULL
                 ? ls__fail(LS_ERR_MEMORY, "the store's client of %zu bytes", FRAME_MAX)
                 : say_hello(store, secret);
    if (status < 0) {
        ls__store_close(store);
        return status;
    }
    *out = store;
    return LS_OK;
}
