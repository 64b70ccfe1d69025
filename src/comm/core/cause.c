/* SPDX-License-Identifier: Apache-2.0 */
/* Claiming: all members of a group report the same root cause.
 *
 * Causes: a death that the launcher has reported, a mismatch, a deadline, ls_group_abort, a peer
 * that left. A rank that detects one claims the group by a compare-and-swap on one word in member
 * 0's control block, so there is one winner, whose text all members take over. On one host claims
 * need no message: members look at that word whenever they wait (fail.c).
 *
 * Note [Claims between hosts]
 * A rank on another host than member 0 asks it by a message (CLAIM) and is answered with the root
 * cause (FAILED), its own or another's. Until then the group neither continues nor ends on that
 * rank. If member 0 does not answer within a second, the rank keeps its own text and marks it
 * unconfirmed. A root cause from the launcher always takes precedence.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "comm/core/cause.h"
#include "comm/core/group.h"
#include "comm/core/wake.h"
#include "comm/memory/control.h"

/* From a gradient to the norm of all: a gradient that was found earlier was that of another step,
 * which the program has skipped. */
#define STEP_NS 60000000000ull

/* The text of the root cause, valid for the life of the group; "" while it has not failed. */
const char *ls__group_failure(const ls_group *group)
{
    return atomic_load_explicit(&group->failure.status, memory_order_acquire) != 0
               ? group->failure.text
               : "";
}

/* ---- claiming ----------------------------------------------------------------------------- */

void ls__comm_record_failure_by(const ls__comm *comm, ls_status status, const char *text, int by)
{
    const ls__board_failure f = {.status = status, .by = by, .text = text};
    ls__board_record_failure(comm->me, comm->env, &f);
}

void ls__comm_record_failure(const ls__comm *comm, ls_status status, const char *text)
{
    ls__comm_record_failure_by(comm, status, text, comm->runtime->rank);
}

/* A gradient or a norm that is not finite, with the step: a program may print it, but the report of
 * the launcher consists of this text. */
static void record_values(const ls__comm *comm, ls__failed_about about, const char *text)
{
    char progress[LS__PROGRESS_MAX], with_step[LS__FAILURE_MAX];
    ls__activity_progress(comm->runtime->activity, progress);
    snprintf(with_step, sizeof with_step, "%.900s%s", text, progress);
    const ls__board_failure f = {
        .status = LS_ERR_INVALID, .by = comm->runtime->rank, .about = about, .text = with_step};
    ls__board_record_failure(comm->me, comm->env, &f);
}

void ls__group_record_gradient(ls_group *group, const char *text)
{
    record_values(group->comm, LS__ABOUT_GRADIENT, text);
}

/* The exchanges since then have succeeded, but the program did not survive what was found. */
void ls__group_record_norm(ls_group *group, bool found, const char *text)
{
    const ls__comm *comm = group->comm;
    ls__board_rank *me = comm->me;
    const uint64_t age_ns =
        comm->env->now_ns(comm->env) - atomic_load_explicit(&me->failed_ns, memory_order_relaxed);
    if (atomic_load_explicit(&me->failed, memory_order_relaxed) != 0 &&
        me->failed_about == LS__ABOUT_GRADIENT && age_ns < STEP_NS) {
        atomic_store_explicit(&me->survived, 0, memory_order_release);
    } else if (found) {
        record_values(comm, LS__ABOUT_NORM, text);
    }
}

ls_status ls__comm_failure_of(const ls__board_rank *record)
{
    /* Sync: acquires the text. */
    const uint32_t failed = atomic_load_explicit(&record->failed, memory_order_acquire);
    const bool survived = atomic_load_explicit(&record->survived, memory_order_relaxed) != 0;
    return survived ? LS_OK : (ls_status) - (int32_t)failed;
}

/* The rank that caused a failure records it, or the launcher does (LS_ERR_PEER). Of a rank that
 * hangs the ranks do that waited for it. */
void ls__group_record_failure_by(ls_group *group, ls_status status, const char *text, int by)
{
    const bool others = by != group->comm->runtime->rank && status != LS_ERR_TIMEOUT;
    if (status != LS_ERR_PEER && !others) {
        ls__comm_record_failure_by(group->comm, status, text, by);
    }
}

/* Note [Origin]
 * A layer above that fails because its group has failed passes the message on: to the board, and to
 * other groups. With the same words as a failure that was reported to this rank it stays that of
 * the rank that caused it; whoever ends first would be blamed otherwise. */
static int origin_of(const ls__comm *comm, const char *text)
{
    const ls__board_rank *me = comm->me;
    /* Sync: acquires the text. */
    const bool reported = atomic_load_explicit(&me->reported, memory_order_acquire) != 0 &&
                          me->reported_text[0] != '\0' && strstr(text, me->reported_text) != NULL;
    return reported ? me->reported_by : comm->runtime->rank;
}

void ls__group_record_failure(ls_group *group, ls_status status, const char *text)
{
    ls__group_record_failure_by(group, status, text, origin_of(group->comm, text));
}

/* With the rank, for those that read of it; the message of another rank's failure has it. */
void ls__group_failure_say(const ls_group *group, const char *message, char *out, size_t bytes)
{
    const ls__comm *comm = group->comm;
    const int rank = comm->runtime->rank;
    if (origin_of(comm, message) != rank) {
        (void)snprintf(out, bytes, "%s", message);
    } else {
        (void)snprintf(out, bytes, "rank %d failed: %s", rank, message);
    }
}

/* ---- root causes -------------------------------------------------------------------------- */

/* The first thread to claim writes the text; the holder of the progress lock sends it. */
bool ls__remote_claim(ls_group *group, ls_status status, const char *text, int by)
{
    LS_ASSERT(status < 0);
    uint32_t expected = LS__CLAIM_NONE;
    if (!atomic_compare_exchange_strong_explicit(&group->claim.state, &expected, LS__CLAIM_WRITING,
                                                 memory_order_acq_rel, memory_order_relaxed)) {
        return false;
    }
    group->claim.status = status;
    group->claim.by = by;
    group->claim.ns = group->comm->env->now_ns(group->comm->env);
    snprintf(group->claim.text, sizeof group->claim.text, "%s", text);
    /* Sync: releases the text to the holder of the progress lock. */
    atomic_store_explicit(&group->claim.state, LS__CLAIM_READY, memory_order_seq_cst);
    return true;
}

/* See Note [Origin]. */
void ls__group_cause(ls_group *group, ls_status status, const char *text)
{
    ls__group_cause_by(group, status, text, origin_of(group->comm, text));
}

/* Member 0's claim word decides. A loser of the claim only wakes the members, which take over the
 * winner's text. A rank on another host than member 0 asks by message. */
void ls__group_cause_by(ls_group *group, ls_status status, const char *text, int by)
{
    LS_ASSERT(status < 0);
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
        ls__group_record_failure_by(group, status, text, by);
        if (group->has_remote) {
            (void)ls__remote_claim(group, status, text, by);
        }
    }
    ls__ring_members(group);
    ls__ring(group->comm, group->member[group->rank].local);
}

/* Publishes that a failure was reported to this rank's program which another rank caused or found:
 * if it ends now, its end is a consequence. What this rank caused itself it has recorded, unless
 * others have waited for it in vain. The first report counts. */
void ls__comm_record_report(const ls__comm *comm, ls_status status, int by, const char *text)
{
    ls__board_rank *me = comm->me;
    const bool own = by == comm->runtime->rank && status != LS_ERR_TIMEOUT;
    if (own || by < 0 || by >= comm->runtime->world_size ||
        atomic_load_explicit(&me->reported, memory_order_relaxed) != 0) {
        return;
    }
    me->reported_by = by;
    snprintf(me->reported_text, sizeof me->reported_text, "%s", text);
    atomic_store_explicit(&me->reported_ns, comm->env->now_ns(comm->env), memory_order_relaxed);
    /* Sync: release; pairs with the acquire of the launcher. */
    atomic_store_explicit(&me->reported, (uint32_t)-status, memory_order_release);
}

void ls__comm_record_found(const ls__comm *comm, ls_status status, int rank, const char *text)
{
    if (rank == comm->runtime->rank) {
        ls__comm_record_failure(comm, status, text);
    } else {
        ls__comm_record_report(comm, status, rank, text);
    }
}

/* Called wherever a failed group's text is returned to the user. */
const char *ls__group_report_cause(const ls_group *group)
{
    const char *text = ls__group_failure(group);
    const int32_t failed = atomic_load_explicit(&group->failure.status, memory_order_relaxed);
    if (failed != 0) {
        ls__comm_record_report(group->comm, (ls_status)failed, group->failure.by, text);
    }
    return text;
}
