/* Small blocking operations, run by their caller; see inline.c. */
#ifndef LS_COMM_ENGINE_INLINE_H
#define LS_COMM_ENGINE_INLINE_H

#include "comm/group/group.h"

/* A blocking call whose arguments have been checked. False: nothing was done, it must be submitted;
 * else it has ended with *status. */
bool ls__run_inline(ls_group *group, const ls__collective *args,
                    const ls_collective_options *options, ls_status *status);

#endif
