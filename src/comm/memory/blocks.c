/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks in one sorted array without gaps. Registered blocks are few (buckets, groups), so a scan
 * over consecutive memory is faster than a tree.
 *
 *     before   │ used │          free          │ used │
 *     take            ▼ aligned start
 *     after    │ used │ free │  used   │ free  │ used │
 *
 * Giving the block back merges it with its free neighbors, so the table returns to the first
 * line. */
#include "comm/memory/blocks.h"

#include <errno.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"

#define FIRST_ROOM 64

/* Makes sure that two more entries fit: a take splits one block in up to three. 0 or -ENOMEM. */
static int make_room(ls__blocks *b)
{
    if (b->count + 2 <= b->room) {
        return 0;
    }
    const int room = b->room == 0 ? FIRST_ROOM : 2 * b->room;
    ls__block *grown = b->env->allocate(b->env, (size_t)room * sizeof *grown);
    if (grown == NULL) {
        return -ENOMEM;
    }
    if (b->count > 0) {
        memcpy(grown, b->at, (size_t)b->count * sizeof *grown);
    }
    if (b->at != NULL) {
        b->env->release(b->env, b->at, (size_t)b->room * sizeof *b->at);
    }
    b->at = grown;
    b->room = room;
    return 0;
}

/* `start` keeps the first block aligned, so all blocks of less than a page are. */
int ls__blocks_init(ls__blocks *b, const ls__env *env, size_t start, size_t end)
{
    LS_ASSERT(start < end && start % LS__BLOCK_ALIGN == 0);
    *b = (ls__blocks){.env = env, .used = start};
    const int error = make_room(b);
    if (error == 0) {
        b->at[b->count++] = (ls__block){.offset = start, .bytes = end - start};
    }
    return error;
}

/* Blocks in use are dropped with the range. */
void ls__blocks_fini(ls__blocks *b)
{
    if (b->at != NULL) {
        b->env->release(b->env, b->at, (size_t)b->room * sizeof *b->at);
    }
    *b = (ls__blocks){.env = b->env};
}

/* The caller has made room. Entries from `index` on move up. */
static void insert_at(ls__blocks *b, int index, ls__block block)
{
    LS_ASSERT(index >= 0 && index <= b->count && b->count < b->room);
    memmove(&b->at[index + 1], &b->at[index], (size_t)(b->count - index) * sizeof *b->at);
    b->at[index] = block;
    b->count++;
}

/* The caller has added the bytes of this block to a neighbor. */
static void remove_at(ls__blocks *b, int index)
{
    LS_ASSERT(index >= 0 && index < b->count);
    b->count--;
    memmove(&b->at[index], &b->at[index + 1], (size_t)(b->count - index) * sizeof *b->at);
}

/* Large blocks start on a page, so that two of them never share one. */
static size_t align_of(size_t bytes)
{
    return bytes >= LS__PAGE_ALIGN_FROM ? LS__PAGE_ALIGN : LS__BLOCK_ALIGN;
}

/* The smallest free block that holds `bytes` after alignment; -1: no block does. */
static int best_fit(const ls__blocks *b, size_t bytes)
{
    int best = -1;
    for (int i = 0; i < b->count; i++) {
        const ls__block *block = &b->at[i];
        const size_t skip = ls__round_up(block->offset, align_of(bytes)) - block->offset;
        if (block->state == LS__BLOCK_FREE && block->bytes >= skip &&
            block->bytes - skip >= bytes && (best < 0 || block->bytes < b->at[best].bytes)) {
            best = i;
        }
    }
    return best;
}

/* Takes the block out of the middle of a free one if alignment asks for it. Memory that was never
 * handed out is zero already; *dirty says how much must be cleared. */
int ls__blocks_take(ls__blocks *b, size_t bytes, size_t *offset, size_t *dirty)
{
    if (bytes > SIZE_MAX / 2) {
        return -ENOMEM;
    }
    bytes = ls__round_up(bytes == 0 ? 1 : bytes, LS__BLOCK_ALIGN);
    const int i = make_room(b) == 0 ? best_fit(b, bytes) : -1;
    if (i < 0) {
        return -ENOMEM;
    }
    const ls__block whole = b->at[i];
    const size_t start = ls__round_up(whole.offset, align_of(bytes));
    const size_t end = start + bytes;
    b->at[i] = (ls__block){.offset = start, .bytes = bytes, .state = LS__BLOCK_USED};
    if (end < whole.offset + whole.bytes) {
        insert_at(b, i + 1, (ls__block){.offset = end, .bytes = whole.offset + whole.bytes - end});
    }
    if (start > whole.offset) {
        insert_at(b, i, (ls__block){.offset = whole.offset, .bytes = start - whole.offset});
    }
    *offset = start;
    LS_ASSERT(start >= whole.offset && end <= whole.offset + whole.bytes);
    *dirty = b->used <= start ? 0 : b->used < end ? b->used - start : bytes;
    b->used = b->used < end ? end : b->used;
    return 0;
}

/* Binary search. Memory inside a block, or a free block, is not found. */
ls__block *ls__blocks_find(ls__blocks *b, size_t offset)
{
    int low = 0, high = b->count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (b->at[middle].offset < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const bool found =
        low < b->count && b->at[low].offset == offset && b->at[low].state != LS__BLOCK_FREE;
    return found ? &b->at[low] : NULL;
}

/* Merges with free neighbors; pointers to entries become invalid. */
void ls__blocks_give(ls__blocks *b, ls__block *block)
{
    int i = (int)(block - b->at);
    LS_ASSERT(i >= 0 && i < b->count && block->state != LS__BLOCK_FREE);
    block->state = LS__BLOCK_FREE;
    if (i + 1 < b->count && b->at[i + 1].state == LS__BLOCK_FREE) {
        b->at[i].bytes += b->at[i + 1].bytes;
        remove_at(b, i + 1);
    }
    if (i > 0 && b->at[i - 1].state == LS__BLOCK_FREE) {
        b->at[i - 1].bytes += b->at[i].bytes;
        remove_at(b, i);
    }
}
