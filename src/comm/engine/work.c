/* Works: the handles of operations. They come from a pool that grows to the largest number in use
 * at once and never shrinks, so a steady state allocates nothing. */
#include "comm/engine/engine.h"

#include <stdio.h>
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
    ls__list_init(&work->turn);
    work->stage = 0;
    work->letter = 0;
    work->moved = 0;
    return work;
}

void ls__work_give(ls__comm *comm, ls_work *work)
{
    ls__list_push_front(&comm->pool, &work->link);
}

void ls__work_survived(const ls__comm *comm, uint64_t queued_ns)
{
    ls__board_rank *me = comm->me;
    if (atomic_load_explicit(&me->failed, memory_order_relaxed) != 0 &&
        queued_ns > atomic_load_explicit(&me->failed_ns, memory_order_relaxed)) {
        atomic_store_explicit(&me->survived, 1, memory_order_release);
    }
    if (atomic_load_explicit(&me->told, memory_order_relaxed) != 0 &&
        queued_ns > atomic_load_explicit(&me->told_ns, memory_order_relaxed)) {
        atomic_store_explicit(&me->told, 0, memory_order_release);
    }
}

static void call_back(void (*done)(void *arg, ls_status status), void *arg, ls_status status)
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
static void tell_user(ls_work *work, ls_status status)
{
    ls__told *told = &work->told;
    told->status = status;
    if (atomic_exchange_explicit(&told->state, LS__TOLD_ENDED, memory_order_acq_rel) ==
        LS__TOLD_SET) {
        call_back(told->done, told->arg, status);
    }
}

void ls__work_end(ls_work *work, ls_status status)
{
    ls_group *group = work->group;
    ls__comm *comm = group->comm;
    const bool detached = work->detached;
    if (status == LS_OK) {
        ls__work_survived(comm, work->queued_ns);
    }
    ls__flight_close(comm, work, status, comm->env->now_ns(comm->env));
    if (work->pack != NULL) {
        ls__pack_give(work->pack);
    }
    if (work->done != NULL) {
        call_back(work->done, work->arg, status);
    }
    if (!detached) {
        tell_user(work, status);
    }
    if (work->by_message) {
        atomic_fetch_sub_explicit(&comm->by_message, 1, memory_order_relaxed);
    }
    atomic_fetch_sub_explicit(&group->pending, 1, memory_order_relaxed);
    /* Sync: seq_cst; pairs with ls__progress_release's waker, which asks whether anything is left. */
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

/* NULL with the error set: no runtime, or no handle. */
static ls__comm *comm_of(const char *what, const ls_work *work)
{
    ls__comm *comm = ls__comm_get(what);
    if (comm != NULL && work == NULL) {
        (void)ls__fail(LS_ERR_INVALID,
                       "%s: the handle is NULL; a call with `work` NULL has already waited", what);
        return NULL;
    }
    return comm;
}

static ls_status status_of(const ls_work *work)
{
    return (ls_status)atomic_load_explicit(&work->status, memory_order_acquire);
}

/* One turn, if nobody drives. */
static void nudge(ls__comm *comm, const ls_work *work)
{
    if (status_of(work) == LS_IN_PROGRESS && ls__progress_try(comm)) {
        (void)ls__engine_turn(comm, true);
        ls__progress_release(comm);
    }
}

ls_status ls_work_wait(ls_work *work)
{
    ls__comm *comm = comm_of("ls_work_wait", work);
    if (comm == NULL) {
        return ls__self.status;
    }
    LS_TRY(ls__work_may_wait("ls_work_wait"));
    ls__engine_wait(comm, work, 0);
    const ls_status status = report(work, status_of(work));
    end_handle(comm, work);
    return status;
}

ls_status ls_work_wait_for(ls_work *work, int64_t timeout_ms)
{
    ls__comm *comm = comm_of("ls_work_wait_for", work);
    if (comm == NULL) {
        return ls__self.status;
    }
    if (timeout_ms < 0) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_work_wait_for: timeout_ms is %lld; give 0 or more, or use "
                        "ls_work_wait",
                        (long long)timeout_ms);
    }
    LS_TRY(ls__work_may_wait("ls_work_wait_for"));
    const uint64_t until_ns = ls__time_after(comm->env->now_ns(comm->env), timeout_ms);
    nudge(comm, work);
    ls__engine_wait(comm, work, until_ns);
    if (status_of(work) == LS_IN_PROGRESS) {
        return LS_IN_PROGRESS;
    }
    const ls_status status = report(work, status_of(work));
    end_handle(comm, work);
    return status;
}

ls_status ls_work_test(ls_work *work)
{
    ls__comm *comm = comm_of("ls_work_test", work);
    if (comm == NULL) {
        return ls__self.status;
    }
    nudge(comm, work);
    return report(work, status_of(work));
}

ls_status ls_work_abort(ls_work *work, const char *why)
{
    ls__comm *comm = comm_of("ls_work_abort", work);
    if (comm == NULL) {
        return ls__self.status;
    }
    if (status_of(work) != LS_IN_PROGRESS) {
        return LS_OK;
    }
    char text[LS__FAILURE_MAX], operation[256];
    ls__operation_text(work->group, &work->descriptor, operation, sizeof operation);
    snprintf(text, sizeof text, "%s was aborted by rank %d: %s", operation, comm->runtime->rank,
             why != NULL ? why : "no reason was given");
    ls__group_fail(work->group, LS_ERR_ABORTED, text);
    return LS_OK;
}

ls_status ls_work_on_done(ls_work *work, void (*done)(void *arg, ls_status status), void *arg)
{
    if (comm_of("ls_work_on_done", work) == NULL) {
        return ls__self.status;
    }
    if (done == NULL) {
        return ls__fail(LS_ERR_INVALID, "ls_work_on_done: done is NULL; give a function");
    }
    ls__told *told = &work->told;
    if (atomic_exchange_explicit(&told->asked, 1, memory_order_relaxed) != 0) {
        return ls__fail(LS_ERR_STATE, "ls_work_on_done: this operation has a callback already; "
                                      "call what you need from that one");
    }
    told->done = done;
    told->arg = arg;
    uint32_t none = LS__TOLD_NONE;
    if (!atomic_compare_exchange_strong_explicit(&told->state, &none, LS__TOLD_SET,
                                                 memory_order_acq_rel, memory_order_acquire)) {
        call_back(done, arg, told->status);
    }
    return LS_OK;
}
