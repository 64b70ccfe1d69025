/* SPDX-License-Identifier: Apache-2.0 */
/* Bump allocation in chunks.
 *
 * Chunks form a list; `current` is the one being filled and those after it are empty, kept from an
 * earlier round. A request larger than a chunk gets a chunk of its own size, put after the current
 * one, so that the same sequence of requests finds the same chunks again.
 */
#include "base/arena.h"

#include <string.h>

#include "base/assert.h"
#include "base/size.h"

#define ALIGNMENT 16 /* enough for every type but vectors */

struct ls__arena_chunk {
    ls__arena_chunk *next;
    size_t bytes; /* usable, after this header */
};

#define HEADER_BYTES ((sizeof(ls__arena_chunk) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT)

/* The header is rounded up, so what follows it is aligned. */
static char *chunk_memory(ls__arena_chunk *chunk)
{
    return (char *)chunk + HEADER_BYTES;
}

/* Allocates nothing yet. */
void ls__arena_init(ls__arena *arena, const ls__env *env, size_t chunk_bytes)
{
    *arena = (ls__arena){.env = env, .chunk_bytes = chunk_bytes};
}

/* The arena may be used again afterwards, with the same env and chunk size. */
void ls__arena_fini(ls__arena *arena)
{
    ls__arena_chunk *chunk = arena->first;
    while (chunk != NULL) {
        ls__arena_chunk *next = chunk->next;
        arena->env->release(arena->env, chunk, HEADER_BYTES + chunk->bytes);
        chunk = next;
    }
    *arena = (ls__arena){.env = arena->env, .chunk_bytes = arena->chunk_bytes};
}

/* Puts a new chunk with room for `bytes` behind the current one, or first. NULL without memory, and
 * then nothing has changed. */
static ls__arena_chunk *add_chunk(ls__arena *arena, size_t bytes)
{
    size_t room = bytes > arena->chunk_bytes ? bytes : arena->chunk_bytes;
    size_t total;
    if (!ls__add_size(room, HEADER_BYTES, &total)) {
        return NULL;
    }
    ls__arena_chunk *chunk = arena->env->allocate(arena->env, total);
    if (chunk == NULL) {
        return NULL;
    }
    ls__arena_chunk **link = arena->current != NULL ? &arena->current->next : &arena->first;
    chunk->bytes = room;
    chunk->next = *link;
    *link = chunk;
    return chunk;
}

/* Moves on to a chunk with room for `bytes`: the next kept one, or else a new one. What is left in
 * the current chunk stays unused until a rewind. */
static bool advance(ls__arena *arena, size_t bytes)
{
    ls__arena_chunk *next = arena->current != NULL ? arena->current->next : arena->first;
    if (next == NULL || next->bytes < bytes) {
        next = add_chunk(arena, bytes);
    }
    if (next == NULL) {
        return false;
    }
    LS_ASSERT(next->bytes >= bytes);
    arena->current = next;
    arena->used = 0;
    return true;
}

/* Zeroed memory, valid until the arena is rewound behind it. NULL without memory; no error is
 * set. */
void *ls__arena_alloc(ls__arena *arena, size_t bytes)
{
    size_t padded;
    if (!ls__add_size(bytes, ALIGNMENT - 1, &padded)) {
        return NULL;
    }
    padded = padded / ALIGNMENT * ALIGNMENT;
    bool fits = arena->current != NULL && arena->current->bytes - arena->used >= padded;
    if (!fits && !advance(arena, padded)) {
        return NULL;
    }
    void *memory = chunk_memory(arena->current) + arena->used;
    arena->used += padded;
    return memset(memory, 0, bytes);
}

/* A mark is a position; it stays valid until the arena is rewound to an earlier one. */
ls__arena_mark ls__arena_mark_get(const ls__arena *arena)
{
    return (ls__arena_mark){.chunk = arena->current, .used = arena->used};
}

/* Keeps all chunks: what was allocated after `mark` is invalid, and its memory serves again. */
void ls__arena_rewind(ls__arena *arena, ls__arena_mark mark)
{
    arena->current = mark.chunk; /* NULL: before the first allocation; the next starts at `first` */
    arena->used = mark.used;
}
