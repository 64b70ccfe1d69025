/* SPDX-License-Identifier: Apache-2.0 */
/* User-defined operators: a table of the runtime, from which works copy their entry. And
 * premultiplied sums: the input is multiplied before the operation starts, in place where the
 * operation overwrites that memory anyway, else into memory that the group keeps for the next one.
 *
 * A value of an operator is only an index into that table. Ranks must make their operators in the
 * same order; descriptors carry the operator's name, so a different one on another rank is a
 * mismatch. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/lock.h"
#include "comm/api/collective.h"
#include "comm/core/collective.h"
#include "comm/core/group.h"
#include "comm/core/packs.h"
#include "comm/diagnose/fail.h"
#include "comm/operation/exec.h"

/* ---- user-defined operators --------------------------------------------------------------- */

/* A copy, because the user may free the operator while operations that use it run. */
ls__operator ls__operator_of(ls__comm *comm, ls_reduce_op op)
{
    LS_ASSERT(ls__reduce_op_is_user(op));
    ls__lock_take(&comm->lock, comm->env);
    const ls__operator found = comm->operators[op - LS_REDUCE_OP_USER];
    ls__unlock(&comm->lock, comm->env);
    return found;
}

/* The lowest free slot, so ranks that make operators in the same order get equal values. */
ls_status ls_reduce_op_new(ls_reduce_fn fn, void *arg, const char *name, ls_reduce_op *out)
{
    ls__comm *comm = ls__comm_get("ls_reduce_op_new");
    const size_t length = name != NULL ? strlen(name) : 0;
    if (comm == NULL) {
        return ls__self.status;
    }
    if (fn == NULL || out == NULL || length == 0 || length >= LS__OP_NAME_MAX) {
        (void)ls__fail(LS_ERR_INVALID,
                       "ls_reduce_op_new(\"%.40s\"): %s; give a function, a name of 1 to %d bytes "
                       "and a place for the operator",
                       name != NULL ? name : "",
                       fn == NULL    ? "the function is NULL"
                       : out == NULL ? "out is NULL"
                                     : "the name is empty or too long",
                       LS__OP_NAME_MAX - 1);
        return ls__fail_at_site(LS_ERR_INVALID);
    }
    int free = -1;
    ls__lock_take(&comm->lock, comm->env);
    for (int i = LS__OPERATORS_MAX - 1; i >= 0; i--) {
        free = comm->operators[i].user.fn == NULL ? i : free;
    }
    if (free >= 0) {
        ls__operator *made = &comm->operators[free];
        made->user = (ls__reduce_user){.fn = fn, .arg = arg};
        memset(made->name, 0, sizeof made->name);
        memcpy(made->name, name, length);
        *out = (ls_reduce_op)(LS_REDUCE_OP_USER + free);
    }
    ls__unlock(&comm->lock, comm->env);
    if (free < 0) {
        (void)ls__fail(
            LS_ERR_LIMIT,
            "ls_reduce_op_new(\"%s\"): %d operators exist already, which is the limit; free "
            "one with ls_reduce_op_free",
            name, LS__OPERATORS_MAX);
        return ls__fail_at_site(LS_ERR_LIMIT);
    }
    return LS_OK;
}

/* Only the table entry: works in flight have copies. */
ls_status ls_reduce_op_free(ls_reduce_op op)
{
    ls__comm *comm = ls__comm_get("ls_reduce_op_free");
    if (comm == NULL) {
        return ls__self.status;
    }
    bool was = false;
    if (op >= LS_REDUCE_OP_USER && op <= LS_REDUCE_OP_USER_LAST) {
        ls__lock_take(&comm->lock, comm->env);
        ls__operator *made = &comm->operators[op - LS_REDUCE_OP_USER];
        was = made->user.fn != NULL;
        made->user.fn = NULL;
        ls__unlock(&comm->lock, comm->env);
    }
    if (!was) {
        (void)ls__fail(LS_ERR_INVALID,
                       "ls_reduce_op_free: %d (%s) was not made by ls_reduce_op_new, or was freed "
                       "before; free each operator once",
                       (int)op, ls_reduce_op_name(op));
        return ls__fail_at_site(LS_ERR_INVALID);
    }
    return LS_OK;
}

/* Called from within the user's function; the operation reads the text when that returns. The first
 * reason counts. */
ls_status ls_reduce_op_fail(const char *why)
{
    if (ls__self.refusal == NULL) {
        (void)ls__fail(LS_ERR_STATE, "ls_reduce_op_fail: no operator runs on this thread; call it "
                                     "within the function that ls_reduce_op_new was given");
        return ls__fail_at_site(LS_ERR_STATE);
    }
    if (ls__self.refusal[0] == '\0') {
        snprintf(ls__self.refusal, LS__REFUSAL_MAX, "%s",
                 why != NULL && why[0] != '\0' ? why : "no reason was given");
    }
    return LS_OK;
}

/* ---- premultiplied sums ------------------------------------------------------------------- */

/* How many elements of input must be multiplied; in the v-variants up to the end of the last
 * block. */
static int64_t elements_of(const ls_group *group, const ls__collective *args)
{
    int64_t end = 0;
    if (args->counts[0] == NULL) {
        return ls__operation_has_blocks(args->operation, true) ? args->count * group->size
                                                               : args->count;
    }
    for (int r = 0; r < group->size; r++) { /* checked: they fit */
        const int64_t from = args->offsets[0] != NULL ? args->offsets[0][r] : end;
        end = from + args->counts[0][r] > end ? from + args->counts[0][r] : end;
    }
    return end;
}

/* v-variants: multiplies the blocks only, since memory between them does not belong to the
 * operation and may not be readable. */
static void scale_blocks(const ls_group *group, const ls__collective *args, unsigned char *to,
                         double factor)
{
    const size_t element = ls_dtype_size(args->dtype);
    const unsigned char *from = args->input;
    int64_t next = 0;
    for (int r = 0; r < group->size; r++) {
        const int64_t at = args->offsets[0] != NULL ? args->offsets[0][r] : next;
        ls__scale(to + (size_t)at * element, from + (size_t)at * element, args->counts[0][r],
                  args->dtype, factor);
        next += args->counts[0][r];
    }
}

/* all_reduce overwrites its output anyway, so it is multiplied there; other operations must not
 * change their input and use a pack, which the operation gives back at its end. */
ls_status ls__premultiply(ls_group *group, ls__collective *args, double factor)
{
    LS_ASSERT(args->pack == NULL);
    const int64_t elements = elements_of(group, args);
    if (elements == 0 || factor == 1.0 ||
        atomic_load_explicit(&group->failure.status, memory_order_acquire) !=
            0) { /* submit() reports it */
        return LS_OK;
    }
    if (args->operation == LS__OP_ALL_REDUCE) { /* where the result will be */
        ls__scale(args->output, args->input, elements, args->dtype, factor);
        args->input = args->output;
        return LS_OK;
    }
    args->pack = ls__pack_take(group, (size_t)elements * ls_dtype_size(args->dtype), 0);
    if (args->pack == NULL) {
        return ls__collective_no_memory(group, args);
    }
    if (args->counts[0] != NULL) {
        scale_blocks(group, args, ls__pack_memory(args->pack), factor);
    } else {
        ls__scale(ls__pack_memory(args->pack), args->input, elements, args->dtype, factor);
    }
    args->input = ls__pack_memory(args->pack);
    return LS_OK;
}
