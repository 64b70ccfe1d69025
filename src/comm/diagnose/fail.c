/* Failing: a group takes the first cause over and ends all its operations with it. After that the
 * rank says in its heap's `quiet` table that it touches no peer's memory for this group any more;
 * until all have said so, memory that is freed stays in quarantine (group/reclaim.c).
 */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "comm/api/collective.h"
#include "comm/diagnose/cause.h"
#include "comm/diagnose/fail.h"
#include "comm/engine/lock.h"
#include "comm/engine/progress_lock.h"
#include "comm/group/group.h"
#include "comm/group/reclaim.h"
#include "comm/group/round_robin.h"
#include "comm/memory/control.h"
#include "comm/memory/heap.h"
#include "comm/p2p/p2p.h"
#include "comm/remote/remote.h"

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
    ls__remote_send_left(group, LS__MESSAGE_QUIET);
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

void ls__group_fail(ls_group *group, ls_status status, const char *text)
{
    ls__comm *comm = group->comm;
    for (int i = 0; i < ls__turns_count(group); i++) {
        ls__group_cause(ls__turns_at(group, i), status, text);
    }
    if (ls__progress_try(comm)) { /* else the one who has it will see the claim */
        for (int i = 0; i < ls__turns_count(group); i++) {
            (void)ls__group_failed(ls__turns_at(group, i));
        }
        ls__progress_release(comm);
    }
}

/* The peers would wait for this rank: the group fails, so that they hear why. */
ls_status ls__collective_no_memory(ls_group *group, const ls__collective *args)
{
    char text[LS__FAILURE_MAX];
    snprintf(text, sizeof text, "%s on group \"%s\": rank %d has no memory for the operation",
             ls__operation_name(args->operation), group->name, group->comm->runtime->rank);
    ls__group_fail(group, LS_ERR_MEMORY, text);
    return ls__fail(LS_ERR_MEMORY, "%s", text);
}
