/* SPDX-License-Identifier: Apache-2.0 */
/* The sum of a step, made by the kernels or by the user's operator, which may fail. */
#include <stdio.h>

#include "comm/core/cause.h"
#include "comm/core/group.h"
#include "comm/operation/exec.h"
#include "comm/operation/mismatch.h"

/* Fails the group with the operator's own reason. */
static void report_refusal(ls_group *group, const ls__descriptor *descriptor, const char *why)
{
    char text[LS__FAILURE_MAX], operation[256];
    ls__operation_text(group, descriptor, operation, sizeof operation);
    snprintf(text, sizeof text, "%s: the operator \"%s\" failed on rank %d: %s", operation,
             descriptor->op_name, group->comm->runtime->rank, why);
    ls__group_cause(group, LS_ERR_ABORTED, text);
}

/* Note [Refusals]
 * An operator that fails leaves its reason with the thread that runs it (ls_reduce_op_fail).
 * The group fails here, before the step counts as done, so no result made of it is published. */
bool ls__exec_reduce(ls_group *group, const ls_work *work, const ls__reduce_args *args)
{
    ls__exec *exec = group->exec;
    const uint64_t sequence = work->descriptor.sequence;
    if (args->user.fn == NULL) {
        ls__reduce(args);
        return true;
    }
    if (exec->refused == sequence) { /* until the group's failure is seen */
        return false;
    }
    char why[LS__REFUSAL_MAX] = "";
    const bool within = ls__self.in_callback; /* it must not wait, either */
    ls__self.in_callback = true;
    ls__self.refusal = why;
    ls__reduce(args);
    ls__self.refusal = NULL;
    ls__self.in_callback = within;
    if (why[0] != '\0') {
        exec->refused = sequence;
        report_refusal(group, &work->descriptor, why);
    }
    return why[0] == '\0';
}
