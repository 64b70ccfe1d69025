/* SPDX-License-Identifier: Apache-2.0 */
/* The user's handles: wait for an operation, test it, abort it, or register a callback.
 *
 * A handle is the ls_work itself. It belongs to the user from the call that returned it until
 * ls_work_wait, or ls_work_wait_for once the operation has ended, gives it back; only then may the
 * work be used again, even if the operation has ended long before. */
#include <stdio.h>

#include "base/assert.h"
#include "base/lock.h"
#include "base/trace.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/cause.h"
#include "comm/core/group.h"
#include "comm/core/progress_lock.h"
#include "comm/diagnose/fail.h"
#include "comm/engine/engine.h"
#include "comm/operation/mismatch.h"

/* Returns the status; for an error also the text of the group's root cause. */
static ls_status report(const ls_work *work, ls_status status)
{
    if (status < 0) {
        return ls__fail_again(status, ls__group_report_cause(work->group));
    }
    return status;
}

/* Gives the handle back. The last handle of a freed group releases the rest of that group. */
static void end_handle(ls__comm *comm, ls_work *work)
{
    ls_group *group = work->group;
    ls__lock_take(&comm->lock, comm->env);
    work->held = false;
    ls__work_give(comm, work);
    LS_ASSERT(group->handles > 0);
    group->handles--;
    const bool last = group->closed && group->handles == 0;
    ls__unlock(&comm->lock, comm->env);
    if (last) {
        ls__group_forget(group);
    }
}

/* The runtime; NULL with the error set: ls_init was not called, or there is no handle. A handle
 * that was given back is noticed until another operation gets it: works stay with the runtime. */
static ls__comm *comm_of(const char *what, const ls_work *work)
{
    ls__comm *comm = ls__comm_get(what);
    if (comm != NULL && work == NULL) {
        (void)ls__fail(LS_ERR_INVALID,
                       "%s: the handle is NULL; a call with `work` NULL has already waited", what);
        return NULL;
    }
    if (comm != NULL && !work->held) {
        (void)ls__fail(LS_ERR_INVALID,
                       "%s: a wait has released this handle already; wait once for each operation",
                       what);
        return NULL;
    }
    return comm;
}

/* Sync: acquire; the operation's results are visible once its end is. */
static ls_status status_of(const ls_work *work)
{
    return (ls_status)atomic_load_explicit(&work->status, memory_order_acquire);
}

/* One turn if no thread drives the engine, so that polling alone makes progress. */
static void nudge(ls__comm *comm, const ls_work *work)
{
    if (status_of(work) == LS_IN_PROGRESS && ls__progress_try(comm)) {
        (void)ls__engine_turn(comm, true);
        ls__progress_release(comm);
    }
}

/* Gives the handle back in any case, except when waiting is refused in a callback. */
ls_status ls_work_wait(ls_work *work)
{
    ls__comm *comm = comm_of("ls_work_wait", work);
    if (comm == NULL) {
        return ls__self.status;
    }
    LS_TRY(ls__work_may_wait("ls_work_wait"));
    const uint64_t traced = ls__trace_begin();
    ls__engine_wait(comm, work, 0);
    ls__trace_end(traced, LS__TRACE_EXPOSED, "wait", ls__operation_name(work->operation));
    const ls_status status = report(work, status_of(work));
    end_handle(comm, work);
    return status;
}

/* The stream waits from now on, and nobody else: the engine takes the handle back at the end. With
 * LS_IN_PROGRESS the operation has not been started. */
static ls_status follow(ls__comm *comm, ls_work *work, ls_stream *stream, bool *ended)
{
    ls__progress_take(comm);
    *ended = status_of(work) != LS_IN_PROGRESS;
    const ls_status status = *ended ? LS_OK : ls__plugin_follow(work, stream);
    if (status == LS_OK && !*ended) {
        ls__lock_take(&comm->lock, comm->env);
        LS_ASSERT(work->held && work->group->handles > 0);
        work->held = false;
        work->plugin.followed = true;
        work->group->handles--;
        ls__unlock(&comm->lock, comm->env);
    }
    ls__progress_release(comm);
    return status;
}

/* Host and device have no common wait: the host polls until the device has been given it. */
ls_status ls_work_wait_stream(ls_work *work, ls_stream *stream)
{
    ls__comm *comm = comm_of("ls_work_wait_stream", work);
    if (comm == NULL) {
        return ls__self.status;
    }
    if (stream == NULL) {
        return ls_work_wait(work);
    }
    LS_TRY(ls__work_may_wait("ls_work_wait_stream"));
    LS_TRY(ls__promise_streams("ls_work_wait_stream", work->group));
    for (;;) {
        bool ended = false;
        const ls_status status = follow(comm, work, stream, &ended);
        if (ended) {
            return ls_work_wait(work);
        }
        if (status == LS_OK) {
            return LS_OK;
        }
        if (status != LS_IN_PROGRESS) { /* the device is broken, and so is the operation */
            char text[LS__FAILURE_MAX];
            snprintf(text, sizeof text, "ls_work_wait_stream on rank %d: %s", comm->runtime->rank,
                     ls_error_message());
            ls__group_fail(work->group, status, text);
            return ls_work_wait(work);
        }
        ls__engine_wait(comm, work, comm->env->now_ns(comm->env) + comm->plugins.poll_ns);
    }
}

/* With LS_IN_PROGRESS the handle stays valid and must be waited for again. */
ls_status ls_work_wait_for(ls_work *work, int64_t timeout_ms)
{
    ls__comm *comm = comm_of("ls_work_wait_for", work);
    if (comm == NULL) {
        return ls__self.status;
    }
    if (timeout_ms < 0) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_work_wait_for: timeout_ms is %lld; give 0 or more, or use "
                        "ls_work_wait",
                        (long long)timeout_ms);
    }
    LS_TRY(ls__work_may_wait("ls_work_wait_for"));
    const uint64_t until_ns = ls__time_after(comm->env->now_ns(comm->env), timeout_ms);
    nudge(comm, work);
    ls__engine_wait(comm, work, until_ns);
    if (status_of(work) == LS_IN_PROGRESS) {
        return LS_IN_PROGRESS;
    }
    const ls_status status = report(work, status_of(work));
    end_handle(comm, work);
    return status;
}

/* Never gives the handle back. */
ls_status ls_work_test(ls_work *work)
{
    ls__comm *comm = comm_of("ls_work_test", work);
    if (comm == NULL) {
        return ls__self.status;
    }
    nudge(comm, work);
    return report(work, status_of(work));
}

/* Fails the whole group, because its other members are in the same operation. */
ls_status ls_work_abort(ls_work *work, const char *why)
{
    ls__comm *comm = comm_of("ls_work_abort", work);
    if (comm == NULL) {
        return ls__self.status;
    }
    if (status_of(work) != LS_IN_PROGRESS) {
        return LS_OK;
    }
    LS_TRY(ls__promise_abort("ls_work_abort", work->group));
    char text[LS__FAILURE_MAX], operation[256];
    ls__operation_text(work->group, &work->descriptor, operation, sizeof operation);
    snprintf(text, sizeof text, "%s was aborted by rank %d: %s", operation, comm->runtime->rank,
             why != NULL ? why : "no reason was given");
    ls__group_fail(work->group, LS_ERR_ABORTED, text);
    return LS_OK;
}

/* If the operation has ended already, the callback runs here; exactly one side calls it. */
ls_status ls_work_on_done(ls_work *work, void (*done)(void *arg, ls_status status), void *arg)
{
    if (comm_of("ls_work_on_done", work) == NULL) {
        return ls__self.status;
    }
    if (done == NULL) {
        return ls__fail(LS_ERR_INVALID, "ls_work_on_done: done is NULL; give a function");
    }
    ls__user_callback *callback = &work->callback;
    if (atomic_exchange_explicit(&callback->asked, 1, memory_order_relaxed) != 0) {
        return ls__fail(LS_ERR_STATE, "ls_work_on_done: this operation has a callback already; "
                                      "call what you need from that one");
    }
    callback->done = done;
    callback->arg = arg;
    uint32_t none = LS__CALLBACK_NONE;
    if (!atomic_compare_exchange_strong_explicit(&callback->state, &none, LS__CALLBACK_SET,
                                                 memory_order_acq_rel, memory_order_acquire)) {
        ls__call_back(done, arg, callback->status);
    }
    return LS_OK;
}
