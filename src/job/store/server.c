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

#include "job/store/server.h"

#define IN_MAX (LS__WIRE_HEADER + LS__WIRE_PAYLOAD_MAX)

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

void ls__store_server_set_secret(ls__store_server *server, const uint8_t secret[32])
{
    memcpy(server->secret, secret, sizeof server->secret);
}

static void client_free(ls__store_server *server, ls__store_guest *c)
{
    const ls__env *env = server->env;
    LS__LIST_EACH (at, &c->waiting) {
        ls__store_waiter_free(server, c, LS__LIST_ITEM(at, ls__waiter, link));
    }
    ls__list_remove(&c->link);
    server->clients--;
    server->pending -= !c->ready && !c->invited;
    if (c->fd >= 0) {
        env->close(env, c->fd);
    }
    if (c->got_fd >= 0) {
        env->close(env, c->got_fd);
    }
    ls__store_buffer_free(env, &c->in);
    ls__store_buffer_free(env, &c->out);
    env->release(env, c, sizeof *c);
}

void ls__store_server_free(ls__store_server *server)
{
    if (server == NULL) {
        return;
    }
    const ls__env *env = server->env;
    LS__LIST_EACH (at, &server->all) {
        client_free(server, LS__LIST_ITEM(at, ls__store_guest, link));
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

static void guest_init(ls__store_server *server, ls__store_guest *c, int fd)
{
    memset(c, 0, sizeof *c);
    c->server = server;
    c->fd = fd;
    c->got_fd = -1;
    c->deadline_ns = LS__NEVER;
    c->waiters_max = LS__STORE_WAITERS_MAX;
    ls__list_init(&c->waiting);
    ls__list_push_back(&server->all, &c->link);
    server->clients++;
}

static ls_status add_client(ls__store_server *server, int fd, bool invited)
{
    const ls__env *env = server->env;
    ls_status status = admit(server, fd, invited);
    ls__store_guest *c = status < 0 ? NULL : env->allocate(env, sizeof *c);
    if (c == NULL) {
        env->close(env, fd);
        return status < 0 ? status : ls__fail(LS_ERR_MEMORY, "a store connection");
    }
    guest_init(server, c, fd);
    c->invited = invited;
    c->deadline_ns = invited ? LS__NEVER : ls__deadline_after(env, LS__STORE_HANDSHAKE_MS);
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

/* A client with unread replies is not served: it must take them first. */
static bool takes_replies(const ls__store_guest *c)
{
    return !c->lost && c->out.start == c->out.end;
}

/* One frame out of the input buffer; false when none is complete or the client is lost. */
static bool serve_frame(ls__store_server *server, ls__store_guest *c)
{
    ls__wire_header header;
    ls__wire_request request;
    ls__store_buffer *in = &c->in;
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
    ls__store_serve(server, c, header.id, &request);
    in->start += bytes;
    return takes_replies(c);
}

static void serve_frames(ls__store_server *server, ls__store_guest *c)
{
    while (takes_replies(c) && serve_frame(server, c)) {
    }
}

/* ---- other hosts --------------------------------------------------------------------------- */

ls_status ls__store_server_host(ls__store_server *server, ls__store_reply *reply, void *arg,
                                ls__store_guest **out)
{
    ls__store_guest *c = server->env->allocate(server->env, sizeof *c);
    if (c == NULL) {
        return ls__fail(LS_ERR_MEMORY, "the store's side of another host");
    }
    guest_init(server, c, -1);
    c->ready = c->invited = true;
    c->reply = reply;
    c->reply_arg = arg;
    c->waiters_max = LS__STORE_WAITERS_MAX * LS__STORE_CLIENTS_MAX;
    *out = c;
    return LS_OK;
}

bool ls__store_guest_ask(ls__store_guest *c, uint16_t type, uint64_t id, const uint8_t *payload,
                         size_t bytes)
{
    ls__wire_request request;
    request.type = (ls__wire_type)type;
    if (!ls__wire_request_read(payload, bytes, &request)) {
        return false;
    }
    ls__store_serve(c->server, c, id, &request);
    return true;
}

void ls__store_guest_free(ls__store_guest *c)
{
    if (c != NULL) {
        client_free(c->server, c);
    }
}

void ls__store_server_set_upstream(ls__store_server *server, ls__store_ask_upstream *ask, void *arg)
{
    server->upstream = ask;
    server->upstream_arg = arg;
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

static ssize_t receive(ls__store_server *server, ls__store_guest *c, void *out, size_t room)
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

static void read_hello(ls__store_server *server, ls__store_guest *c)
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
    ls__store_reply_to(server, c, header.id, &(ls__wire_reply){LS_OK, 0, NULL, 0});
}

/* Bytes that the frame being read still lacks, at least 1. */
static size_t missing(const ls__store_guest *c)
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

static void read_requests(ls__store_server *server, ls__store_guest *c)
{
    if (!ls__store_buffer_reserve(server->env, &c->in, missing(c), IN_MAX)) {
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
        ls__store_guest *c = LS__LIST_ITEM(each, ls__store_guest, link);
        if (!c->ready && c->deadline_ns < *deadline_ns) {
            *deadline_ns = c->deadline_ns;
        }
        LS__LIST_EACH (at, &c->waiting) {
            const ls__waiter *w = LS__LIST_ITEM(at, ls__waiter, link);
            *deadline_ns = w->deadline_ns < *deadline_ns ? w->deadline_ns : *deadline_ns;
        }
        if (count < room && c->fd >= 0) {
            bool reads = takes_replies(c);
            items[count++] = (ls__env_poll){.fd = c->fd, .want_read = reads, .want_write = !reads};
        }
    }
    return count;
}

static void client_turn(ls__store_server *server, ls__store_guest *c, const ls__env_poll *item)
{
    if (item->can_write) {
        ls__store_flush(server, c);
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
        ls__store_guest *c = LS__LIST_ITEM(at, ls__store_guest, link);
        if (i < count && items[i].fd == c->fd) {
            client_turn(server, c, &items[i]);
            i++;
        }
    }
    LS__LIST_EACH (at, &server->all) {
        ls__store_guest *c = LS__LIST_ITEM(at, ls__store_guest, link);
        ls__store_expire(server, c, now);
        if (c->lost || (!c->ready && c->deadline_ns <= now)) {
            client_free(server, c);
        }
    }
}
