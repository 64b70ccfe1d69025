/* SPDX-License-Identifier: Apache-2.0 */
/* Running an operation whose data goes with its announcement; see one_shot.c. */
#ifndef LS_COMM_ENGINE_ONE_SHOT_H
#define LS_COMM_ENGINE_ONE_SHOT_H

#include "comm/core/group.h"
#include "comm/core/plan.h"

/* Bytes of a stage that the contribution of a rank takes: `bytes`, or where INPUT has a block of
 * so many bytes for each rank, all of them, each on lines of its own. */
size_t ls__one_shot_bytes(const ls_group *group, ls__operation operation, size_t bytes);
/* lock; the steps before the fence: copies this rank's blocks to where its peers read them, in the
 * line of the announcement or in its slot of the small stage, and says so in the line. */
void ls__one_shot_publish(ls_group *group, const ls_work *work, ls__line *line);
/* lock and progress lock; whether peers have read what the next slot of the wide stage holds. */
bool ls__one_shot_has_wide(ls_group *group);
/* progress lock; the steps after the fence, when all members have announced the same operation.
 * False: the user's operator failed, and so does the group; OUTPUT must not be used. */
bool ls__one_shot_run(ls_group *group, const ls_work *work);
/* A blocking call whose arguments have been checked. False: nothing was done, it must be submitted;
 * else it has ended with *status, or a member is late, and
 * the caller waits for *late. */
bool ls__run_inline(ls_group *group, const ls__collective *args,
                    const ls_collective_options *options, ls_status *status, ls_work **late);

#endif
