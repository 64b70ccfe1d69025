/* The progress lock: whoever has it drives all operations of this rank. */
#include "comm/engine/progress_lock.h"
#include "comm/comm.h"
#include "comm/engine/wake.h"
#include "comm/engine/work.h"

/* ---- the token ---------------------------------------------------------------------------- */

bool ls__progress_try(ls__comm *comm)
{
    return atomic_load_explicit(&comm->progress_lock, memory_order_relaxed) == 0 &&
           atomic_exchange_explicit(&comm->progress_lock, 1, memory_order_acquire) == 0;
}

void ls__engine_call_thread(ls__comm *comm)
{
    atomic_fetch_add_explicit(&comm->thread_word, 1, memory_order_seq_cst);
    comm->env->wake(comm->env, &comm->thread_word, 1);
}

void ls__progress_release(ls__comm *comm)
{
    /* Sync: releases all that the token guards. Sequentially consistent with the loads below: who
     * wants the token counts itself first and looks at it afterwards. */
    atomic_store_explicit(&comm->progress_lock, 0, memory_order_seq_cst);
    if (atomic_load_explicit(&comm->waiters, memory_order_seq_cst) > 0) {
        atomic_fetch_add_explicit(&comm->waiter_word, 1, memory_order_seq_cst);
        comm->env->wake(comm->env, &comm->waiter_word, INT32_MAX);
        return;
    }
    const uint32_t away = atomic_load_explicit(&comm->thread_away, memory_order_seq_cst);
    if (away == LS__THREAD_AWAY && comm->remote != NULL) {
        ls__engine_call_thread(comm); /* Note [Aside] */
    } else if (away != LS__THREAD_HERE &&
               atomic_load_explicit(&comm->pending, memory_order_seq_cst) > 0) {
        ls__engine_call_thread(comm);
    }
}

/* A while from now, but no later than `until_ns` (0: that does not matter). */
uint64_t ls__sleep_end(const ls__comm *comm, uint64_t until_ns)
{
    const uint64_t end = comm->env->now_ns(comm->env) + LS__CHECK_NS;
    return until_ns != 0 && until_ns < end ? until_ns : end;
}

/* Parks until the token is free or `work` (may be NULL) has ended, or for a while. */
void ls__progress_park(ls__comm *comm, const ls_work *work, uint64_t until_ns)
{
    atomic_fetch_add_explicit(&comm->waiters, 1, memory_order_seq_cst);
    const uint32_t word = atomic_load_explicit(&comm->waiter_word, memory_order_seq_cst);
    const bool ended =
        work != NULL && atomic_load_explicit(&work->status, memory_order_seq_cst) != LS_IN_PROGRESS;
    if (!ended && atomic_load_explicit(&comm->progress_lock, memory_order_seq_cst) != 0) {
        (void)comm->env->park(comm->env, &comm->waiter_word, word, ls__sleep_end(comm, until_ns));
    }
    atomic_fetch_sub_explicit(&comm->waiters, 1, memory_order_relaxed);
}

void ls__progress_take(ls__comm *comm)
{
    while (!ls__progress_try(comm)) {
        ls__ring(comm, comm->runtime->local_rank); /* the driver may sleep with it */
        ls__progress_park(comm, NULL, 0);
    }
}

void ls__engine_notify(ls__comm *comm, bool ready)
{
    if (ready) {
        ls__ring(comm, comm->runtime->local_rank);
    }
    if (atomic_load_explicit(&comm->progress_lock, memory_order_seq_cst) == 0 &&
        atomic_load_explicit(&comm->thread_away, memory_order_seq_cst) != LS__THREAD_HERE) {
        ls__engine_call_thread(comm);
    }
}
