/* How a group fails, and how all its members come to report the same first cause.
 *
 * Causes: the launcher's verdict (a rank died), a mismatch, a deadline, ls_group_abort, a peer that
 * left. Whoever finds one claims the group: a compare-and-swap on one word in member 0's control
 * block, so there is one winner, whose text everybody takes over. Claims need no message: members
 * look at that word whenever they wait. After taking a cause over a rank ends all operations of
 * the group with it and says in its heap's `quiet` table that it touches no peer's memory for this
 * group any more; until all have said so, memory that is freed stays in quarantine.
 */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/planted.h"
#include "comm/far.h"
#include "comm/letters.h"

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
    ls__control *first = group->member[0].control;
    uint32_t expected = 0;
    if (group->member[0].far) {
        (void)ls__far_claim(group, status, text, by);
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
        if (group->has_far) {
            (void)ls__far_claim(group, status, text, by);
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

static ls__life life_of(const ls_group *group, int member)
{
    return (ls__life)atomic_load_explicit(&group->member[member].record->life,
                                          memory_order_acquire);
}

static void end_all(ls__list *works, ls_status status)
{
    for (ls__list *at = ls__list_pop_front(works); at != NULL; at = ls__list_pop_front(works)) {
        ls__work_end(LS__LIST_ITEM(at, ls_work, link), status);
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
    ls__far_tell_past(group, LS__MESSAGE_QUIET);
}

/* The group has `status` and `text` from now on; everything in flight ends with it. */
static void collapse(ls_group *group, ls_status status, const char *text)
{
    ls__comm *comm = group->comm;
    ls__list ended;
    ls__list_init(&ended);
    ls__past_add(group, LS__PAST_FAILED, NULL);
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
    take_all(&group->letters->sends, &ended);
    take_all(&group->letters->recvs, &ended);
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
    if (!group->member[0].far ||
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
    const ls__control *claimant = group->member[claim - 1].control;
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

#define NAMED_MAX 3

/* "rank 2 (host …) in the backward pass …" */
static void describe_missing(const ls_group *group, int member, char *out, size_t bytes)
{
    ls__comm_describe(group->comm, group->member[member].world_rank, out, bytes);
}

/* Those that keep a work waiting. */
typedef struct missing {
    int member[NAMED_MAX];
    int count;
    const char *what; /* "has not …", said of each */
} missing;

static bool is_letter(const ls_work *work)
{
    return work->operation == LS__OP_SEND || work->operation == LS__OP_RECV;
}

static uint64_t stamp_of(const ls_group *group, int member, const ls_work *work)
{
    return atomic_load_explicit(&ls__post_slot(group, member, work->descriptor.sequence)->stamp,
                                memory_order_acquire);
}

static bool has_finished(const ls_group *group, int r, const ls_work *work)
{
    return atomic_load_explicit(&group->member[r].control->finished, memory_order_acquire) >=
           work->descriptor.sequence;
}

static bool has_called(const ls_group *group, int r, const ls_work *work)
{
    return stamp_of(group, r, work) >= ls__stamp(work->descriptor.sequence, 1) ||
           has_finished(group, r, work);
}

/* Whether a member has not reached a fence of the operation that this rank has reached. */
static bool is_behind(const ls_group *group, int r, const ls_work *work)
{
    bool behind = stamp_of(group, r, work) < stamp_of(group, group->rank, work) &&
                  !has_finished(group, r, work);
    for (int i = 0; work->way == LS__WAY_STAGED && i < LS__SLICE_SLOTS; i++) {
        const uint64_t own = atomic_load_explicit(&group->own->slice[i], memory_order_relaxed);
        behind = behind || atomic_load_explicit(&group->member[r].control->slice[i],
                                                memory_order_acquire) < own;
    }
    return behind;
}

/* Left, dead, silent or (at a closer look, which costs a system call) stopped: others that are
 * missing may well wait for this one. */
static bool is_unwell(const ls_group *group, int r, bool closely)
{
    const ls__comm *comm = group->comm;
    const ls__member *m = &group->member[r];
    const ls__life life = life_of(group, r);
    if (life == LS__LIFE_LEFT || life == LS__LIFE_DEAD) {
        return true;
    }
    return m->far ? comm->far->rank[m->world_rank].silent
                  : closely && ls__board_stopped(comm->board, comm->env, m->local);
}

/* Those that have not called it, or are behind; first those that explain the others. */
static void add_missing(missing *m, const ls_group *group, const ls_work *work, bool all_called,
                        bool closely)
{
    for (int pass = 0; pass < 2; pass++) {
        for (int r = 0; r < group->size && m->count < NAMED_MAX; r++) {
            const bool late = all_called ? is_behind(group, r, work) : !has_called(group, r, work);
            if (r != group->rank && late && is_unwell(group, r, closely) == (pass == 0)) {
                m->member[m->count++] = r;
            }
        }
    }
}

/* Messages show nobody to be behind: then who is stopped or silent and has not finished it. */
static void add_unwell(missing *m, const ls_group *group, const ls_work *work)
{
    for (int r = 0; r < group->size && m->count < NAMED_MAX; r++) {
        if (r != group->rank && !has_finished(group, r, work) && is_unwell(group, r, true)) {
            m->member[m->count++] = r;
        }
    }
}

/* For a collective those that have not announced it, or, when all have, those that are behind at a
 * fence; for a letter the peer. */
static missing find_missing(const ls_group *group, const ls_work *work, bool closely)
{
    missing m = {.what = "has not called it"};
    if (is_letter(work)) {
        m.member[m.count++] = work->descriptor.root;
        m.what = work->stage == LS__SEND_ANNOUNCE || work->stage == LS__RECV_MATCH ||
                         work->stage == LS__SEND_WAIT
                     ? "has not called its side"
                     : "has called its side but not come through";
        return m;
    }
    add_missing(&m, group, work, false, closely);
    if (m.count == 0) {
        m.what = "has called it but not come through";
        add_missing(&m, group, work, true, closely);
    }
    if (m.count == 0 && closely) {
        add_unwell(&m, group, work);
    }
    return m;
}

/* A receive that waits while its peer has sent something else: the likeliest cause. */
static void add_other_sends(const ls_group *group, const ls_work *work, char *out, size_t bytes)
{
    const size_t used = strlen(out);
    LS__LIST_EACH (at, &group->letters->announced) {
        const ls__note *note = LS__LIST_ITEM(at, ls__note, link);
        const ls__descriptor *d = &note->message->descriptor;
        if (work->operation == LS__OP_RECV && note->from == work->descriptor.root) {
            snprintf(out + used, bytes - used,
                     "; this receive has tag %d, and what rank %d has sent has tag %d (%s[%lld] at "
                     "%.*s:%d): give both sides the same tag",
                     (int)work->descriptor.tag, group->member[note->from].world_rank, (int)d->tag,
                     ls_dtype_name((ls_dtype)d->dtype), (long long)d->count, LS__FILE_MAX, d->file,
                     (int)d->line);
            return;
        }
    }
}

/* "rank 2 has not called it: rank 2 (host …) in the backward pass …; rank 3 …" */
static void waiting_text(const ls_group *group, const ls_work *work, char *out, size_t bytes)
{
    const missing m = find_missing(group, work, true);
    size_t used = 0;
    snprintf(out, bytes, "all ranks have called it and come as far as this one");
    for (int i = 0; i < m.count && used < bytes; i++) {
        char what[512];
        describe_missing(group, m.member[i], what, sizeof what);
        const int n = snprintf(out + used, bytes - used, "%srank %d %s: %s", i == 0 ? "" : "; ",
                               group->member[m.member[i]].world_rank, m.what, what);
        used += n > 0 ? (size_t)n : 0;
    }
    add_other_sends(group, work, out, bytes);
}

static void fail_deadline(ls_group *group, const ls_work *work, uint64_t now_ns)
{
    char text[LS__FAILURE_MAX], operation[256], who[LS__FAILURE_MAX - 320];
    ls__operation_text(group, &work->descriptor, operation, sizeof operation);
    waiting_text(group, work, who, sizeof who);
    snprintf(text, sizeof text, "%s did not finish within %.1f s: %s", operation,
             (double)(now_ns - work->queued_ns) * 1e-9, who);
    ls__group_cause(group, LS_ERR_TIMEOUT, text);
}

/* A stopped process does not come by itself: it is named early, and even after another warning. */
static bool waits_for_stopped(const ls_group *group, const ls_work *work)
{
    const ls__comm *comm = group->comm;
    const missing m = find_missing(group, work, true);
    const ls__member *first = m.count > 0 ? &group->member[m.member[0]] : NULL;
    return first != NULL && !first->far && ls__board_stopped(comm->board, comm->env, first->local);
}

static void warn_stall(ls_group *group, ls_work *work, uint64_t now_ns)
{
    char operation[256], who[LS__FAILURE_MAX];
    ls__operation_text(group, &work->descriptor, operation, sizeof operation);
    waiting_text(group, work, who, sizeof who);
    LS__WARN("%s has waited for %.1f s: %s", operation, (double)(now_ns - work->queued_ns) * 1e-9,
             who);
    work->warned = true;
}

/* Note [Leaving]
 * A rank may take part in an operation and leave at once, between our look at its announcement and
 * our look at its life. What it did before it left is visible once its leaving is (release and
 * acquire on `life`): so a collective's stamps are looked at again after that. What it sent lies in
 * a ring that may not have been read since; a letter is given up at the second look, before which
 * the rings have been read. */
static bool came_before_it_left(const ls_group *group, ls_work *work, int r, uint64_t now_ns)
{
    if (!is_letter(work)) {
        return has_called(group, r, work) && !is_behind(group, r, work);
    }
    const bool first_look = work->gone_seen_ns == 0;
    work->gone_seen_ns = now_ns;
    return first_look;
}

/* A launcher that is stopped itself tells of no death. */
static bool ended_untold(const ls_group *group, const ls_work *work, int r, uint64_t now_ns)
{
    const ls__member *m = &group->member[r];
    return !m->far && now_ns > work->queued_ns + LS__STALL_NS &&
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

/* A member that is missing and cannot come any more. */
static bool member_gone(ls_group *group, ls_work *work, uint64_t now_ns)
{
    const missing m = find_missing(group, work, false);
    for (int i = 0; i < m.count; i++) {
        const int r = m.member[i];
        const ls__life life = life_of(group, r);
        if (is_gone(group, work, r, now_ns, life)) {
            char text[LS__FAILURE_MAX], operation[256];
            if (ls__deadlock_left(group->comm, group->member[r].world_rank, text, sizeof text)) {
                ls__group_cause(group, LS_ERR_MISMATCH, text);
                return true;
            }
            ls__operation_text(group, &work->descriptor, operation, sizeof operation);
            snprintf(text, sizeof text, "%s cannot finish: rank %d has %s", operation,
                     group->member[r].world_rank,
                     life == LS__LIFE_LEFT ? "left the job (ls_finalize) without calling it"
                                           : "ended (unconfirmed: no word from the launcher)");
            ls__group_cause_by(group, LS_ERR_PEER, text, group->member[r].world_rank);
            return true;
        }
    }
    return false;
}

/* True: the group was failed. */
static bool check_work(ls_group *group, ls_work *work, uint64_t now_ns)
{
    const uint64_t age = now_ns > work->queued_ns ? now_ns - work->queued_ns : 0;
    if (age > LS__FAR_ANNOUNCE_NS && work->way == LS__WAY_MESSAGES && !work->announced) {
        ls__far_post(group, work->descriptor.sequence);
        work->announced = true;
    }
    if (age > LS__STALL_NS && !is_letter(work) && ls__mismatch_check(group, work)) {
        return true;
    }
    if (member_gone(group, work, now_ns)) {
        return true;
    }
    if (now_ns >= work->deadline_ns && !LS__PLANTED(DEADLINE)) {
        fail_deadline(group, work, now_ns);
        return true;
    }
    if (age > LS__STALL_NS && !work->told_stopped && waits_for_stopped(group, work)) {
        work->told_stopped = true;
        warn_stall(group, work, now_ns);
    }
    if (age > LS__WARN_NS && !work->warned) {
        warn_stall(group, work, now_ns);
    }
    return false;
}

static bool check_list(ls_group *group, const ls__list *works, uint64_t now_ns)
{
    LS__LIST_EACH (at, works) {
        if (check_work(group, LS__LIST_ITEM(at, ls_work, link), now_ns)) {
            return true;
        }
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
    return (head != NULL && check_work(group, head, now_ns)) ||
           (late != NULL && check_work(group, late, now_ns));
}

static void check_group(ls_group *group, uint64_t now_ns)
{
    if (check_queue(group, now_ns) || check_list(group, &group->letters->sends, now_ns) ||
        check_list(group, &group->letters->recvs, now_ns)) {
        (void)ls__group_failed(group);
    }
}

void ls__engine_check(ls__comm *comm, uint64_t now_ns)
{
    comm->next_check_ns = now_ns + LS__CHECK_NS;
    /* Sync: relaxed; a time of its own, nothing else is published with it. */
    atomic_store_explicit(&comm->me->heartbeat_ns, now_ns, memory_order_relaxed);
    if (comm->far != NULL) {
        ls__far_check(comm, now_ns);
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
