/* How a group fails, and how all its members come to report the same first cause.
 *
 * Causes: the launcher's verdict (a rank died), a mismatch, a deadline, ls_group_abort, a peer that
 * left. Whoever finds one claims the group: a compare-and-swap on one word in member 0's control
 * block, so there is one winner, whose text everybody takes over. Claims need no message: members
 * look at that word whenever they wait. After taking a cause over a rank ends all operations of
 * the group with it and says in its heap's `quiet` table that it touches no peer's memory for this
 * group any more; until all have said so, memory that is freed stays in quarantine.
 *
 * Note [Claims between hosts]
 * A rank on another host than member 0 asks it by a message (CLAIM) and is answered with the first
 * cause (FAILED), its own or another's. Until then the group neither continues nor ends on that
 * rank. If member 0 does not answer within a second, the rank keeps its own text and marks it
 * unconfirmed. A root cause from the launcher always takes precedence.
 */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/planted.h"
#include "comm/diagnose/straggler.h"
#include "comm/p2p/p2p.h"
#include "comm/remote/remote.h"

const char *ls__group_failure(const ls_group *group)
{
    return atomic_load_explicit(&group->failed, memory_order_acquire) != 0 ? group->failure : "";
}

/* ---- claiming ----------------------------------------------------------------------------- */

void ls__comm_tell_board(const ls__comm *comm, ls_status status, const char *text)
{
    ls__board_rank *me = comm->me;
    const bool free = atomic_load_explicit(&me->failed, memory_order_relaxed) == 0 ||
                      atomic_load_explicit(&me->survived, memory_order_relaxed) != 0;
    if (free) {
        atomic_store_explicit(&me->failed, 0, memory_order_release);
        atomic_store_explicit(&me->survived, 0, memory_order_relaxed);
        atomic_store_explicit(&me->failed_ns, comm->env->now_ns(comm->env), memory_order_relaxed);
        snprintf(me->failed_text, sizeof me->failed_text, "%s", text);
        /* Sync: release; pairs with the acquire of the launcher. */
        atomic_store_explicit(&me->failed, (uint32_t)-status, memory_order_release);
    }
}

void ls__group_tell_board(ls_group *group, ls_status status, const char *text)
{
    if (status != LS_ERR_PEER) { /* that is what the launcher has said, or a peer that left */
        ls__comm_tell_board(group->comm, status, text);
    }
}

void ls__group_cause(ls_group *group, ls_status status, const char *text)
{
    ls__group_cause_by(group, status, text, group->comm->runtime->rank);
}

void ls__group_cause_by(ls_group *group, ls_status status, const char *text, int by)
{
    ls__control_block *first = group->member[0].control;
    uint32_t expected = 0;
    if (group->member[0].remote) {
        (void)ls__remote_claim(group, status, text, by);
        ls__ring(group->comm, group->member[group->rank].local);
        return;
    }
    /* Sync: the claim decides who writes; the text is released by `failed`. */
    if (atomic_compare_exchange_strong_explicit(&first->claim, &expected, (uint32_t)group->rank + 1,
                                                memory_order_seq_cst, memory_order_relaxed)) {
        snprintf(group->own->failed_text, sizeof group->own->failed_text, "%s", text);
        group->own->failed_by = by;
        atomic_store_explicit(&group->own->failed, (uint32_t)-status, memory_order_seq_cst);
        ls__group_tell_board(group, status, text);
        if (group->has_remote) {
            (void)ls__remote_claim(group, status, text, by);
        }
    }
    ls__ring_members(group);
    ls__ring(group->comm, group->member[group->rank].local);
}

void ls__comm_note_told(const ls__comm *comm, ls_status status, int by, const char *text)
{
    ls__board_rank *me = comm->me;
    if (by == comm->runtime->rank || by < 0 || by >= comm->runtime->world_size ||
        atomic_load_explicit(&me->told, memory_order_relaxed) != 0) {
        return;
    }
    me->told_by = by;
    snprintf(me->told_text, sizeof me->told_text, "%s", text);
    atomic_store_explicit(&me->told_ns, comm->env->now_ns(comm->env), memory_order_relaxed);
    /* Sync: release; pairs with the acquire of the launcher. */
    atomic_store_explicit(&me->told, (uint32_t)-status, memory_order_release);
}

const char *ls__group_hear(const ls_group *group)
{
    const char *text = ls__group_failure(group);
    const int32_t failed = atomic_load_explicit(&group->failed, memory_order_relaxed);
    if (failed != 0) {
        ls__comm_note_told(group->comm, (ls_status)failed, group->failed_by, text);
    }
    return text;
}

/* ---- taking over -------------------------------------------------------------------------- */

static void end_all(ls__list *works, ls_status status)
{
    for (ls__list *at = ls__list_pop_front(works); at != NULL; at = ls__list_pop_front(works)) {
        ls_work *work = LS__LIST_ITEM(at, ls_work, link);
        ls__list_remove(&work->turn);
        ls__work_end(work, status);
    }
}

static void take_all(ls__list *from, ls__list *to)
{
    for (ls__list *at = ls__list_pop_front(from); at != NULL; at = ls__list_pop_front(from)) {
        ls__list_push_back(to, at);
    }
}

static void say_quiet(ls_group *group)
{
    ls__comm *comm = group->comm;
    ls__heap_header *header = ls__heap_header_of(&comm->heap, comm->runtime->rank);
    /* Sync: release; pairs with the acquire in let_go. */
    atomic_store_explicit(&header->quiet[group->id % LS__GROUP_SLOTS], group->id + 1,
                          memory_order_release);
    ls__remote_tell_past(group, LS__MESSAGE_QUIET);
}

/* The group has `status` and `text` from now on; everything in flight ends with it. */
static void collapse(ls_group *group, ls_status status, const char *text)
{
    ls__comm *comm = group->comm;
    ls__list ended;
    ls__list_init(&ended);
    ls__reclaim_add(group, LS__RECLAIM_FAILED, NULL);
    ls__lock_take(&comm->lock, comm->env);
    snprintf(group->failure, sizeof group->failure, "%s", text);
    /* Sync: releases the text; pairs with ls__group_failure and the check at submission. */
    atomic_store_explicit(&group->failed, status, memory_order_release);
    group->next_post = NULL;
    take_all(&group->queue, &ended);
    take_all(&group->mail, &ended);
    atomic_store_explicit(&group->mailed, 0, memory_order_relaxed);
    ls__unlock(&comm->lock, comm->env);
    group->backend->reset(group);
    take_all(&group->p2p->sends, &ended);
    take_all(&group->p2p->recvs, &ended);
    say_quiet(group);
    end_all(&ended, status);
}

static bool has_verdict(const ls__comm *comm)
{
    return atomic_load_explicit(&comm->board->verdict, memory_order_acquire) != 0;
}

/* The claimant died, or is stopped, between claim and text: of a death the launcher will tell. */
static bool claim_is_stuck(ls_group *group)
{
    ls__comm *comm = group->comm;
    const uint64_t now = comm->env->now_ns(comm->env);
    if (group->claim_seen_ns == 0) {
        group->claim_seen_ns = now;
    }
    return has_verdict(comm) || now - group->claim_seen_ns > LS__GRACE_NS;
}

/* This rank has asked a far member 0 to make its failure the first cause, and no answer came. */
static bool own_claim_is_late(ls_group *group)
{
    ls__comm *comm = group->comm;
    if (!group->member[0].remote ||
        atomic_load_explicit(&group->claim, memory_order_acquire) < LS__CLAIM_READY) {
        return false;
    }
    char text[LS__FAILURE_MAX];
    if (has_verdict(comm)) {
        collapse(group, LS_ERR_PEER, comm->board->verdict_text);
    } else if (comm->env->now_ns(comm->env) - group->claim_ns > LS__GRACE_NS) {
        snprintf(text, sizeof text, "%.*s (unconfirmed: rank %d did not answer)",
                 (int)sizeof text - 64, group->claim_text, group->member[0].world_rank);
        collapse(group, group->claim_status, text);
    } else {
        return false;
    }
    return true;
}

bool ls__group_failed(ls_group *group)
{
    if (atomic_load_explicit(&group->failed, memory_order_relaxed) != 0) {
        return true;
    }
    const uint32_t claim =
        atomic_load_explicit(&group->member[0].control->claim, memory_order_seq_cst);
    if (claim == 0 || claim > (uint32_t)group->size) {
        return own_claim_is_late(group);
    }
    const ls__control_block *claimant = group->member[claim - 1].control;
    const uint32_t failed = atomic_load_explicit(&claimant->failed, memory_order_seq_cst);
    if (failed != 0) {
        group->failed_by = claimant->failed_by;
        collapse(group, (ls_status) - (int)failed, claimant->failed_text);
        return true;
    }
    if (claim_is_stuck(group)) {
        char text[LS__FAILURE_MAX];
        if (has_verdict(group->comm)) {
            collapse(group, LS_ERR_PEER, group->comm->board->verdict_text);
            return true;
        }
        snprintf(text, sizeof text,
                 "group \"%s\" failed: rank %d ended while it reported a failure (unconfirmed)",
                 group->name, group->member[claim - 1].world_rank);
        collapse(group, LS_ERR_PEER, text);
        return true;
    }
    return false;
}

/* ---- looking ------------------------------------------------------------------------------ */

static void log_verdict(ls__comm *comm)
{
    if (!comm->verdict_logged) {
        comm->verdict_logged = true;
        LS__ERROR("%s", comm->board->verdict_text);
    }
}

/* What the launcher, or a peer for all groups, has declared. Returns whether a group failed. */
static bool apply_verdict(ls__comm *comm)
{
    bool any = false;
    log_verdict(comm);
    LS__LIST_EACH (at, &comm->groups) {
        ls_group *group = LS__LIST_ITEM(at, ls_group, link);
        if (!ls__group_failed(group)) {
            ls__group_cause_by(group, LS_ERR_PEER, comm->board->verdict_text, comm->board->culprit);
            any = ls__group_failed(group) || any;
        }
    }
    return any;
}

bool ls__comm_look(ls__comm *comm)
{
    bool any = false;
    if (has_verdict(comm)) {
        return apply_verdict(comm);
    }
    LS__LIST_EACH (at, &comm->groups) {
        ls_group *group = LS__LIST_ITEM(at, ls_group, link);
        if (atomic_load_explicit(&group->failed, memory_order_relaxed) == 0) {
            any = ls__group_failed(group) || any;
        }
    }
    return any;
}

/* ---- deadlines and stalls ----------------------------------------------------------------- */

#define GONE_LEFT "left the job (ls_finalize) without calling it"
#define GONE_DEAD "ended (unconfirmed: no word from the launcher)"

/* Note [Leaving]
 * A rank may take part in an operation and leave at once, between our look at its announcement and
 * our look at its life. What it did before it left is visible once its leaving is (release and
 * acquire on `life`): so a collective's stamps are looked at again after that. What it sent lies in
 * a ring that may not have been read since; a letter is given up at the second look, before which
 * the rings have been read. */
static bool came_before_it_left(const ls_group *group, ls_work *work, int r, uint64_t now_ns)
{
    if (!ls__is_letter(work)) {
        return ls__has_called(group, r, work) && !ls__is_behind(group, r, work);
    }
    const bool first_look = work->gone_seen_ns == 0;
    work->gone_seen_ns = now_ns;
    return first_look;
}

/* A launcher that is stopped itself tells of no death. */
static bool ended_untold(const ls_group *group, const ls_work *work, int r, uint64_t now_ns)
{
    const ls__group_member *m = &group->member[r];
    return !m->remote && now_ns > work->queued_ns + LS__STALL_NS &&
           ls__board_unreaped(group->comm->board, group->comm->env, m->local);
}

/* Of a death the launcher's verdict knows more: it is waited for. */
static bool is_gone(const ls_group *group, ls_work *work, int r, uint64_t now_ns, ls__life life)
{
    if (life == LS__LIFE_LEFT) {
        return !came_before_it_left(group, work, r, now_ns);
    }
    const bool dead = life == LS__LIFE_DEAD || ended_untold(group, work, r, now_ns);
    if (dead && work->gone_seen_ns == 0) {
        work->gone_seen_ns = now_ns;
    }
    return dead && now_ns - work->gone_seen_ns > LS__GRACE_NS;
}

static void tell_gone(ls_group *group, const ls_work *work, int r, const char *what)
{
    char text[LS__FAILURE_MAX], operation[256];
    if (ls__deadlock_left(group->comm, group->member[r].world_rank, text, sizeof text)) {
        ls__group_cause(group, LS_ERR_MISMATCH, text);
        return;
    }
    ls__operation_text(group, &work->descriptor, operation, sizeof operation);
    snprintf(text, sizeof text, "%s cannot finish: rank %d has %s", operation,
             group->member[r].world_rank, what);
    ls__group_cause_by(group, LS_ERR_PEER, text, group->member[r].world_rank);
}

/* A receive from any source is lost when one has died, or all others have left. */
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
            tell_gone(group, work, r, GONE_DEAD);
            return true;
        }
    }
    if (left == 0 || left < group->size - 1 || !is_gone(group, work, last, now_ns, LS__LIFE_LEFT)) {
        return false;
    }
    tell_gone(group, work, last, "left the job (ls_finalize), the last of those who could send it");
    return true;
}

/* A member that is missing and cannot come any more. */
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
            tell_gone(group, work, r, life == LS__LIFE_LEFT ? GONE_LEFT : GONE_DEAD);
            return true;
        }
    }
    return false;
}

static bool is_late(const ls_work *work, uint64_t now_ns)
{
    return now_ns >= work->deadline_ns && !LS__PLANTED(DEADLINE);
}

/* True: the group was failed. `closely`: also whether to warn of it. */
static bool check_work(ls_group *group, ls_work *work, uint64_t now_ns, bool closely)
{
    const uint64_t age = now_ns > work->queued_ns ? now_ns - work->queued_ns : 0;
    if ((age > LS__REMOTE_ANNOUNCE_NS || work->monitored) && work->way == LS__WAY_MESSAGES &&
        !work->announced) {
        ls__remote_post(group, work->descriptor.sequence);
        work->announced = true;
    }
    if (age > LS__STALL_NS && !ls__is_letter(work) && ls__mismatch_check(group, work)) {
        return true;
    }
    if (member_gone(group, work, now_ns)) {
        return true;
    }
    if (is_late(work, now_ns)) {
        ls__straggler_fail(group, work, now_ns);
        return true;
    }
    if (!closely) {
        return false;
    }
    if (age > LS__STALL_NS && !work->told_stopped && ls__straggler_stopped(group, work)) {
        work->told_stopped = true;
        ls__straggler_warn(group, work, now_ns);
    }
    if (age > LS__WARN_NS && !work->warned) {
        ls__straggler_warn(group, work, now_ns);
    }
    return false;
}

/* Of thousands in flight only the oldest for each peer is looked at, which takes a walk through
 * what has come and may cost a system call, and warned about, once in a while: the others wait for
 * the same, or are the oldest soon. Their deadlines are their own. */
static bool check_letters(ls_group *group, const ls__list *works, uint64_t now_ns)
{
    uint64_t seen[LS__PROGRAM_RANKS_MAX / 64 + 1] = {0};
    ls__p2p *letters = group->p2p;
    LS__LIST_EACH (at, works) {
        ls_work *work = LS__LIST_ITEM(at, ls_work, link);
        const int peer = ls__takes_any(work) ? group->size : work->descriptor.root;
        const bool quiet = letters->warned_ns != 0 && letters->warned_ns != now_ns &&
                           now_ns - letters->warned_ns < LS__WARN_NS;
        const bool first = (seen[peer / 64] >> peer % 64 & 1) == 0;
        const bool had_warned = work->warned;
        seen[peer / 64] |= (uint64_t)1 << peer % 64;
        if ((first || is_late(work, now_ns)) && check_work(group, work, now_ns, !quiet)) {
            return true;
        }
        letters->warned_ns = work->warned && !had_warned ? now_ns : letters->warned_ns;
    }
    return false;
}

/* The collective in progress, or one behind it whose time is up. Only the holder of the token, who
 * calls this, takes works out of the queue. */
static bool check_queue(ls_group *group, uint64_t now_ns)
{
    ls__comm *comm = group->comm;
    ls_work *head = NULL, *late = NULL;
    ls__lock_take(&comm->lock, comm->env);
    LS__LIST_EACH (at, &group->queue) {
        ls_work *work = LS__LIST_ITEM(at, ls_work, link);
        head = head == NULL ? work : head;
        late = late == NULL && now_ns >= work->deadline_ns ? work : late;
    }
    ls__unlock(&comm->lock, comm->env);
    return (head != NULL && check_work(group, head, now_ns, true)) ||
           (late != NULL && check_work(group, late, now_ns, true));
}

static void check_group(ls_group *group, uint64_t now_ns)
{
    if (check_queue(group, now_ns) || check_letters(group, &group->p2p->sends, now_ns) ||
        check_letters(group, &group->p2p->recvs, now_ns)) {
        (void)ls__group_failed(group);
    }
}

void ls__engine_check(ls__comm *comm, uint64_t now_ns)
{
    comm->next_check_ns = now_ns + LS__CHECK_NS;
    /* Sync: relaxed; a time of its own, nothing else is published with it. */
    atomic_store_explicit(&comm->me->heartbeat_ns, now_ns, memory_order_relaxed);
    if (comm->remote != NULL) {
        ls__remote_check(comm, now_ns);
    }
    (void)ls__comm_look(comm);
    ls__deadlock_check(comm, now_ns); /* before those who found the same, and left, are missed */
    LS__LIST_EACH (at, &comm->groups) {
        ls_group *group = LS__LIST_ITEM(at, ls_group, link);
        if (atomic_load_explicit(&group->pending, memory_order_acquire) > 0 &&
            atomic_load_explicit(&group->failed, memory_order_relaxed) == 0) {
            check_group(group, now_ns);
        }
    }
}
