/* SPDX-License-Identifier: Apache-2.0 */
/* Deferred reclamation. A group ends, or fails, on each rank at its own time, and a slow member may
 * still read this rank's control block, or touch a buffer of an operation that this rank has given
 * up. Each rank publishes in its heap's header which groups it has left, and which have failed
 * there so that it touches no memory for them any more. Memory is used again when all members have
 * published so or are gone. Ids grow, and no two living groups share a slot of the tables, so
 * comparing with "at least" is enough.
 *
 *     kind     held back                              until every member
 *     LEFT     the group's control block              has left the group or the job, or died
 *     FAILED   memory freed since (heap quarantine)   the same, or has failed it and is quiet
 */
#include "comm/core/reclaim.h"
#include "base/assert.h"
#include "base/lock.h"
#include "comm/core/group.h"
#include "comm/memory/control.h"
#include "comm/memory/heap.h"

/* The record with its list of members. */
static size_t reclaim_bytes(int size)
{
    return sizeof(ls__reclaim) + (size_t)size * sizeof(int);
}

/* The record copies the members, since the group may be freed before it. */
void ls__reclaim_add(ls_group *group, ls__reclaim_kind kind, void *control)
{
    LS_ASSERT((kind == LS__RECLAIM_LEFT) == (control != NULL));
    ls__comm *comm = group->comm;
    ls__reclaim *record = comm->env->allocate(comm->env, reclaim_bytes(group->size));
    if (record == NULL) {
        ls__lock_take(&comm->lock, comm->env);
        comm->frozen = true;
        ls__unlock(&comm->lock, comm->env);
        return;
    }
    *record = (ls__reclaim){.kind = kind, .id = group->id, .control = control, .size = group->size};
    for (int r = 0; r < group->size; r++) {
        record->member[r] = group->member[r].world_rank;
    }
    ls__lock_take(&comm->lock, comm->env);
    ls__list_push_back(&comm->held, &record->link);
    ls__unlock(&comm->lock, comm->env);
}

/* A rank that has died or left touches nothing any more. */
static bool is_gone(const ls__comm *comm, int world_rank)
{
    const uint32_t life =
        atomic_load_explicit(&ls__comm_record(comm, world_rank)->life, memory_order_acquire);
    return life == LS__LIFE_DEAD || life == LS__LIFE_LEFT;
}

/* Whether this member will not touch the group's memory again. Sync: acquire; pairs with the
 * release when the member wrote its table. */
static bool has_released(const ls__comm *comm, const ls__reclaim *record, int world_rank)
{
    const ls__heap_header *header = ls__heap_header_of(&comm->heap, world_rank);
    const uint32_t slot = record->id % LS__GROUP_SLOTS;
    const bool left =
        atomic_load_explicit(&header->left[slot], memory_order_acquire) >= record->id + 1;
    const bool quiet =
        atomic_load_explicit(&header->quiet[slot], memory_order_acquire) >= record->id + 1;
    return left || (quiet && record->kind == LS__RECLAIM_FAILED) || is_gone(comm, world_rank);
}

/* Whether the memory can be used again. */
static bool all_released(const ls__comm *comm, const ls__reclaim *record)
{
    for (int i = 0; i < record->size; i++) {
        if (!has_released(comm, record, record->member[i])) {
            return false;
        }
    }
    return true;
}

/* Frees the record and the control block that it holds. */
static void drop(ls__comm *comm, ls__reclaim *record)
{
    ls__list_remove(&record->link);
    if (record->control != NULL) {
        (void)ls__heap_free(&comm->heap, record->control, false);
    }
    comm->env->release(comm->env, record, reclaim_bytes(record->size));
}

/* Needs no help of other ranks and never waits; called whenever memory is allocated or freed. */
bool ls__reclaim_settle(ls__comm *comm)
{
    ls__lock_take(&comm->lock, comm->env);
    bool failed = comm->frozen;
    LS__LIST_EACH (at, &comm->held) {
        ls__reclaim *record = LS__LIST_ITEM(at, ls__reclaim, link);
        if (all_released(comm, record)) {
            drop(comm, record);
        } else {
            failed = failed || record->kind == LS__RECLAIM_FAILED;
        }
    }
    ls__unlock(&comm->lock, comm->env);
    if (!failed) {
        ls__heap_release(&comm->heap);
    }
    return failed;
}

/* In ls_finalize, when no peer is left that could touch the memory. */
void ls__reclaim_clear(ls__comm *comm)
{
    LS__LIST_EACH (at, &comm->held) {
        drop(comm, LS__LIST_ITEM(at, ls__reclaim, link));
    }
}
