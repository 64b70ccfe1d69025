/* SPDX-License-Identifier: Apache-2.0 */
/* The store's server: its requests. A request is answered at once, kept as a waiter until its key
 * is set or its deadline passes, or, on a host without the job's store, sent on to node 0.
 * Descriptors are always handled here: they mean nothing on another host.
 */
#include <errno.h>
#include <string.h>

#include "base/assert.h"
#include "job/store/server.h"

#define OUT_MAX ((size_t)512 << 10) /* bytes of replies kept for a peer that does not read */

/* ---- replies ------------------------------------------------------------------------------- */

/* A partial write leaves the rest in the buffer; the poll loop calls again when the peer reads. */
void ls__store_flush(ls__store_server *server, ls__store_peer *c)
{
    while (!c->lost && c->out.start < c->out.end) {
        ssize_t sent = server->env->send(server->env, c->fd, c->out.data + c->out.start,
                                         c->out.end - c->out.start, -1);
        if (sent == -EAGAIN || sent == -EINTR) {
            return;
        }
        c->lost = sent <= 0;
        c->out.start += sent > 0 ? (size_t)sent : 0;
    }
}

/* Replies to another host go to its link, those to a local rank into its buffer and as far as
 * possible out at once. The bound on the buffer makes a peer that does not read lose its
 * connection, because the others must not wait for it. */
void ls__store_reply_to(ls__store_server *server, ls__store_peer *c, uint64_t id,
                        const ls__wire_reply *r)
{
    const size_t bytes = LS__WIRE_HEADER + LS__WIRE_REPLY + r->bytes;
    if (c->reply != NULL) {
        c->reply(c->reply_arg, id, r);
        return;
    }
    if (c->lost || !ls__store_buffer_reserve(server->env, &c->out, bytes, OUT_MAX)) {
        c->lost = true;
        return;
    }
    ls__wire_reply_write(c->out.data + c->out.end, id, r);
    c->out.end += bytes;
    ls__store_flush(server, c);
}

/* A reply with a descriptor has 40 bytes and is sent at once, or the peer is lost: a queued reply
 * would name a descriptor that may be closed by the time it is sent. */
static void reply_fd(ls__store_server *server, ls__store_peer *c, uint64_t id, int fd)
{
    uint8_t frame[LS__WIRE_HEADER + LS__WIRE_REPLY];
    ls__wire_reply_write(frame, id, &(ls__wire_reply){LS_OK, 0, NULL, 0});
    c->lost =
        c->lost || c->out.start < c->out.end ||
        server->env->send(server->env, c->fd, frame, sizeof frame, fd) != (ssize_t)sizeof frame;
}

/* Sends a status without a value; of a failure, with this thread's message. */
static void reply_status(ls__store_server *server, ls__store_peer *c, uint64_t id, ls_status status)
{
    const char *text = status < 0 ? ls_error_message() : "";
    ls__store_reply_to(server, c, id, &(ls__wire_reply){status, 0, text, strlen(text)});
}

/* ---- waiting --------------------------------------------------------------------------------- */

void ls__store_waiter_free(ls__store_server *server, ls__store_peer *c, ls__store_waiter *w)
{
    LS_ASSERT(c->waiters > 0);
    ls__list_remove(&w->link);
    c->waiters--;
    server->env->release(server->env, w, sizeof *w);
}

/* Answers a GET, WAIT or GET_FD if its key exists. False: it must wait. */
static bool answer(ls__store_server *server, ls__store_peer *c, uint64_t id, ls__wire_type type,
                   ls__store_key key)
{
    ls_store_value value;
    if (type == LS__WIRE_GET_FD) {
        const int fd = ls__store_table_get_fd(server->table, key);
        if (fd >= 0) {
            reply_fd(server, c, id, fd);
        }
        return fd >= 0;
    }
    if (!ls__store_table_get(server->table, key, &value)) {
        return false;
    }
    value.bytes = type == LS__WIRE_GET ? value.bytes : 0;
    ls__store_reply_to(server, c, id, &(ls__wire_reply){LS_OK, 0, value.data, value.bytes});
    return true;
}

/* Answers all requests that wait for this key, after it was set. */
static void wake_waiters(ls__store_server *server, ls__store_key key)
{
    LS__LIST_EACH (each, &server->all) {
        ls__store_peer *c = LS__LIST_ITEM(each, ls__store_peer, link);
        LS__LIST_EACH (at, &c->waiting) {
            ls__store_waiter *w = LS__LIST_ITEM(at, ls__store_waiter, link);
            const ls__store_key wanted = {w->key, w->key_bytes};
            if (w->upstream_id == 0 && w->key_bytes == key.bytes &&
                memcmp(w->key, key.text, key.bytes) == 0 &&
                answer(server, c, w->id, w->type, wanted)) {
                ls__store_waiter_free(server, c, w);
            }
        }
    }
}

/* Keeps a request as a waiter; the key is copied. One that waits at node 0 (upstream_id != 0) has
 * no deadline here: node 0 watches it. A negative or huge time means no deadline. */
static ls_status wait_for_key(ls__store_server *server, ls__store_peer *c, uint64_t id,
                              const ls__wire_request *r, uint64_t upstream_id)
{
    if (c->waiters >= c->waiters_max) {
        return ls__fail(LS_ERR_LIMIT, "store key \"%.*s\": this rank waits for %d keys already",
                        (int)r->key_bytes, r->key, c->waiters);
    }
    ls__store_waiter *w = server->env->allocate(server->env, sizeof *w);
    if (w == NULL) {
        return ls__fail(LS_ERR_MEMORY, "waiting for store key \"%.*s\"", (int)r->key_bytes, r->key);
    }
    w->id = id;
    w->upstream_id = upstream_id;
    w->type = r->type;
    w->deadline_ns = upstream_id != 0 || r->number < 0 || r->number > INT32_MAX
                         ? LS__NEVER
                         : ls__deadline_after(server->env, r->number);
    w->key_bytes = r->key_bytes;
    memcpy(w->key, r->key, r->key_bytes);
    ls__list_push_back(&c->waiting, &w->link);
    c->waiters++;
    return LS_OK;
}

/* The message says what to look at: the rank that should have set the key, or the deadline. */
void ls__store_expire(ls__store_server *server, ls__store_peer *c, uint64_t now)
{
    LS__LIST_EACH (at, &c->waiting) {
        ls__store_waiter *w = LS__LIST_ITEM(at, ls__store_waiter, link);
        if (w->deadline_ns <= now) {
            reply_status(server, c, w->id,
                         ls__fail(LS_ERR_TIMEOUT,
                                  "store key \"%.*s\" was not set by any rank within the deadline: "
                                  "look at the ranks that should set it, or give more time",
                                  (int)w->key_bytes, w->key));
            ls__store_waiter_free(server, c, w);
        }
    }
}

/* The message is copied. If there is no memory for it, requests continue to be served, and the
 * ranks learn of the failure from the board. */
void ls__store_server_fail(ls__store_server *server, ls_status status, const char *why)
{
    LS_ASSERT(status < 0);
    if (server->failure != NULL) {
        return;
    }
    const size_t bytes = strlen(why);
    server->failure = server->env->allocate(server->env, bytes + 1);
    if (server->failure == NULL) {
        return;
    }
    server->failure_status = status;
    server->failure_bytes = bytes;
    memcpy(server->failure, why, bytes + 1);
    LS__LIST_EACH (each, &server->all) {
        ls__store_peer *c = LS__LIST_ITEM(each, ls__store_peer, link);
        LS__LIST_EACH (at, &c->waiting) {
            ls__store_waiter *w = LS__LIST_ITEM(at, ls__store_waiter, link);
            ls__store_reply_to(server, c, w->id,
                               &(ls__wire_reply){server->failure_status, 0, server->failure,
                                                 server->failure_bytes});
            ls__store_waiter_free(server, c, w);
        }
    }
}

/* ---- the job's store on another host --------------------------------------------------------- */

/* Sends a request on to node 0, under a number of this server, and keeps it as a waiter. Node 0
 * always answers, if only with a timeout; when its link is lost, the job fails and so do all
 * waiters. */
static ls_status ask_upstream(ls__store_server *server, ls__store_peer *c, uint64_t id,
                              const ls__wire_request *r)
{
    const ls__env *env = server->env;
    const size_t bytes = ls__wire_request_bytes(r);
    LS_ASSERT(server->upstream != NULL);
    uint8_t *frame = env->allocate(env, bytes);
    if (frame == NULL) {
        return ls__fail(LS_ERR_MEMORY, "a request of %zu bytes", bytes);
    }
    ls_status status = wait_for_key(server, c, id, r, ++server->upstream_id);
    if (status == LS_OK) {
        ls__wire_request_write(frame, server->upstream_id, r);
        server->upstream(server->upstream_arg, frame, bytes);
    }
    env->release(env, frame, bytes);
    return status;
}

/* Finds the waiter by the number of this server and answers with the peer's own number. */
bool ls__store_server_answer(ls__store_server *server, uint64_t id, const uint8_t *payload,
                             size_t bytes)
{
    ls__wire_reply r;
    if (!ls__wire_reply_read(payload, bytes, &r)) {
        return false;
    }
    LS__LIST_EACH (each, &server->all) {
        ls__store_peer *c = LS__LIST_ITEM(each, ls__store_peer, link);
        LS__LIST_EACH (at, &c->waiting) {
            ls__store_waiter *w = LS__LIST_ITEM(at, ls__store_waiter, link);
            if (w->upstream_id == id && id != 0) {
                ls__store_reply_to(server, c, w->id, &r);
                ls__store_waiter_free(server, c, w);
                return true;
            }
        }
    }
    return true; /* the rank that asked has left */
}

/* ---- requests ------------------------------------------------------------------------------ */

/* Executes a request that changes the table; *number is the result of ADD, COMPARE_SET, DELETE. */
static ls_status change(ls__store_server *server, ls__store_peer *c, const ls__wire_request *r,
                        int64_t *number)
{
    const ls__store_key key = {r->key, r->key_bytes};
    const ls_store_value first = {r->first, r->first_bytes};
    const ls_store_value second = {r->second, r->second_bytes};
    bool swapped = false;
    const int fd = c->received_fd;
    switch (r->type) {
    case LS__WIRE_SET:
        return ls__store_table_set(server->table, key, first);
    case LS__WIRE_ADD:
        return ls__store_table_add(server->table, key, r->number, number);
    case LS__WIRE_DELETE:
        *number = ls__store_table_delete(server->table, key);
        return LS_OK;
    case LS__WIRE_COMPARE_SET:
        LS_TRY(ls__store_table_compare_set(server->table, key, first, second, &swapped));
        *number = swapped;
        return LS_OK;
    case LS__WIRE_PUT_FD:
        c->received_fd = -1; /* the table takes it, on failure too */
        return fd < 0 ? ls__fail(LS_ERR_FORMAT, "store: no descriptor came with \"%.*s\"",
                                 (int)r->key_bytes, r->key)
                      : ls__store_table_put_fd(server->table, key, fd);
    default:
        return ls__fail(LS_ERR_FORMAT, "store: unknown request %d", (int)r->type);
    }
}

/* In this order: a failed job answers everything at once; descriptors never leave the host; a host
 * without the job's store sends everything else on; then reads are answered or wait, and changes
 * are executed, which may answer the requests that wait for the key. */
void ls__store_serve(ls__store_server *server, ls__store_peer *c, uint64_t id,
                     const ls__wire_request *r)
{
    const ls__store_key key = {r->key, r->key_bytes};
    ls_status status = LS_OK;
    int64_t number = 0;
    if (server->failure != NULL) {
        ls__store_reply_to(
            server, c, id,
            &(ls__wire_reply){server->failure_status, 0, server->failure, server->failure_bytes});
        return;
    }
    const bool passes_fd = r->type == LS__WIRE_GET_FD || r->type == LS__WIRE_PUT_FD;
    if (passes_fd && c->reply != NULL) {
        reply_status(
            server, c, id,
            ls__fail(LS_ERR_FORMAT, "store: a descriptor cannot be passed to another host"));
        return;
    }
    if (server->upstream != NULL && !passes_fd) {
        status = ask_upstream(server, c, id, r);
        if (status < 0) {
            reply_status(server, c, id, status);
        }
        return;
    }
    if (r->type == LS__WIRE_GET || r->type == LS__WIRE_WAIT || r->type == LS__WIRE_GET_FD) {
        if (answer(server, c, id, r->type, key)) {
            return;
        }
        status = wait_for_key(server, c, id, r, 0);
        if (status < 0) {
            reply_status(server, c, id, status);
        }
        return;
    }
    status = change(server, c, r, &number);
    if (status < 0) {
        reply_status(server, c, id, status);
        return;
    }
    ls__store_reply_to(server, c, id, &(ls__wire_reply){LS_OK, number, NULL, 0});
    if (r->type != LS__WIRE_DELETE) {
        wake_waiters(server, key);
    }
}
