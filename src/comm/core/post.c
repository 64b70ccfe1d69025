/* SPDX-License-Identifier: Apache-2.0 */
/* Stamps: announcing operations and reaching fences. See Notes [Stamps] and [Last arriver] in
 * control.h.
 *
 * Note [Room]
 * A post slot (and a slot of the small stage) is written again only when all members have finished
 * the operation that used it before. A rank that must wait for this sets wants_room, looks again,
 * and may then sleep; a rank that finishes an operation whose number is a multiple of ROOM_EVERY
 * looks at everybody's wants_room. Store and load are sequentially consistent on both sides, so one
 * of the two sees the other, where the number is such a multiple (the other stores are plain ones,
 * which take a fraction of the time). Looking only now and then is enough: a rank that waits for
 * operation s - 8 to be finished has itself finished s - 1, so all have announced s - 1 and will
 * finish up to there, and among s - 8 … s - 1 there is a multiple of ROOM_EVERY, which means as
 * much as s - 8.
 */
#include "comm/core/post.h"
#include "base/assert.h"
#include "base/planted.h"
#include "comm/core/group.h"
#include "comm/core/wake.h"
#include "comm/memory/control.h"

#define ROOM_EVERY 4

_Static_assert(LS__SMALL_SLOTS >= 2 * ROOM_EVERY, "the argument of Note [Room]");
_Static_assert(LS__WINDOW >= LS__SMALL_SLOTS, "the small stage is the tighter bound");

/* In order of rank, so the same member is named until it comes. */
int ls__post_missing(const ls_group *group, uint64_t sequence, uint64_t fences)
{
    const uint64_t stamp = ls__stamp(sequence, fences);
    for (int r = 0; r < group->size; r++) {
        if (atomic_load_explicit(&ls__post_slot(group, r, sequence)->stamp, memory_order_seq_cst) <
            stamp) {
            return r;
        }
    }
    return -1;
}

bool ls__post_all_at(const ls_group *group, uint64_t sequence, uint64_t fences)
{
    return ls__post_missing(group, sequence, fences) < 0;
}

/* Whether all members of this host are there. The stamps of remote members come by message, to each
 * rank at a time of its own, and wake it: another rank may see them all before this one does. */
static bool near_all_at(const ls_group *group, uint64_t sequence, uint64_t fences)
{
    const uint64_t stamp = ls__stamp(sequence, fences);
    for (int r = 0; r < group->size; r++) {
        if (!group->member[r].remote &&
            atomic_load_explicit(&ls__post_slot(group, r, sequence)->stamp, memory_order_seq_cst) <
                stamp) {
            return false;
        }
    }
    return true;
}

/* Note [Last arriver]: store, then look, then ring if all are there. */
bool ls__post_reach(ls_group *group, uint64_t sequence, uint64_t fences)
{
    _Atomic uint64_t *stamp = &ls__post_slot(group, group->rank, sequence)->stamp;
    /* Sync: seq_cst; as a release it pairs with the acquire of the rank that sees the fence
     * reached. */
    atomic_store_explicit(stamp, ls__stamp(sequence, fences), memory_order_seq_cst);
    const bool all = ls__post_all_at(group, sequence, fences);
    if ((all || (group->has_remote && near_all_at(group, sequence, fences))) &&
        !LS__PLANTED(WAKE)) {
        ls__ring_members(group);
    }
    return all;
}

/* The last operation that every member has finished. */
static uint64_t all_finished(const ls_group *group)
{
    uint64_t least = UINT64_MAX;
    for (int r = 0; r < group->size; r++) {
        /* Sync: seq_cst for Note [Room]; pairs with the store in ls__post_finish. */
        const uint64_t f =
            atomic_load_explicit(&group->member[r].control->finished, memory_order_seq_cst);
        least = f < least ? f : least;
    }
    return least;
}

/* The members' own reports, which came with their announcements, save a look at their counters. */
bool ls__post_room(ls_group *group, uint64_t sequence, uint64_t ahead)
{
    if (sequence > group->room_until + ahead && group->room_until < group->finished_seen) {
        group->room_until = group->finished_seen;
    }
    if (sequence > group->room_until + ahead) {
        group->room_until = all_finished(group);
    }
    return sequence <= group->room_until + ahead || LS__PLANTED(GENERATION);
}

/* Note [Room]: the wish is stored before the second look. */
bool ls__post_has_room(ls_group *group, const ls_work *work)
{
    const bool small = ls__is_one_shot(work) || work->has_layout;
    const uint64_t ahead = small ? LS__SMALL_SLOTS : LS__WINDOW;
    const uint64_t sequence = work->descriptor.sequence;
    if (sequence <= group->room_until + ahead || LS__PLANTED(GENERATION)) {
        return true;
    }
    atomic_store_explicit(&group->own->wants_room, 1, memory_order_seq_cst);
    group->room_until = all_finished(group);
    const bool room = sequence <= group->room_until + ahead;
    if (room) {
        atomic_store_explicit(&group->own->wants_room, 0, memory_order_relaxed);
    }
    return room;
}

bool ls__post_finish(ls_group *group, uint64_t sequence)
{
    LS_ASSERT(sequence == atomic_load_explicit(&group->own->finished, memory_order_relaxed) + 1);
    if (sequence % ROOM_EVERY != 0) {
        atomic_store_explicit(&group->own->finished, sequence, memory_order_release);
        return false;
    }
    atomic_store_explicit(&group->own->finished, sequence, memory_order_seq_cst);
    for (int r = 0; r < group->size; r++) {
        if (!group->member[r].remote && atomic_load_explicit(&group->member[r].control->wants_room,
                                                             memory_order_seq_cst) != 0) {
            ls__ring(group->comm, group->member[r].local);
        }
    }
    return group->has_remote;
}
