/* Which execution path an operation takes, and which program runs it: chosen here only. */
#ifndef LS_COMM_ENGINE_SELECT_H
#define LS_COMM_ENGINE_SELECT_H

#include "comm/group/group.h"

/* lock; the program for this path, made once; NULL: there is not one (error set). */
const ls__program *ls__select_program(ls_group *group, const ls_work *work, ls__way way);
size_t ls__select_room(int size); /* programs a group of this size may need */
/* lock; when an operation is submitted: sets its path as far as this rank knows it by itself, and
 * the program of a one-shot operation, whose data is announced with it. LS_ERR_MEMORY: this rank
 * cannot tell, and must not go on, since its peers decide without it. */
ls_status ls__select_submitted(ls_group *group, ls_work *work);
/* token; when all members have announced it: the path, if it was still open, and the program; NULL
 * with the error set. */
const ls__program *ls__select_announced(ls_group *group, ls_work *work);

#endif
