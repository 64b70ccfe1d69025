/* SPDX-License-Identifier: Apache-2.0 */
/* The path of an operation from the public call to the engine:
 *
 *     check arguments ▸ run inline, if the call blocks and is small and plain (one_shot.c), else
 *     premultiply ▸ take a work ▸ describe it ▸ number and queue it
 *
 * Nothing is numbered before all arguments have been checked, so a refused call leaves no gap in
 * the sequence that other ranks would wait for. */
#include "comm/api/collective.h"
#include "comm/core/collective.h"
#include "comm/diagnose/fail.h"
#include "comm/operation/describe.h"

#include <stdio.h>

#include "base/assert.h"
#include "base/lock.h"
#include "base/options.h"
#include "base/size.h"
#include "base/trace.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/cause.h"
#include "comm/core/flight.h"
#include "comm/core/group.h"
#include "comm/core/packs.h"
#include "comm/core/post.h"
#include "comm/core/progress_lock.h"
#include "comm/core/round_robin.h"
#include "comm/core/wake.h"
#include "comm/engine/one_shot.h"
#include "comm/operation/v_counts.h"

/* ---- submitting --------------------------------------------------------------------------- */

/* Numbers the operation and queues it. The caller holds comm->lock. Returns whether a thread must
 * drive the engine for it now. */
static bool enqueue(ls_group *group, ls_work *work)
{
    LS_ASSERT(work->group == group);
    ls__comm *comm = group->comm;
    const bool p2p = ls__operation_is_p2p(work->operation);
    work->descriptor.sequence = p2p ? ++group->inbox.submitted : ++group->sequence;
    work->flight = ls__flight_open(comm, group, &work->descriptor, work->queued_ns);
    if (work->by_message) {
        atomic_fetch_add_explicit(&comm->by_message, 1, memory_order_seq_cst);
    }
    /* Sync: seq_cst; counted before sleeping threads are looked for. */
    atomic_fetch_add_explicit(&comm->pending, 1, memory_order_seq_cst);
    atomic_fetch_add_explicit(&group->pending, 1, memory_order_seq_cst);
    if (p2p) {
        ls__list_push_back(&group->inbox.works, &work->link);
        /* Sync: release; pairs with the acquire in collect_submitted (p2p.c). */
        atomic_fetch_add_explicit(&group->inbox.length, 1, memory_order_seq_cst);
        return true;
    }
    ls__list_push_back(&group->queue, &work->link);
    return group->backend->submit(group, work);
}

/* Takes a work and queues it under one hold of comm->lock, so works are queued in the order of
 * their numbers. `detached`: no handle is returned, `done` is the only notice. *ready: the caller
 * must notify the engine. On failure *out stays NULL and the call's packed input is given back;
 * without memory the group fails. */
static ls_status submit(ls_group *group, const ls__collective *args,
                        const ls_collective_options *options, bool detached, ls_work **out,
                        bool *ready)
{
    LS_ASSERT(!detached || args->done != NULL);
    ls__comm *comm = group->comm;
    ls_status status = LS_OK;
    ls__lock_take(&comm->lock, comm->env);
    const int32_t failed = atomic_load_explicit(&group->failure.status, memory_order_acquire);
    ls_work *work = failed == 0 ? ls__work_take(comm) : NULL;
    if (work != NULL && ls__operation_is_v(args->operation) && !ls__counts_room(comm, work)) {
        ls__work_give(comm, work);
        work = NULL;
    }
    if (work != NULL) {
        /* Peers have read these lines: they come back while the operation is described. */
        LS__PREFETCH_WRITE(ls__post_slot(group, group->rank, group->sequence + 1));
        LS__PREFETCH_WRITE(ls__small_stage(group, group->rank, group->sequence + 1));
        ls__collective_fill(group, args, options, work);
        work->detached = detached;
        status =
            ls__operation_is_p2p(args->operation) ? LS_OK : group->backend->prepare(group, work);
    }
    if (work != NULL && status == LS_OK) {
        group->handles += detached ? 0 : 1;
        work->held = !detached;
        *ready = enqueue(group, work);
        *out = work;
    } else if (work != NULL) {
        ls__work_give(comm, work);
    }
    ls__unlock(&comm->lock, comm->env);
    if (*out != NULL) {
        return LS_OK;
    }
    if (args->pack != NULL) {
        ls__pack_give(args->pack);
    }
    ls__group_unmark(group, args->place);
    return failed != 0 ? ls__fail_again((ls_status)failed, ls__group_report_cause(group))
                       : ls__collective_no_memory(group, args);
}

static const ls_collective_options defaults = {.size = sizeof defaults,
                                               LS_DEFAULTS_ls_collective_options};

/* Runs the operation inline if it is small, plain and all members call it now; else the caller
 * waits for it in the queue. */
static ls_status run_blocking(ls_group *group, const ls__collective *args,
                              const ls_collective_options *options)
{
    ls_work *work = NULL;
    ls_status status = LS_OK;
    if (!ls__run_inline(group, args, options, &status, &work)) {
        bool ready = false;
        status = submit(group, args, options, false, &work, &ready);
        if (ready) { /* wakes a driver that sleeps */
            ls__ring(group->comm, group->comm->runtime->local_rank);
        }
    }
    return work != NULL ? ls_work_wait(work) : status;
}

static ls_status start_without_waiting(ls_group *group, const ls__collective *args,
                                       const ls_collective_options *options, ls_work **work)
{
    ls_work *made = NULL;
    bool ready = false;
    LS_TRY(submit(group, args, options, work == NULL, &made, &ready));
    if (work != NULL) {
        *work = made;
    }
    ls__engine_notify(group->comm, ready);
    return LS_OK;
}

/* Starts a sound call on the group whose turn it is. `copy` is the call where it may be changed,
 * for an input that must be multiplied first, or one in a stream; else NULL. */
static ls_status check_and_start(ls_group *handle, const ls__collective *args, ls__collective *copy,
                                 const ls_collective_options *options, ls_work **work)
{
    const bool p2p = ls__operation_is_p2p(args->operation);
    const bool blocking = work == NULL && args->done == NULL;
    ls__self.exchanges++;
    ls_group *group = ls__round_robin_group(handle, p2p);
    const char *what = ls__operation_name(args->operation);
    ls_status sound = ls__collective_check(what, group, args, options);
    sound = sound < 0 ? ls__fail_at_site(sound) : blocking ? ls__work_may_wait(what) : LS_OK;
    if (sound < 0) {
        ls__group_unmark(group, args->place);
        return sound;
    }
    if (ls__operation_reduces(args->operation) && args->op == LS_PREMUL_SUM &&
        !ls__group_scales(group)) {
        LS_TRY(ls__premultiply(group, copy, options->factor));
    }
    if (options->stream != NULL && ls__plugin_carries(group, args->operation, args->control)) {
        LS_TRY(ls__group_mark(group, options->stream, &copy->place));
    }
    ls__round_robin_pass(handle, p2p);
    if (!blocking) {
        return start_without_waiting(group, args, options, work);
    }
    const uint64_t traced = ls__trace_begin();
    const ls_status status = run_blocking(group, args, options);
    ls__trace_end(traced, LS__TRACE_EXPOSED, what, group->name);
    return status;
}

/* Waits here if the call blocks. On failure the operation was not started, and *work is NULL. */
ls_status ls__collective_start(ls_group *group, const ls__collective *args, ls_work **work)
{
    const char *what = ls__operation_name(args->operation);
    if (work != NULL) {
        *work = NULL;
    }
    ls__comm *comm = ls__comm_get(what);
    if (comm == NULL) {
        return ls__self.status;
    }
    if (group == NULL) {
        (void)ls__fail(LS_ERR_INVALID,
                       "%s: the group is NULL; a rank outside a group must not "
                       "call its operations",
                       what);
        return ls__fail_at_site(LS_ERR_INVALID);
    }
    ls_collective_options given;
    const bool whole = args->options != NULL && args->options->size == sizeof given;
    const ls_collective_options *options = whole ? args->options : &defaults;
    if (args->options != NULL && !whole) { /* of another version, or wrong */
        options = &given;
        given = defaults;
        if (ls_options_read(&given, sizeof given, args->options, "ls_collective_options", what) <
            0) {
            return ls__fail_at_site(LS_ERR_INVALID);
        }
    }
    if (!ls__reduce_op_is_user(args->op) && args->op != LS_PREMUL_SUM && options->stream == NULL) {
        return check_and_start(group, args, NULL, options, work);
    }
    ls__collective copy = *args;
    if (ls__reduce_op_is_user(args->op)) { /* the user may free the operator meanwhile */
        copy.made = ls__operator_of(comm, args->op);
    }
    return check_and_start(group, &copy, &copy, options, work);
}
