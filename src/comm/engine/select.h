/* How an operation runs: where its data goes, and by which plan. Chosen here only. */
#ifndef LS_COMM_ENGINE_SELECT_H
#define LS_COMM_ENGINE_SELECT_H

#include "comm/group/group.h"

size_t ls__select_plans(int size); /* the bound of group->plans in a group of this size */
/* lock; when an operation is submitted: sets its memory as far as this rank knows it by itself, and
 * the plan of a one-shot operation, whose data is announced with it. LS_ERR_MEMORY: this rank
 * cannot tell, and must not go on, since its peers decide without it. */
ls_status ls__select_submitted(ls_group *group, ls_work *work);
/* lock; the same for a plain operation of ranks on one host whose one-shot plan was made before;
 * false: it has none, or is too large for it. */
bool ls__select_prepared(ls_group *group, ls_work *work);
/* progress lock; when all members have announced it: its memory, if that was still open, and its
 * plan; NULL with the error set. Not of one-shot operations. */
const ls__plan *ls__select_announced(ls_group *group, ls_work *work);

#endif
