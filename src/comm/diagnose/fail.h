/* Taking a first cause over, and looking for one. */
#ifndef LS_COMM_DIAGNOSE_FAIL_H
#define LS_COMM_DIAGNOSE_FAIL_H

#include "comm/group/group.h"

/* token: if the group has a cause, takes it over and ends its works. True: it has failed. */
bool ls__group_failed(ls_group *group);
/* It has failed, and is told so when member 0, on another host, has answered. Until then nothing
 * more is announced: a peer might compare it with its own before it hears of the failure. */
static inline bool ls__group_failing(const ls_group *group)
{
    return group->member[0].remote &&
           atomic_load_explicit(&group->claim, memory_order_relaxed) != LS__CLAIM_NONE;
}
bool ls__comm_look(ls__comm *comm); /* token: cheap look for verdicts and claims */

#endif
