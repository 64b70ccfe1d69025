/* Groups of the past. A group ends, or fails, on each rank at its own time, and until the last
 * member has turned away, a slow one may still read this rank's control block, or touch a buffer of
 * an operation that was given up. Each rank says in its heap's header which groups it has left and
 * which it has failed and stopped touching; memory is used again when all members have said so or
 * are gone. Ids grow, and no two groups alive share a slot of the tables, so "at least" is enough.
 */
#include "comm/group/reclaim.h"
#include "comm/engine/lock.h"
#include "comm/group/group.h"
#include "comm/memory/control.h"
#include "comm/memory/heap.h"

static size_t past_bytes(int size)
{
    return sizeof(ls__reclaim) + (size_t)size * sizeof(int);
}

void ls__reclaim_add(ls_group *group, ls__reclaim_kind kind, void *control)
{
    ls__comm *comm = group->comm;
    ls__reclaim *past = comm->env->allocate(comm->env, past_bytes(group->size));
    if (past == NULL) {
        ls__lock_take(&comm->lock, comm->env);
        comm->frozen = true;
        ls__unlock(&comm->lock, comm->env);
        return;
    }
    *past = (ls__reclaim){.kind = kind, .id = group->id, .control = control, .size = group->size};
    for (int r = 0; r < group->size; r++) {
        past->member[r] = group->member[r].world_rank;
    }
    ls__lock_take(&comm->lock, comm->env);
    ls__list_push_back(&comm->held, &past->link);
    ls__unlock(&comm->lock, comm->env);
}

static bool gone(const ls__comm *comm, int world_rank)
{
    const uint32_t life =
        atomic_load_explicit(&ls__comm_record(comm, world_rank)->life, memory_order_acquire);
    return life == LS__LIFE_DEAD || life == LS__LIFE_LEFT;
}

/* Sync: acquire; pairs with the release when the member wrote its table. */
static bool has_let_go(const ls__comm *comm, const ls__reclaim *past, int world_rank)
{
    const ls__heap_header *header = ls__heap_header_of(&comm->heap, world_rank);
    const uint32_t slot = past->id % LS__GROUP_SLOTS;
    const bool left =
        atomic_load_explicit(&header->left[slot], memory_order_acquire) >= past->id + 1;
    const bool quiet =
        atomic_load_explicit(&header->quiet[slot], memory_order_acquire) >= past->id + 1;
    return left || (quiet && past->kind == LS__RECLAIM_FAILED) || gone(comm, world_rank);
}

static bool all_let_go(const ls__comm *comm, const ls__reclaim *past)
{
    for (int i = 0; i < past->size; i++) {
        if (!has_let_go(comm, past, past->member[i])) {
            return false;
        }
    }
    return true;
}

static void drop(ls__comm *comm, ls__reclaim *past)
{
    ls__list_remove(&past->link);
    if (past->control != NULL) {
        (void)ls__heap_free(&comm->heap, past->control, false);
    }
    comm->env->release(comm->env, past, past_bytes(past->size));
}

bool ls__reclaim_settle(ls__comm *comm)
{
    ls__lock_take(&comm->lock, comm->env);
    bool failed = comm->frozen;
    LS__LIST_EACH (at, &comm->held) {
        ls__reclaim *past = LS__LIST_ITEM(at, ls__reclaim, link);
        if (all_let_go(comm, past)) {
            drop(comm, past);
        } else {
            failed = failed || past->kind == LS__RECLAIM_FAILED;
        }
    }
    ls__unlock(&comm->lock, comm->env);
    if (!failed) {
        ls__heap_release(&comm->heap);
    }
    return failed;
}

void ls__reclaim_clear(ls__comm *comm)
{
    LS__LIST_EACH (at, &comm->held) {
        drop(comm, LS__LIST_ITEM(at, ls__reclaim, link));
    }
}
