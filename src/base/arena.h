/* SPDX-License-Identifier: Apache-2.0 */
/* An arena: bump allocation in chunks, freed all at once. Resetting keeps the chunks, so a loop of
 * equal rounds allocates from the system in its first round only. Not thread-safe. */
#ifndef LS_BASE_ARENA_H
#define LS_BASE_ARENA_H

#include "base/env.h"

typedef struct ls__arena_chunk ls__arena_chunk;

typedef struct ls__arena {
    const ls__env *env;
    ls__arena_chunk *first, *current;
    size_t used; /* bytes used of the current chunk */
    size_t chunk_bytes;
} ls__arena;

typedef struct ls__arena_mark {
    ls__arena_chunk *chunk;
    size_t used;
} ls__arena_mark;

void ls__arena_init(ls__arena *arena, const ls__env *env, size_t chunk_bytes);
void ls__arena_fini(ls__arena *arena);
/* Aligned to 16 bytes, zeroed; NULL when memory is out. */
void *ls__arena_alloc(ls__arena *arena, size_t bytes);
ls__arena_mark ls__arena_mark_get(const ls__arena *arena);
void ls__arena_rewind(ls__arena *arena, ls__arena_mark mark); /* frees what came after the mark */

#endif
