/* Announcing queued operations. */
#ifndef LS_COMM_ENGINE_ANNOUNCE_H
#define LS_COMM_ENGINE_ANNOUNCE_H

#include "comm/core/group.h"

/* lock; announces works of the queue as far as there is room. True: of one of them all members are
 * there, so a thread must drive it now. */
bool ls__post_flush(ls_group *group);

#endif
