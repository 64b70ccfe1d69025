/* Works: the handles of operations. They come from a pool that grows to the largest number in use
 * at once and never shrinks, so a steady state allocates nothing. */
#include "comm/engine.h"

#include <string.h>

#include "base/assert.h"

static bool grow_pool(ls__comm *comm)
{
    for (int i = 0; i < LS__WORKS_PER_CHUNK; i++) {
        ls_work *work = ls__arena_alloc(&comm->works, sizeof *work);
        if (work == NULL) {
            return i > 0;
        }
        comm->works_made++;
        ls__list_push_back(&comm->pool, &work->link);
    }
    return true;
}

ls_work *ls__work_take(ls__comm *comm)
{
    /* Most recently used first: it is still in the cache. */
    ls__list *link = ls__list_pop_front(&comm->pool);
    if (link == NULL && grow_pool(comm)) {
        link = ls__list_pop_front(&comm->pool);
    }
    if (link == NULL) {
        return NULL;
    }
    ls_work *work = LS__LIST_ITEM(link, ls_work, link);
    memset(work, 0, offsetof(ls_work, descriptor));
    ls__list_init(&work->link);
    work->stage = 0;
    work->letter = 0;
    work->moved = 0;
    return work;
}

void ls__work_give(ls__comm *comm, ls_work *work)
{
    ls__list_push_front(&comm->pool, &work->link);
}

/* An operation came through that began after a failure: that is of the past. */
static void note_survival(const ls__comm *comm, const ls_work *work)
{
    ls__board_rank *me = comm->me;
    if (atomic_load_explicit(&me->failed, memory_order_relaxed) != 0 &&
        work->queued_ns > atomic_load_explicit(&me->failed_ns, memory_order_relaxed)) {
        atomic_store_explicit(&me->survived, 1, memory_order_release);
    }
    if (atomic_load_explicit(&me->told, memory_order_relaxed) != 0 &&
        work->queued_ns > atomic_load_explicit(&me->told_ns, memory_order_relaxed)) {
        atomic_store_explicit(&me->told, 0, memory_order_release);
    }
}

void ls__work_end(ls_work *work, ls_status status)
{
    ls_group *group = work->group;
    ls__comm *comm = group->comm;
    const bool detached = work->detached;
    if (status == LS_OK) {
        note_survival(comm, work);
    }
    ls__flight_close(comm, work, status, comm->env->now_ns(comm->env));
    if (work->done != NULL) {
        work->done(work->arg, status);
    }
    if (work->by_message) {
        atomic_fetch_sub_explicit(&comm->letters, 1, memory_order_relaxed);
    }
    atomic_fetch_sub_explicit(&group->pending, 1, memory_order_relaxed);
    /* Sync: seq_cst; pairs with ls__token_release's waker, which asks whether anything is left. */
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
    if (atomic_load_explicit(&comm->waiters, memory_order_seq_cst) > 0) {
        atomic_fetch_add_explicit(&comm->waiter_word, 1, memory_order_seq_cst);
        comm->env->wake(comm->env, &comm->waiter_word, INT32_MAX);
    }
}

static ls_status report(const ls_work *work, ls_status status)
{
    if (status < 0) {
        return ls__fail_again(status, ls__group_hear(work->group));
    }
    return status;
}

/* Gives the handle back, and with the last one what is left of a group that was freed. */
static void end_handle(ls__comm *comm, ls_work *work)
{
    ls_group *group = work->group;
    ls__lock_take(&comm->lock, comm->env);
    ls__work_give(comm, work);
    group->handles--;
    const bool last = group->closed && group->handles == 0;
    ls__unlock(&comm->lock, comm->env);
    if (last) {
        ls__group_forget(group);
    }
}

ls_status ls_work_wait(ls_work *work)
{
    ls__comm *comm = ls__comm_get("ls_work_wait");
    if (comm == NULL) {
        return ls__self.status;
    }
    if (work == NULL) {
        return ls__fail(LS_ERR_INVALID, "ls_work_wait: the handle is NULL; a call with `work` NULL "
                                        "has already waited");
    }
    ls__engine_wait(comm, work);
    const ls_status status =
        report(work, (ls_status)atomic_load_explicit(&work->status, memory_order_acquire));
    end_handle(comm, work);
    return status;
}

ls_status ls_work_test(ls_work *work)
{
    ls__comm *comm = ls__comm_get("ls_work_test");
    if (comm == NULL) {
        return ls__self.status;
    }
    if (work == NULL) {
        return ls__fail(
            LS_ERR_INVALID,
            "ls_work_test: the handle is NULL; a call with `work` NULL has already waited");
    }
    if (atomic_load_explicit(&work->status, memory_order_acquire) == LS_IN_PROGRESS &&
        ls__token_try(comm)) {
        (void)ls__engine_turn(comm, true);
        ls__token_release(comm);
    }
    return report(work, (ls_status)atomic_load_explicit(&work->status, memory_order_acquire));
}
