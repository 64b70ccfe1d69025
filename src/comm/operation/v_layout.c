/* SPDX-License-Identifier: Apache-2.0 */
/* Unequal blocks on one host: ranks publish the layout of their blocks, so that peers can read a
 * block where it lies without a message.
 *
 * Note [Published layouts]
 * The programs of the v-variants in shared memory only read what peers give, so it is enough to
 * know where each block of a peer's INPUT starts and how long it is. A rank writes that into a
 * table in its slot of the small stage before it announces the operation, so the table is complete
 * when all have announced; the slot is used again only when all have finished the operation (Note
 * [Room]). If the blocks fit behind the table they are *packed* there, and the user's buffer is not
 * needed any more.
 *
 *     all packed              one fence: the blocks are read from the small stage   (REGISTERED)
 *     packed or registered    read where they are; a last fence ends the reading    (REGISTERED)
 *     else                    in slices through STAGE                               (STAGED)
 *
 * OUTPUT may lie anywhere. The longest block of all tables says how many slices there are. Where
 * only the two ends of a block know its length, the reader compares before it reads.
 *
 * Measured in turns with messages, 2 ranks on a busy machine: 0.3-0.8 of their time from 256 KB in
 * registered memory, 0.8 packed; packing against the last fence: 2.3 and 3.2 us at 2 KB, equal at
 * 16 KB. In private memory a gather_v or scatter_v of 16 to 256 KiB takes 1.0 to 1.7 times as long
 * (Sapphire Rapids, 2 and 4 ranks), since all meet; by messages a sender runs ahead. In registered
 * memory these take 0.25 to 0.5 of the time from 256 KiB to 1 MiB. */
#include <string.h>

#include "base/size.h"
#include "comm/core/group.h"
#include "comm/core/post.h"
#include "comm/memory/control.h"
#include "comm/memory/heap.h"
#include "comm/operation/exec.h"
#include "comm/operation/mismatch.h"
#include "comm/operation/v_counts.h"

/* One block of INPUT. */
typedef struct place {
    int64_t count, offset; /* of a block of INPUT, in elements */
} place;

/* The table, at the start of the slot; packed blocks lie behind it, on a cache line. */
typedef struct layout {
    int64_t longest; /* block on this rank, of INPUT or OUTPUT */
    int32_t packed;
    place block[];
} layout;

static size_t table_bytes(int size)
{
    return ls__round_up(sizeof(layout) + (size_t)size * sizeof(place), LS__CACHE_LINE);
}

static layout *table_of(const ls_group *group, int member, uint64_t sequence)
{
    return (layout *)(void *)ls__small_stage(group, member, sequence);
}

/* Only conditions that are equal on all members: the tables are used by all or by none. */
bool ls__v_layout_can(const ls_group *group, const ls_work *work)
{
    const bool staged = work->algorithm == NULL || (work->algorithm->memories & LS__IN_STAGED) != 0;
    return staged && group->size > 1 && !group->has_remote &&
           group->comm->forced != LS__MEMORY_MESSAGES &&
           table_bytes(group->size) <= LS__SMALL_BYTES / 2;
}

/* ---- announcing --------------------------------------------------------------------------- */

/* The input counts as registered if all bytes up to the end of its last block lie in the heap. */
void ls__v_layout_describe(const ls_group *group, ls_work *work)
{
    int64_t end = 0;
    for (int r = 0; r < group->size; r++) {
        const int64_t after = work->offset_of[0][r] + work->count_of[0][r];
        end = work->count_of[0][r] > 0 && after > end ? after : end;
    }
    ls__descriptor *d = &work->descriptor;
    const size_t bytes = (size_t)end * work->element; /* fits: ls__counts_check */
    const bool ahead = ls__operation_reads_ahead(work->operation) && work->input == work->output;
    const bool here =
        end == 0 || ls__heap_offset(&group->comm->heap, work->input, bytes, &d->input);
    d->memory = here && !ahead ? LS__MEMORY_REGISTERED : LS__MEMORY_STAGED;
    d->output = 0;
}

/* Whether the blocks fit into the slot behind the table. Tests that force a path do not pack. */
static bool fits(const ls_group *group, const ls_work *work)
{
    const int64_t room = (int64_t)((LS__SMALL_BYTES - table_bytes(group->size)) / work->element);
    int64_t total = 0;
    for (int r = 0; r < group->size; r++) {
        if (work->count_of[0][r] > room - total) {
            return false;
        }
        total += work->count_of[0][r];
    }
    return group->comm->forced == 0 && work->path != LS__PATH_BACKEND;
}

/* From here on the packed blocks are the input. */
static void pack(const ls_group *group, ls_work *work, unsigned char *to)
{
    const size_t element = work->element;
    const unsigned char *from = work->input;
    int64_t *offset = work->offset_of[0], end = 0;
    for (int r = 0; r < group->size; r++) {
        const int64_t count = work->count_of[0][r];
        if (count > 0) {
            memcpy(to + (size_t)end * element, from + (size_t)offset[r] * element,
                   (size_t)count * element);
        }
        offset[r] = end;
        end += count;
    }
    work->input = to;
    work->descriptor.input = (uint64_t)(to - group->member[group->rank].base);
    work->descriptor.memory = LS__MEMORY_REGISTERED;
}

/* The offsets in the table are those after packing, as peers will use them. */
void ls__v_layout_publish(ls_group *group, ls_work *work)
{
    layout *table = table_of(group, group->rank, work->descriptor.sequence);
    table->longest = work->count;
    table->packed = fits(group, work);
    if (table->packed) {
        pack(group, work, (unsigned char *)table + table_bytes(group->size));
    }
    for (int r = 0; r < group->size; r++) {
        table->block[r] = (place){work->count_of[0][r], work->offset_of[0][r]};
    }
}

/* ---- when all have met -------------------------------------------------------------------- */

/* Elements that this rank expects of the peer; -1: it reads nothing there, or all know it. */
static int64_t expected(const ls_group *group, const ls_work *work, int peer)
{
    const int root = work->descriptor.root, me = group->rank;
    switch (work->operation) {
    case LS__OP_ALL_TO_ALL_V:
        return work->count_of[1][peer];
    case LS__OP_GATHER_V:
        return me == root ? work->count_of[1][peer] : -1;
    case LS__OP_SCATTER_V:
        return peer == root ? work->count_of[1][me] : -1;
    default:
        return -1;
    }
}

/* The two ends of a block must agree on its length before any byte of it is read. */
bool ls__v_layout_differ(ls_group *group, ls_work *work)
{
    const uint64_t sequence = work->descriptor.sequence;
    for (int r = 0; r < group->size; r++) {
        const layout *table = table_of(group, r, sequence);
        const int64_t wanted = r == group->rank ? -1 : expected(group, work, r);
        const int64_t given =
            table->block[work->operation == LS__OP_GATHER_V ? r : group->rank].count;
        if (wanted >= 0 && wanted != given) {
            ls__mismatch_block(group, r, &ls__post_slot(group, r, sequence)->descriptor, given,
                               wanted);
            return true;
        }
        work->count = table->longest > work->count ? table->longest : work->count;
    }
    return false;
}

bool ls__v_layout_packed(const ls_group *group, const ls_work *work)
{
    for (int r = 0; r < group->size; r++) {
        if (table_of(group, r, work->descriptor.sequence)->packed == 0) {
            return false;
        }
    }
    return true;
}

int64_t ls__v_layout_offset(const ls_group *group, const ls_work *work, int member, int chunk)
{
    return table_of(group, member, work->descriptor.sequence)->block[chunk].offset;
}
