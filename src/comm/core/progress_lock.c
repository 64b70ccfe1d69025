/* SPDX-License-Identifier: Apache-2.0 */
/* The progress lock: its holder drives all operations of this rank. */
#include "comm/core/progress_lock.h"
#include "base/assert.h"
#include "comm/core/comm.h"
#include "comm/core/wake.h"
#include "comm/core/work.h"

/* First a plain look: an exchange would take the line from the holder each time. */
bool ls__progress_try(ls__comm *comm)
{
    return atomic_load_explicit(&comm->drive.lock, memory_order_relaxed) == 0 &&
           atomic_exchange_explicit(&comm->drive.lock, 1, memory_order_acquire) == 0;
}

/* The thread that stepped aside drives again. */
void ls__engine_call_thread(ls__comm *comm)
{
    atomic_fetch_add_explicit(&comm->drive.thread_word, 1, memory_order_seq_cst);
    comm->env->wake(comm->env, &comm->drive.thread_word, 1);
}

/* Another waiter may drive now; without one, the engine's thread must, if anything is pending. */
void ls__progress_release(ls__comm *comm)
{
    LS_ASSERT(atomic_load_explicit(&comm->drive.lock, memory_order_relaxed) == 1);
    /* Sync: releases all that the lock guards. Sequentially consistent with the loads below: a
     * waiter counts itself first and looks at the lock afterwards. */
    atomic_store_explicit(&comm->drive.lock, 0, memory_order_seq_cst);
    if (atomic_load_explicit(&comm->drive.waiters, memory_order_seq_cst) > 0) {
        atomic_fetch_add_explicit(&comm->drive.waiter_word, 1, memory_order_seq_cst);
        comm->env->wake(comm->env, &comm->drive.waiter_word, INT32_MAX);
        return;
    }
    const uint32_t away = atomic_load_explicit(&comm->drive.thread_away, memory_order_seq_cst);
    if (away == LS__THREAD_AWAY && comm->remote != NULL) {
        ls__engine_call_thread(comm); /* Note [Aside] */
    } else if (away != LS__THREAD_HERE &&
               atomic_load_explicit(&comm->pending, memory_order_seq_cst) > 0) {
        ls__engine_call_thread(comm);
    }
}

uint64_t ls__sleep_end(const ls__comm *comm, uint64_t until_ns)
{
    const uint64_t end = comm->env->now_ns(comm->env) + LS__CHECK_NS;
    return until_ns != 0 && until_ns < end ? until_ns : end;
}

void ls__progress_park(ls__comm *comm, const ls_work *work, uint64_t until_ns)
{
    atomic_fetch_add_explicit(&comm->drive.waiters, 1, memory_order_seq_cst);
    const uint32_t word = atomic_load_explicit(&comm->drive.waiter_word, memory_order_seq_cst);
    const bool ended =
        work != NULL && atomic_load_explicit(&work->status, memory_order_seq_cst) != LS_IN_PROGRESS;
    if (!ended && atomic_load_explicit(&comm->drive.lock, memory_order_seq_cst) != 0) {
        (void)comm->env->park(comm->env, &comm->drive.waiter_word, word,
                              ls__sleep_end(comm, until_ns));
        ls__plugin_watch_call(comm);
    }
    atomic_fetch_sub_explicit(&comm->drive.waiters, 1, memory_order_relaxed);
}

/* The holder may sleep with the lock, so it is rung for. */
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
    if (atomic_load_explicit(&comm->drive.lock, memory_order_seq_cst) == 0 &&
        atomic_load_explicit(&comm->drive.thread_away, memory_order_seq_cst) != LS__THREAD_HERE) {
        ls__engine_call_thread(comm);
    }
}
