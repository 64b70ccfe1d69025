/* SPDX-License-Identifier: Apache-2.0 */
/* The connections of each pair: which are ready, and the transport's table. Everything here belongs
 * to the holder of the progress lock, except `ready`, which any thread that polls may set.
 *
 * Readiness is edge-triggered: a connection stays marked as readable until a read finds it empty,
 * even if reading stopped earlier because `in` was full.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "comm/transport/tcp_wire.h"

#define READY_ROOM 64
#define ALERT_READS 2048 /* of 8 KiB: more than the buffers of a socket hold */

static ls__tcp *tcp_of(ls__transport *t)
{
    return (ls__tcp *)t;
}

/* The poller forgets the descriptor first, since the system may reuse its number. */
static void close_link(ls__tcp *tcp, ls__tcp_connection *c)
{
    if (c->link != NULL) {
        (void)tcp->env->poller_remove(tcp->env, tcp->poller, ls__link_fd(c->link));
        ls__link_close(c->link);
        c->link = NULL;
    }
}

static void end_pair(ls__tcp *tcp, ls__tcp_peer *peer)
{
    peer->is_broken = true;
    for (int i = 0; i < tcp->connections; i++) {
        close_link(tcp, &peer->connection[i]);
    }
}

/* Whether the peer has ended the pair because a TLS record arrived damaged there. Its alert may lie
 * behind data, on a connection other than the one that broke first. The data read here belongs to
 * frames that end with the pair. */
static bool peer_says_damaged(const ls__tcp *tcp, const ls__tcp_peer *peer)
{
    unsigned char lost[8192];
    for (int i = 0; i < tcp->connections; i++) {
        ssize_t got = 1;
        for (int reads = 0; got > 0 && reads < ALERT_READS; reads++) {
            got = ls__link_read(peer->connection[i].link, lost, sizeof lost);
        }
        if (got == -EREMOTEIO) {
            return true;
        }
    }
    return false;
}

/* All connections of the pair end with the first one, so the other side notices at once. Frames
 * that have arrived completely can still be used. The first reason is kept. */
void ls__tcp_set_broken(ls__tcp *tcp, ls__tcp_peer *peer, const ls__tcp_connection *c,
                        const char *why)
{
    if (peer->is_broken) {
        return;
    }
    if (!peer->is_damaged) {
        peer->says_damaged = peer_says_damaged(tcp, peer);
        snprintf(peer->broken, sizeof peer->broken, "%.60s: %s", ls__link_peer(c->link),
                 peer->says_damaged ? LS__TCP_DAMAGED_RECORD : why);
    }
    end_pair(tcp, peer);
}

/* What arrived is not what a rank sends. No more is read from this peer, but frames to it are still
 * sent, because it must learn this cause instead of an end of its connection. */
void ls__tcp_set_damaged(ls__tcp_peer *peer, const ls__tcp_connection *c, const char *why)
{
    if (!peer->is_broken && !peer->is_damaged) {
        snprintf(peer->broken, sizeof peer->broken, "%.60s: %s", ls__link_peer(c->link), why);
        peer->is_damaged = true;
    }
}

const char *ls__tcp_damage(const ls__transport *t, int peer)
{
    const ls__tcp_peer *p = &((const ls__tcp *)t)->peer[peer];
    return p->is_damaged ? p->broken : NULL;
}

bool ls__tcp_peer_says_damaged(const ls__transport *t, int peer)
{
    return ((const ls__tcp *)t)->peer[peer].says_damaged;
}

/* The damage has been told, so the connections can end. */
void ls__tcp_end_damaged(ls__transport *t, int peer)
{
    ls__tcp *tcp = tcp_of(t);
    LS_ASSERT(tcp->peer[peer].is_damaged);
    end_pair(tcp, &tcp->peer[peer]);
}

/* Text for the result of a read or write that ended a connection: 0 at end of stream, else
 * -errno. */
const char *ls__tcp_reason(ssize_t error)
{
    return error == 0 ? "closed by the other side" : strerror((int)-error);
}

/* ---- readiness ---------------------------------------------------------------------------- */

/* Distributes what a poll has returned. The holder of the progress lock takes it over in
 * ls__tcp_refresh, on whatever thread the poll ran. */
static void set_ready(ls__tcp *tcp, const ls__env_ready *ready, int count)
{
    for (int i = 0; i < count; i++) {
        const uint64_t tag = ready[i].tag;
        if (tag == LS__TCP_BELL) {
            tcp->env->event_clear(tcp->env, tcp->bell);
            continue;
        }
        ls__tcp_connection *c =
            &tcp->peer[tag / LS__TCP_CONNECTIONS_MAX].connection[tag % LS__TCP_CONNECTIONS_MAX];
        /* Sync: seq_cst; taken by an exchange in ls__tcp_refresh. */
        atomic_fetch_or_explicit(&c->ready, (uint32_t)ready[i].what, memory_order_seq_cst);
    }
}

/* Polls until fewer events than fit are returned: with edge triggering an event that is not read
 * now is not reported again. */
static void poll_until(ls__tcp *tcp, uint64_t deadline_ns)
{
    ls__env_ready ready[READY_ROOM];
    int count;
    do {
        count = tcp->env->poller_wait(tcp->env, tcp->poller, ready, READY_ROOM, deadline_ns);
        set_ready(tcp, ready, count);
        deadline_ns = 0; /* more events may be pending, but something has happened: no sleep */
    } while (count == READY_ROOM);
}

/* The caller may be any thread; set_ready leaves the result to the holder of the progress lock. */
void ls__tcp_sleep(ls__transport *t, uint64_t deadline_ns)
{
    poll_until(tcp_of(t), deadline_ns);
}

/* Takes over readiness that any thread has found. Called before a connection is read or written. */
void ls__tcp_refresh(ls__tcp_connection *c)
{
    /* Sync: seq_cst, as Note [Last arriver]: the poller sets it and then looks for a sleeper, and
     * the sleeper counts itself and then looks here. */
    if (atomic_load_explicit(&c->ready, memory_order_seq_cst) == 0) {
        return;
    }
    const uint32_t ready = atomic_exchange_explicit(&c->ready, 0, memory_order_seq_cst);
    c->can_read = c->can_read || (ready & (LS__READY_READ | LS__READY_HANGUP)) != 0;
    c->can_write = c->can_write || (ready & LS__READY_WRITE) != 0;
}

/* ---- the rest of the table ---------------------------------------------------------------- */

static size_t tcp_payload_max(ls__transport *t, int peer)
{
    (void)t;
    (void)peer;
    return LS__TCP_PAYLOAD;
}

/* Sends what is queued on every connection; receiving happens in peek. */
static bool tcp_turn(ls__transport *t)
{
    ls__tcp *tcp = tcp_of(t);
    bool moved = false;
    poll_until(tcp, 0);
    for (int r = 0; r < tcp->size; r++) {
        for (int i = 0; tcp->remote[r] && i < tcp->connections; i++) {
            ls__tcp_connection *c = &tcp->peer[r].connection[i];
            ls__tcp_refresh(c);
            if (c->queued > c->sent || c->held) {
                moved = ls__tcp_flush(tcp, &tcp->peer[r], c) || moved;
            }
        }
    }
    return moved;
}

/* Buffers of a group that ended with an error are returned to their user, so neither queued frames
 * nor frames being received may refer to them any more. */
static void tcp_return_buffers(ls__transport *t, uint32_t group)
{
    ls__tcp *tcp = tcp_of(t);
    for (int r = 0; r < tcp->size; r++) {
        for (int i = 0; tcp->remote[r] && i < tcp->connections; i++) {
            ls__tcp_out_return_buffers(&tcp->peer[r].connection[i], group);
            ls__tcp_in_return_buffers(&tcp->peer[r].connection[i], group);
        }
    }
}

/* A network that has swallowed all packets of a pair for a while: the heartbeats of this rank are
 * acknowledged by the other host's system, even if the process there is stopped. */
bool ls__tcp_give_up(ls__transport *t, int rank)
{
    ls__tcp *tcp = tcp_of(t);
    ls__tcp_peer *peer = &tcp->peer[rank];
    for (int i = 0; i < tcp->connections && !peer->is_broken; i++) {
        const ls__tcp_connection *c = &peer->connection[i];
        const int64_t ms =
            c->link != NULL ? tcp->env->tcp_unanswered_ms(tcp->env, ls__link_fd(c->link)) : 0;
        if (ms > LS__TCP_UNANSWERED_MS) {
            char why[96];
            (void)snprintf(why, sizeof why, "the host there has acknowledged no packet for %.1f s",
                           (double)ms * 1e-3);
            ls__tcp_set_broken(tcp, peer, c, why);
        }
    }
    return peer->is_broken;
}

/* Messages that have arrived already may still be peeked. */
static const char *tcp_broken(ls__transport *t, int rank)
{
    const ls__tcp_peer *peer = &tcp_of(t)->peer[rank];
    return peer->is_broken ? peer->broken : NULL;
}

/* Slots and receive buffer are one allocation. */
static void close_connection(ls__tcp *tcp, ls__tcp_connection *c)
{
    const ls__env *env = tcp->env;
    close_link(tcp, c);
    if (c->in != NULL) {
        env->release(env, c->in, LS__TCP_CONNECTION_BYTES);
    }
}

/* Also serves a transport that was made only in part. */
static void tcp_close(ls__transport *t)
{
    ls__tcp *tcp = tcp_of(t);
    const ls__env *env = tcp->env;
    for (int r = 0; tcp->peer != NULL && r < tcp->size; r++) {
        for (int i = 0; i < tcp->connections; i++) {
            close_connection(tcp, &tcp->peer[r].connection[i]);
        }
    }
    if (tcp->poller >= 0) {
        env->close(env, tcp->poller);
    }
    if (tcp->peer != NULL) {
        env->release(env, tcp->peer, (size_t)tcp->size * sizeof *tcp->peer);
    }
    env->release(env, tcp, sizeof *tcp + (size_t)tcp->size);
}

/* A broken pair has nothing to send any more. */
bool ls__tcp_unsent(const ls__transport *t)
{
    const ls__tcp *tcp = (const ls__tcp *)t;
    bool any = false;
    for (int r = 0; r < tcp->size; r++) {
        for (int i = 0; !tcp->peer[r].is_broken && i < tcp->connections; i++) {
            any = any || tcp->peer[r].connection[i].queued > tcp->peer[r].connection[i].sent;
        }
    }
    return any;
}

uint64_t ls__tcp_heard(const ls__transport *t, int peer)
{
    return ((const ls__tcp *)t)->peer[peer].heard_ns;
}

/* The tag distinguishes the doorbell's event from those of connections. */
ls_status ls__tcp_watch_bell(ls__transport *t, int bell)
{
    ls__tcp *tcp = tcp_of(t);
    tcp->bell = bell;
    const int error = tcp->env->poller_add(tcp->env, tcp->poller, bell, LS__TCP_BELL);
    return error == 0 ? LS_OK
                      : ls__fail(LS_ERR_SYSTEM, "ls_init: cannot watch the doorbell: %s",
                                 strerror(-error));
}

/* A new connection counts as readable and writable, since the events of its handshake are past; the
 * first attempt finds out. */
ls_status ls__tcp_adopt(ls__tcp *tcp, int peer, int index, ls__link *link)
{
    ls__tcp_connection *c = &tcp->peer[peer].connection[index];
    const uint64_t tag = (uint64_t)peer * LS__TCP_CONNECTIONS_MAX + (uint64_t)index;
    LS_ASSERT(index >= 0 && index < tcp->connections);
    close_link(tcp, c);
    c->link = link;
    c->in = c->in != NULL ? c->in : tcp->env->allocate(tcp->env, LS__TCP_CONNECTION_BYTES);
    if (c->in == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_init: no memory for a connection to rank %d", peer);
    }
    for (size_t s = 0; s < LS__TCP_SLOTS; s++) {
        c->slot[s].at = c->in + LS__TCP_IN_BYTES + s * LS__TCP_SLOT_BYTES;
    }
    c->can_read = c->can_write = true;
    tcp->peer[peer].heard_ns = tcp->env->now_ns(tcp->env);
    const int error = tcp->env->poller_add(tcp->env, tcp->poller, ls__link_fd(link), tag);
    return error == 0 ? LS_OK
                      : ls__fail(LS_ERR_SYSTEM, "ls_init: cannot watch a connection: %s",
                                 strerror(-error));
}

/* Returns when all connections are made. On failure everything is closed. */
ls_status ls__tcp_transport_new(const ls__tcp_spec *spec,
                                void (*known)(void *arg, int peer, const char *about), void *arg,
                                ls__transport **out)
{
    const ls__env *env = spec->link.env;
    const size_t peers = (size_t)spec->size * sizeof(ls__tcp_peer);
    ls__tcp *tcp = env->allocate(env, sizeof *tcp + (size_t)spec->size);
    if (tcp == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_init: no memory for connections to %d ranks",
                        spec->size);
    }
    bool *remote = (bool *)(tcp + 1);
    memcpy(remote, spec->remote, (size_t)spec->size * sizeof *remote);
    *tcp = (ls__tcp){.base = {.payload_max = tcp_payload_max,
                              .reserve = ls__tcp_reserve,
                              .commit = ls__tcp_commit,
                              .commit_borrowed = ls__tcp_commit_borrowed,
                              .peek = ls__tcp_peek,
                              .release = ls__tcp_release,
                              .return_buffers = tcp_return_buffers,
                              .turn = tcp_turn,
                              .broken = tcp_broken,
                              .close = tcp_close},
                     .env = env,
                     .rank = spec->rank,
                     .size = spec->size,
                     .connections = spec->connections,
                     .bell = -1,
                     .remote = remote};
    tcp->poller = env->poller_open(env);
    tcp->peer = env->allocate(env, peers);
    ls_status status = LS_OK;
    if (tcp->poller < 0 || tcp->peer == NULL) {
        status = ls__fail(LS_ERR_SYSTEM, "ls_init: cannot get a poller and memory for %d ranks: %s",
                          spec->size, tcp->poller < 0 ? strerror(-tcp->poller) : "no memory");
    } else {
        memset(tcp->peer, 0, peers);
        status = ls__tcp_join(tcp, spec, known, arg);
    }
    if (status != LS_OK) {
        tcp_close(&tcp->base);
        return status;
    }
    *out = &tcp->base;
    return LS_OK;
}
