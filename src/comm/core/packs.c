/* SPDX-License-Identifier: Apache-2.0 */
/* Packs (fusion buffers): memory that a group keeps for coalesced operations and for premultiplied
 * inputs, registered if the heap has room. Packs are used again, so a steady state allocates
 * nothing.
 *
 * A group has at most as many packs as it ever had such operations in flight at the same time. A
 * pack that is too small for a new operation is freed before a larger one is allocated, so that
 * sizes which grow step by step (the first iterations of a model) do not leave a trail of small
 * ones. */
#include "comm/core/packs.h"

#include "base/assert.h"
#include "base/lock.h"
#include "comm/core/group.h"
#include "comm/core/reclaim.h"
#include "comm/memory/heap.h"

/* ---- packs -------------------------------------------------------------------------------- */

/* A pack and its two lists are one allocation; the memory for data is another. */
static size_t head_bytes(int room)
{
    return sizeof(ls__pack) + (size_t)room * (sizeof(void *) + sizeof(size_t));
}

/* With `hold` registered memory goes to quarantine, since a peer may still read it. */
static void pack_free(ls__comm *comm, ls__pack *p, bool hold)
{
    const ls__env *env = comm->env;
    if (p->heap) {
        (void)ls__heap_free(&comm->heap, p->memory, hold);
    } else if (p->memory != NULL) {
        env->release(env, p->memory, p->bytes);
    }
    env->release(env, p, head_bytes(p->room));
}

/* Registered memory if the heap has room, else private memory, which is staged. NULL: neither. */
static ls__pack *pack_new(ls_group *group, size_t bytes, int room)
{
    ls__comm *comm = group->comm;
    ls__pack *p = comm->env->allocate(comm->env, head_bytes(room));
    if (p == NULL) {
        return NULL;
    }
    *p = (ls__pack){.group = group, .bytes = bytes, .room = room};
    p->buf = (void **)(p + 1);
    p->part = (size_t *)(void *)(p->buf + room);
    void *memory = NULL;
    p->heap = ls__heap_alloc(&comm->heap, bytes, &memory) == LS_OK;
    p->memory = p->heap ? memory : comm->env->allocate(comm->env, bytes);
    if (p->memory == NULL) {
        pack_free(comm, p, false);
        return NULL;
    }
    return p;
}

/* Takes the first pack that is large enough off the list. Without one, *small is a pack that was
 * taken off to be freed, so that a larger one can replace it. */
static ls__pack *pack_find(ls_group *group, size_t bytes, int room, ls__pack **small)
{
    ls__comm *comm = group->comm;
    ls__pack *found = NULL;
    ls__lock_take(&comm->lock, comm->env);
    LS__LIST_EACH (at, &group->packs) {
        ls__pack *p = LS__LIST_ITEM(at, ls__pack, link);
        if (found == NULL && p->bytes >= bytes && p->room >= room) {
            found = p;
        } else {
            *small = p;
        }
    }
    if (found != NULL || *small != NULL) {
        ls__list_remove(found != NULL ? &found->link : &(*small)->link);
    }
    ls__unlock(&comm->lock, comm->env);
    return found;
}

/* Rounds up to a power of two, so growing sizes settle on one pack after a few calls. */
static size_t grown(size_t n)
{
    size_t room = 64;
    while (room < n && room <= SIZE_MAX / 4) {
        room *= 2;
    }
    return room < n ? n : room;
}

/* The pack belongs to the caller until ls__pack_give. */
ls__pack *ls__pack_take(ls_group *group, size_t bytes, int room)
{
    ls__pack *small = NULL;
    ls__pack *p = pack_find(group, bytes, room, &small);
    if (p != NULL) {
        return p;
    }
    if (small != NULL) {
        pack_free(group->comm, small, true);
        (void)ls__reclaim_settle(group->comm);
    }
    const size_t entries = grown((size_t)room);
    return entries > INT32_MAX ? NULL : pack_new(group, grown(bytes), (int)entries);
}

/* To the front: its memory is most likely still in the cache. */
void ls__pack_give(ls__pack *p)
{
    LS_ASSERT(p->group != NULL && p->memory != NULL);
    ls__comm *comm = p->group->comm;
    ls__lock_take(&comm->lock, comm->env);
    ls__list_push_front(&p->group->packs, &p->link);
    ls__unlock(&comm->lock, comm->env);
}

void *ls__pack_memory(const ls__pack *p)
{
    return p->memory;
}

/* When the group closes; packs in use have been given back by then. */
void ls__packs_free(ls_group *group)
{
    for (ls__list *at = ls__list_pop_front(&group->packs); at != NULL;
         at = ls__list_pop_front(&group->packs)) {
        pack_free(group->comm, LS__LIST_ITEM(at, ls__pack, link), true);
    }
}
