/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithm a group with ranks on several hosts uses: Note [Deciding] in tune.h. */
#ifndef LS_COMM_TUNE_CHOICE_H
#define LS_COMM_TUNE_CHOICE_H

#include "comm/core/group.h"
#include "comm/tune/tune.h"

/* Called by all ranks in ls_init: rank 0 reads the tuning file and shares its lines through the
 * store. Does nothing when all ranks are on one host. LS_ERR_MEMORY, or an error of the store. */
ls_status ls__tuning_share(ls__comm *comm);
void ls__tuning_unshare(ls__comm *comm);

/* Called with the lock, when the first operation of the group is prepared. Does nothing for a group
 * on one host, or under LOCKSTEP_TUNE=off. LS_ERR_MEMORY: this rank has no table and must fail the
 * operation, since the others may choose algorithms that it does not know of. */
ls_status ls__tuning_decide(ls_group *group);
void ls__tuning_close(ls_group *group);
/* The layout of the group's hosts, cut to LS__TUNE_RANKS_MAX ranks. */
ls__layout ls__tuning_layout(const ls_group *group);

/* Called with the progress lock. The algorithm that the user asked for, else the one chosen for
 * this size; NULL: the default. */
const ls__algorithm *ls__tuning_find(const ls_group *group, const ls_work *work);
/* Names the algorithm that operations of this size use. */
const char *ls__tuning_name(ls_group *group, ls__operation operation, int64_t bytes);
/* What an all_reduce of some megabytes costs, the same on all ranks of the group: in shared memory
 * a constant; between hosts the program's counts by the figures that choose programs, or by the
 * default ones under LOCKSTEP_TUNE=off. LS_ERR_MEMORY */
ls_status ls__tuning_link(ls_group *group, ls__tune_link *out);
/* Called with the lock. Whether data of this size travels inside the announcement. */
bool ls__tuning_one_shot(const ls_group *group, size_t bytes);

#endif
