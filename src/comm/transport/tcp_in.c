/* SPDX-License-Identifier: Apache-2.0 */
/* Incoming frames. Received bytes lie in `in` of their connection, the oldest frame at `start`.
 * When the head of a long frame has arrived, the transport's user is asked for the place of its
 * payload; if it is known, the payload is read straight into that place, and `in` holds only the
 * bytes around it:
 *
 *     in      head ▸ padding ▸ next frame              place   payload
 *
 * The checksum is computed over each part as it arrives, while it is in the cache. A payload whose
 * place is withdrawn (return_buffers) is still read, to the end of `in`, and its frame dropped.
 */
#include <errno.h>
#include <string.h>

#include "base/assert.h"
#include "base/crc32c.h"
#include "base/planted.h"
#include "comm/transport/tcp_wire.h"

#define HEAD (sizeof(ls__frame) + sizeof(ls__message))
#define LOOK_AHEAD ((size_t)4096)      /* bytes read beyond the current frame */
#define AROUND (HEAD + 2 * LOOK_AHEAD) /* upper bound of the bytes in `in` around a payload apart */

static const ls__frame *frame_of(const ls__tcp_connection *c)
{
    return (const ls__frame *)(const void *)(c->in + c->start);
}

static const ls__message *message_of(const ls__tcp_connection *c)
{
    return (const ls__message *)(const void *)(c->in + c->start + sizeof(ls__frame));
}

/* Bytes in `in` that are not released yet. */
static size_t received(const ls__tcp_connection *c)
{
    return c->end - c->start;
}

/* Bytes of the current frame that belong into `in`; only the frame's own head until that has
 * arrived. */
static size_t wanted(const ls__tcp_connection *c)
{
    if (received(c) < sizeof(ls__frame)) {
        return sizeof(ls__frame);
    }
    return frame_of(c)->bytes - (c->apart ? message_of(c)->bytes : 0);
}

/* Makes room behind; the distance is kept short by LOOK_AHEAD. */
static void move_to_front(ls__tcp_connection *c)
{
    LS_ASSERT(c->start <= c->end);
    const size_t bytes = received(c);
    memmove(c->in, c->in + c->start, bytes);
    c->start = 0;
    c->end = bytes;
}

/* ---- reading ------------------------------------------------------------------------------ */

/* Where the next bytes go: first to the rest of a payload apart, then to `in`. */
static void rooms_of(ls__tcp_connection *c, ls__env_room rooms[2])
{
    const size_t most = (wanted(c) > received(c) ? wanted(c) - received(c) : 0) + LOOK_AHEAD;
    rooms[0] = (ls__env_room){0};
    rooms[1] = (ls__env_room){.at = c->in + c->end, .bytes = LS__TCP_IN_BYTES - c->end};
    /* Only a little more than the current frame, so that little has to be moved to the front. */
    rooms[1].bytes = most < rooms[1].bytes ? most : rooms[1].bytes;
    if (c->apart) {
        const size_t rest = message_of(c)->bytes - c->placed;
        rooms[0] = (ls__env_room){.bytes = rest};
        rooms[0].at = c->place != NULL ? c->place + c->placed : c->in + AROUND;
    }
}

/* `got` bytes have been read into the rooms. */
static void count_received(ls__tcp_connection *c, const ls__env_room *rooms, size_t got)
{
    const size_t first = got < rooms[0].bytes ? got : rooms[0].bytes;
    if (first > 0) {
        c->crc = ls__crc32c(c->crc, rooms[0].at, first);
        c->placed += first;
    }
    c->end += got - first;
}

/* Reads once; false: there was nothing to read. */
static bool receive(ls__tcp *tcp, ls__tcp_peer *peer, ls__tcp_connection *c)
{
    ls__env_room rooms[2];
    if (LS__TCP_IN_BYTES - c->start < LS__FRAME_MAX + LOOK_AHEAD || received(c) == 0) {
        move_to_front(c);
    }
    rooms_of(c, rooms);
    const bool both = rooms[0].bytes > 0;
    const ssize_t got = ls__link_read_rooms(c->link, both ? rooms : rooms + 1, both ? 2 : 1);
    if (got > 0) {
        count_received(c, rooms, (size_t)got);
        peer->heard_ns = tcp->env->now_ns(tcp->env);
        return true;
    }
    c->can_read = false;
    if (got == -EBADMSG) {
        ls__tcp_set_damaged(peer, c, LS__TCP_DAMAGED_RECORD);
    } else if (got != -EAGAIN) {
        ls__tcp_set_broken(tcp, peer, c, ls__tcp_reason(got));
    }
    return false;
}

/* ---- placing ------------------------------------------------------------------------------ */

/* The sender computed the checksum with its own field 0. */
static uint32_t crc_of_head(const ls__tcp_connection *c, size_t bytes)
{
    ls__frame frame = *frame_of(c); /* as it was when the field was 0 */
    frame.checksum = 0;
    const uint32_t crc = ls__crc32c(0, &frame, sizeof frame);
    return ls__crc32c(crc, c->in + c->start + sizeof frame, bytes - sizeof frame);
}

/* Whether the lengths of frame and message fit together; neither is verified yet. */
static bool bytes_agree(const ls__tcp_connection *c)
{
    return frame_of(c)->bytes == ls__round_up(HEAD + (size_t)message_of(c)->bytes, 8);
}

/* The head has arrived: asks where a long payload belongs that is not here yet. From then on
 * payload bytes go there directly. */
static void ask_for_place(ls__tcp *tcp, int rank, ls__tcp_connection *c)
{
    const ls__message *message = message_of(c);
    c->asked = true;
    if (tcp->base.place == NULL || message->bytes < LS__TCP_BORROWED_MIN ||
        received(c) >= HEAD + message->bytes) {
        return;
    }
    c->place = tcp->base.place(tcp->base.place_arg, rank, message);
    if (c->place == NULL) {
        return;
    }
    move_to_front(c);
    c->apart = true;
    c->crc = crc_of_head(c, HEAD);
    c->placed = received(c) - HEAD;
    memcpy(c->place, c->in + HEAD, c->placed);
    c->crc = ls__crc32c(c->crc, c->place, c->placed);
    c->end = HEAD;
}

/* The rest of the payload is still read, but thrown away with its frame. */
void ls__tcp_in_return_buffers(ls__tcp_connection *c, uint32_t group)
{
    if (c->apart && message_of(c)->group == group) {
        c->place = NULL;
    }
}

/* ---- frames ------------------------------------------------------------------------------- */

/* Whether the lengths in as much of the head as has arrived stay within the buffer and agree: a
 * frame whose length is damaged may never be whole. The checksum comes last. */
static bool head_is_sound(const ls__tcp_connection *c)
{
    const ls__frame *frame = frame_of(c);
    if (received(c) < sizeof *frame) {
        return true;
    }
    return frame->magic == LS__FRAME_MAGIC && frame->bytes <= LS__FRAME_MAX &&
           frame->bytes >= HEAD && frame->bytes % 8 == 0 && (received(c) < HEAD || bytes_agree(c));
}

/* Verifies the checksum over the whole frame, wherever its parts lie. */
static bool is_sound(const ls__tcp_connection *c)
{
    const uint32_t crc = c->apart ? ls__crc32c(c->crc, c->in + c->start + HEAD, wanted(c) - HEAD)
                                  : crc_of_head(c, frame_of(c)->bytes);
    return (crc == frame_of(c)->checksum || LS__PLANTED(DAMAGE)) &&
           message_of(c)->bytes <= frame_of(c)->bytes - HEAD;
}

/* Whether all bytes of the frame have arrived, a payload apart included. */
static bool is_whole(const ls__tcp_connection *c)
{
    return received(c) >= HEAD && received(c) >= wanted(c) &&
           (!c->apart || c->placed == message_of(c)->bytes);
}

/* Whether a whole, verified frame lies at `start`. Reads as long as that helps, and breaks the pair
 * if what arrives is not a frame. */
static bool has_frame(ls__tcp *tcp, int rank, ls__tcp_connection *c)
{
    ls__tcp_peer *peer = &tcp->peer[rank];
    while (!c->checked) {
        if (peer->is_damaged) {
            return false;
        }
        if (!head_is_sound(c)) {
            ls__tcp_set_damaged(peer, c,
                                "the data is not a frame (damaged, or not sent by a rank)");
            return false;
        }
        if (received(c) >= HEAD && !c->asked) {
            ask_for_place(tcp, rank, c);
        }
        if (is_whole(c)) {
            c->checked = is_sound(c);
            if (!c->checked) {
                ls__tcp_set_damaged(
                    peer, c,
                    "a frame arrived damaged (CRC-32C); look for bad memory or a bad network "
                    "card on either host");
                return false;
            }
        } else if (!c->can_read || peer->is_broken || !receive(tcp, peer, c)) {
            return false;
        }
    }
    return true;
}

/* The next frame begins behind this one. */
static void drop_frame(ls__tcp_peer *peer, ls__tcp_connection *c)
{
    LS_ASSERT(c->checked);
    c->start += wanted(c);
    if (c->apart) {
        move_to_front(c); /* little; what follows a payload apart is not aligned */
    }
    c->checked = c->asked = c->apart = false;
    c->place = NULL;
    peer->next_in++;
}

/* The connections of a pair are read together, and frame numbers restore the order: only the frame
 * with the next number is returned. */
const ls__message *ls__tcp_peek(ls__transport *t, int rank, const void **payload)
{
    ls__tcp *tcp = (ls__tcp *)t;
    ls__tcp_peer *peer = &tcp->peer[rank];
    for (int k = 0; k < tcp->connections; k++) {
        const int i = (int)((unsigned)(peer->current + k) % (unsigned)tcp->connections);
        ls__tcp_connection *c = &peer->connection[i];
        ls__tcp_refresh(c);
        if (!has_frame(tcp, rank, c) || frame_of(c)->number != peer->next_in + 1) {
            continue;
        }
        peer->current = i;
        if (c->apart && c->place == NULL) {
            drop_frame(peer, c);
            k = -1; /* the next frame may be on any connection */
            continue;
        }
        *payload = c->apart ? c->place : (const void *)message_of(c)->payload;
        return message_of(c);
    }
    return NULL;
}

void ls__tcp_release(ls__transport *t, int rank)
{
    ls__tcp_peer *peer = &((ls__tcp *)t)->peer[rank];
    drop_frame(peer, &peer->connection[peer->current]);
}
