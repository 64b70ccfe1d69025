/* SPDX-License-Identifier: Apache-2.0 */
/* A group's plug-in: its operations, its memory, its end. Nothing here starts an operation of the
 * library: that is plugin_open.c's. */
#include "comm/backend/plugin_group.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/lock.h"
#include "base/log.h"
#include "comm/core/cause.h"
#include "comm/core/group.h"
#include "comm/core/message_state.h"
#include "comm/core/progress_lock.h"
#include "comm/memory/heap.h"
#include "comm/transport/plugin_call.h"

typedef struct ls__plugin_block { /* registered memory */
    ls__list link;
    void *at;
    size_t bytes;
} ls__plugin_block;

const char *ls__backend_name(const ls_group *group)
{
    return group->plugin != NULL ? group->plugin->plugin->table->name : LS__BACKEND_NATIVE;
}

/* ---- closing ------------------------------------------------------------------------------- */

void ls__plugin_part_free(ls_group *group, ls__plugin_group *part, bool failed)
{
    if (part->group != NULL) {
        part->plugin->table->close(part->group, failed);
    }
    group->comm->env->release(group->comm->env, part, sizeof *part);
}

/* Without an abort the plug-in may still use what belongs to requests in flight: then it keeps its
 * group. */
void ls__plugin_close(ls_group *group)
{
    ls__plugin_group *part = group->plugin;
    if (part == NULL) {
        return;
    }
    for (ls__list *at = ls__list_pop_front(&part->blocks); at != NULL;
         at = ls__list_pop_front(&part->blocks)) {
        ls__plugin_block *block = LS__LIST_ITEM(at, ls__plugin_block, link);
        if (part->group != NULL) {
            part->plugin->table->dealloc(part->group, block->at, block->bytes);
        }
        group->comm->env->release(group->comm->env, block, sizeof *block);
    }
    group->plugin = NULL;
    ls__plugin_part_free(group, part,
                         atomic_load_explicit(&group->failure.status, memory_order_relaxed) != 0);
}

/* ---- operations --------------------------------------------------------------------------- */

/* The count of this rank's own block, where the other side has blocks of all lengths. */
static int64_t count_of(const ls_group *group, const ls_work *work)
{
    if (!ls__operation_is_v(work->operation)) {
        return work->count;
    }
    for (int side = 0; side < 2; side++) {
        if (ls__operation_is_short(work->operation, side == 0)) {
            return work->count_of[side][group->rank];
        }
    }
    return 0; /* all_to_all_v */
}

/* The library has multiplied the input of a premultiplied sum, unless the plug-in does. */
static ls_reduce_op op_of(const ls_group *group, const ls_work *work)
{
    const bool premultiplies =
        ls__group_scales(group) && work->descriptor.reduce_op == LS_PREMUL_SUM;
    return work->user.fn != NULL ? LS_REDUCE_OP_USER : premultiplies ? LS_PREMUL_SUM : work->op;
}

static ls_backend_operation describe(const ls_group *group, const ls_work *work)
{
    const ls__operation operation = work->operation;
    const bool message = ls__operation_is_p2p(operation);
    ls_backend_operation o = {.size = sizeof o,
                              .kind = (ls_backend_kind)operation,
                              .dtype = work->dtype,
                              .op = op_of(group, work),
                              .root = work->descriptor.root,
                              .sequence = work->descriptor.sequence,
                              .message = work->message.number,
                              .count = count_of(group, work),
                              .element = work->element,
                              .stream = work->plugin.stream,
                              .combine = work->user.fn,
                              .combine_arg = work->user.arg,
                              .factor = work->plugin.factor,
                              .divisor = ls__group_scales(group) ? work->divisor : 0,
                              .after = work->plugin.place};
    for (int side = 0; side < 2; side++) {
        const bool input = side == 0;
        const bool uses = message ? (operation == LS__OP_SEND) == input
                                  : ls__operation_uses(operation, input, group->rank, o.root);
        if (uses && input) {
            o.input = work->input;
        } else if (uses) {
            o.output = work->output;
        }
        if (ls__operation_is_v(operation) && ls__operation_has_blocks(operation, input)) {
            o.counts[side] = work->count_of[side];
            o.offsets[side] = work->offset_of[side];
        }
    }
    return o;
}

/* The text of a failure of the plug-in's `function`; the status is an error in any case. */
static ls_status fail_of(const ls_group *group, const char *function, ls_status status,
                         const char *error)
{
    const char *backend = ls__backend_name(group);
    if (status > 0) {
        return ls__user_status(status, "backend \"%s\": %s", backend, function);
    }
    return ls__fail(status, "backend \"%s\": %s", backend,
                    error[0] != '\0' ? error : ls_status_name(status));
}

static const ls_group *failed_beside(const ls_group *group)
{
    LS__LIST_EACH (at, &group->comm->groups) {
        const ls_group *other = LS__LIST_ITEM(at, ls_group, link);
        if (other != group && other->plugin != NULL &&
            other->plugin->plugin == group->plugin->plugin && ls__group_failure(other)[0] != '\0') {
            return other;
        }
    }
    return NULL;
}

/* A plug-in may end all its groups in this process when one fails: that one's cause is theirs. */
void ls__plugin_cause(ls_group *group, ls_status status, const char *text)
{
    const bool together = status == LS_ERR_ABORTED && group->plugin != NULL;
    const ls_group *failed = together ? failed_beside(group) : NULL;
    if (failed == NULL) {
        ls__group_cause(group, status, text);
        return;
    }
    const ls__group_root_cause *cause = &failed->failure;
    const int32_t first = atomic_load_explicit(&cause->status, memory_order_relaxed);
    ls__group_cause_by(group, (ls_status)first, cause->text,
                       cause->by >= 0 ? cause->by : group->comm->runtime->rank);
}

/* The plug-in has the place from now on, whether it can start the operation or not. */
ls_status ls__plugin_start(ls_group *group, ls_work *work)
{
    ls__plugin_group *part = group->plugin;
    const bool message = ls__operation_is_p2p(work->operation);
    char error[LS_BACKEND_ERROR_MAX] = "";
    const ls_backend_operation o = describe(group, work);
    LS_ASSERT(message || part->flying == 0 || ls__group_has_streams(group));
    work->plugin.place = NULL;
    ls__plugin_count_call(&group->comm->plugins.calls);
    const ls_status status =
        part->plugin->table->start(part->group, &o, &work->plugin.request, error);
    ls__plugin_count_call(&group->comm->plugins.calls);
    if (status != LS_OK) {
        return fail_of(group, "start", status, error);
    }
    part->flying += message ? 0 : 1;
    atomic_fetch_add_explicit(&group->comm->plugins.requests, 1, memory_order_relaxed);
    return LS_OK;
}

/* LS_IN_PROGRESS, or its end. */
static ls_status test(ls_work *work)
{
    ls_group *group = work->group;
    ls__plugin_group *part = group->plugin;
    char error[LS_BACKEND_ERROR_MAX] = "";
    ls__plugin_count_call(&group->comm->plugins.calls);
    const ls_status status = part->plugin->table->test(part->group, work->plugin.request, error);
    ls__plugin_count_call(&group->comm->plugins.calls);
    if (status == LS_IN_PROGRESS) {
        return status;
    }
    work->plugin.request = NULL;
    atomic_fetch_sub_explicit(&group->comm->plugins.requests, 1, memory_order_relaxed);
    return status == LS_OK ? LS_OK : fail_of(group, "test", status, error);
}

ls_status ls__plugin_test(ls_group *group, ls_work *work)
{
    LS_ASSERT(group->plugin->flying > 0);
    const ls_status status = test(work);
    group->plugin->flying -= status != LS_IN_PROGRESS;
    return status;
}

ls_status ls__plugin_test_message(ls_work *work)
{
    return test(work);
}

/* Of a backend that cannot abort, the buffers of requests in flight stay in use, and with them
 * memory that the library has lent: none of it is given to others any more. */
void ls__plugin_reset(ls_group *group)
{
    ls__plugin_group *part = group->plugin;
    ls__comm *comm = group->comm;
    const uint32_t mine = (uint32_t)part->flying + group->p2p->carried;
    atomic_fetch_sub_explicit(&comm->plugins.requests, mine, memory_order_relaxed);
    part->flying = 0;
    group->p2p->carried = 0;
    if (mine == 0) {
        return;
    }
    if ((group->can->flags & LS_BACKEND_ABORTABLE) != 0) {
        part->plugin->table->abort(part->group);
        return;
    }
    part->group = NULL; /* it is not closed either: the plug-in may still work in it */
    ls__lock_take(&comm->lock, comm->env);
    comm->frozen = true;
    ls__unlock(&comm->lock, comm->env);
    LS__WARN(
        "group \"%s\" has failed, and backend \"%s\" cannot abort: it may write to the buffers "
        "of operations in flight until this process ends; do not free or use them",
        group->name, ls__backend_name(group));
}

/* ---- streams ------------------------------------------------------------------------------- */

ls_status ls__group_mark(ls_group *group, ls_stream *stream, void **place)
{
    const ls__plugin_group *part = group->plugin;
    char error[LS_BACKEND_ERROR_MAX] = "";
    if (part->group == NULL) { /* it has failed, and the submission says so */
        return LS_OK;
    }
    const ls_status status = part->plugin->table->mark(part->group, stream, place, error);
    return status == LS_OK ? LS_OK : fail_of(group, "mark", status, error);
}

void ls__group_unmark(ls_group *group, void *place)
{
    if (place != NULL && group->plugin->group != NULL) {
        group->plugin->plugin->table->unmark(group->plugin->group, place);
    }
}

/* Of a group whose plug-in is gone. */
static ls_status failure_of(const ls_group *group)
{
    const int32_t failed = atomic_load_explicit(&group->failure.status, memory_order_acquire);
    return ls__fail_again((ls_status)failed, ls__group_report_cause(group));
}

bool ls__group_records(const ls_group *group)
{
    return group->plugin != NULL && group->plugin->plugin->table->record != NULL &&
           ls__group_has_streams(group) && ls__group_scales(group);
}

ls_status ls__group_record(ls_group *group, const ls__collective *args, double divisor,
                           ls_stream *stream)
{
    const ls__plugin_group *part = group->plugin;
    char error[LS_BACKEND_ERROR_MAX] = "";
    LS_ASSERT(args->operation == LS__OP_ALL_REDUCE && ls__group_records(group));
    if (part->group == NULL) {
        return failure_of(group);
    }
    const ls_backend_operation o = {.size = sizeof o,
                                    .kind = (ls_backend_kind)args->operation,
                                    .dtype = args->dtype,
                                    .op = args->op,
                                    .count = args->count,
                                    .element = ls_dtype_size(args->dtype),
                                    .input = args->input,
                                    .output = args->output,
                                    .stream = stream,
                                    .factor = 1.0,
                                    .divisor = divisor,
                                    .after = args->place};
    const ls_status status = part->plugin->table->record(part->group, &o, stream, error);
    return status == LS_OK ? LS_OK : fail_of(group, "record", status, error);
}

ls_status ls__plugin_follow(ls_work *work, ls_stream *stream)
{
    const ls_group *group = work->group;
    const ls__plugin_group *part = group->plugin;
    char error[LS_BACKEND_ERROR_MAX] = "";
    if (work->plugin.request == NULL) {
        return LS_IN_PROGRESS;
    }
    ls__plugin_count_call(&group->comm->plugins.calls);
    const ls_status status =
        part->plugin->table->follow(part->group, work->plugin.request, stream, error);
    ls__plugin_count_call(&group->comm->plugins.calls);
    return status == LS_OK || status == LS_IN_PROGRESS ? status
                                                       : fail_of(group, "follow", status, error);
}

ls_status ls__group_zero(ls_group *group, ls_stream *stream, void *memory, size_t bytes)
{
    const ls__plugin_group *part = group->plugin;
    char error[LS_BACKEND_ERROR_MAX] = "";
    if (part->group == NULL) {
        return failure_of(group);
    }
    const ls_status status = part->plugin->table->zero(part->group, stream, memory, bytes, error);
    return status == LS_OK ? LS_OK : fail_of(group, "zero", status, error);
}

/* ---- reports ------------------------------------------------------------------------------ */

/* Why this rank's part has not ended, as the plug-in says it. */
static const char *reason_of(const ls__plugin_group *part, void *request)
{
    const ls_backend *table = part->plugin->table;
    const char *reason =
        table->waits != NULL && request != NULL ? table->waits(part->group, request) : NULL;
    return reason != NULL ? reason : "";
}

void ls__plugin_awaited(const ls_group *group, const ls_work *work, char *out, size_t bytes)
{
    const ls__plugin_group *part = group->plugin;
    void *request = work->plugin.request;
    int member = -1;
    if (part->plugin->table->awaited != NULL && request != NULL) {
        member = part->plugin->table->awaited(part->group, request);
    }
    const int me = group->member[group->rank].world_rank;
    if (member < 0 || member >= group->size || member == group->rank) {
        const char *reason = reason_of(part, request);
        snprintf(out, bytes,
                 "all ranks have called it, and backend \"%s\" has not ended it on rank %d%s%s",
                 ls__backend_name(group), me, reason[0] != '\0' ? ": " : "", reason);
        return;
    }
    char who[512];
    ls__comm_describe(group->comm, group->member[member].world_rank, who, sizeof who);
    snprintf(out, bytes, "all ranks have called it, and backend \"%s\" waits on rank %d for %s",
             ls__backend_name(group), me, who);
}

/* ---- memory ------------------------------------------------------------------------------- */

static ls_status alloc_block(ls_group *group, size_t bytes, void **out)
{
    ls__comm *comm = group->comm;
    ls__plugin_group *part = group->plugin;
    char error[LS_BACKEND_ERROR_MAX] = "";
    ls__plugin_block *block = comm->env->allocate(comm->env, sizeof *block);
    if (block == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for %zu bytes of backend \"%s\"", bytes,
                        ls__backend_name(group));
    }
    *block = (ls__plugin_block){.bytes = bytes};
    ls__progress_take(comm);
    const ls_status status = part->plugin->table->alloc(part->group, bytes, &block->at, error);
    ls__progress_release(comm);
    if (status != LS_OK) {
        comm->env->release(comm->env, block, sizeof *block);
        return fail_of(group, "alloc", status, error);
    }
    ls__lock_take(&comm->lock, comm->env);
    ls__list_push_back(&part->blocks, &block->link);
    ls__unlock(&comm->lock, comm->env);
    *out = block->at;
    return LS_OK;
}

ls_status ls__group_buffers(ls_group *group, size_t bytes, void **out)
{
    return group->plugin != NULL && (group->can->flags & LS_BACKEND_REGISTERED) != 0
               ? alloc_block(group, bytes, out)
               : ls__heap_alloc(&group->comm->heap, bytes, out);
}

ls_status ls__group_memory(ls_group *group, size_t bytes, void **out)
{
    return ls__group_on_host(group) ? ls__group_buffers(group, bytes, out)
                                    : ls__heap_alloc(&group->comm->heap, bytes, out);
}

void ls__group_discard(ls_group *group, void *memory, size_t bytes)
{
    uint64_t offset;
    const ls__comm *comm = group->comm;
    if (ls__heap_offset(&comm->heap, memory, bytes, &offset)) {
        comm->env->shm_forget(comm->env, memory, bytes);
    }
}

bool ls__plugin_dealloc(ls_group *group, void *memory)
{
    ls__plugin_block *found = NULL;
    if (group->plugin == NULL) {
        return false;
    }
    ls__comm *comm = group->comm;
    ls__lock_take(&comm->lock, comm->env);
    LS__LIST_EACH (at, &group->plugin->blocks) {
        ls__plugin_block *block = LS__LIST_ITEM(at, ls__plugin_block, link);
        found = block->at == memory ? block : found;
    }
    if (found != NULL) {
        ls__list_remove(&found->link);
    }
    ls__unlock(&comm->lock, comm->env);
    if (found == NULL) {
        return false;
    }
    ls__progress_take(comm);
    if (group->plugin->group != NULL) { /* else the plug-in may still write to it */
        group->plugin->plugin->table->dealloc(group->plugin->group, found->at, found->bytes);
    }
    ls__progress_release(comm);
    comm->env->release(comm->env, found, sizeof *found);
    return true;
}
