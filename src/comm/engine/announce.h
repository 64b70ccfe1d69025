/* Announcing queued operations. */
#ifndef LS_COMM_ENGINE_ANNOUNCE_H
#define LS_COMM_ENGINE_ANNOUNCE_H

#include "comm/group/group.h"

/* lock; writes all that belongs to the work's announcement, its data too, but not the stamp, which
 * must follow at once. The key is the descriptor's, or 0. */
void ls__announce_write(ls_group *group, ls_work *work, uint64_t key);
/* lock; announces works of the queue as far as there is room. True: of one of them all members are
 * there, so a thread must drive it now. */
bool ls__post_flush(ls_group *group);

#endif
