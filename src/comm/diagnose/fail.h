/* SPDX-License-Identifier: Apache-2.0 */
/* Taking over a root cause, and looking for one. */
#ifndef LS_COMM_DIAGNOSE_FAIL_H
#define LS_COMM_DIAGNOSE_FAIL_H

#include "comm/core/comm.h"
#include "comm/core/group.h"

/* If the group has a root cause, takes it over and ends its works. True: it has failed. The caller
 * holds the progress lock. */
bool ls__group_failed(ls_group *group);
/* Whether this rank has found a failure that member 0, on another host, has not confirmed yet.
 * Until then no operation is announced: a peer might compare it with its own before it learns of
 * the failure. */
static inline bool ls__group_failing(const ls_group *group)
{
    return group->member[0].remote &&
           atomic_load_explicit(&group->claim.state, memory_order_relaxed) != LS__CLAIM_NONE;
}
/* Looks for root causes and claims of all groups; cheap. The caller holds the progress lock. */
bool ls__comm_look(ls__comm *comm);

/* Fails the group on every member with this status and text, unless it has a root cause already. */
void ls__group_fail(ls_group *group, ls_status status, const char *text);
/* The same with LS_ERR_MEMORY, since the peers would wait for this rank. */
ls_status ls__collective_no_memory(ls_group *group, const ls__collective *args);

/* check.c: deadlines, stalls, and members that have left or died. */
/* Fails groups that cannot go on, and warns of stragglers. The caller holds the progress lock. */
void ls__engine_check(ls__comm *comm, uint64_t now_ns);

#endif
