/* SPDX-License-Identifier: Apache-2.0 */
/* Unexpected messages (MPI's term): messages that arrive before the receive or step that will take
 * them. They are copied out of the transport, whose slots are few. Memory of dropped ones is kept
 * and used again, so that a steady state allocates nothing.
 *
 * Their number is bounded: LS__STREAM_CREDIT pieces on each stream, and as many announcements as
 * peers have sends in flight, of which only small ones carry their bytes. A message for which there
 * is no memory stays in the transport, which then gives its sender no more credit. */
#include "comm/core/unexpected.h"

#include "base/size.h"
#include "comm/core/comm.h"
#include "comm/core/remote_rank.h"

#include <string.h>

#define ROOM_MIN ((size_t)512)
#define ROOM_LARGE ((size_t)16 << 10) /* larger rooms are multiples of this */

/* Room is allocated in a few sizes, and memory of one size serves that size only; otherwise small
 * messages would use up the memory that was prepared for large ones. */
static size_t size_of(size_t needed)
{
    size_t room = ROOM_MIN;
    while (room < needed && room < ROOM_LARGE) {
        room *= 2;
    }
    return room < needed ? ls__round_up(needed, ROOM_LARGE) : room;
}

/* Memory of a dropped message of exactly this size. */
static ls__unexpected *find_free(ls__comm *comm, size_t room)
{
    LS__LIST_EACH (at, &comm->inbox.unused) {
        ls__unexpected *kept = LS__LIST_ITEM(at, ls__unexpected, link);
        if (kept->room == room) {
            ls__list_remove(&kept->link);
            return kept;
        }
    }
    return NULL;
}

/* The message lies behind the struct, in the same allocation. */
static ls__unexpected *allocate(ls__comm *comm, size_t room)
{
    ls__unexpected *kept = comm->env->allocate(comm->env, sizeof *kept + room);
    if (kept != NULL) {
        kept->room = room;
        kept->message = (ls__message *)(void *)(kept + 1);
    }
    return kept;
}

/* Copies head and payload into free memory, or into new memory. NULL: no memory. */
static ls__unexpected *keep(ls__comm *comm, int from, size_t room, const ls__message *head,
                            const void *payload)
{
    ls__unexpected *kept = find_free(comm, room);
    if (kept == NULL) {
        kept = allocate(comm, room);
    }
    if (kept != NULL) {
        kept->from = from;
        ls__list_init(&kept->link);
        memcpy(kept->message, head, sizeof *head);
        if (head->bytes > 0) {
            memcpy(kept->message->payload, payload, head->bytes);
        }
    }
    return kept;
}

ls__unexpected *ls__unexpected_keep_parts(ls__comm *comm, int from, const ls__message *head,
                                          const void *payload)
{
    return keep(comm, from, size_of(sizeof *head + head->bytes), head, payload);
}

/* A stream keeps pieces of any size up to the largest, so one size serves all of them and prepared
 * memory always fits. */
ls__unexpected *ls__unexpected_keep_large(ls__comm *comm, int from, const ls__message *message)
{
    const size_t room =
        size_of(sizeof *message + comm->transport->payload_max(comm->transport, from));
    return keep(comm, from, room, message, message->payload);
}

/* Without memory it prepares fewer; pieces that come early then wait in the transport. */
void ls__unexpected_prepare(ls__comm *comm, int count, size_t bytes)
{
    for (int i = 0; i < count; i++) {
        ls__unexpected *kept = allocate(comm, size_of(sizeof(ls__message) + bytes));
        if (kept == NULL) {
            return;
        }
        ls__list_init(&kept->link);
        ls__unexpected_drop(comm, kept);
    }
}

ls__unexpected *ls__unexpected_keep(ls__comm *comm, int from, const ls__message *message)
{
    return ls__unexpected_keep_parts(comm, from, message, message->payload);
}

/* To the front: this memory is most likely still in the cache. */
void ls__unexpected_drop(ls__comm *comm, ls__unexpected *kept)
{
    ls__list_push_front(&comm->inbox.unused, &kept->link);
}

void ls__unexpected_drop_all(ls__comm *comm, ls__list *all)
{
    for (ls__list *at = ls__list_pop_front(all); at != NULL; at = ls__list_pop_front(all)) {
        ls__unexpected_drop(comm, LS__LIST_ITEM(at, ls__unexpected, link));
    }
}

/* The waiting messages of remote ranks are of the same kind, but outgoing (remote.c). */
void ls__unexpected_release(ls__comm *comm)
{
    ls__unexpected_drop_all(comm, &comm->inbox.orphans);
    for (int r = 0; comm->remote != NULL && r < comm->runtime->world_size; r++) {
        ls__unexpected_drop_all(comm, &comm->remote->rank[r].waiting);
    }
    for (ls__list *at = ls__list_pop_front(&comm->inbox.unused); at != NULL;
         at = ls__list_pop_front(&comm->inbox.unused)) {
        ls__unexpected *kept = LS__LIST_ITEM(at, ls__unexpected, link);
        comm->env->release(comm->env, kept, sizeof *kept + kept->room);
    }
}
