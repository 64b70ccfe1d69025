/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the arguments of an operation before it is numbered or announced. A wrong argument is an
 * error on this rank only; the group stays usable. */
#include "base/size.h"
#include "comm/algorithm/registry.h"
#include "comm/api/collective.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/collective.h"
#include "comm/core/group.h"
#include "comm/operation/describe.h"
#include "comm/operation/v_counts.h"

/* The float dtypes come first in the enum. */
#define COUNT_FITS (UINT64_C(1) << 32) /* times any element and any number of ranks */

static bool is_float(ls_dtype dtype)
{
    return dtype <= LS_BFLOAT16;
}

/* Whether the operator exists and is defined for the dtype and the operation. */
static ls_status check_reduction(const char *what, const ls_group *group,
                                 const ls__collective *args, double divisor)
{
    const bool made = ls__reduce_op_is_user(args->op);
    if (made ? args->made.user.fn == NULL : (unsigned)args->op >= LS_REDUCE_OP_COUNT) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": %d is not a reduce-op; give LS_SUM, another value of "
                        "ls_reduce_op or "
                        "one that ls_reduce_op_new made",
                        what, group->name, (int)args->op);
    }
    if (!made && !ls__reduce_supported(args->dtype, args->op)) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": %s of %s is not defined; averages and "
                        "premultiplied sums need numbers, bit operators integers",
                        what, group->name, ls_reduce_op_name(args->op), ls_dtype_name(args->dtype));
    }
    if (args->op == LS_AVG && ls__operation_scans(args->operation)) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": avg is not defined for a sum over some of the ranks; "
                        "give LS_SUM, and a divisor if you want one",
                        what, group->name);
    }
    if (divisor != 0 && (args->op != LS_SUM || !is_float(args->dtype))) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": a divisor needs LS_SUM of floats, not %s of %s", what,
                        group->name, ls_reduce_op_name(args->op), ls_dtype_name(args->dtype));
    }
    return LS_OK;
}

/* The buffers that this rank uses must exist, fit in memory and not overlap. */
static ls_status check_buffers(const char *what, const ls_group *group, const ls__collective *args)
{
    const bool reads = ls__collective_uses(group, args, true) && args->operation != LS__OP_BARRIER;
    const bool writes =
        ls__collective_uses(group, args, false) && args->operation != LS__OP_BARRIER;
    if (args->count > 0 && ((reads && args->input == NULL) || (writes && args->output == NULL))) {
        return ls__fail(
            LS_ERR_INVALID,
            "%s on group \"%s\": the buffer is NULL but count is %lld; give memory, or count 0",
            what, group->name, (long long)args->count);
    }
    size_t input = 0, output = 0;
    if (ls__operation_is_v(args->operation) && args->count >= 0) {
        LS_TRY(ls__counts_check(what, group, args));
    } else if ((uint64_t)args->count > COUNT_FITS &&
               (args->count < 0 || !ls__collective_bytes(group, args, &input, &output))) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": count is %lld; give 0 or more elements, "
                        "as many as fit in memory",
                        what, group->name, (long long)args->count);
    }
    return reads && writes ? ls__overlap_check(what, group, args) : LS_OK;
}

/* The factor of a premultiplied sum of integers must be a whole number, since the product is not
 * rounded. */
static ls_status check_factor(const char *what, const ls_group *group, const ls__collective *args,
                              double factor)
{
    if (args->op != LS_PREMUL_SUM || is_float(args->dtype) ||
        (factor > -9e15 && factor < 9e15 && factor == (double)(int64_t)factor)) {
        return LS_OK;
    }
    return ls__fail(
        LS_ERR_INVALID,
        "%s on group \"%s\": %s cannot be multiplied by %g; give a whole number, or floats", what,
        group->name, ls_dtype_name(args->dtype), factor);
}

/* User-defined operators need not be commutative, so they need an algorithm that keeps the order of
 * ranks. */
static ls_status check_order(const char *what, const ls_group *group, const ls__collective *args,
                             const char *name)
{
    const ls__algorithm *found = name != NULL ? ls__algorithm_find(args->operation, name) : NULL;
    return !ls__reduce_op_is_user(args->op) || found == NULL || found->exact
               ? LS_OK
               : ls__fail(LS_ERR_UNSUPPORTED,
                          "%s on group \"%s\": a user-defined operator is applied in the order of "
                          "ranks, which \"%s\" does not keep; use another algorithm, or NULL for "
                          "the default",
                          what, group->name, name);
}

/* An algorithm given by name must exist and run where the members are. */
static ls_status check_algorithm(const char *what, const ls_group *group, ls__operation operation,
                                 const char *name)
{
    const ls__algorithm *found = name != NULL ? ls__algorithm_find(operation, name) : NULL;
    if (found != NULL && group->has_remote && (found->memories & LS__IN_MESSAGES) == 0) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "%s on group \"%s\": algorithm \"%s\" needs memory that all members share, "
                        "but they are on several hosts; use another, or NULL for the default",
                        what, group->name, name);
    }
    if (name == NULL || found != NULL) {
        return LS_OK;
    }
    char known[256];
    ls__algorithm_names(operation, known, sizeof known);
    return ls__fail(
        LS_ERR_INVALID,
        "%s on group \"%s\": algorithm \"%s\" does not exist (known: %s); give another, or NULL "
        "for the default",
        what, group->name, name, known);
}

/* One check after the other; the first mistake is reported. */
ls_status ls__collective_check(const char *what, const ls_group *group, const ls__collective *args,
                               const ls_collective_options *options)
{
    if (args->operation != LS__OP_BARRIER && (unsigned)args->dtype >= LS_DTYPE_COUNT) {
        return ls__fail(
            LS_ERR_INVALID,
            "%s on group \"%s\": %d is not a dtype; give LS_FLOAT32 or another value of ls_dtype",
            what, group->name, (int)args->dtype);
    }
    const ls__operation_traits *traits = ls__operation_traits_of(args->operation);
    const bool p2p = ls__operation_is_p2p(args->operation);
    const bool any = args->operation == LS__OP_RECV && args->root == LS_ANY_SOURCE;
    if ((traits->has_root || p2p) && !any && (args->root < 0 || args->root >= group->size)) {
        return ls__fail(LS_ERR_INVALID,
                        "%s on group \"%s\": %s %d is not a rank of this group; use 0 to %d", what,
                        group->name, p2p ? "peer" : "root", args->root, group->size - 1);
    }
    LS_TRY(check_buffers(what, group, args));
    if (traits->reduces) {
        LS_TRY(check_reduction(what, group, args, options->divisor));
        LS_TRY(check_factor(what, group, args, options->factor));
    }
    LS_TRY(check_algorithm(what, group, args->operation, options->algorithm));
    if (traits->reduces) {
        LS_TRY(check_order(what, group, args, options->algorithm));
    }
    if (p2p && args->tag < 0) {
        return ls__fail(LS_ERR_INVALID, "%s on group \"%s\": tag %d is negative; give 0 or more",
                        what, group->name, args->tag);
    }
    if (group->plugin != NULL || options->stream != NULL) { /* native has all else */
        LS_TRY(ls__promise_check(what, group, args, options));
    }
    if (options->timeout_ms < 0) {
        return ls__fail(
            LS_ERR_INVALID,
            "%s on group \"%s\": timeout_ms is %lld; give milliseconds, or 0 for the default", what,
            group->name, (long long)options->timeout_ms);
    }
    return LS_OK;
}
