/* SPDX-License-Identifier: Apache-2.0 */
/* The store's server: its connections. The owner's poll loop drives it; it never blocks.
 *
 *   adopt ─▶ PENDING ──secret proved──▶ READY ──▶ requests: answered at once, or kept as a waiter
 *              │ 2 s, wrong, or a byte too many        until the key is set or its deadline passes
 *              └──────────▶ dropped
 *
 * A connection that violates the protocol or does not read its replies is dropped, and no other
 * connection notices. Before the proof nothing that a peer sends is interpreted, and at most the 56
 * bytes of HELLO are held. One turn reads at most one buffer of each peer, so a peer that sends
 * much does not delay the others.
 */
#include <errno.h>
#include <string.h>

#include "base/assert.h"
#include "job/store/server.h"

#define IN_MAX (LS__WIRE_HEADER + LS__WIRE_PAYLOAD_MAX)

/* ---- life ---------------------------------------------------------------------------------- */

/* The user of this process, which a peer's user must equal. It is read from a socket pair, so
 * that both sides of the comparison come from the same call. */
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

/* The user id is read before any connection exists, so that admit cannot fail for this reason. */
ls_status ls__store_server_new(const ls__env *env, const uint8_t secret[32], ls__store_server **out)
{
    ls__store_server *server = env->allocate(env, sizeof *server);
    if (server == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for the store (%zu bytes)", sizeof *server);
    }
    memset(server, 0, sizeof *server);
    server->env = env;
    memcpy(server->secret, secret, sizeof server->secret);
    ls__list_init(&server->all);
    int error = own_uid(env, &server->uid);
    ls_status status = error < 0 ? ls__fail(LS_ERR_SYSTEM, "cannot open a socket for the store: %s",
                                            strerror(-error))
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

/* Drops a peer with its waiting requests. No reply is sent. */
static void client_free(ls__store_server *server, ls__store_peer *c)
{
    const ls__env *env = server->env;
    LS_ASSERT(c->server == server && server->clients > 0);
    LS__LIST_EACH (at, &c->waiting) {
        ls__store_waiter_free(server, c, LS__LIST_ITEM(at, ls__store_waiter, link));
    }
    LS_ASSERT(c->waiters == 0);
    ls__list_remove(&c->link);
    server->clients--;
    server->pending -= !c->ready && !c->invited;
    LS_ASSERT(server->pending >= 0);
    if (c->fd >= 0) {
        env->close(env, c->fd);
    }
    if (c->received_fd >= 0) {
        env->close(env, c->received_fd);
    }
    ls__store_buffer_free(env, &c->in);
    ls__store_buffer_free(env, &c->out);
    env->release(env, c, sizeof *c);
}

/* Closes all connections; their ranks see the end of the stream. The secret is erased. */
void ls__store_server_free(ls__store_server *server)
{
    if (server == NULL) {
        return;
    }
    const ls__env *env = server->env;
    LS__LIST_EACH (at, &server->all) {
        client_free(server, LS__LIST_ITEM(at, ls__store_peer, link));
    }
    ls__store_table_free(server->table);
    if (server->failure != NULL) {
        env->release(env, server->failure, server->failure_bytes + 1);
    }
    explicit_bzero(server->secret, sizeof server->secret);
    env->release(env, server, sizeof *server);
}

int ls__store_server_fd(const ls__store_server *server, const char *key)
{
    return ls__store_table_get_fd(server->table, (ls__store_key){key, strlen(key)});
}

int ls__store_server_clients(const ls__store_server *server)
{
    return server->clients;
}

/* Whether a new connection may stay: the kernel names its user, and the bounds protect the owner
 * from a peer that connects again and again. The secret is checked later, by read_hello. */
static ls_status admit(ls__store_server *server, int fd, bool invited)
{
    uid_t uid;
    const int error = server->env->peer_uid(server->env, fd, &uid);
    if (error < 0) {
        return ls__fail(LS_ERR_AUTH, "store: the user of a connection is unknown: %s",
                        strerror(-error));
    }
    if (uid != server->uid) {
        return ls__fail(LS_ERR_AUTH, "store: a connection of user %ld was refused", (long)uid);
    }
    const bool crowded = !invited && server->pending >= LS__STORE_PENDING_MAX;
    if (crowded || server->clients >= LS__STORE_CLIENTS_MAX) {
        return ls__fail(
            LS_ERR_LIMIT, "store: connection refused: %d of %d clients, %d of %d unauthenticated",
            server->clients, LS__STORE_CLIENTS_MAX, server->pending, LS__STORE_PENDING_MAX);
    }
    return LS_OK;
}

/* New peers go to the end of the list; ls__store_server_turn relies on that. */
static void peer_init(ls__store_server *server, ls__store_peer *c, int fd)
{
    memset(c, 0, sizeof *c);
    c->server = server;
    c->fd = fd;
    c->received_fd = -1;
    c->deadline_ns = LS__NEVER;
    c->waiters_max = LS__STORE_WAITERS_MAX;
    ls__list_init(&c->waiting);
    ls__list_push_back(&server->all, &c->link);
    server->clients++;
}

/* Takes fd, on failure too. */
static ls_status add_client(ls__store_server *server, int fd, bool invited)
{
    const ls__env *env = server->env;
    ls_status status = admit(server, fd, invited);
    ls__store_peer *c = status < 0 ? NULL : env->allocate(env, sizeof *c);
    if (c == NULL) {
        env->close(env, fd);
        return status < 0 ? status : ls__fail(LS_ERR_MEMORY, "a store connection");
    }
    peer_init(server, c, fd);
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

/* Whether requests of this peer may be served. A peer with unread replies must read them first, so
 * a peer that only sends cannot make the server collect replies without bound. */
static bool takes_replies(const ls__store_peer *c)
{
    return !c->lost && c->out.start == c->out.end;
}

/* Serves one frame of the input buffer. False: no frame is complete, or the peer may not be served
 * any more. */
static bool serve_frame(ls__store_server *server, ls__store_peer *c)
{
    ls__wire_header header;
    ls__wire_request request;
    ls__store_buffer *in = &c->in;
    const size_t held = in->end - in->start;
    if (held < LS__WIRE_HEADER) {
        return false;
    }
    if (!ls__wire_header_read(in->data + in->start, &header)) {
        c->lost = true;
        return false;
    }
    const size_t bytes = LS__WIRE_HEADER + header.length;
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

/* Serves all complete frames, or as many as the peer reads replies for. */
static void serve_frames(ls__store_server *server, ls__store_peer *c)
{
    while (takes_replies(c) && serve_frame(server, c)) {
    }
}

/* ---- other hosts --------------------------------------------------------------------------- */

/* Another host has proved the secret on its link (job/nodes) and speaks for all its ranks, hence
 * the larger bound on its waiting requests. */
ls_status ls__store_server_host(ls__store_server *server, ls__store_reply *reply, void *arg,
                                ls__store_peer **out)
{
    ls__store_peer *c = server->env->allocate(server->env, sizeof *c);
    if (c == NULL) {
        return ls__fail(LS_ERR_MEMORY, "the store's entry for another host");
    }
    peer_init(server, c, -1);
    c->ready = c->invited = true;
    c->reply = reply;
    c->reply_arg = arg;
    c->waiters_max = LS__STORE_WAITERS_MAX * LS__STORE_CLIENTS_MAX;
    *out = c;
    return LS_OK;
}

/* No buffer and no header here: the link of the host has its own (job/nodes/frames.c). */
bool ls__store_peer_request(ls__store_peer *c, uint16_t type, uint64_t id, const uint8_t *payload,
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

void ls__store_peer_free(ls__store_peer *c)
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

/* Compares in a time that does not depend on the position of a difference, so that a peer cannot
 * find the secret byte by byte by measuring. */
static bool equal_secret(const uint8_t *a, const uint8_t *b)
{
    unsigned different = 0;
    for (size_t i = 0; i < LS__STORE_SECRET_BYTES; i++) {
        different |= (unsigned)(a[i] ^ b[i]);
    }
    return different == 0;
}

/* Receives at most `room` bytes. Returns their number; 0: nothing arrived, or the peer is lost. A
 * descriptor is accepted only from a ready peer, and only one for each frame. */
static ssize_t receive(ls__store_server *server, ls__store_peer *c, void *out, size_t room)
{
    int fd = -1;
    ssize_t received = server->env->recv(server->env, c->fd, out, room, &fd);
    if (fd >= 0 && (!c->ready || c->received_fd >= 0)) {
        server->env->close(server->env, fd);
        c->lost = true;
        return 0;
    }
    if (fd >= 0) {
        c->received_fd = fd;
    }
    c->lost = received == 0 || (received < 0 && received != -EAGAIN && received != -EINTR);
    return received < 0 ? 0 : received;
}

/* The proof of a pending peer. Its bytes are collected in a buffer of exactly their length; wrong
 * ones end the connection without an answer. An invited peer has its deadline from the first byte
 * on. */
static void read_hello(ls__store_server *server, ls__store_peer *c)
{
    ls__wire_header header;
    LS_ASSERT(!c->ready && c->hello_bytes < sizeof c->hello);
    c->hello_bytes +=
        (size_t)receive(server, c, c->hello + c->hello_bytes, sizeof c->hello - c->hello_bytes);
    if (c->deadline_ns == LS__NEVER) {
        c->deadline_ns = ls__deadline_after(server->env, LS__STORE_HANDSHAKE_MS);
    }
    if (c->lost || c->hello_bytes < sizeof c->hello) {
        return;
    }
    const bool proven = equal_secret(c->hello + LS__WIRE_HEADER, server->secret);
    explicit_bzero(c->hello + LS__WIRE_HEADER, LS__STORE_SECRET_BYTES);
    if (!proven || !ls__wire_header_read(c->hello, &header) || header.type != LS__WIRE_HELLO_TYPE ||
        header.length != LS__STORE_SECRET_BYTES) {
        c->lost = true;
        return;
    }
    c->ready = true;
    server->pending -= !c->invited;
    ls__store_reply_to(server, c, header.id, &(ls__wire_reply){LS_OK, 0, NULL, 0});
}

/* The number of bytes that the current frame still lacks, at least 1. */
static size_t missing(const ls__store_peer *c)
{
    ls__wire_header header;
    const size_t held = c->in.end - c->in.start;
    if (held < LS__WIRE_HEADER) {
        return LS__WIRE_HEADER - held;
    }
    if (!ls__wire_header_read(c->in.data + c->in.start, &header)) {
        return 1;
    }
    const size_t bytes = LS__WIRE_HEADER + header.length;
    return bytes > held ? bytes - held : 1;
}

/* The buffer grows to the length of the current frame, never beyond one maximal frame. */
static void read_requests(ls__store_server *server, ls__store_peer *c)
{
    if (!ls__store_buffer_reserve(server->env, &c->in, missing(c), IN_MAX)) {
        c->lost = true;
        return;
    }
    c->in.end += (size_t)receive(server, c, c->in.data + c->in.end, c->in.room - c->in.end);
    serve_frames(server, c);
}

/* ---- the owner's loop ---------------------------------------------------------------------- */

/* Items stand in the order of the list, which ls__store_server_turn relies on. A peer with unread
 * replies is polled for writing only. */
int ls__store_server_poll(ls__store_server *server, ls__env_poll *items, int room,
                          uint64_t *deadline_ns)
{
    int count = 0;
    LS__LIST_EACH (each, &server->all) {
        ls__store_peer *c = LS__LIST_ITEM(each, ls__store_peer, link);
        if (!c->ready && c->deadline_ns < *deadline_ns) {
            *deadline_ns = c->deadline_ns;
        }
        LS__LIST_EACH (at, &c->waiting) {
            const ls__store_waiter *w = LS__LIST_ITEM(at, ls__store_waiter, link);
            *deadline_ns = w->deadline_ns < *deadline_ns ? w->deadline_ns : *deadline_ns;
        }
        if (count < room && c->fd >= 0) {
            const bool reads = takes_replies(c);
            items[count++] = (ls__env_poll){.fd = c->fd, .want_read = reads, .want_write = !reads};
        }
    }
    return count;
}

/* Acts on the polled events of one peer. */
static void client_turn(ls__store_server *server, ls__store_peer *c, const ls__env_poll *item)
{
    if (item->can_write) {
        ls__store_flush(server, c);
        serve_frames(server, c);
    }
    if (!item->can_read && !item->hangup) {
        return;
    }
    if (!takes_replies(c)) {
        c->lost = c->lost || item->hangup; /* it has left without reading its replies */
    } else if (c->ready) {
        read_requests(server, c);
    } else {
        read_hello(server, c);
    }
}

/* Peers are freed only here, after all events: a request of one peer may answer waiters of
 * others. */
void ls__store_server_turn(ls__store_server *server, const ls__env_poll *items, int count)
{
    const uint64_t now = server->env->now_ns(server->env);
    int i = 0;
    /* Peers that were added since the poll stand behind the polled ones. */
    LS__LIST_EACH (at, &server->all) {
        ls__store_peer *c = LS__LIST_ITEM(at, ls__store_peer, link);
        if (i < count && items[i].fd == c->fd) {
            client_turn(server, c, &items[i]);
            i++;
        }
    }
    LS__LIST_EACH (at, &server->all) {
        ls__store_peer *c = LS__LIST_ITEM(at, ls__store_peer, link);
        ls__store_expire(server, c, now);
        if (c->lost || (!c->ready && c->deadline_ns <= now)) {
            client_free(server, c);
        }
    }
}
