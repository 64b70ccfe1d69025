/* The store's server: connections and requests, driven by its owner's poll loop, never blocking.
 *
 *   adopt ─▶ PENDING ──secret proven──▶ READY ──▶ requests: answered at once, or kept as a waiter
 *              │ 2 s, wrong, or a byte too many        until the key comes or its deadline passes
 *              └──────────▶ dropped
 *
 * A connection is dropped, alone, when it breaks the protocol or does not read its replies. Nothing
 * it sends is looked at before the secret: of a pending one at most HELLO's 56 bytes are held. One
 * turn reads at most one buffer of a client, so a loud one does not delay the others.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/list.h"
#include "comm/store/buffer.h"
#include "comm/store/table.h"
#include "comm/store/wire.h"

#define OUT_MAX ((size_t)512 << 10) /* replies kept for a client that does not read */
#define IN_MAX (LS__WIRE_HEADER + LS__WIRE_PAYLOAD_MAX)

typedef struct waiter { /* a GET, WAIT or GET_FD whose key is not there yet */
    ls__list link;      /* of its client */
    uint64_t id, deadline_ns;
    ls__wire_type type;
    size_t key_bytes;
    char key[LS_STORE_KEY_MAX];
} waiter;

typedef struct client {
    ls__list link;
    int fd;
    int got_fd; /* came with the frame being read; -1: none */
    bool ready; /* has proven the secret */
    bool invited;
    bool lost; /* to be dropped at the end of the turn */
    uint64_t deadline_ns;
    uint8_t hello[LS__WIRE_HELLO];
    size_t hello_bytes;
    ls__buffer in, out;
    int waiters;
    ls__list waiting;
} client;

struct ls__store_server {
    const ls__env *env;
    uint8_t secret[LS__STORE_SECRET_BYTES];
    uid_t uid;
    ls__store_table *table;
    int clients, pending;
    ls__list all;
    char *failure; /* NULL: none; else what every request is answered with */
    size_t failure_bytes;
};

/* ---- life ---------------------------------------------------------------------------------- */

/* Our own user, asked of a pair of our own: what a peer's must equal. */
static int own_uid(const ls__env *env, uid_t *uid)
{
    int pair[2];
    int error = env->socket_pair(env, pair);
    if (error < 0) {
        return error;
    }
    error = env->peer_uid(env, pair[0], uid);
    env->close(env, pair[0]);
    env->close(env, pair[1]);
    return error;
}

ls_status ls__store_server_new(const ls__env *env, const uint8_t secret[32], ls__store_server **out)
{
    ls__store_server *server = env->allocate(env, sizeof *server);
    if (server == NULL) {
        return ls__fail(LS_ERR_MEMORY, "the store of %zu bytes", sizeof *server);
    }
    memset(server, 0, sizeof *server);
    server->env = env;
    memcpy(server->secret, secret, sizeof server->secret);
    ls__list_init(&server->all);
    int error = own_uid(env, &server->uid);
    ls_status status = error < 0
                           ? ls__fail(LS_ERR_SYSTEM, "a socket for the store: %s", strerror(-error))
                           : ls__store_table_new(env, &server->table);
    if (status < 0) {
        env->release(env, server, sizeof *server);
        return status;
    }
    *out = server;
    return LS_OK;
}

static void waiter_free(ls__store_server *server, client *c, waiter *w)
{
    ls__list_remove(&w->link);
    c->waiters--;
    server->env->release(server->env, w, sizeof *w);
}

static void client_free(ls__store_server *server, client *c)
{
    const ls__env *env = server->env;
    LS__LIST_EACH (at, &c->waiting) {
        waiter_free(server, c, LS__LIST_ITEM(at, waiter, link));
    }
    ls__list_remove(&c->link);
    server->clients--;
    server->pending -= !c->ready && !c->invited;
    env->close(env, c->fd);
    if (c->got_fd >= 0) {
        env->close(env, c->got_fd);
    }
    ls__buffer_free(env, &c->in);
    ls__buffer_free(env, &c->out);
    env->release(env, c, sizeof *c);
}

void ls__store_server_free(ls__store_server *server)
{
    if (server == NULL) {
        return;
    }
    const ls__env *env = server->env;
    LS__LIST_EACH (at, &server->all) {
        client_free(server, LS__LIST_ITEM(at, client, link));
    }
    ls__store_table_free(server->table);
    if (server->failure != NULL) {
        env->release(env, server->failure, server->failure_bytes + 1);
    }
    memset(server->secret, 0, sizeof server->secret);
    env->release(env, server, sizeof *server);
}

int ls__store_server_clients(const ls__store_server *server)
{
    return server->clients;
}

static ls_status admit(ls__store_server *server, int fd, bool invited)
{
    uid_t uid;
    int error = server->env->peer_uid(server->env, fd, &uid);
    if (error < 0) {
        return ls__fail(LS_ERR_AUTH, "store: a connection of an unknown user: %s",
                        strerror(-error));
    }
    if (uid != server->uid) {
        return ls__fail(LS_ERR_AUTH, "store: a connection of user %ld was refused", (long)uid);
    }
    bool crowded = !invited && server->pending >= LS__STORE_PENDING_MAX;
    if (crowded || server->clients >= LS__STORE_CLIENTS_MAX) {
        return ls__fail(
            LS_ERR_LIMIT, "store: connection refused: %d of %d clients, %d of %d not yet proven",
            server->clients, LS__STORE_CLIENTS_MAX, server->pending, LS__STORE_PENDING_MAX);
    }
    return LS_OK;
}

static ls_status add_client(ls__store_server *server, int fd, bool invited)
{
    const ls__env *env = server->env;
    ls_status status = admit(server, fd, invited);
    client *c = status < 0 ? NULL : env->allocate(env, sizeof *c);
    if (c == NULL) {
        env->close(env, fd);
        return status < 0 ? status : ls__fail(LS_ERR_MEMORY, "a store connection");
    }
    memset(c, 0, sizeof *c);
    c->fd = fd;
    c->got_fd = -1;
    c->invited = invited;
    c->deadline_ns = invited ? LS__NEVER : ls__deadline_after(env, LS__STORE_HANDSHAKE_MS);
    ls__list_init(&c->waiting);
    ls__list_push_back(&server->all, &c->link);
    server->clients++;
    server->pending += !invited;
    return LS_OK;
}

ls_status ls__store_server_adopt(ls__store_server *server, int fd)
{
    return add_client(server, fd, false);
}

ls_status ls__store_server_invite(ls__store_server *server, int fd)
{
    return add_client(server, fd, true);
}

/* ---- replies ------------------------------------------------------------------------------- */

/* Writes what the connection takes now. */
static void flush(ls__store_server *server, client *c)
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

static void reply(ls__store_server *server, client *c, uint64_t id, const ls__wire_reply *r)
{
    size_t bytes = LS__WIRE_HEADER + LS__WIRE_REPLY + r->bytes;
    if (c->lost || !ls__buffer_reserve(server->env, &c->out, bytes, OUT_MAX)) {
        c->lost = true; /* it does not read: the others must not wait for it */
        return;
    }
    ls__wire_reply_write(c->out.data + c->out.end, id, r);
    c->out.end += bytes;
    flush(server, c);
}

/* A reply with a descriptor is 40 bytes and goes out at once or not at all: a queued one would name
 * a descriptor that may be closed by then. */
static void reply_fd(ls__store_server *server, client *c, uint64_t id, int fd)
{
    uint8_t frame[LS__WIRE_HEADER + LS__WIRE_REPLY];
    ls__wire_reply_write(frame, id, &(ls__wire_reply){LS_OK, 0, NULL, 0});
    c->lost =
        c->lost || c->out.start < c->out.end ||
        server->env->send(server->env, c->fd, frame, sizeof frame, fd) != (ssize_t)sizeof frame;
}

static void reply_status(ls__store_server *server, client *c, uint64_t id, ls_status status)
{
    const char *text = status < 0 ? ls_error_message() : "";
    reply(server, c, id, &(ls__wire_reply){status, 0, text, strlen(text)});
}

/* ---- waiting ------------------------------------------------------------------------------- */

/* Answers a GET, WAIT or GET_FD if its key is there. */
static bool answer(ls__store_server *server, client *c, uint64_t id, ls__wire_type type,
                   ls__store_key key)
{
    ls_store_value value;
    if (type == LS__WIRE_GET_FD) {
        int fd = ls__store_table_get_fd(server->table, key);
        if (fd >= 0) {
            reply_fd(server, c, id, fd);
        }
        return fd >= 0;
    }
    if (!ls__store_table_get(server->table, key, &value)) {
        return false;
    }
    value.bytes = type == LS__WIRE_GET ? value.bytes : 0;
    reply(server, c, id, &(ls__wire_reply){LS_OK, 0, value.data, value.bytes});
    return true;
}

static void wake_waiters(ls__store_server *server, ls__store_key key)
{
    LS__LIST_EACH (each, &server->all) {
        client *c = LS__LIST_ITEM(each, client, link);
        LS__LIST_EACH (at, &c->waiting) {
            waiter *w = LS__LIST_ITEM(at, waiter, link);
            ls__store_key wanted = {w->key, w->key_bytes};
            if (w->key_bytes == key.bytes && memcmp(w->key, key.text, key.bytes) == 0 &&
                answer(server, c, w->id, w->type, wanted)) {
                waiter_free(server, c, w);
            }
        }
    }
}

static ls_status wait_for_key(ls__store_server *server, client *c, uint64_t id,
                              const ls__wire_request *r)
{
    if (c->waiters >= LS__STORE_WAITERS_MAX) {
        return ls__fail(LS_ERR_LIMIT, "store key \"%.*s\": this rank waits for %d keys already",
                        (int)r->key_bytes, r->key, c->waiters);
    }
    waiter *w = server->env->allocate(server->env, sizeof *w);
    if (w == NULL) {
        return ls__fail(LS_ERR_MEMORY, "waiting for store key \"%.*s\"", (int)r->key_bytes, r->key);
    }
    w->id = id;
    w->type = r->type;
    w->deadline_ns = r->number < 0 || r->number > INT32_MAX
                         ? LS__NEVER
                         : ls__deadline_after(server->env, r->number);
    w->key_bytes = r->key_bytes;
    memcpy(w->key, r->key, r->key_bytes);
    ls__list_push_back(&c->waiting, &w->link);
    c->waiters++;
    return LS_OK;
}

static void expire_waiters(ls__store_server *server, client *c, uint64_t now)
{
    LS__LIST_EACH (at, &c->waiting) {
        waiter *w = LS__LIST_ITEM(at, waiter, link);
        if (w->deadline_ns <= now) {
            reply_status(server, c, w->id,
                         ls__fail(LS_ERR_TIMEOUT,
                                  "store key \"%.*s\" was not set by any rank within the deadline: "
                                  "look at the ranks that should set it, or give more time",
                                  (int)w->key_bytes, w->key));
            waiter_free(server, c, w);
        }
    }
}

void ls__store_server_fail(ls__store_server *server, const char *why)
{
    if (server->failure != NULL) {
        return;
    }
    size_t bytes = strlen(why);
    server->failure = server->env->allocate(server->env, bytes + 1);
    if (server->failure == NULL) {
        return;
    }
    server->failure_bytes = bytes;
    memcpy(server->failure, why, bytes + 1);
    LS__LIST_EACH (each, &server->all) {
        client *c = LS__LIST_ITEM(each, client, link);
        LS__LIST_EACH (at, &c->waiting) {
            waiter *w = LS__LIST_ITEM(at, waiter, link);
            reply(server, c, w->id,
                  &(ls__wire_reply){LS_ERR_PEER, 0, server->failure, server->failure_bytes});
            waiter_free(server, c, w);
        }
    }
}

/* ---- requests ------------------------------------------------------------------------------ */

static ls_status change(ls__store_server *server, client *c, const ls__wire_request *r,
                        int64_t *number)
{
    ls__store_key key = {r->key, r->key_bytes};
    ls_store_value first = {r->first, r->first_bytes}, second = {r->second, r->second_bytes};
    bool swapped = false;
    int fd = c->got_fd;
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
        c->got_fd = -1;
        return fd < 0 ? ls__fail(LS_ERR_FORMAT, "store: no descriptor came with \"%.*s\"",
                                 (int)r->key_bytes, r->key)
                      : ls__store_table_put_fd(server->table, key, fd);
    default:
        return ls__fail(LS_ERR_FORMAT, "store: unknown request %d", (int)r->type);
    }
}

static void serve(ls__store_server *server, client *c, uint64_t id, const ls__wire_request *r)
{
    ls__store_key key = {r->key, r->key_bytes};
    ls_status status = LS_OK;
    int64_t number = 0;
    if (server->failure != NULL) {
        reply(server, c, id,
              &(ls__wire_reply){LS_ERR_PEER, 0, server->failure, server->failure_bytes});
        return;
    }
    if (r->type == LS__WIRE_GET || r->type == LS__WIRE_WAIT || r->type == LS__WIRE_GET_FD) {
        if (answer(server, c, id, r->type, key)) {
            return;
        }
        status = wait_for_key(server, c, id, r);
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
    reply(server, c, id, &(ls__wire_reply){LS_OK, number, NULL, 0});
    if (r->type != LS__WIRE_DELETE) {
        wake_waiters(server, key);
    }
}

/* A client with unread replies is not served: it must take them first. */
static bool takes_replies(const client *c)
{
    return !c->lost && c->out.start == c->out.end;
}

/* One frame out of the input buffer; false when none is complete or the client is lost. */
static bool serve_frame(ls__store_server *server, client *c)
{
    ls__wire_header header;
    ls__wire_request request;
    ls__buffer *in = &c->in;
    size_t held = in->end - in->start;
    if (held < LS__WIRE_HEADER) {
        return false;
    }
    if (!ls__wire_header_read(in->data + in->start, &header)) {
        c->lost = true;
        return false;
    }
    size_t bytes = LS__WIRE_HEADER + header.length;
    if (held < bytes) {
        return false;
    }
    request.type = (ls__wire_type)header.type;
    if (!ls__wire_request_read(in->data + in->start + LS__WIRE_HEADER, header.length, &request)) {
        c->lost = true;
        return false;
    }
    serve(server, c, header.id, &request);
    in->start += bytes;
    return takes_replies(c);
}

static void serve_frames(ls__store_server *server, client *c)
{
    while (takes_replies(c) && serve_frame(server, c)) {
    }
}

/* ---- reading ------------------------------------------------------------------------------- */

/* Equal in a time that does not depend on where they differ. */
static bool equal_secret(const uint8_t *a, const uint8_t *b)
{
    unsigned different = 0;
    for (size_t i = 0; i < LS__STORE_SECRET_BYTES; i++) {
        different |= (unsigned)(a[i] ^ b[i]);
    }
    return different == 0;
}

static ssize_t receive(ls__store_server *server, client *c, void *out, size_t room)
{
    int fd = -1;
    ssize_t got = server->env->recv(server->env, c->fd, out, room, &fd);
    if (fd >= 0 && (!c->ready || c->got_fd >= 0)) { /* not allowed, or one too many */
        server->env->close(server->env, fd);
        c->lost = true;
        return 0;
    }
    if (fd >= 0) {
        c->got_fd = fd;
    }
    c->lost = got == 0 || (got < 0 && got != -EAGAIN && got != -EINTR);
    return got < 0 ? 0 : got;
}

static void read_hello(ls__store_server *server, client *c)
{
    ls__wire_header header;
    c->hello_bytes +=
        (size_t)receive(server, c, c->hello + c->hello_bytes, sizeof c->hello - c->hello_bytes);
    if (c->deadline_ns == LS__NEVER) {
        c->deadline_ns = ls__deadline_after(server->env, LS__STORE_HANDSHAKE_MS);
    }
    if (c->lost || c->hello_bytes < sizeof c->hello) {
        return;
    }
    bool proven = equal_secret(c->hello + LS__WIRE_HEADER, server->secret);
    memset(c->hello + LS__WIRE_HEADER, 0, LS__STORE_SECRET_BYTES);
    if (!proven || !ls__wire_header_read(c->hello, &header) || header.type != LS__WIRE_HELLO_TYPE ||
        header.length != LS__STORE_SECRET_BYTES) {
        c->lost = true;
        return;
    }
    c->ready = true;
    server->pending -= !c->invited;
    reply(server, c, header.id, &(ls__wire_reply){LS_OK, 0, NULL, 0});
}

/* Bytes that the frame being read still lacks, at least 1. */
static size_t missing(const client *c)
{
    ls__wire_header header;
    size_t held = c->in.end - c->in.start;
    if (held < LS__WIRE_HEADER) {
        return LS__WIRE_HEADER - held;
    }
    if (!ls__wire_header_read(c->in.data + c->in.start, &header)) {
        return 1;
    }
    size_t bytes = LS__WIRE_HEADER + header.length;
    return bytes > held ? bytes - held : 1;
}

static void read_requests(ls__store_server *server, client *c)
{
    if (!ls__buffer_reserve(server->env, &c->in, missing(c), IN_MAX)) {
        c->lost = true;
        return;
    }
    c->in.end += (size_t)receive(server, c, c->in.data + c->in.end, c->in.room - c->in.end);
    serve_frames(server, c);
}

/* ---- the owner's loop ---------------------------------------------------------------------- */

int ls__store_server_poll(ls__store_server *server, ls__env_poll *items, int room,
                          uint64_t *deadline_ns)
{
    int count = 0;
    LS__LIST_EACH (each, &server->all) {
        client *c = LS__LIST_ITEM(each, client, link);
        if (!c->ready && c->deadline_ns < *deadline_ns) {
            *deadline_ns = c->deadline_ns;
        }
        LS__LIST_EACH (at, &c->waiting) {
            const waiter *w = LS__LIST_ITEM(at, waiter, link);
            *deadline_ns = w->deadline_ns < *deadline_ns ? w->deadline_ns : *deadline_ns;
        }
        if (count < room) {
            bool reads = takes_replies(c);
            items[count++] = (ls__env_poll){.fd = c->fd, .want_read = reads, .want_write = !reads};
        }
    }
    return count;
}

static void client_turn(ls__store_server *server, client *c, const ls__env_poll *item)
{
    if (item->can_write) {
        flush(server, c);
        serve_frames(server, c);
    }
    if (!item->can_read && !item->hangup) {
        return;
    }
    if (!takes_replies(c)) {
        c->lost = c->lost || item->hangup; /* gone, with replies unread */
    } else if (c->ready) {
        read_requests(server, c);
    } else {
        read_hello(server, c);
    }
}

void ls__store_server_turn(ls__store_server *server, const ls__env_poll *items, int count)
{
    uint64_t now = server->env->now_ns(server->env);
    int i = 0;
    /* Clients stand in the order in which poll listed them; newer ones follow behind. */
    LS__LIST_EACH (at, &server->all) {
        client *c = LS__LIST_ITEM(at, client, link);
        if (i < count && items[i].fd == c->fd) {
            client_turn(server, c, &items[i]);
            i++;
        }
    }
    LS__LIST_EACH (at, &server->all) {
        client *c = LS__LIST_ITEM(at, client, link);
        expire_waiters(server, c, now);
        if (c->lost || (!c->ready && c->deadline_ns <= now)) {
            client_free(server, c);
        }
    }
}
