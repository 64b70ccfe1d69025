/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: pairs, pipes, connections by name within a host, TCP between hosts.
 *
 * A stream has two channels, each a ring of bytes with three numbers: written, arrived, read.
 * Within a host what is written has arrived. Over TCP each piece takes its own time, in order
 * within a connection and in no order between connections; a cut link lets nothing arrive, without
 * a word, until it is mended; a host that is down neither.
 */
#include "sim/entries.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "comm/transport/tcp_wire.h"

#define ROOM_FIRST 1024

/* ---- channels ------------------------------------------------------------------------------ */

ls__sim_channel *ls__sim_channel_new(size_t limit)
{
    ls__sim_channel *c = ls__sim_alloc(sizeof *c);
    c->limit = limit;
    ls__list_init(&c->rights);
    return c;
}

static void channel_grow(ls__sim_channel *c, size_t held)
{
    size_t room = c->room == 0 ? ROOM_FIRST : c->room;
    while (room < held) {
        room *= 2;
    }
    if (room == c->room) {
        return;
    }
    unsigned char *data = ls__sim_alloc(room);
    for (uint64_t i = c->read; i < c->written; i++) {
        data[i & (room - 1)] = c->data[i & (c->room - 1)];
    }
    c->data = data;
    c->room = room;
}

static void ring_put(ls__sim_channel *c, const unsigned char *in, size_t bytes)
{
    channel_grow(c, (size_t)(c->written - c->read) + bytes);
    const size_t at = (size_t)c->written & (c->room - 1);
    const size_t first = bytes < c->room - at ? bytes : c->room - at;
    memcpy(c->data + at, in, first);
    memcpy(c->data, in + first, bytes - first);
    c->written += bytes;
}

static void ring_get(ls__sim_channel *c, unsigned char *out, size_t bytes)
{
    const size_t at = (size_t)c->read & (c->room - 1);
    const size_t first = bytes < c->room - at ? bytes : c->room - at;
    memcpy(out, c->data + at, first);
    memcpy(out + first, c->data, bytes - first);
    c->read += bytes;
}

/* ---- damage -------------------------------------------------------------------------------- */

/* A frame begins here: one of its bits is chosen. A third of them each in its head, in the
 * message's head, and anywhere. */
static void place_flip(ls__sim_channel *c, const void *in, size_t bytes)
{
    ls__frame frame;
    ls__sim_random r = {c->flip->drawn};
    if (c->flip->set || bytes < sizeof frame) {
        return;
    }
    memcpy(&frame, in, sizeof frame);
    if (frame.magic != LS__FRAME_MAGIC) {
        return;
    }
    const size_t head = sizeof frame, message = sizeof(ls__message), all = frame.bytes;
    const uint64_t where = ls__sim_below(&r, 3);
    const uint64_t byte = where == 0   ? ls__sim_below(&r, head)
                          : where == 1 ? head + ls__sim_below(&r, message)
                                       : ls__sim_below(&r, all);
    c->flip->set = true;
    c->flip->at = c->written + byte;
    c->flip->end = c->written + all;
    c->flip->drawn = ls__sim_below(&r, 8);
    ls__sim_note("bit %d of byte %llu of a frame of %zu bytes flips", (int)c->flip->drawn,
                 (unsigned long long)byte, all);
}

/* The bytes from `from` on have just been put into the ring. */
static void damage(ls__sim_channel *c, uint64_t from)
{
    const ls__sim_flip *f = c->flip;
    if (f->set && f->at >= from && f->at < c->written) {
        c->data[f->at & (c->room - 1)] ^= (unsigned char)(1u << f->drawn);
    }
}

/* Before a read, which may be one of several of a call: whoever has the whole damaged frame must
 * not ask for more. */
static void look_for_damage(ls__sim_channel *c, size_t bytes)
{
    ls__sim_flip *f = c->flip;
    const uint64_t now = ls__sim->now_ns;
    if (!f->set) {
        return;
    }
    if (f->whole_ns != 0 && now > f->whole_ns) {
        ls__sim_stop("a frame was damaged %lld bytes before its end, and its reader reads on",
                     (long long)(f->end - f->at));
    }
    if (!f->read && f->at < c->read + bytes) {
        f->read = true;
        f->read_ns = now;
    }
    if (f->whole_ns == 0 && f->end <= c->read + bytes) {
        f->whole_ns = now;
    }
}

static size_t room_of(const ls__sim_channel *c)
{
    const size_t held = (size_t)(c->written - c->read);
    return held < c->limit ? c->limit - held : 0;
}

/* ---- arrivals over TCP --------------------------------------------------------------------- */

static bool is_cut(int from, int to)
{
    return ls__sim->cut[from][to] || ls__sim->host[from].down || ls__sim->host[to].down;
}

uint64_t ls__sim_flight_ns(void)
{
    ls__sim_pace *pace = &ls__sim->pace;
    const uint64_t jitter =
        pace->jitter_ns > 0 ? ls__sim_below(&ls__sim->choice, pace->jitter_ns) : 0;
    return pace->latency_ns + jitter;
}

/* What was sent into a cut link is sent again once it is mended. */
bool ls__sim_held_up(int from, int to, void (*fn)(void *a, uint64_t b), void *a, uint64_t b)
{
    if (!is_cut(from, to)) {
        return false;
    }
    ls__sim_at(ls__sim->now_ns + 200000000u, fn, a, b);
    return true;
}

typedef struct piece { /* on its way */
    ls__sim_channel *channel;
    int from, to;
} piece;

static void answer_reset(void *a, uint64_t unused)
{
    const piece *p = a;
    (void)unused;
    if (!ls__sim_held_up(p->to, p->from, answer_reset, a, 0)) {
        ls__sim_fail_end(p->channel->writer, -ECONNRESET);
    }
}

static void arrive(void *a, uint64_t upto)
{
    const piece *p = a;
    ls__sim_channel *c = p->channel;
    if (ls__sim_held_up(p->from, p->to, arrive, a, upto)) {
        return;
    }
    if (c->reader == NULL) { /* nobody is there any more: the host says so */
        ls__sim_at(ls__sim->now_ns + ls__sim_flight_ns(), answer_reset, a, 0);
        return;
    }
    if (c->reader->error != 0) {
        return;
    }
    if (upto == UINT64_MAX) {
        c->closed = true;
    } else if (upto > c->arrived) {
        c->arrived = upto;
    }
    ls__sim_changed(c->reader);
}

static void send_over(ls__sim_object *s, uint64_t upto)
{
    ls__sim_channel *c = s->out;
    if (!s->tcp) {
        c->arrived = c->written;
        c->closed = upto == UINT64_MAX;
        if (c->reader != NULL) {
            ls__sim_changed(c->reader);
        }
        return;
    }
    piece *p = ls__sim_alloc(sizeof *p);
    *p = (piece){c, s->host, s->peer_host};
    const uint64_t at = ls__sim->now_ns + ls__sim_flight_ns();
    c->last_ns = at > c->last_ns ? at : c->last_ns + 1; /* in order */
    ls__sim_at(c->last_ns, arrive, p, upto);
}

void ls__sim_fail_end(ls__sim_object *s, int error)
{
    if (s != NULL && s->error == 0) {
        s->error = error;
        ls__sim_changed(s);
    }
}

static void reset_arrives(void *a, uint64_t unused)
{
    const piece *p = a;
    (void)unused;
    if (!ls__sim_held_up(p->from, p->to, reset_arrives, a, 0)) {
        ls__sim_fail_end(p->channel->reader, -ECONNRESET);
    }
}

static void send_reset(ls__sim_object *s)
{
    piece *p = ls__sim_alloc(sizeof *p);
    *p = (piece){s->out, s->host, s->peer_host};
    ls__sim_at(ls__sim->now_ns + ls__sim_flight_ns(), reset_arrives, p, 0);
}

void ls__sim_reset(ls__sim_object *s)
{
    ls__sim_object *peer = s->out->reader;
    ls__sim_fail_end(s, -ECONNRESET);
    ls__sim_fail_end(peer, -ECONNRESET);
}

/* ---- both ends ----------------------------------------------------------------------------- */

int ls__sim_stream_ready(const ls__sim_object *s)
{
    if (s->connecting) {
        return 0;
    }
    if (s->error != 0) {
        return LS__READY_READ | LS__READY_WRITE | LS__READY_HANGUP;
    }
    int what = 0;
    if (s->in != NULL && (s->in->arrived > s->in->read || s->in->closed)) {
        what |= LS__READY_READ;
    }
    if (s->out != NULL && (room_of(s->out) > 0 || s->out->deaf)) {
        what |= LS__READY_WRITE;
    }
    const bool hangup = s->in != NULL ? s->in->closed : s->out->deaf;
    return hangup ? what | LS__READY_HANGUP : what;
}

/* Nothing past a byte with which a descriptor comes, so that it comes with its own. */
static size_t until_right(const ls__sim_channel *c, size_t bytes)
{
    LS__LIST_EACH (at, &c->rights) {
        const uint64_t place = LS__LIST_ITEM(at, ls__sim_right, link)->at;
        if (place > c->read && place < c->read + bytes) {
            return (size_t)(place - c->read);
        }
    }
    return bytes;
}

static ls__sim_object *right_at(ls__sim_channel *c, uint64_t place)
{
    LS__LIST_EACH (at, &c->rights) {
        ls__sim_right *r = LS__LIST_ITEM(at, ls__sim_right, link);
        if (r->at == place) {
            ls__list_remove(&r->link);
            return r->object;
        }
    }
    return NULL;
}

static size_t shortened(size_t bytes)
{
    const bool cut =
        ls__sim->pace.short_transfers && bytes > 1 && ls__sim_below(&ls__sim->choice, 4) == 0;
    return cut ? 1 + (size_t)ls__sim_below(&ls__sim->choice, bytes) : bytes;
}

ssize_t ls__sim_stream_read(ls__sim_object *s, void *out, size_t bytes, ls__sim_object **right)
{
    ls__sim_channel *c = s->in;
    *right = NULL;
    if (s->connecting) {
        return -EAGAIN;
    }
    if (s->error != 0) {
        return s->error;
    }
    const size_t here = (size_t)(c->arrived - c->read);
    if (here == 0 || bytes == 0) {
        return bytes == 0 || c->closed ? 0 : -EAGAIN;
    }
    size_t take = bytes < here ? bytes : here;
    take = until_right(c, take);
    take = s->out != NULL ? shortened(take) : take; /* a pipe gives what is there */
    *right = right_at(c, c->read);
    const bool was_full = room_of(c) == 0;
    if (c->flip != NULL) {
        look_for_damage(c, take);
    }
    ring_get(c, out, take);
    if (c->writer != NULL && was_full) {
        ls__sim_changed(c->writer);
    }
    return (ssize_t)take;
}

ssize_t ls__sim_stream_write(ls__sim_object *s, const void *in, size_t bytes, ls__sim_object *right)
{
    ls__sim_channel *c = s->out;
    if (s->connecting) {
        return -EAGAIN;
    }
    if (s->error != 0 || c->deaf) {
        return s->error != 0 ? s->error : -EPIPE;
    }
    size_t put = bytes < room_of(c) ? bytes : room_of(c);
    if (put == 0) {
        return bytes == 0 ? 0 : -EAGAIN;
    }
    if (c->written > c->read) { /* an empty socket takes all it has room for, as the kernel's do */
        put = shortened(put);
    }
    if (right != NULL) {
        ls__sim_right *r = ls__sim_alloc(sizeof *r);
        *r = (ls__sim_right){.at = c->written, .object = right};
        right->refs++;
        ls__list_push_back(&c->rights, &r->link);
    }
    if (c->flip != NULL) {
        place_flip(c, in, bytes);
    }
    const uint64_t from = c->written;
    ring_put(c, in, put);
    if (c->flip != NULL) {
        damage(c, from);
    }
    send_over(s, c->written);
    return (ssize_t)put;
}

void ls__sim_stream_gone(ls__sim_object *s)
{
    ls__sim_channel *in = s->in, *out = s->out;
    const bool unread = in != NULL && in->arrived > in->read;
    if (in != NULL) {
        in->reader = NULL;
        LS__LIST_EACH (at, &in->rights) {
            ls__sim_right *r = LS__LIST_ITEM(at, ls__sim_right, link);
            ls__list_remove(&r->link);
            ls__sim_object_drop(r->object);
        }
        if (!s->tcp) {
            in->deaf = true;
            if (in->writer != NULL) {
                ls__sim_changed(in->writer);
            }
        }
    }
    if (out != NULL) {
        out->writer = NULL;
        if (s->tcp && unread) {
            send_reset(s); /* as the kernel does when bytes are thrown away */
        } else if (!ls__sim->host[s->host].down) {
            send_over(s, UINT64_MAX);
        }
    }
}

ls__sim_object *ls__sim_end_new(ls__sim_channel *in, ls__sim_channel *out)
{
    ls__sim_object *s = ls__sim_object_new(LS__SIM_STREAM);
    s->in = in;
    s->out = out;
    s->opener = ls__sim_current();
    s->host = s->opener->host;
    if (in != NULL) {
        in->reader = s;
    }
    if (out != NULL) {
        out->writer = s;
    }
    return s;
}

static int put_pair(ls__sim_object *a, ls__sim_object *b, int out[2])
{
    ls__sim_process *p = ls__sim_current();
    out[0] = ls__sim_fd_new(p, a);
    out[1] = ls__sim_fd_new(p, b);
    if (out[0] >= 0 && out[1] >= 0) {
        return 0;
    }
    if (out[0] >= 0) {
        ls__sim_fd_close(p, out[0]);
    }
    return -EMFILE;
}

int ls__sim_env_socket_pair(const ls__env *env LS__UNUSED, int out[2])
{
    ls__sim_point();
    ls__sim_channel *one = ls__sim_channel_new(LS__SIM_UNIX_BYTES),
                    *other = ls__sim_channel_new(LS__SIM_UNIX_BYTES);
    ls__sim_object *a = ls__sim_end_new(one, other);
    return put_pair(a, ls__sim_end_new(other, one), out);
}

int ls__sim_env_pipe(const ls__env *env LS__UNUSED, int out[2])
{
    ls__sim_point();
    ls__sim_channel *c = ls__sim_channel_new(65536);
    ls__sim_object *reader = ls__sim_end_new(c, NULL);
    return put_pair(reader, ls__sim_end_new(NULL, c), out);
}

/* ---- bytes --------------------------------------------------------------------------------- */

ssize_t ls__sim_env_send(const ls__env *env LS__UNUSED, int fd, const void *in, size_t bytes,
                         int pass_fd)
{
    ls__sim_point();
    ls__sim_object *s = ls__sim_fd(fd, LS__SIM_STREAM);
    ls__sim_object *right = ls__sim_fd_any(ls__sim_current(), pass_fd);
    if (s == NULL || s->out == NULL || (pass_fd >= 0 && right == NULL)) {
        return -EBADF;
    }
    return ls__sim_stream_write(s, in, bytes, right);
}

ssize_t ls__sim_env_recv(const ls__env *env LS__UNUSED, int fd, void *out, size_t bytes,
                         int *got_fd)
{
    ls__sim_point();
    ls__sim_object *s = ls__sim_fd(fd, LS__SIM_STREAM);
    ls__sim_object *right = NULL;
    if (got_fd != NULL) {
        *got_fd = -1;
    }
    if (s == NULL || s->in == NULL) {
        return -EBADF;
    }
    const ssize_t got = ls__sim_stream_read(s, out, bytes, &right);
    if (right != NULL && got_fd != NULL) {
        *got_fd = ls__sim_fd_new(ls__sim_current(), right);
    } else if (right != NULL) {
        ls__sim_object_drop(right);
    }
    return got;
}

ssize_t ls__sim_env_send_spans(const ls__env *env LS__UNUSED, int fd, const ls__env_span *spans,
                               int count)
{
    ls__sim_point();
    ls__sim_object *s = ls__sim_fd(fd, LS__SIM_STREAM);
    size_t sent = 0;
    if (s == NULL || s->out == NULL) {
        return -EBADF;
    }
    for (int i = 0; i < count; i++) {
        const ssize_t put = ls__sim_stream_write(s, spans[i].at, spans[i].bytes, NULL);
        if (put < 0) {
            return sent > 0 ? (ssize_t)sent : put;
        }
        sent += (size_t)put;
        if ((size_t)put < spans[i].bytes) {
            break;
        }
    }
    return (ssize_t)sent;
}

ssize_t ls__sim_env_recv_rooms(const ls__env *env LS__UNUSED, int fd, const ls__env_room *rooms,
                               int count)
{
    ls__sim_point();
    ls__sim_object *s = ls__sim_fd(fd, LS__SIM_STREAM);
    ssize_t got = 0;
    if (s == NULL || s->in == NULL) {
        return -EBADF;
    }
    for (int i = 0; i < count; i++) {
        ls__sim_object *right = NULL;
        const ssize_t part =
            rooms[i].bytes > 0 ? ls__sim_stream_read(s, rooms[i].at, rooms[i].bytes, &right) : 0;
        if (right != NULL) {
            ls__sim_object_drop(right);
        }
        if (part < 0) {
            return got > 0 ? got : part;
        }
        got += part;
        if ((size_t)part < rooms[i].bytes) {
            break;
        }
    }
    return got;
}
