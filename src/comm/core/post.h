/* SPDX-License-Identifier: Apache-2.0 */
/* Stamps: announcing operations and reaching fences; see Notes [Stamps] and [Last arriver] in
 * memory/control.h. */
#ifndef LS_COMM_CORE_POST_H
#define LS_COMM_CORE_POST_H

#include "base/assert.h"
#include "comm/core/group.h"

bool ls__post_all_at(const ls_group *group, uint64_t sequence, uint64_t fences);
/* This rank is at the fence; whether all members are. */
bool ls__post_reach(ls_group *group, uint64_t sequence, uint64_t fences);
/* The first member that has not reached the fence; -1: all have. */
int ls__post_missing(const ls_group *group, uint64_t sequence, uint64_t fences);
/* lock; whether the number may be announced, with so many of its slots: Note [Room] in post.c. A
 * rank that has no room is not rung for: it must ask by announcing. */
bool ls__post_room(ls_group *group, uint64_t sequence, uint64_t ahead);
/* Stores "finished" and wakes ranks that want room. True: members on other hosts are to be told. */
bool ls__post_finish(ls_group *group, uint64_t sequence);
/* The member's post of the operation. */
static inline ls__post *ls__post_slot(const ls_group *group, int member, uint64_t sequence)
{
    return &group->member[member].control->post[sequence % LS__WINDOW];
}

/* The member's slot of the small stage for the operation: LS__SMALL_BYTES. */
static inline unsigned char *ls__small_stage(const ls_group *group, int member, uint64_t sequence)
{
    return group->member[member].control->small[sequence % LS__SMALL_SLOTS];
}

/* A ls__place of the small stages (LS__SMALL_BYTES) or the wide ones, for the member. */
static inline unsigned char *ls__place_at(const ls_group *group, int member, uint64_t sequence,
                                          unsigned place)
{
    const bool other = (place & LS__PLACE_OTHER) != 0;
    const int owner = other ? 1 - member : member;
    place &= ~LS__PLACE_OTHER;
    return place == LS__PLACE_SMALL ? ls__small_stage(group, owner, sequence)
                                    : group->member[owner].control->wide[place - LS__PLACE_WIDE];
}

/* Where the member has published the data of a one-shot operation. */
static inline unsigned char *ls__small_place(const ls_group *group, int member, uint64_t sequence)
{
    ls__post *post = ls__post_slot(group, member, sequence);
    const unsigned place = post->line.place;
    return place == LS__PLACE_LINE ? post->line.data : ls__place_at(group, member, sequence, place);
}

/* lock; writes all that belongs to an announcement except the stamp, which must follow at once. */
static inline void ls__post_write(ls_group *group, const ls__descriptor *d, ls__line *line)
{
    ls__post *slot = ls__post_slot(group, group->rank, d->sequence);
    const uint64_t behind =
        d->sequence - atomic_load_explicit(&group->own->finished, memory_order_relaxed);
    LS_ASSERT(behind > 0); /* operations finish in order, and this one has not begun */
    line->behind = behind < UINT16_MAX ? (uint16_t)behind : UINT16_MAX;
    line->memory = d->memory;
    if (line->place != LS__PLACE_LINE) {
        line->input = d->input;
        line->output = d->output;
    }
    ls__descriptor_copy(&slot->descriptor, d);
    /* Last and in one piece: a peer that waits looks at the line all the time, and takes it away
     * between two stores that are far from each other. */
    const size_t head = offsetof(ls__line, data) + LS__LINE_BYTES;
    if (line->place == LS__PLACE_LINE && line->one_shot > 1 + LS__LINE_BYTES) {
        memcpy((unsigned char *)&slot->line + head, (unsigned char *)line + head,
               sizeof *line - head);
    }
    memcpy(&slot->line, line, head);
}

/* lock; whether the work may be announced; if not, this rank is rung when it may. */
bool ls__post_has_room(ls_group *group, const ls_work *work);

#endif
