/* SPDX-License-Identifier: Apache-2.0 */
/* What a group's backend does not promise is refused in words, at the call and before the operation
 * has a number: no peer has heard of it, and the group stays usable. */
#include "base/error.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/collective.h"
#include "comm/core/group.h"
#include "comm/operation/describe.h"

static bool has_bit(uint32_t set, int bit)
{
    return (set >> bit & 1) != 0;
}

/* The dtype and the operator of an operation that reduces. */
static ls_status check_reduction(const char *what, const ls_group *group,
                                 const ls__collective *args)
{
    const char *name = ls__backend_name(group);
    const bool user = ls__reduce_op_is_user(args->op);
    const bool summed = args->op == LS_AVG || args->op == LS_PREMUL_SUM;
    if (!has_bit(group->can->dtypes, (int)args->dtype)) {
        return ls__fail(
            LS_ERR_UNSUPPORTED,
            "%s on group \"%s\": backend \"%s\" does not reduce %s; convert the values, "
            "or use a group of backend \"native\"",
            what, group->name, name, ls_dtype_name(args->dtype));
    }
    if (args->op == LS_AVG && ls__reduce_widens(args->dtype) && !ls__group_on_host(group)) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "%s on group \"%s\": backend \"%s\" does not average integers; give LS_SUM "
                        "and divide",
                        what, group->name, name);
    }
    if (user && (group->can->flags & LS_BACKEND_USER_OPS) == 0) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "%s on group \"%s\": backend \"%s\" does not apply operators of "
                        "ls_reduce_op_new; use a group of backend \"native\"",
                        what, group->name, name);
    }
    if (!user && !has_bit(group->can->reduce_ops, (int)(summed ? LS_SUM : args->op))) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "%s on group \"%s\": backend \"%s\" does not reduce by %s; use a group of "
                        "backend \"native\"",
                        what, group->name, name, ls_reduce_op_name(args->op));
    }
    return LS_OK;
}

/* Elements from the start of the input [0] or output [1] to the end of its last block. */
static int64_t extent(const ls_group *group, const ls__collective *args, int side)
{
    const bool blocks = ls__operation_has_blocks(args->operation, side == 0);
    if (!blocks || args->counts[side] == NULL) {
        return blocks ? args->count * group->size : args->count;
    }
    int64_t next = 0, most = 0;
    for (int r = 0; r < group->size; r++) {
        const int64_t at = args->offsets[side] != NULL ? args->offsets[side][r] : next;
        next = at + args->counts[side][r];
        most = next > most ? next : most;
    }
    return most;
}

static ls_status check_counts(const char *what, const ls_group *group, const ls__collective *args)
{
    const int64_t limit = group->can->count_max;
    for (int side = 0; side < 2 && limit > 0; side++) {
        const int64_t count = extent(group, args, side);
        if (count > limit && ls__collective_uses(group, args, side == 0)) {
            return ls__fail(LS_ERR_UNSUPPORTED,
                            "%s on group \"%s\": backend \"%s\" moves at most %lld elements of a "
                            "buffer at a time, and this one has %lld; split it",
                            what, group->name, ls__backend_name(group), (long long)limit,
                            (long long)count);
        }
    }
    return LS_OK;
}

/* Of buffers of which the plug-in can tell. */
static ls_status check_memory(const char *what, const ls_group *group, const ls__collective *args)
{
    const ls__plugin_group *part = group->plugin;
    const ls_backend *table = part->plugin->table;
    char error[LS_BACKEND_ERROR_MAX] = "";
    if (table->accepts == NULL || part->group == NULL) {
        return LS_OK;
    }
    const void *input = ls__collective_uses(group, args, true) ? args->input : NULL;
    const void *output = ls__collective_uses(group, args, false) ? args->output : NULL;
    const ls_status status =
        table->accepts(part->group, (ls_backend_kind)args->operation, input, output, error);
    return status == LS_OK ? LS_OK
                           : ls__fail(LS_ERR_UNSUPPORTED, "%s on group \"%s\": backend \"%s\": %s",
                                      what, group->name, ls__backend_name(group), error);
}

/* Of operations whose data the plug-in moves. */
static ls_status check_carried(const char *what, const ls_group *group, const ls__collective *args,
                               const ls_collective_options *options)
{
    const char *name = ls__backend_name(group);
    if (!has_bit(group->can->operations, (int)args->operation)) {
        return ls__fail(
            LS_ERR_UNSUPPORTED,
            "%s on group \"%s\": backend \"%s\" does not have it; use a group of backend "
            "\"native\"",
            what, group->name, name);
    }
    if (options->algorithm != NULL) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "%s on group \"%s\": backend \"%s\" chooses its algorithms itself; pass "
                        "algorithm = NULL",
                        what, group->name, name);
    }
    LS_TRY(check_counts(what, group, args));
    LS_TRY(check_memory(what, group, args));
    return ls__operation_reduces(args->operation) ? check_reduction(what, group, args) : LS_OK;
}

ls_status ls__promise_check(const char *what, const ls_group *group, const ls__collective *args,
                            const ls_collective_options *options)
{
    if (options->stream != NULL) {
        LS_TRY(ls__promise_streams(what, group));
    }
    return ls__plugin_carries(group, args->operation, args->control)
               ? check_carried(what, group, args, options)
               : LS_OK;
}

ls_status ls__promise_streams(const char *what, const ls_group *group)
{
    return ls__group_has_streams(group)
               ? LS_OK
               : ls__fail(LS_ERR_UNSUPPORTED,
                          "%s on group \"%s\": backend \"%s\" has no streams; pass stream = NULL",
                          what, group->name, ls__backend_name(group));
}

ls_status ls__promise_host(const char *what, const ls_group *group)
{
    return ls__group_on_host(group)
               ? LS_OK
               : ls__fail(
                     LS_ERR_UNSUPPORTED,
                     "%s on group \"%s\": backend \"%s\" has memory of a device only, and this "
                     "needs the host's; use a group of backend \"native\"",
                     what, group->name, ls__backend_name(group));
}

bool ls__group_reaches(const ls_group *group, const void *memory)
{
    const ls__plugin_group *part = group->plugin;
    char error[LS_BACKEND_ERROR_MAX] = "";
    return part == NULL || part->group == NULL || part->plugin->table->accepts == NULL ||
           part->plugin->table->accepts(part->group, LS_BACKEND_ALL_REDUCE, memory, memory,
                                        error) == LS_OK;
}

ls_status ls__promise_abort(const char *what, const ls_group *group)
{
    return (group->can->flags & LS_BACKEND_ABORTABLE) != 0
               ? LS_OK
               : ls__fail(
                     LS_ERR_UNSUPPORTED,
                     "%s of group \"%s\": backend \"%s\" cannot end operations in flight; wait "
                     "for them, or give them a timeout_ms",
                     what, group->name, ls__backend_name(group));
}

ls_status ls__promise_memory(const ls_group *group)
{
    return (group->can->flags & LS_BACKEND_REGISTERED) != 0
               ? LS_OK
               : ls__fail(
                     LS_ERR_UNSUPPORTED,
                     "ls_group_alloc of group \"%s\": backend \"%s\" has no registered memory; "
                     "use malloc, or a group of backend \"native\"",
                     group->name, ls__backend_name(group));
}
