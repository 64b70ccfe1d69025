/* The short way of small blocking operations; see fast_path.c. */
#ifndef LS_COMM_ENGINE_FAST_PATH_H
#define LS_COMM_ENGINE_FAST_PATH_H

#include "comm/group/group.h"

/* A blocking call whose arguments nobody has checked. False: nothing was done, it must go the
 * ordinary way; else it has ended with *status. */
bool ls__small_call(ls_group *group, const ls__collective *args, ls_status *status);
/* lock; keeps how an operation went the ordinary way, if it may go the short one next time. */
void ls__small_learn(ls_group *group, const ls__collective *args, const ls_work *work);

#endif
