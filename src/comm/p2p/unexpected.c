/* Notes: messages that are kept until somebody wants them. Their memory is used again, so that a
 * steady state allocates nothing. */
#include "comm/p2p/p2p.h"

#include "base/size.h"
#include "comm/comm.h"
#include "comm/remote/remote.h"

#include <string.h>

#define NOTE_ROOM_MIN ((size_t)512)
#define NOTE_ROOM_LARGE ((size_t)16 << 10) /* from here on in steps of this */

/* Notes come in sizes, and one is used for its size only: so those that were made for large
 * messages are there for them. */
static size_t size_of(size_t needed)
{
    size_t room = NOTE_ROOM_MIN;
    while (room < needed && room < NOTE_ROOM_LARGE) {
        room *= 2;
    }
    return room < needed ? ls__round_up(needed, NOTE_ROOM_LARGE) : room;
}

static ls__unexpected *note_find(ls__comm *comm, size_t room)
{
    LS__LIST_EACH (at, &comm->notes) {
        ls__unexpected *note = LS__LIST_ITEM(at, ls__unexpected, link);
        if (note->room == room) {
            ls__list_remove(&note->link);
            return note;
        }
    }
    return NULL;
}

static ls__unexpected *note_new(ls__comm *comm, size_t room)
{
    ls__unexpected *note = comm->env->allocate(comm->env, sizeof *note + room);
    if (note != NULL) {
        note->room = room;
        note->message = (ls__message *)(void *)(note + 1);
    }
    return note;
}

static ls__unexpected *keep(ls__comm *comm, int from, size_t room, const ls__message *head,
                            const void *payload)
{
    ls__unexpected *note = note_find(comm, room);
    if (note == NULL) {
        note = note_new(comm, room);
    }
    if (note != NULL) {
        note->from = from;
        ls__list_init(&note->link);
        memcpy(note->message, head, sizeof *head);
        if (head->bytes > 0) {
            memcpy(note->message->payload, payload, head->bytes);
        }
    }
    return note;
}

ls__unexpected *ls__unexpected_keep_parts(ls__comm *comm, int from, const ls__message *head,
                                          const void *payload)
{
    return keep(comm, from, size_of(sizeof *head + head->bytes), head, payload);
}

ls__unexpected *ls__unexpected_keep_large(ls__comm *comm, int from, const ls__message *message)
{
    const size_t room =
        size_of(sizeof *message + comm->transport->payload_max(comm->transport, from));
    return keep(comm, from, room, message, message->payload);
}

void ls__unexpected_prepare(ls__comm *comm, int count, size_t bytes)
{
    for (int i = 0; i < count; i++) {
        ls__unexpected *note = note_new(comm, size_of(sizeof(ls__message) + bytes));
        if (note == NULL) {
            return;
        }
        ls__list_init(&note->link);
        ls__unexpected_drop(comm, note);
    }
}

ls__unexpected *ls__unexpected_keep(ls__comm *comm, int from, const ls__message *message)
{
    return ls__unexpected_keep_parts(comm, from, message, message->payload);
}

void ls__unexpected_drop(ls__comm *comm, ls__unexpected *note)
{
    ls__list_push_front(&comm->notes, &note->link);
}

void ls__unexpected_drop_all(ls__comm *comm, ls__list *notes)
{
    for (ls__list *at = ls__list_pop_front(notes); at != NULL; at = ls__list_pop_front(notes)) {
        ls__unexpected_drop(comm, LS__LIST_ITEM(at, ls__unexpected, link));
    }
}

void ls__unexpected_release(ls__comm *comm)
{
    ls__unexpected_drop_all(comm, &comm->orphans);
    for (int r = 0; comm->remote != NULL && r < comm->runtime->world_size; r++) {
        ls__unexpected_drop_all(comm, &comm->remote->rank[r].waiting);
    }
    for (ls__list *at = ls__list_pop_front(&comm->notes); at != NULL;
         at = ls__list_pop_front(&comm->notes)) {
        ls__unexpected *note = LS__LIST_ITEM(at, ls__unexpected, link);
        comm->env->release(comm->env, note, sizeof *note + note->room);
    }
}
