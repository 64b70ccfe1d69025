/* SPDX-License-Identifier: Apache-2.0 */
/* Failing: a group takes over its root cause and ends all its operations with it. After that the
 * rank publishes in its heap's `quiet` table that it touches no peer's memory for this group any
 * more; until all members have done so, freed memory stays in quarantine (core/reclaim.c).
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/lock.h"
#include "base/log.h"
#include "comm/core/cause.h"
#include "comm/core/collective.h"
#include "comm/core/group.h"
#include "comm/core/message_state.h"
#include "comm/core/progress_lock.h"
#include "comm/core/reclaim.h"
#include "comm/core/round_robin.h"
#include "comm/diagnose/fail.h"
#include "comm/memory/control.h"
#include "comm/memory/heap.h"
#include "comm/remote/remote.h"

/* ---- taking over -------------------------------------------------------------------------- */

/* Calls the users' callbacks, so no lock of the engine may be held here. */
static void end_all(ls__list *works, ls_status status)
{
    for (ls__list *at = ls__list_pop_front(works); at != NULL; at = ls__list_pop_front(works)) {
        ls_work *work = LS__LIST_ITEM(at, ls_work, link);
        ls__list_remove(&work->turn);
        ls__work_end(work, status);
    }
}

/* Appends all of one list to another. */
static void take_all(ls__list *from, ls__list *to)
{
    for (ls__list *at = ls__list_pop_front(from); at != NULL; at = ls__list_pop_front(from)) {
        ls__list_push_back(to, at);
    }
}

/* From now on this rank touches no memory of its peers for the group. */
static void publish_quiet(ls_group *group)
{
    ls__comm *comm = group->comm;
    ls__heap_header *header = ls__heap_header_of(&comm->heap, comm->runtime->rank);
    /* Sync: release; pairs with the acquire in reclaim.c. */
    atomic_store_explicit(&header->quiet[group->id % LS__GROUP_SLOTS], group->id + 1,
                          memory_order_release);
    ls__remote_send_left(group, LS__MESSAGE_QUIET);
}

/* The group has failed with `status` and `text` from now on, and everything in flight ends with
 * them. In this order: no new operation, then no access to memory, then the table for peers, and
 * last the users' handles, whose buffers belong to the users again. */
static void adopt_cause(ls_group *group, ls_status status, const char *text)
{
    LS_ASSERT(atomic_load_explicit(&group->failure.status, memory_order_relaxed) == 0 &&
              status < 0);
    ls__comm *comm = group->comm;
    ls__list ended;
    ls__list_init(&ended);
    ls__reclaim_add(group, LS__RECLAIM_FAILED, NULL);
    ls__lock_take(&comm->lock, comm->env);
    snprintf(group->failure.text, sizeof group->failure.text, "%s", text);
    /* Sync: releases the text; pairs with ls__group_failure and the check at submission. */
    atomic_store_explicit(&group->failure.status, status, memory_order_release);
    group->next_post = NULL;
    take_all(&group->queue, &ended);
    take_all(&group->inbox.works, &ended);
    atomic_store_explicit(&group->inbox.length, 0, memory_order_relaxed);
    ls__unlock(&comm->lock, comm->env);
    group->backend->reset(group);
    take_all(&group->p2p->sends, &ended);
    take_all(&group->p2p->recvs, &ended);
    publish_quiet(group);
    end_all(&ended, status);
}

/* The claimant has died or is stopped between claim and text. A grace period, because the launcher
 * will report a death. */
static bool claim_is_stuck(ls_group *group)
{
    ls__comm *comm = group->comm;
    const uint64_t now = comm->env->now_ns(comm->env);
    if (group->failure.seen_ns == 0) {
        group->failure.seen_ns = now;
    }
    return ls__board_has_cause(comm->board) || now - group->failure.seen_ns > LS__GRACE_NS;
}

/* Data from member 0 arrives damaged, so its answer would never be read; it has been sent the
 * claim. */
static bool no_answer_can_come(const ls_group *group)
{
    const ls__comm *comm = group->comm;
    return ls__remote_is_damaged(comm, group->member[0].world_rank) &&
           atomic_load_explicit(&group->claim.state, memory_order_acquire) == LS__CLAIM_SENT;
}

/* Member 0 is remote and has not answered this rank's claim. Returns whether the group has failed
 * by now. */
static bool own_claim_is_late(ls_group *group)
{
    ls__comm *comm = group->comm;
    if (!group->member[0].remote ||
        atomic_load_explicit(&group->claim.state, memory_order_acquire) < LS__CLAIM_READY) {
        return false;
    }
    char text[LS__FAILURE_MAX];
    if (ls__board_has_cause(comm->board)) {
        adopt_cause(group, LS_ERR_PEER, comm->board->root_cause_text);
    } else if (no_answer_can_come(group)) {
        adopt_cause(group, group->claim.status, group->claim.text);
    } else if (comm->env->now_ns(comm->env) - group->claim.ns > LS__GRACE_NS) {
        snprintf(text, sizeof text, "%.*s (unconfirmed: rank %d did not answer)",
                 (int)sizeof text - 64, group->claim.text, group->member[0].world_rank);
        ls__group_record_failure_by(group, group->claim.status, text, group->claim.by);
        adopt_cause(group, group->claim.status, text);
    } else {
        return false;
    }
    return true;
}

/* Looks at one word of member 0's control block, so it is cheap enough for every turn. */
bool ls__group_failed(ls_group *group)
{
    if (atomic_load_explicit(&group->failure.status, memory_order_relaxed) != 0) {
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
        group->failure.by = claimant->failed_by;
        adopt_cause(group, (ls_status) - (int)failed, claimant->failed_text);
        return true;
    }
    if (claim_is_stuck(group)) {
        char text[LS__FAILURE_MAX];
        if (ls__board_has_cause(group->comm->board)) {
            adopt_cause(group, LS_ERR_PEER, group->comm->board->root_cause_text);
            return true;
        }
        snprintf(text, sizeof text,
                 "group \"%s\" failed: rank %d ended while it reported a failure (unconfirmed)",
                 group->name, group->member[claim - 1].world_rank);
        adopt_cause(group, LS_ERR_PEER, text);
        return true;
    }
    return false;
}

/* ---- looking ------------------------------------------------------------------------------ */

/* Once per rank: every group fails with the same text. */
static void log_root_cause(ls__comm *comm)
{
    if (!comm->root_cause_logged) {
        comm->root_cause_logged = true;
        LS__ERROR("%s", comm->board->root_cause_text);
    }
}

/* Fails all groups with the root cause on the board. Returns whether one failed just now. */
static bool apply_root_cause(ls__comm *comm)
{
    bool any = false;
    log_root_cause(comm);
    LS__LIST_EACH (at, &comm->groups) {
        ls_group *group = LS__LIST_ITEM(at, ls_group, link);
        if (!ls__group_failed(group)) {
            ls__group_cause_by(group, LS_ERR_PEER, comm->board->root_cause_text,
                               comm->board->root_cause_rank);
            any = ls__group_failed(group) || any;
        }
    }
    return any;
}

/* Returns whether a group failed just now. */
bool ls__comm_look(ls__comm *comm)
{
    bool any = false;
    if (ls__board_has_cause(comm->board)) {
        return apply_root_cause(comm);
    }
    LS__LIST_EACH (at, &comm->groups) {
        ls_group *group = LS__LIST_ITEM(at, ls_group, link);
        if (atomic_load_explicit(&group->failure.status, memory_order_relaxed) == 0) {
            any = ls__group_failed(group) || any;
        }
    }
    return any;
}

/* Without the progress lock the claim is enough: its holder looks at claims at every turn. */
void ls__group_fail(ls_group *group, ls_status status, const char *text)
{
    LS_ASSERT(status < 0);
    ls__comm *comm = group->comm;
    for (int i = 0; i < ls__round_robin_count(group); i++) {
        ls__group_cause(ls__round_robin_at(group, i), status, text);
    }
    if (ls__progress_try(comm)) {
        for (int i = 0; i < ls__round_robin_count(group); i++) {
            (void)ls__group_failed(ls__round_robin_at(group, i));
        }
        ls__progress_release(comm);
    }
}

/* The peers would wait for this rank, so the group fails on all of them with this text. */
ls_status ls__collective_no_memory(ls_group *group, const ls__collective *args)
{
    char text[LS__FAILURE_MAX];
    snprintf(text, sizeof text, "%s on group \"%s\": rank %d has no memory for the operation",
             ls__operation_name(args->operation), group->name, group->comm->runtime->rank);
    ls__group_fail(group, LS_ERR_MEMORY, text);
    return ls__fail(LS_ERR_MEMORY, "%s", text);
}
