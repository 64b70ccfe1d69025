/* SPDX-License-Identifier: Apache-2.0 */
/* Progress and waiting: which thread drives, how long it spins, where it sleeps. See engine.h.
 *
 * Note [Back-off]
 * A waiting driver first spins, but only where ranks do not outnumber the cores of the host:
 * elsewhere the peer it waits for may need the very core it spins on. Then it yields, which costs
 * about a microsecond and lets peers run, and then it sleeps. Short operations between ranks that
 * are ready end in the first two phases, without a system call or with cheap ones.
 *
 * How long to spin is learned: it doubles when spinning was enough and halves when it was not,
 * because enough cores do not mean that they are free. Two ranks that another program pushed onto
 * one core took 40 us for 4 bytes with a fixed spin of 20 us, and 3 us with a learned one. When it
 * has learned not to spin at all it tries again in one of TRY_EVERY waits.
 */
#include "comm/engine/engine.h"
#include "comm/p2p/p2p.h"
#include "comm/remote/remote.h"

#include <stdio.h>

#include "base/assert.h"
#include "base/lock.h"
#include "base/log.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/group.h"
#include "comm/core/progress_lock.h"
#include "comm/core/wake.h"
#include "comm/diagnose/fail.h"
#include "comm/engine/engine.h"

#define SPIN_MAX_NS 20000u
#define SPIN_MIN_NS 500u
#define SPIN_TRY_NS 3000u /* long enough for a peer that does not spin either */
#define YIELD_NS 100000u
#define TRY_EVERY 32       /* waits of those that do not spin, of which one does */
#define YIELDS (1u << 16)  /* looks of a thread that yields are counted from here */
#define LOOKS_PER_CLOCK 8  /* looks between two looks at the clock */
#define SHORT_NS 10000000u /* Note [Aside] */
/* The sleep between two calls of the user's wait callback grows from the one to the other, as
 * between two tests of a plug-in's operations. */
#define CALLBACK_MIN_NS 50000u
#define CALLBACK_MAX_NS 200000u

/* One wait of a thread. */
typedef struct patience {
    ls__backoff left;
    uint32_t callback_ns; /* the sleep after the last call of the user's callback; 0: none yet */
    bool reported;        /* the activity record says that this thread is blocked */
    ls__phase former;
    ls__sleeper sleeper;
} patience;

/* ---- turns -------------------------------------------------------------------------------- */

/* Connections are read even if no operation is pending: peers may send in advance. */
bool ls__engine_turn(ls__comm *comm, bool thorough)
{
    bool moved = false;
    LS__LIST_EACH (at, &comm->groups) {
        ls_group *group = LS__LIST_ITEM(at, ls_group, link);
        /* Sync: seq_cst; the submitter counts first and then looks for sleepers. */
        if (atomic_load_explicit(&group->pending, memory_order_seq_cst) > 0 &&
            atomic_load_explicit(&group->failure.status, memory_order_relaxed) == 0) {
            moved = group->backend->advance(group) || moved;
        }
    }
    if (comm->remote != NULL) {
        moved = ls__remote_turn(comm) || moved;
    }
    if (thorough || comm->remote != NULL ||
        atomic_load_explicit(&comm->by_message, memory_order_seq_cst) > 0) {
        moved = ls__p2p_turn(comm) || moved;
    }
    return moved || ls__comm_look(comm);
}

/* The end of a wait: a work has ended, or a counter has reached 0. */
typedef struct wish {
    const ls_work *work;
    const _Atomic uint32_t *pending;
    uint64_t until_ns; /* and no longer than this; 0: as long as it takes */
} wish;

/* Whether the wait may end. */
static bool has_come(const ls__comm *comm, wish w)
{
    if (w.until_ns != 0 && comm->env->now_ns(comm->env) >= w.until_ns) {
        return true;
    }
    return w.work != NULL
               ? atomic_load_explicit(&w.work->status, memory_order_acquire) != LS_IN_PROGRESS
               : atomic_load_explicit(w.pending, memory_order_acquire) == 0;
}

/* How long to spin in a wait that begins. */
static uint64_t spin_of(ls__comm *comm)
{
    const uint32_t learned = atomic_load_explicit(&comm->drive.spin_ns, memory_order_relaxed);
    if (!comm->machine.may_spin || learned >= SPIN_MIN_NS) {
        return comm->machine.may_spin ? learned : 0;
    }
    const uint32_t waits = atomic_load_explicit(&comm->drive.waits, memory_order_relaxed);
    atomic_store_explicit(&comm->drive.waits, waits + 1, memory_order_relaxed);
    return waits % TRY_EVERY == 0 ? SPIN_TRY_NS : 0;
}

void ls__backoff_begin(ls__comm *comm, ls__backoff *p, uint64_t now_ns)
{
    p->begun_ns = p->begun_ns == 0 ? now_ns : p->begun_ns;
    p->since_ns = now_ns;
    p->spin_ns = spin_of(comm);
    p->looks = p->spin_ns > 0 ? 1 : YIELDS + 1;
    p->yielded = false;
}

/* The clock is read only now and then while it spins. */
bool ls__backoff_left(ls__comm *comm, ls__backoff *p)
{
    const ls__env *env = comm->env;
    if (p->since_ns == 0) {
        ls__backoff_begin(comm, p, env->now_ns(env));
    } else if (p->looks++ % LOOKS_PER_CLOCK == 0) {
        const uint64_t waited_ns = env->now_ns(env) - p->since_ns;
        if (waited_ns > p->spin_ns + YIELD_NS) {
            return false;
        }
        p->looks = waited_ns >= p->spin_ns ? YIELDS + 1 : 1;
    }
    if (p->looks >= YIELDS) {
        p->yielded = true;
        env->yield(env);
    } else {
        LS__PAUSE();
    }
    return true;
}

/* Doubles or halves the time to spin: Note [Back-off]. */
void ls__backoff_rewarded(ls__comm *comm, ls__backoff *p)
{
    if (p->since_ns != 0 && p->spin_ns > 0) {
        const uint64_t learned = p->yielded ? p->spin_ns / 2 : p->spin_ns * 2;
        atomic_store_explicit(&comm->drive.spin_ns,
                              learned < SPIN_MIN_NS   ? 0
                              : learned > SPIN_MAX_NS ? SPIN_MAX_NS
                                                      : (uint32_t)learned,
                              memory_order_relaxed);
    }
    p->since_ns = 0;
}

/* Records that this thread is blocked, once in a wait: in the activity record, and for deadlock.c,
 * unless the wait has an end of its own. */
static void report_blocked(ls__comm *comm, patience *p, wish w)
{
    const ls_work *work = w.work;
    if (!p->reported && work != NULL) {
        if (!ls__self.background && w.until_ns == 0) {
            p->sleeper = (ls__sleeper){.work = work, .since_ns = comm->env->now_ns(comm->env)};
            ls__lock_take(&comm->lock, comm->env);
            ls__list_push_back(&comm->sleepers, &p->sleeper.link);
            ls__unlock(&comm->lock, comm->env);
        }
        char detail[LS__ACTIVITY_DETAIL_MAX];
        const ls__descriptor *d = &work->descriptor;
        snprintf(detail, sizeof detail, "%s #%llu", ls__operation_name(work->operation),
                 (unsigned long long)d->sequence);
        p->former = ls__activity_enter(LS__PHASE_COLLECTIVE, detail);
        p->reported = true;
    }
}

/* The wait is over: deadlock.c must not see it any more. */
static void report_unblocked(ls__comm *comm, patience *p)
{
    if (p->sleeper.work != NULL) {
        ls__lock_take(&comm->lock, comm->env);
        ls__list_remove(&p->sleeper.link);
        ls__unlock(&comm->lock, comm->env);
    }
}

/* Until the doorbell has another value than `bell`, or something comes from another host, or a
 * plug-in wants to be tested. */
static void park_on_bell(ls__comm *comm, uint32_t bell, uint64_t deadline_ns)
{
    const uint64_t end_ns = ls__plugin_poll_end(comm, deadline_ns);
    if (comm->remote != NULL && end_ns == deadline_ns) {
        ls__remote_sleep(comm, bell, deadline_ns);
    } else { /* a poller's time is in milliseconds: too coarse for a plug-in */
        (void)comm->env->park(comm->env, &comm->me->doorbell, bell, end_ns);
    }
}

/* Calls the user's wait callback. The end of the sleep that follows: `until_ns` (0: none) or
 * earlier. */
static uint64_t call_back(ls__comm *comm, patience *p, uint64_t until_ns)
{
    if (ls__self.on_wait == NULL) {
        return until_ns;
    }
    ls__self.on_wait(ls__self.on_wait_arg);
    p->callback_ns = p->callback_ns == 0 ? CALLBACK_MIN_NS : 2 * p->callback_ns;
    p->callback_ns = p->callback_ns > CALLBACK_MAX_NS ? CALLBACK_MAX_NS : p->callback_ns;
    const uint64_t end = comm->env->now_ns(comm->env) + p->callback_ns;
    return until_ns != 0 && until_ns < end ? until_ns : end;
}

/* Sleeps on the doorbell, with the progress lock, unless a last look finds something to do. */
static void sleep_as_driver(ls__comm *comm, wish w, patience *p)
{
    const ls__env *env = comm->env;
    ls__board_rank *me = comm->me;
    const uint64_t until_ns = call_back(comm, p, w.until_ns);
    /* Sync: Note [Last arriver] in control.h. */
    atomic_fetch_add_explicit(&me->sleepers, 1, memory_order_seq_cst);
    const uint32_t bell = atomic_load_explicit(&me->doorbell, memory_order_seq_cst);
    if (!ls__engine_turn(comm, true) && !has_come(comm, w)) {
        park_on_bell(comm, bell, ls__sleep_end(comm, until_ns));
    }
    atomic_fetch_sub_explicit(&me->sleepers, 1, memory_order_relaxed);
    const uint64_t now = env->now_ns(env);
    if (now >= comm->drive.next_check_ns) {
        ls__engine_check(comm, now);
    }
}

/* progress lock; turns until the wait may end: spins, yields, sleeps. */
static void drive(ls__comm *comm, wish w, patience *p)
{
    while (!has_come(comm, w)) {
        if (ls__engine_turn(comm, false)) {
            ls__backoff_rewarded(comm, &p->left);
        } else if (!ls__backoff_left(comm, &p->left)) {
            report_blocked(comm, p, w);
            sleep_as_driver(comm, w, p);
        }
    }
}

/* Drives if no other thread does; else sleeps until the work has ended or the lock is free. */
static void wait_for(ls__comm *comm, wish w, patience *p)
{
    while (!has_come(comm, w)) {
        if (ls__progress_try(comm)) {
            drive(comm, w, p);
            ls__progress_release(comm);
        } else if (!ls__backoff_left(comm, &p->left)) {
            report_blocked(comm, p, w);
            ls__ring(comm, comm->runtime->local_rank); /* the driver may not know this work yet */
            ls__progress_park(comm, w.work, call_back(comm, p, w.until_ns));
        }
    }
}

void ls__engine_wait(ls__comm *comm, ls_work *work, uint64_t until_ns)
{
    patience p = {0};
    wait_for(comm, (wish){.work = work, .until_ns = until_ns}, &p);
    if (p.left.begun_ns != 0) {
        atomic_fetch_add_explicit(&work->group->counts.wait_ns,
                                  comm->env->now_ns(comm->env) - p.left.begun_ns,
                                  memory_order_relaxed);
    }
    if (p.reported) {
        report_unblocked(comm, &p);
        ls__activity_leave(p.former);
    }
}

void ls__engine_drain(ls__comm *comm, const _Atomic uint32_t *pending)
{
    patience p = {0};
    wait_for(comm, (wish){.pending = pending}, &p);
}

/* ---- the engine's own thread -------------------------------------------------------------- */

/* A caller drives: sleep where the doorbell does not wake this thread. */
static void step_aside(ls__comm *comm, bool again)
{
    const ls__env *env = comm->env;
    const bool briefly = comm->remote != NULL && !again;
    const uint32_t word = atomic_load_explicit(&comm->drive.thread_word, memory_order_seq_cst);
    /* Sync: seq_cst; pairs with ls__progress_release and ls__engine_notify. */
    atomic_store_explicit(&comm->drive.thread_away,
                          briefly ? LS__THREAD_AWAY_SHORT : LS__THREAD_AWAY, memory_order_seq_cst);
    const uint64_t now = env->now_ns(env);
    atomic_store_explicit(&comm->me->heartbeat_ns, now, memory_order_relaxed);
    if (atomic_load_explicit(&comm->drive.lock, memory_order_seq_cst) != 0 &&
        atomic_load_explicit(&comm->drive.stop, memory_order_seq_cst) == 0) {
        (void)env->park(env, &comm->drive.thread_word, word,
                        now + (briefly ? SHORT_NS : LS__CHECK_NS));
        ls__plugin_watch_call(comm);
    }
    atomic_store_explicit(&comm->drive.thread_away, LS__THREAD_HERE, memory_order_seq_cst);
}

/* progress lock, given back; moves everything that can move, then sleeps without the lock. */
static void watch(ls__comm *comm)
{
    const ls__env *env = comm->env;
    ls__board_rank *me = comm->me;
    while (ls__engine_turn(comm, true)) {
        /* as long as there is something to do */
    }
    uint64_t now = env->now_ns(env);
    if (now >= comm->drive.next_check_ns) {
        ls__engine_check(comm, now);
    }
    /* Sync: Note [Last arriver]; the lock is given up before the sleep, so callers can drive. */
    atomic_fetch_add_explicit(&me->sleepers, 1, memory_order_seq_cst);
    const uint32_t bell = atomic_load_explicit(&me->doorbell, memory_order_seq_cst);
    const bool moved = ls__engine_turn(comm, true);
    const bool busy = atomic_load_explicit(&comm->pending, memory_order_seq_cst) > 0;
    ls__progress_release(comm);
    if (!moved && atomic_load_explicit(&comm->drive.stop, memory_order_seq_cst) == 0) {
        now = env->now_ns(env);
        /* The launcher's ring does not wake a poller: it looks for the root cause itself, in
         * time. */
        park_on_bell(comm, bell, now + (busy || comm->remote != NULL ? LS__CHECK_NS : LS__BEAT_NS));
    }
    atomic_fetch_sub_explicit(&me->sleepers, 1, memory_order_relaxed);
}

/* The thread's life: drives while no caller does, else steps aside. */
static void engine_main(void *arg)
{
    ls__comm *comm = arg;
    ls__runtime_attach_background(comm->runtime);
    bool again = false; /* it comes from aside, not from a poller */
    while (atomic_load_explicit(&comm->drive.stop, memory_order_seq_cst) == 0) {
        if (ls__progress_try(comm)) {
            watch(comm);
            again = false;
            continue;
        }
        /* A poller reports an event to one thread: it may have been for the driver. */
        if (comm->remote != NULL && !again) {
            ls__ring(comm, comm->runtime->local_rank);
        }
        step_aside(comm, again);
        again = true;
    }
    (void)ls_runtime_attach(NULL);
}

ls_status ls__engine_start(ls__comm *comm)
{
    int error =
        comm->env->thread_start(comm->env, "lockstep", engine_main, comm, &comm->drive.thread);
    return error == 0
               ? LS_OK
               : ls__fail(LS_ERR_SYSTEM, "ls_init: starting the engine's thread: error %d", -error);
}

void ls__engine_stop(ls__comm *comm)
{
    if (comm->drive.thread == NULL) {
        return;
    }
    atomic_store_explicit(&comm->drive.stop, 1, memory_order_seq_cst);
    atomic_fetch_add_explicit(&comm->drive.thread_word, 1, memory_order_seq_cst);
    comm->env->wake(comm->env, &comm->drive.thread_word, 1);
    if (comm->remote != NULL) {
        ls__remote_ring(comm, comm->runtime->local_rank);
    }
    ls__board_ring(comm->board, comm->env, comm->runtime->local_rank);
    comm->env->thread_join(comm->env, comm->drive.thread);
    comm->drive.thread = NULL;
}
