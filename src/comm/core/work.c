/* SPDX-License-Identifier: Apache-2.0 */
/* Works: the handles of operations. They come from a pool that grows to the largest number in use
 * at once and never shrinks, so a steady state allocates nothing. */

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/lock.h"
#include "comm/core/flight.h"
#include "comm/core/group.h"
#include "comm/core/packs.h"

/* Adds a chunk of works; false: no memory for even one. */
static bool grow_pool(ls__comm *comm)
{
    for (int i = 0; i < LS__WORKS_PER_CHUNK; i++) {
        ls_work *work = ls__arena_alloc(&comm->pool.memory, sizeof *work);
        if (work == NULL) {
            return i > 0;
        }
        work->descriptor.file[0] = '\0'; /* ls__descriptor_site compares with the last one */
        comm->pool.made++;
        ls__list_push_back(&comm->pool.free, &work->link);
    }
    return true;
}

/* The fields before the descriptor become zero; the descriptor keeps the last call site. */
ls_work *ls__work_take(ls__comm *comm)
{
    /* Most recently used first: it is still in the cache. */
    ls__list *link = ls__list_pop_front(&comm->pool.free);
    if (link == NULL && grow_pool(comm)) {
        link = ls__list_pop_front(&comm->pool.free);
    }
    if (link == NULL) {
        return NULL;
    }
    ls_work *work = LS__LIST_ITEM(link, ls_work, link);
    memset(work, 0, offsetof(ls_work, descriptor));
    ls__list_init(&work->link);
    ls__list_init(&work->turn);
    work->message = (ls__work_message){0};
    return work;
}

void ls__work_give(ls__comm *comm, ls_work *work)
{
    ls__list_push_front(&comm->pool.free, &work->link);
}

uint64_t ls__work_deadline(const ls_group *group, const ls_collective_options *options,
                           uint64_t queued_ns)
{
    return ls__time_after(queued_ns, options->timeout_ms > 0 ? options->timeout_ms
                                                             : group->comm->runtime->timeout_ms);
}

/* The board keeps a rank's last failure for the host agent's report. */
void ls__work_survived(const ls__comm *comm, uint64_t queued_ns)
{
    ls__board_rank *me = comm->me;
    if (atomic_load_explicit(&me->failed, memory_order_relaxed) != 0 &&
        queued_ns > atomic_load_explicit(&me->failed_ns, memory_order_relaxed)) {
        atomic_store_explicit(&me->survived, 1, memory_order_release);
    }
    if (atomic_load_explicit(&me->reported, memory_order_relaxed) != 0 &&
        queued_ns > atomic_load_explicit(&me->reported_ns, memory_order_relaxed)) {
        atomic_store_explicit(&me->reported, 0, memory_order_release);
    }
}

/* Callbacks nest: one may end another work, whose callback runs within it. */
void ls__call_back(void (*done)(void *arg, ls_status status), void *arg, ls_status status)
{
    const bool within = ls__self.in_callback; /* of another's end */
    ls__self.in_callback = true;
    done(arg, status);
    ls__self.in_callback = within;
}

ls_status ls__work_may_wait(const char *what)
{
    return !ls__self.in_callback
               ? LS_OK
               : ls__fail(
                     LS_ERR_STATE,
                     "%s: it would wait, and a callback must not: it runs on the thread that "
                     "moves all operations on; start the operation with a handle, and wait for "
                     "that outside",
                     what);
}

/* The user's callback, before any waiter can give the work back. */
static void call_user(ls_work *work, ls_status status)
{
    ls__user_callback *callback = &work->callback;
    callback->status = status;
    if (atomic_exchange_explicit(&callback->state, LS__CALLBACK_ENDED, memory_order_acq_rel) ==
        LS__CALLBACK_SET) {
        ls__call_back(callback->done, callback->arg, status);
    }
}

void ls__work_end(ls_work *work, ls_status status)
{
    ls_group *group = work->group;
    ls__comm *comm = group->comm;
    const bool detached = work->detached || work->plugin.followed;
    LS_ASSERT(status != LS_IN_PROGRESS);
    if (status == LS_OK) {
        ls__work_survived(comm, work->queued_ns);
    }
    ls__flight_close(comm, work, status, comm->env->now_ns(comm->env));
    if (work->pack != NULL) {
        ls__pack_give(work->pack);
    }
    if (work->done != NULL) {
        ls__call_back(work->done, work->arg, status);
    }
    if (!work->detached) {
        call_user(work, status);
    }
    if (work->by_message) {
        atomic_fetch_sub_explicit(&comm->by_message, 1, memory_order_relaxed);
    }
    /* Sync: release; pairs with the acquire of ls_group_free, which waits for 0 (engine.c). */
    atomic_fetch_sub_explicit(&group->pending, 1, memory_order_release);
    /* Sync: seq_cst; pairs with ls__progress_release's waker, which asks whether anything is
     * left. */
    atomic_fetch_sub_explicit(&comm->pending, 1, memory_order_seq_cst);
    if (detached) {
        ls__lock_take(&comm->lock, comm->env);
        ls__work_give(comm, work);
        ls__unlock(&comm->lock, comm->env);
        return;
    }
    /* From the store on the work belongs to its waiter. Sync: releases the result to it; seq_cst
     * because the waiter counts itself in `waiters` before it looks at the status. */
    atomic_store_explicit(&work->status, status, memory_order_seq_cst);
    if (atomic_load_explicit(&comm->drive.waiters, memory_order_seq_cst) > 0) {
        atomic_fetch_add_explicit(&comm->drive.waiter_word, 1, memory_order_seq_cst);
        comm->env->wake(comm->env, &comm->drive.waiter_word, INT32_MAX);
    }
}
