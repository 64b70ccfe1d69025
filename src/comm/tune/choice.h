/* Which algorithm a group with ranks on several hosts uses: Note [Deciding] in tune.h. */
#ifndef LS_COMM_TUNE_CHOICE_H
#define LS_COMM_TUNE_CHOICE_H

#include "comm/group/group.h"
#include "comm/tune/tune.h"

/* At start, by all ranks: rank 0 reads what was timed before and shares it. Nothing to do for ranks
 * of one host. LS_ERR_MEMORY, or what the store says. */
ls_status ls__tuning_share(ls__comm *comm);
void ls__tuning_unshare(ls__comm *comm);

/* lock; decides when the first operation of the group is prepared. Does nothing for a group of one
 * host, or where LOCKSTEP_TUNE=off. LS_ERR_MEMORY: this rank cannot tell, and must not go on. */
ls_status ls__tuning_decide(ls_group *group);
void ls__tuning_close(ls_group *group);
/* The layout of the group's hosts, cut to LS__TUNE_RANKS_MAX ranks. */
ls__layout ls__tuning_layout(const ls_group *group);

/* token; the algorithm asked for, else the one chosen for this size; NULL: the default. */
const ls__algorithm *ls__tuning_find(const ls_group *group, const ls_work *work);
/* What operations of this size use, for reports. */
const char *ls__tuning_name(ls_group *group, ls__operation operation, int64_t bytes);
/* lock; whether data of so many bytes travels with the announcement. */
bool ls__tuning_one_shot(const ls_group *group, size_t bytes);

#endif
