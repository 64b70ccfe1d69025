/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the waiting engine, ten times a second: deadlines, stalls, members that have left or
 * died. */
#include <stdio.h>
#include <string.h>

#include "base/lock.h"
#include "base/log.h"
#include "base/planted.h"
#include "comm/core/cause.h"
#include "comm/core/group.h"
#include "comm/core/message_state.h"
#include "comm/diagnose/deadlock.h"
#include "comm/diagnose/fail.h"
#include "comm/diagnose/straggler.h"
#include "comm/operation/mismatch.h"
#include "comm/remote/remote.h"

/* ---- deadlines and stalls ----------------------------------------------------------------- */

#define GONE_LEFT "left the job (ls_finalize) without calling it"
#define GONE_DEAD "ended (unconfirmed: the launcher has not reported it)"

/* Note [Leaving]
 * A rank may take part in an operation and leave at once, between this rank's looks at its
 * announcement and at its life. Everything that it did before it left is visible as soon as its
 * leaving is (release and acquire on `life`), so a collective's stamps are read again after that.
 * Its messages lie in a ring that may not have been read since, so a point-to-point message is
 * given up only at the second look, before which the rings have been read. */
static bool came_before_it_left(const ls_group *group, ls_work *work, int r, uint64_t now_ns)
{
    if (!ls__is_p2p(work)) {
        return ls__has_called(group, r, work) && !ls__is_behind(group, r, work);
    }
    const bool first_look = work->watch.gone_ns == 0;
    work->watch.gone_ns = now_ns;
    return first_look;
}

/* A launcher that is stopped itself reports no death, so the process is looked up. */
static bool ended_unreported(const ls_group *group, const ls_work *work, int r, uint64_t now_ns)
{
    const ls__group_member *m = &group->member[r];
    return !m->remote && now_ns > work->queued_ns + LS__STALL_NS &&
           ls__board_unreaped(group->comm->board, group->comm->env, m->local);
}

/* Whether the member cannot come any more. After a death the launcher's root cause says more, so it
 * gets a grace period. */
static bool is_gone(const ls_group *group, ls_work *work, int r, uint64_t now_ns, ls__life life)
{
    if (life == LS__LIFE_LEFT) {
        return !came_before_it_left(group, work, r, now_ns);
    }
    const bool dead = life == LS__LIFE_DEAD || ended_unreported(group, work, r, now_ns);
    if (dead && work->watch.gone_ns == 0) {
        work->watch.gone_ns = now_ns;
    }
    return dead && now_ns - work->watch.gone_ns > LS__GRACE_NS;
}

/* The failure that a rank has recorded, with the rank unless its text names it. */
static void say_failed(const ls__board_rank *record, int rank, char text[LS__FAILURE_MAX])
{
    char name[32];
    snprintf(name, sizeof name, "rank %d", rank);
    if (strstr(record->failed_text, name) != NULL) {
        snprintf(text, LS__FAILURE_MAX, "%s", record->failed_text);
    } else {
        snprintf(text, LS__FAILURE_MAX, "%s failed: %.900s", name, record->failed_text);
    }
}

/* A member that gave up because of a deadlock has published the cycle, one that left after a
 * failure the failure, and of one that died its agent how: all explain more than its absence. */
static void fail_gone(ls_group *group, const ls_work *work, int r, const char *what)
{
    char text[LS__FAILURE_MAX], operation[256];
    const int rank = group->member[r].world_rank;
    const ls__board_rank *record = ls__comm_record(group->comm, rank);
    if (ls__deadlock_left(group->comm, rank, text, sizeof text)) {
        ls__group_cause(group, LS_ERR_MISMATCH, text);
        return;
    }
    ls__operation_text(group, &work->descriptor, operation, sizeof operation);
    if (ls__comm_failure_of(record) != LS_OK) {
        say_failed(record, rank, text);
    } else if (ls__life_of(group, r) == LS__LIFE_DEAD && record->ended_text[0] != '\0') {
        snprintf(text, sizeof text, "%s cannot finish: %.639s", operation, record->ended_text);
    } else {
        snprintf(text, sizeof text, "%s cannot finish: rank %d has %s", operation, rank, what);
    }
    ls__group_cause_by(group, LS_ERR_PEER, text, rank);
}

/* A receive from any source is lost when one possible sender has died, or when all have left.
 * Returns whether the group was failed. */
static bool senders_gone(ls_group *group, ls_work *work, uint64_t now_ns)
{
    int left = 0, last = -1;
    for (int r = 0; r < group->size; r++) {
        const ls__life life = ls__life_of(group, r);
        if (r == group->rank) {
            continue;
        }
        if (life == LS__LIFE_LEFT) {
            left++;
            last = r;
        } else if (is_gone(group, work, r, now_ns, life)) {
            fail_gone(group, work, r, GONE_DEAD);
            return true;
        }
    }
    if (left == 0 || left < group->size - 1 || !is_gone(group, work, last, now_ns, LS__LIFE_LEFT)) {
        return false;
    }
    fail_gone(group, work, last, "left the job (ls_finalize) as the last rank that could send it");
    return true;
}

/* Fails the group if a missing member cannot come any more. */
static bool member_gone(ls_group *group, ls_work *work, uint64_t now_ns)
{
    if (ls__takes_any(work)) {
        return senders_gone(group, work, now_ns);
    }
    const ls__straggler m = ls__straggler_find(group, work, false);
    for (int i = 0; i < m.count; i++) {
        const int r = m.member[i];
        const ls__life life = ls__life_of(group, r);
        if (is_gone(group, work, r, now_ns, life)) {
            fail_gone(group, work, r, life == LS__LIFE_LEFT ? GONE_LEFT : GONE_DEAD);
            return true;
        }
    }
    return false;
}

/* Whether the operation's deadline has passed. After Ctrl-Z it begins anew: the peers go on one
 * after another, and the first one must not find that the others are late. */
static bool is_late(const ls_work *work, uint64_t now_ns)
{
    const uint64_t continued_ns =
        atomic_load_explicit(&work->group->comm->board->continued_ns, memory_order_relaxed);
    const uint64_t from_ns = work->queued_ns < continued_ns ? continued_ns : work->queued_ns;
    const uint64_t allowed_ns = work->deadline_ns - work->queued_ns;
    return now_ns >= work->deadline_ns && now_ns >= from_ns + allowed_ns && !LS__PLANTED(DEADLINE);
}

/* Whether the deadline begins anew because a debugger is attached to a rank of this host: its user
 * looks at the program and would lose it. */
static bool is_debugged(ls_group *group, ls_work *work, uint64_t now_ns)
{
    ls__comm *comm = group->comm;
    for (int r = 0; r < comm->board->ranks; r++) {
        if (ls__board_traced(comm->board, comm->env, r)) {
            char name[128];
            ls__board_name(comm->board, r, name, sizeof name);
            work->deadline_ns = ls__time_after(now_ns, comm->runtime->timeout_ms);
            LS__WARN("a debugger is attached to %s: the deadline of %s #%llu begins anew", name,
                     ls__operation_name((ls__operation)work->descriptor.operation),
                     (unsigned long long)work->descriptor.sequence);
            return true;
        }
    }
    return false;
}

/* Looks at one operation. True: the group was failed. `closely`: also warns of stragglers. */
static bool check_work(ls_group *group, ls_work *work, uint64_t now_ns, bool closely)
{
    const uint64_t age = now_ns > work->queued_ns ? now_ns - work->queued_ns : 0;
    if ((age > LS__REMOTE_ANNOUNCE_NS || work->monitored) && work->path == LS__PATH_MESSAGES &&
        !work->watch.announced) {
        ls__remote_post(group, work->descriptor.sequence);
        work->watch.announced = true;
    }
    if (age > LS__STALL_NS && !ls__is_p2p(work) && ls__mismatch_check(group, work)) {
        return true;
    }
    if (member_gone(group, work, now_ns)) {
        return true;
    }
    if (is_late(work, now_ns) && !is_debugged(group, work, now_ns)) {
        ls__straggler_fail(group, work, now_ns);
        return true;
    }
    if (!closely) {
        return false;
    }
    if (age > LS__STALL_NS && !work->watch.stopped && ls__straggler_stopped(group, work)) {
        work->watch.stopped = true;
        ls__straggler_warn(group, work, now_ns);
    }
    if (age > LS__WARN_NS && !work->watch.warned) {
        ls__straggler_warn(group, work, now_ns);
    }
    return false;
}

/* With thousands of messages in flight only the oldest for each peer is examined closely, since
 * that walks through all unexpected messages and may cost a system call; the others wait for the
 * same peer. Deadlines are checked for all. */
static bool check_messages(ls_group *group, const ls__list *works, uint64_t now_ns)
{
    uint64_t seen[LS__PROGRAM_RANKS_MAX / 64 + 1] = {0};
    ls__p2p *p2p = group->p2p;
    LS__LIST_EACH (at, works) {
        ls_work *work = LS__LIST_ITEM(at, ls_work, link);
        const int peer = ls__takes_any(work) ? group->size : work->descriptor.root;
        const bool quiet = p2p->warned_ns != 0 && p2p->warned_ns != now_ns &&
                           now_ns - p2p->warned_ns < LS__WARN_NS;
        const bool first = (seen[peer / 64] >> peer % 64 & 1) == 0;
        const bool warned_before = work->watch.warned;
        seen[peer / 64] |= (uint64_t)1 << peer % 64;
        if ((first || is_late(work, now_ns)) && check_work(group, work, now_ns, !quiet)) {
            return true;
        }
        p2p->warned_ns = work->watch.warned && !warned_before ? now_ns : p2p->warned_ns;
    }
    return false;
}

/* Checks the collective in progress and the first one behind it whose time is up. Only the holder
 * of the progress lock, which calls this, takes works out of the queue. */
static bool check_queue(ls_group *group, uint64_t now_ns)
{
    ls__comm *comm = group->comm;
    ls_work *head = NULL, *late = NULL;
    ls__lock_take(&comm->lock, comm->env);
    LS__LIST_EACH (at, &group->queue) {
        ls_work *work = LS__LIST_ITEM(at, ls_work, link);
        head = head == NULL ? work : head;
        late = late == NULL && is_late(work, now_ns) ? work : late;
    }
    ls__unlock(&comm->lock, comm->env);
    return (head != NULL && check_work(group, head, now_ns, true)) ||
           (late != NULL && check_work(group, late, now_ns, true));
}

/* One failure is enough; the operations of the group end with it. */
static void check_group(ls_group *group, uint64_t now_ns)
{
    if (check_queue(group, now_ns) || check_messages(group, &group->p2p->sends, now_ns) ||
        check_messages(group, &group->p2p->recvs, now_ns)) {
        (void)ls__group_failed(group);
    }
}

/* Called ten times a second by the thread that drives the engine. Deadlocks come first: ranks that
 * have given up in one look like missing members afterwards. */
void ls__engine_check(ls__comm *comm, uint64_t now_ns)
{
    comm->drive.next_check_ns = now_ns + LS__CHECK_NS;
    /* Sync: relaxed; a time of its own, nothing else is published with it. */
    atomic_store_explicit(&comm->me->heartbeat_ns, now_ns, memory_order_relaxed);
    if (comm->remote != NULL) {
        ls__remote_check(comm, now_ns);
    }
    (void)ls__comm_look(comm);
    ls__deadlock_check(comm, now_ns);
    LS__LIST_EACH (at, &comm->groups) {
        ls_group *group = LS__LIST_ITEM(at, ls_group, link);
        if (atomic_load_explicit(&group->pending, memory_order_acquire) > 0 &&
            atomic_load_explicit(&group->failure.status, memory_order_relaxed) == 0) {
            check_group(group, now_ns);
        }
    }
}
