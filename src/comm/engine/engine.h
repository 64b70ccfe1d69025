/* The engine: one per runtime, it moves all operations of all groups (docs/design.md, D2).
 *
 *     user threads ── submit (short lock, call order) ──▶ queue of a group ──┐
 *                                                                            ▼
 *     progress lock ── held by a waiting caller, else by the engine's thread: turn, turn, turn …
 *                      a turn advances the first operation of every group by a bounded piece
 *
 * Beside a field stands who may touch it:  lock = under comm->lock;  progress = the holder of the
 * progress lock;  const = set before the object is shared;  atomic = see its orders.
 *
 * Note [Who sleeps where]
 *   - the holder of the progress lock, when nothing moves, parks on this rank's *doorbell* in the
 *     board, which peers and the launcher ring;
 *   - other waiting callers park on `waiter_word`, rung when a work ends or the lock is free;
 *   - the engine's thread drives when no caller does, and then parks on the doorbell too, without
 *     the lock, so that a caller can take it. When it wakes and a caller drives, it moves to
 *     `thread_word`, so that the doorbell wakes one thread and not two. It comes back when it is
 *     called (for an operation without a waiter) or after a tenth of a second: the caller may have
 *     gone to compute, and then only this thread can notice that a peer has died;
 *   - with ranks on other hosts, a thread that would park on the doorbell sleeps in the transport's
 *     poller, which an event beside the doorbell wakes, too (wake.h). A poller reports each event
 *     to one thread: if that is the engine's and a caller drives, it rings for the caller.
 * Every park has a deadline of at most half a second, so a lost wake would cost time, never a hang.
 */
#ifndef LS_COMM_ENGINE_ENGINE_H
#define LS_COMM_ENGINE_ENGINE_H

#include "comm/core/group.h"

/* progress lock; whether anything moved. A thorough turn also looks at every message ring. */
bool ls__engine_turn(ls__comm *comm, bool thorough);
/* Waits until the work has ended, or this time has come (0: as long as it takes). */
void ls__engine_wait(ls__comm *comm, ls_work *work, uint64_t until_ns);
/* Drives until the counter is 0: nothing of a group, or of all, is in flight. */
void ls__engine_drain(ls__comm *comm, const _Atomic uint32_t *pending);
/* A wait without progress: engine.c, Note [Back-off]. */
typedef struct ls__backoff {
    uint64_t since_ns; /* of the present wait without progress; 0: not begun */
    uint64_t begun_ns; /* of the whole wait */
    uint64_t spin_ns;  /* how long it spins before it yields */
    unsigned looks;
    bool yielded; /* spinning was not enough */
} ls__backoff;
/* Begins the wait at this time; without the call, ls__backoff_left begins it at its first look. */
void ls__backoff_begin(ls__comm *comm, ls__backoff *p, uint64_t now_ns);
/* Spins or yields once; false: it is time to sleep. */
bool ls__backoff_left(ls__comm *comm, ls__backoff *p);
/* progress lock; something moved: begins anew, and remembers whether spinning was enough. */
void ls__backoff_rewarded(ls__comm *comm, ls__backoff *p);
ls_status ls__engine_start(ls__comm *comm);
void ls__engine_stop(ls__comm *comm);

#endif
