/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes of a range are in use: an ordered table of blocks beside the range, not in it, so
 * that no write of a peer can damage it. Best fit; free neighbors merge. A freed block may stay in
 * quarantine until its owner releases it. Not thread-safe: callers hold a lock. */
#ifndef LS_COMM_MEMORY_BLOCKS_H
#define LS_COMM_MEMORY_BLOCKS_H

#include "base/env.h"

#define LS__BLOCK_ALIGN 128 /* a pair of cache lines, which processors fetch together */
#define LS__PAGE_ALIGN 4096
#define LS__PAGE_ALIGN_FROM ((size_t)1 << 20) /* blocks from this size on start on a page */

/* FREE ▸ USED (take) ▸ FREE (give), or USED ▸ QUARANTINED (by the owner) ▸ FREE (give). */
typedef enum ls__block_state {
    LS__BLOCK_FREE,
    LS__BLOCK_USED,
    LS__BLOCK_QUARANTINED /* freed, but a peer may still touch it */
} ls__block_state;

typedef struct ls__block {
    size_t offset, bytes;
    ls__block_state state;
} ls__block;

typedef struct ls__blocks {
    const ls__env *env;
    ls__block *at; /* sorted by offset, without gaps */
    int count, room;
    size_t used; /* high-water mark: bytes from here on were never handed out */
} ls__blocks;

/* The range is [start, end). */
int ls__blocks_init(ls__blocks *blocks, const ls__env *env, size_t start, size_t end);
void ls__blocks_fini(ls__blocks *blocks);
/* 0 or -ENOMEM. `*dirty` bytes from *offset on have been in use before and need zeroing. */
int ls__blocks_take(ls__blocks *blocks, size_t bytes, size_t *offset, size_t *dirty);
/* The used block that starts at `offset`, or NULL. */
ls__block *ls__blocks_find(ls__blocks *blocks, size_t offset);
/* Frees a used or quarantined block. */
void ls__blocks_give(ls__blocks *blocks, ls__block *block);

#endif
