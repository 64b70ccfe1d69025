/* Which program runs an operation. */
#ifndef LS_COMM_ENGINE_SELECT_H
#define LS_COMM_ENGINE_SELECT_H

#include "comm/group/group.h"

/* How to run what is not decided yet, by what all members have announced. */
ls__way ls__choose_way(const ls_group *group, const ls_work *work);
/* Whether private buffers of this size are offered to be read; `algorithm`: asked for, or NULL. */
bool ls__choose_reading(const ls_group *group, ls__operation operation,
                        const ls__algorithm *algorithm, int64_t bytes);
/* lock; NULL: no such program (error set) */
const ls__program *ls__choose_program(ls_group *group, const ls_work *work, ls__way way);
size_t ls__choose_room(int size); /* programs a group of this size may need */
/* lock; sets way and program if one-shot. LS_ERR_MEMORY: this rank cannot tell, and must not go on
 * as if it were not, since its peers decide without it. */
ls_status ls__choose_small(ls_group *group, ls_work *work);

#endif
