/* Frames over the connections of each pair. Everything here belongs to the holder of the progress
 * token, but for `ready`, which any thread that polls may set.
 *
 * Readiness is edge-triggered: a connection is read until it has no more, or until there is no
 * room, and is then looked at again without being told. Frames are built in slots and sent from
 * there, as many as there are with one call.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/error.h"
#include "comm/transport/tcp_wire.h"

#define READY_ROOM 64
#define SLOT_BYTES ((LS__FRAME_MAX + 63) / 64 * 64)
#define CONNECTION_BYTES (LS__TCP_IN_BYTES + LS__TCP_SLOTS * SLOT_BYTES) /* one allocation */
#define LOOK_AHEAD ((size_t)4096) /* bytes read beyond the frame that is wanted */

static ls__tcp *tcp_of(ls__transport *t)
{
    return (ls__tcp *)t;
}

static void close_link(ls__tcp *tcp, ls__tcp_connection *c)
{
    if (c->link != NULL) {
        (void)tcp->env->poller_remove(tcp->env, tcp->poller, ls__link_fd(c->link));
        ls__link_close(c->link);
        c->link = NULL;
    }
}

/* All connections of the pair end with the first: the other side is to know at once, too. */
static void set_broken(ls__tcp *tcp, ls__tcp_peer *peer, const ls__tcp_connection *c,
                       const char *why)
{
    if (peer->is_broken) {
        return;
    }
    snprintf(peer->broken, sizeof peer->broken, "%.60s: %s", ls__link_peer(c->link), why);
    peer->is_broken = true;
    for (int i = 0; i < tcp->connections; i++) {
        close_link(tcp, &peer->connection[i]);
    }
}

static const char *reason(ssize_t error)
{
    return error == 0 ? "closed by the other side" : strerror((int)-error);
}

/* ---- readiness ---------------------------------------------------------------------------- */

static void note_ready(ls__tcp *tcp, const ls__env_ready *ready, int count)
{
    for (int i = 0; i < count; i++) {
        const uint64_t tag = ready[i].tag;
        if (tag == LS__TCP_BELL) {
            tcp->env->event_clear(tcp->env, tcp->bell);
            continue;
        }
        ls__tcp_connection *c =
            &tcp->peer[tag / LS__TCP_CONNECTIONS_MAX].connection[tag % LS__TCP_CONNECTIONS_MAX];
        /* Sync: seq_cst; taken by an exchange in refresh. */
        atomic_fetch_or_explicit(&c->ready, (uint32_t)ready[i].what, memory_order_seq_cst);
    }
}

static void poll_until(ls__tcp *tcp, uint64_t deadline_ns)
{
    ls__env_ready ready[READY_ROOM];
    int count;
    do {
        count = tcp->env->poller_wait(tcp->env, tcp->poller, ready, READY_ROOM, deadline_ns);
        note_ready(tcp, ready, count);
        deadline_ns = 0; /* there may be more, but it is no time to sleep */
    } while (count == READY_ROOM);
}

void ls__tcp_sleep(ls__transport *t, uint64_t deadline_ns)
{
    poll_until(tcp_of(t), deadline_ns);
}

static void refresh(ls__tcp_connection *c)
{
    /* Sync: seq_cst, as Note [Last arriver]: who polled sets it and then looks for a sleeper, who
     * counts itself and then looks here. */
    if (atomic_load_explicit(&c->ready, memory_order_seq_cst) == 0) {
        return;
    }
    const uint32_t ready = atomic_exchange_explicit(&c->ready, 0, memory_order_seq_cst);
    c->can_read = c->can_read || (ready & (LS__READY_READ | LS__READY_HANGUP)) != 0;
    c->can_write = c->can_write || (ready & LS__READY_WRITE) != 0;
}

/* ---- sending ------------------------------------------------------------------------------ */

/* The frames that wait, from the first byte not sent. */
static int spans_of(const ls__tcp_connection *c, ls__env_span spans[LS__TCP_SLOTS])
{
    int count = 0;
    for (uint64_t i = c->sent; i < c->queued; i++) {
        const size_t skip = i == c->sent ? c->moved : 0;
        spans[count++] = (ls__env_span){.at = c->out[i % LS__TCP_SLOTS] + skip,
                                        .bytes = c->out_bytes[i % LS__TCP_SLOTS] - skip};
    }
    return count;
}

static void count_sent(ls__tcp_connection *c, size_t bytes)
{
    while (bytes > 0) {
        const size_t left = c->out_bytes[c->sent % LS__TCP_SLOTS] - c->moved;
        if (bytes < left) {
            c->moved += bytes;
            return;
        }
        bytes -= left;
        c->moved = 0;
        c->sent++;
    }
}

static void flush(ls__tcp *tcp, ls__tcp_peer *peer, ls__tcp_connection *c)
{
    while (c->can_write && !peer->is_broken) {
        ls__env_span spans[LS__TCP_SLOTS];
        const int count = spans_of(c, spans);
        const ssize_t put = count > 0 ? ls__link_send(c->link, spans, count) : 0;
        if (put > 0) {
            count_sent(c, (size_t)put);
            continue;
        }
        const int rest = put == 0 ? ls__link_flush(c->link) : (int)put;
        c->held = put == 0 && rest == -EAGAIN;
        if (rest == -EAGAIN) {
            c->can_write = false;
        } else if (rest < 0) {
            set_broken(tcp, peer, c, reason(rest));
        }
        return;
    }
}

static ls__message *tcp_reserve(ls__transport *t, int rank)
{
    ls__tcp *tcp = tcp_of(t);
    ls__tcp_peer *peer = &tcp->peer[rank];
    int best = -1;
    uint64_t least = LS__TCP_SLOTS;
    for (int i = 0; i < tcp->connections && !peer->is_broken; i++) {
        const uint64_t waiting = peer->connection[i].queued - peer->connection[i].sent;
        best = waiting < least ? i : best;
        least = waiting < least ? waiting : least;
    }
    peer->reserved = best;
    if (best < 0) {
        return NULL;
    }
    const ls__tcp_connection *c = &peer->connection[best];
    return (ls__message *)(void *)(c->out[c->queued % LS__TCP_SLOTS] + sizeof(ls__frame));
}

static void tcp_commit(ls__transport *t, int rank)
{
    ls__tcp_peer *peer = &tcp_of(t)->peer[rank];
    ls__tcp_connection *c = &peer->connection[peer->reserved];
    unsigned char *slot = c->out[c->queued % LS__TCP_SLOTS];
    ls__frame *frame = (ls__frame *)(void *)slot;
    const ls__message *message = (const ls__message *)(const void *)(frame + 1);
    const size_t used = sizeof *frame + sizeof *message + message->bytes;
    const size_t bytes = ls__round_up(used, 8);
    memset(slot + used, 0, bytes - used);
    *frame =
        (ls__frame){.magic = LS__FRAME_MAGIC, .bytes = (uint32_t)bytes, .number = ++peer->next_out};
    frame->checksum = ls__crc32c(0, slot, bytes);
    c->out_bytes[c->queued % LS__TCP_SLOTS] = bytes;
    c->queued++;
    peer->reserved = -1;
    refresh(c);
    flush(tcp_of(t), peer, c);
}

/* ---- receiving ---------------------------------------------------------------------------- */

/* Bytes of the frame at `start`, as far as its head says; its head while that has not come. */
static size_t wanted(const ls__tcp_connection *c)
{
    ls__frame frame;
    if (c->end - c->start < sizeof frame) {
        return sizeof frame;
    }
    memcpy(&frame, c->in + c->start, sizeof frame);
    return frame.bytes;
}

/* Reads once; false: there was nothing, or no room. */
static bool receive(ls__tcp *tcp, ls__tcp_peer *peer, ls__tcp_connection *c)
{
    const size_t have = c->end - c->start;
    const size_t want = wanted(c);
    if (LS__TCP_IN_BYTES - c->start < LS__FRAME_MAX + LOOK_AHEAD || have == 0) {
        memmove(c->in, c->in + c->start, have);
        c->start = 0;
        c->end = have;
    }
    /* A little more than what is wanted: then little is left to be moved to the front. */
    const size_t most = (want > have ? want - have : 0) + LOOK_AHEAD;
    const size_t room = LS__TCP_IN_BYTES - c->end;
    const ssize_t got = ls__link_read(c->link, c->in + c->end, most < room ? most : room);
    if (got > 0) {
        c->end += (size_t)got;
        peer->heard_ns = tcp->env->now_ns(tcp->env);
        return true;
    }
    c->can_read = false;
    if (got != -EAGAIN) {
        set_broken(tcp, peer, c, reason(got));
    }
    return false;
}

/* Whether the head of a frame may be believed as far as memory goes. */
static bool head_is_sound(const ls__frame *frame)
{
    return frame->magic == LS__FRAME_MAGIC && frame->bytes <= LS__FRAME_MAX &&
           frame->bytes >= sizeof *frame + sizeof(ls__message) && frame->bytes % 8 == 0;
}

/* Over the frame as it was when the field was 0. */
static uint32_t checksum_of(unsigned char *at, size_t bytes)
{
    ls__frame head;
    memcpy(&head, at, sizeof head);
    head.checksum = 0;
    const uint32_t crc = ls__crc32c(0, &head, sizeof head);
    return ls__crc32c(crc, at + sizeof head, bytes - sizeof head);
}

/* The whole and sound frame at `start`, or NULL. */
static const ls__frame *frame_at(ls__tcp *tcp, ls__tcp_peer *peer, ls__tcp_connection *c)
{
    ls__frame *frame = (ls__frame *)(void *)(c->in + c->start);
    for (;;) {
        const size_t have = c->end - c->start;
        frame = (ls__frame *)(void *)(c->in + c->start);
        if (have >= sizeof *frame && !c->checked && !head_is_sound(frame)) {
            set_broken(tcp, peer, c, "what came is no frame (damaged, or not from a rank)");
            return NULL;
        }
        if (have >= sizeof *frame && have >= frame->bytes) {
            break;
        }
        if (!c->can_read || peer->is_broken || !receive(tcp, peer, c)) {
            return NULL;
        }
    }
    if (!c->checked) {
        const ls__message *message = (const ls__message *)(const void *)(frame + 1);
        if (checksum_of(c->in + c->start, frame->bytes) != frame->checksum ||
            message->bytes > frame->bytes - sizeof *frame - sizeof *message) {
            set_broken(tcp, peer, c,
                       "a frame arrived damaged (CRC-32C); look for bad memory or a bad network "
                       "card on either host");
            return NULL;
        }
        c->checked = true;
    }
    return frame;
}

static const ls__message *tcp_peek(ls__transport *t, int rank)
{
    ls__tcp *tcp = tcp_of(t);
    ls__tcp_peer *peer = &tcp->peer[rank];
    for (int i = 0; i < tcp->connections; i++) {
        ls__tcp_connection *c = &peer->connection[i];
        refresh(c);
        const ls__frame *frame = frame_at(tcp, peer, c);
        if (frame != NULL && frame->number == peer->next_in + 1) {
            peer->current = i;
            return (const ls__message *)(const void *)(frame + 1);
        }
    }
    return NULL;
}

static void tcp_release(ls__transport *t, int rank)
{
    ls__tcp_peer *peer = &tcp_of(t)->peer[rank];
    ls__tcp_connection *c = &peer->connection[peer->current];
    ls__frame frame;
    memcpy(&frame, c->in + c->start, sizeof frame);
    c->start += frame.bytes;
    c->checked = false;
    peer->next_in++;
}

/* ---- the rest of the table ---------------------------------------------------------------- */

static size_t tcp_payload_max(ls__transport *t, int peer)
{
    (void)t;
    (void)peer;
    return LS__TCP_PAYLOAD;
}

static void tcp_turn(ls__transport *t)
{
    ls__tcp *tcp = tcp_of(t);
    poll_until(tcp, 0);
    for (int r = 0; r < tcp->size; r++) {
        for (int i = 0; tcp->far[r] && i < tcp->connections; i++) {
            ls__tcp_connection *c = &tcp->peer[r].connection[i];
            refresh(c);
            if (c->queued > c->sent || c->held) {
                flush(tcp, &tcp->peer[r], c);
            }
        }
    }
}

/* What lies here already may still be used. */
static const char *tcp_broken(ls__transport *t, int rank)
{
    const ls__tcp_peer *peer = &tcp_of(t)->peer[rank];
    return peer->is_broken ? peer->broken : NULL;
}

static void close_connection(ls__tcp *tcp, ls__tcp_connection *c)
{
    const ls__env *env = tcp->env;
    close_link(tcp, c);
    if (c->in != NULL) {
        env->release(env, c->in, CONNECTION_BYTES);
    }
}

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

ls_status ls__tcp_watch_bell(ls__transport *t, int bell)
{
    ls__tcp *tcp = tcp_of(t);
    tcp->bell = bell;
    const int error = tcp->env->poller_add(tcp->env, tcp->poller, bell, LS__TCP_BELL);
    return error == 0
               ? LS_OK
               : ls__fail(LS_ERR_SYSTEM, "ls_init: watching a descriptor: %s", strerror(-error));
}

ls_status ls__tcp_adopt(ls__tcp *tcp, int peer, int index, ls__link *link)
{
    ls__tcp_connection *c = &tcp->peer[peer].connection[index];
    const uint64_t tag = (uint64_t)peer * LS__TCP_CONNECTIONS_MAX + (uint64_t)index;
    c->link = link;
    c->in = tcp->env->allocate(tcp->env, CONNECTION_BYTES);
    if (c->in == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_init: no memory for a connection to rank %d", peer);
    }
    for (size_t s = 0; s < LS__TCP_SLOTS; s++) {
        c->out[s] = c->in + LS__TCP_IN_BYTES + s * SLOT_BYTES;
    }
    c->can_read = c->can_write = true; /* until it is known better */
    tcp->peer[peer].heard_ns = tcp->env->now_ns(tcp->env);
    const int error = tcp->env->poller_add(tcp->env, tcp->poller, ls__link_fd(link), tag);
    return error == 0
               ? LS_OK
               : ls__fail(LS_ERR_SYSTEM, "ls_init: watching a connection: %s", strerror(-error));
}

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
    bool *far = (bool *)(tcp + 1);
    memcpy(far, spec->far, (size_t)spec->size * sizeof *far);
    *tcp = (ls__tcp){.base = {.name = "tcp",
                              .payload_max = tcp_payload_max,
                              .reserve = tcp_reserve,
                              .commit = tcp_commit,
                              .peek = tcp_peek,
                              .release = tcp_release,
                              .turn = tcp_turn,
                              .broken = tcp_broken,
                              .close = tcp_close},
                     .env = env,
                     .rank = spec->rank,
                     .size = spec->size,
                     .connections = spec->connections,
                     .bell = -1,
                     .far = far};
    tcp->poller = env->poller_open(env);
    tcp->peer = env->allocate(env, peers);
    ls_status status = LS_OK;
    if (tcp->poller < 0 || tcp->peer == NULL) {
        status = ls__fail(LS_ERR_SYSTEM, "ls_init: a poller and memory for %d ranks: %s",
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
