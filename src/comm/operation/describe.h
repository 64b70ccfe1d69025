/* SPDX-License-Identifier: Apache-2.0 */
/* What an operation is about, from the arguments of its call: describe.c. */
#ifndef LS_COMM_OPERATION_DESCRIBE_H
#define LS_COMM_OPERATION_DESCRIBE_H

#include "comm/core/collective.h"
#include "comm/core/group.h"

/* Bytes of the input and output buffers; false when they overflow. */
bool ls__collective_bytes(const ls_group *group, const ls__collective *args, size_t *input,
                          size_t *output);
/* Whether this rank's input (else output) counts: some exist on the root only. */
static inline bool ls__collective_uses(const ls_group *group, const ls__collective *args,
                                       bool input)
{
    if (ls__operation_is_p2p(args->operation)) {
        return (args->operation == LS__OP_SEND) == input;
    }
    return ls__operation_uses(args->operation, input, group->rank, args->root);
}

/* lock; what a work is about, from the call and its options. */
void ls__collective_fill(ls_group *group, const ls__collective *args,
                         const ls_collective_options *options, ls_work *work);
/* lock; the same of a call without options and without any other particular, as if its buffers were
 * not registered. Leaves out the deadline and the time of the call. */
void ls__collective_fill_plain(ls_group *group, const ls__collective *args, ls_work *work);
/* The call site, as the public macros have stored it. */
void ls__descriptor_site(ls__descriptor *d);

#endif
