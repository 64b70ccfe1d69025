/* How an operation runs: where its data goes, and by which plan. Chosen here only. */
#ifndef LS_COMM_ENGINE_SELECT_H
#define LS_COMM_ENGINE_SELECT_H

#include "comm/core/group.h"

size_t ls__select_plans(int size); /* the bound of group->plans in a group of this size */
/* lock; when an operation is submitted: sets its memory as far as this rank knows it by itself, and
 * the plan of a one-shot operation, whose data is announced with it. LS_ERR_MEMORY: this rank
 * cannot tell, and must not go on, since its peers decide without it. */
ls_status ls__select_submitted(ls_group *group, ls_work *work);
/* Whether a plain call of ranks on one host may be announced together with its data. */
bool ls__select_may_announce(const ls_group *group, const ls__collective *args);
/* lock, progress lock; the same as ls__select_submitted for a plain operation of ranks on one host,
 * or an offer. False: its one-shot plan was not made before, or there is no room for an offer. */
bool ls__select_prepared(ls_group *group, ls_work *work);
/* progress lock; when all members have announced it: an offer that not all have made is none. */
void ls__select_met(const ls_group *group, ls_work *work);
/* progress lock; when all members have announced it: its memory, if that was still open, and its
 * plan; NULL with the error set. Not of one-shot operations. */
const ls__plan *ls__select_announced(ls_group *group, ls_work *work);

#endif
