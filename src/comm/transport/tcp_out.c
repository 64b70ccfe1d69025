/* SPDX-License-Identifier: Apache-2.0 */
/* Outgoing frames. Each is built in a slot; a long borrowed payload is not copied there but sent
 * from its own place, and one call sends all frames that wait on a connection. The checksum is
 * computed right before, so the payload is read from memory once.
 *
 * A payload is borrowed until the system has taken its last byte, or until return_buffers copies
 * the rest into its slot: a frame of which the peer has a part must follow, or nothing after it can
 * be read.
 *
 * Note [Touched twice]
 * The sender reads a payload for the checksum and hands it to the system; on the other side the
 * head of the frame says where the payload belongs, and the system writes it there (tcp_in.c).
 * A SEND therefore ends when the system has taken all of it. Slices are small (1 MiB), so that sums
 * are made in the cache.
 */
#include <errno.h>
#include <string.h>

#include "base/assert.h"
#include "base/crc32c.h"
#include "comm/transport/tcp_wire.h"

#define PARTS 3 /* of a frame: head, borrowed payload, padding */

/* Frame i lies in slot i % LS__TCP_SLOTS until it is sent. */
static ls__tcp_slot *slot_of(ls__tcp_connection *c, uint64_t frame)
{
    return &c->slot[frame % LS__TCP_SLOTS];
}

/* The pieces of memory that make up a frame, in the order in which they are sent. */
static void parts_of(const ls__tcp_slot *slot, ls__env_span part[PARTS])
{
    part[0] = (ls__env_span){.at = slot->at, .bytes = slot->head};
    part[1] = (ls__env_span){.at = slot->borrowed, .bytes = slot->borrowed_bytes};
    part[2] = (ls__env_span){.at = slot->at + slot->head,
                             .bytes = slot->bytes - slot->head - slot->borrowed_bytes};
}

/* All frames that wait, from the first byte not sent, for a single writev. */
static int spans_of(const ls__tcp_connection *c, ls__env_span spans[PARTS * LS__TCP_SLOTS])
{
    int count = 0;
    size_t skip = c->moved;
    for (uint64_t i = c->sent; i < c->queued; i++) {
        ls__env_span part[PARTS];
        parts_of(&c->slot[i % LS__TCP_SLOTS], part);
        for (int p = 0; p < PARTS; p++) {
            const size_t past = skip < part[p].bytes ? skip : part[p].bytes;
            skip -= past;
            if (part[p].bytes > past) {
                spans[count++] = (ls__env_span){.at = (const unsigned char *)part[p].at + past,
                                                .bytes = part[p].bytes - past};
            }
        }
    }
    return count;
}

/* The payload is no longer read; its owner may reuse it. */
static void end_borrowing(ls__tcp_slot *slot)
{
    if (slot->in_use != NULL) {
        LS_ASSERT(*slot->in_use > 0);
        *slot->in_use -= 1;
        slot->in_use = NULL;
        slot->borrowed = NULL;
        slot->borrowed_bytes = 0;
    }
}

/* Advances past `bytes`, perhaps over several frames and into the middle of the next. */
static void count_sent(ls__tcp_connection *c, size_t bytes)
{
    while (bytes > 0) {
        LS_ASSERT(c->sent < c->queued);
        ls__tcp_slot *slot = slot_of(c, c->sent);
        const size_t left = slot->bytes - c->moved;
        if (bytes < left) {
            c->moved += bytes;
            return;
        }
        bytes -= left;
        end_borrowing(slot);
        c->moved = 0;
        c->sent++;
    }
}

/* Sends until the socket is full. A TLS link may hold bytes that it has accepted, so even without a
 * frame it is flushed. */
bool ls__tcp_flush(ls__tcp *tcp, ls__tcp_peer *peer, ls__tcp_connection *c)
{
    bool moved = false;
    while (c->can_write && !peer->is_broken) {
        ls__env_span spans[PARTS * LS__TCP_SLOTS];
        const int count = spans_of(c, spans);
        const ssize_t put = count > 0 ? ls__link_send(c->link, spans, count) : 0;
        if (put > 0) {
            count_sent(c, (size_t)put);
            moved = true;
            continue;
        }
        const int rest = put == 0 ? ls__link_flush(c->link) : (int)put;
        c->held = put == 0 && rest == -EAGAIN;
        if (rest == -EAGAIN) {
            c->can_write = false;
        } else if (rest < 0) {
            ls__tcp_set_broken(tcp, peer, c, ls__tcp_reason(rest));
        }
        break;
    }
    return moved;
}

/* Chooses the connection with the fewest frames waiting, in turns among equals. NULL: all of them
 * are full, or the peer is broken. */
ls__message *ls__tcp_reserve(ls__transport *t, int rank)
{
    ls__tcp *tcp = (ls__tcp *)t;
    ls__tcp_peer *peer = &tcp->peer[rank];
    int best = -1;
    uint64_t least = LS__TCP_SLOTS;
    for (int k = 1; k <= tcp->connections && !peer->is_broken; k++) {
        const int i = (peer->latest + k) % tcp->connections; /* in turns where they are equal */
        const uint64_t waiting = peer->connection[i].queued - peer->connection[i].sent;
        best = waiting < least ? i : best;
        least = waiting < least ? waiting : least;
    }
    peer->reserved = best;
    if (best < 0) {
        return NULL;
    }
    ls__tcp_connection *c = &peer->connection[best];
    return (ls__message *)(void *)(slot_of(c, c->queued)->at + sizeof(ls__frame));
}

/* Completes the reserved frame with number, length, padding and checksum, and sends it if the
 * socket has room. `borrowed` is the payload if it does not lie in the slot. */
static void send_frame(ls__tcp *tcp, ls__tcp_peer *peer, const void *borrowed, uint32_t *in_use)
{
    ls__tcp_connection *c = &peer->connection[peer->reserved];
    ls__tcp_slot *slot = slot_of(c, c->queued);
    LS_ASSERT(c->queued - c->sent < LS__TCP_SLOTS && slot->in_use == NULL);
    ls__frame *frame = (ls__frame *)(void *)slot->at;
    const ls__message *message = (const ls__message *)(const void *)(frame + 1);
    const size_t used = sizeof *frame + sizeof *message + message->bytes;
    slot->bytes = ls__round_up(used, 8);
    slot->borrowed = borrowed;
    slot->borrowed_bytes = borrowed != NULL ? message->bytes : 0;
    slot->in_use = in_use;
    slot->head = borrowed != NULL ? used - message->bytes : slot->bytes;
    const size_t padding = slot->bytes - used;
    memset(slot->at + used - slot->borrowed_bytes, 0, padding);
    *frame = (ls__frame){
        .magic = LS__FRAME_MAGIC, .bytes = (uint32_t)slot->bytes, .number = ++peer->next_out};
    uint32_t crc = ls__crc32c(0, slot->at, slot->head);
    if (borrowed != NULL) {
        crc = ls__crc32c(crc, borrowed, slot->borrowed_bytes);
        crc = ls__crc32c(crc, slot->at + slot->head, padding);
    }
    frame->checksum = crc;
    c->queued++;
    peer->latest = peer->reserved;
    peer->reserved = -1;
    ls__tcp_refresh(c);
    (void)ls__tcp_flush(tcp, peer, c);
}

void ls__tcp_commit(ls__transport *t, int rank)
{
    LS_ASSERT(((ls__tcp *)t)->peer[rank].reserved >= 0);
    ls__tcp *tcp = (ls__tcp *)t;
    send_frame(tcp, &tcp->peer[rank], NULL, NULL);
}

/* Short payloads are copied after all. */
void ls__tcp_commit_borrowed(ls__transport *t, int rank, const void *payload, uint32_t *in_use)
{
    ls__tcp *tcp = (ls__tcp *)t;
    ls__tcp_peer *peer = &tcp->peer[rank];
    LS_ASSERT(peer->reserved >= 0);
    ls__tcp_connection *c = &peer->connection[peer->reserved];
    ls__message *message = (ls__message *)(void *)(slot_of(c, c->queued)->at + sizeof(ls__frame));
    if (message->bytes < LS__TCP_BORROWED_MIN) {
        memcpy(message->payload, payload, message->bytes);
        send_frame(tcp, peer, NULL, NULL);
        return;
    }
    *in_use += 1;
    send_frame(tcp, peer, payload, in_use);
}

/* Copies borrowed payloads of the group into their slots. The checksum was computed when the frame
 * was committed, so a buffer that its user has changed since makes the peer drop a frame of a group
 * that has failed anyway. */
void ls__tcp_out_return_buffers(ls__tcp_connection *c, uint32_t group)
{
    for (uint64_t i = c->sent; i < c->queued; i++) {
        ls__tcp_slot *slot = slot_of(c, i);
        const ls__message *message =
            (const ls__message *)(const void *)(slot->at + sizeof(ls__frame));
        if (slot->in_use == NULL || message->group != group) {
            continue;
        }
        const size_t padding = slot->bytes - slot->head - slot->borrowed_bytes;
        memcpy(slot->at + slot->head, slot->borrowed, slot->borrowed_bytes);
        memset(slot->at + slot->bytes - padding, 0, padding);
        slot->head = slot->bytes;
        end_borrowing(slot);
    }
}
