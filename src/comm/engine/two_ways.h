/* Private buffers of ranks on one host go through stages or are copied by the kernel (memory/cma.h):
 * which way, measured while the job runs.
 *
 * Note [Two ways]
 * What is faster depends on the machine, on how its cores share caches, and on the pages of each buffer,
 * since the kernel looks up every one. So each rank keeps the time that operations took either way, by
 * operation and size (powers of two), and announces both with the next one of that kind. All ranks see
 * the same announcements, so all take the same way without a further message: at first TRIALS operations
 * each, then the one whose slowest rank is faster. One operation in EXPLORE, by a hash of its number,
 * takes the other way, because pages and cores may change; a job spends no more than that on it.
 *
 * The time kept is the shortest of the trials. Later, a shorter one counts at once, a longer one by an
 * eighth of the difference. Results have the same bits either way. */
#ifndef LS_COMM_ENGINE_TWO_WAYS_H
#define LS_COMM_ENGINE_TWO_WAYS_H

#include "comm/group/group.h"

#define LS__WAYS_SIZES 48 /* powers of two, in bytes */

/* Of operations of one kind and size. Sync: relaxed; written by the holder of the progress lock. */
typedef struct ls__two_ways {
    _Atomic uint32_t ns[2];     /* staged, by CMA */
    _Atomic uint32_t trials[2]; /* made, up to TRIALS */
} ls__two_ways;

/* lock; what this rank announces: 0: it cannot, 1: not known yet, else nanoseconds. */
void ls__two_ways_announce(const ls_group *group, const ls_work *work, uint32_t cost[2]);
/* progress lock; all have announced an operation that would be staged: whether it goes by CMA. */
bool ls__two_ways_cma(const ls_group *group, const ls_work *work);
/* progress lock; the operation has ended after so long. */
void ls__two_ways_took(const ls_group *group, const ls_work *work, uint64_t ns);

#endif
