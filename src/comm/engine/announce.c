/* SPDX-License-Identifier: Apache-2.0 */
/* Announcing queued operations, in order, as far as there is room: what a one-shot operation
 * publishes goes with its announcement. */
#include "comm/core/group.h"
#include "comm/core/plan.h"
#include "comm/core/post.h"
#include "comm/diagnose/fail.h"
#include "comm/engine/engine.h"
#include "comm/engine/one_shot.h"
#include "comm/memory/control.h"
#include "comm/operation/mismatch.h"
#include "comm/operation/v_counts.h"

/* lock; writes all that belongs to the work's announcement, its data too, but not the stamp, which
 * must follow at once. */
static void write_post(ls_group *group, ls_work *work)
{
    ls__line line = {.key = ls__descriptor_key(group->comm, &work->descriptor)};
    if (work->has_layout) {
        ls__v_layout_publish(group, work);
    }
    if (ls__is_one_shot(work)) {
        ls__one_shot_publish(group, work, &line);
    }
    if (work->path == LS__PATH_BACKEND) {
        line.one_shot = 1; /* no data goes with it, but members on other hosts are told */
    }
    ls__post_write(group, &work->descriptor, &line);
}

bool ls__post_flush(ls_group *group)
{
    bool ready = false;
    while (group->next_post != NULL && !ls__group_failing(group) &&
           ls__post_has_room(group, group->next_post)) {
        ls_work *work = group->next_post;
        const uint64_t sequence = work->descriptor.sequence;
        write_post(group, work);
        ready = ls__post_reach(group, sequence, 1) || work->path == LS__PATH_MESSAGES ||
                group->has_remote || ready;
        /* Sync: release; pairs with the acquire in exec.c's is_posted. */
        atomic_store_explicit(&work->posted, true, memory_order_release);
        /* Sync: release; pairs with the acquire in remote.c. */
        atomic_store_explicit(&group->posted, sequence, memory_order_release);
        ls__list *next = work->link.next;
        group->next_post = next == &group->queue ? NULL : LS__LIST_ITEM(next, ls_work, link);
    }
    return ready;
}
