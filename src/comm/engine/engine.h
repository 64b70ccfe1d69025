/* SPDX-License-Identifier: Apache-2.0 */
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

/* ---- announce.c: announcing queued operations ------------------------------------------------ */

/* lock; announces works of the queue as far as there is room. True: of one of them all members are
 * there, so a thread must drive it now. */
bool ls__post_flush(ls_group *group);

/* ---- select.c: where an operation's data goes, and by which plan; chosen there only ---------- */

size_t ls__select_plans(int size); /* the bound of group->plans in a group of this size */
/* lock; when an operation is submitted: sets its memory as far as this rank knows it by itself, and
 * the plan of a one-shot operation, whose data is announced with it. LS_ERR_MEMORY: this rank
 * cannot tell, and must not go on, since its peers decide without it. */
ls_status ls__select_submitted(ls_group *group, ls_work *work);
/* Whether a plain call of ranks on one host may be announced together with its data. */
bool ls__select_may_announce(const ls_group *group, const ls__collective *args);
/* lock, progress lock; the same as ls__select_submitted for a plain operation of ranks on one host,
 * or an offer. False: its one-shot plan was not made before, or there is no room for an offer. */
bool ls__select_prepared(ls_group *group, ls_work *work);
/* progress lock; when all members have announced it: an offer that not all have made is none. */
void ls__select_met(const ls_group *group, ls_work *work);
/* progress lock; when all members have announced it: its memory, if that was still open, and its
 * plan; NULL with the error set. Not of one-shot operations. */
const ls__plan *ls__select_announced(ls_group *group, ls_work *work);

/* ---- group_open.c: a group's life on this rank; no rank waits for another there -------------- */

typedef struct ls__group_spec {
    const char *name;
    uint32_t id;
    int rank, size;
    const int *world_rank;   /* [size] */
    const uint64_t *control; /* [size] offsets in each member's heap */
} ls__group_spec;
/* Allocates all memory of a group; uses rank, size and world_rank of the spec. Without `caches` the
 * control blocks of remote members are those at `control`. */
ls_status ls__group_make(ls__comm *comm, const ls__group_spec *spec, bool caches, ls_group **out);
void ls__group_unmake(ls_group *group); /* frees one that was not joined; NULL is allowed */
/* Gives it number and members; the engine moves its operations from then on. */
void ls__group_join(ls_group *group, const ls__group_spec *spec);
/* Local: unlinks and frees; the struct itself lives until its last handle is gone. */
void ls__group_close(ls_group *group);
void ls__group_forget(ls_group *group); /* frees the struct */

#endif
