/* SPDX-License-Identifier: Apache-2.0 */
/* The heap: memory of this rank that its peers on the host can touch in place (docs/design.md, D6).
 *
 * Each rank has one anonymous memory file, which every peer maps once, at ls_init. Address space is
 * reserved up front (LOCKSTEP_HEAP_RESERVE) and the file grows in steps, so mappings never move and
 * pages exist only once touched. A pointer into the own range is "registered"; its *offset* travels
 * in descriptors, so ranks may use different offsets for the same operation.
 */
#ifndef LS_COMM_MEMORY_HEAP_H
#define LS_COMM_MEMORY_HEAP_H

#include <lockstep/store.h>

#include "base/env.h"
#include "base/lock.h"
#include "comm/join/arrival.h"
#include "comm/memory/blocks.h"
#include "comm/memory/control.h"
#include "job/board.h"

#define LS__HEAP_STEP ((size_t)64 << 20) /* growth of the file; pages come only when touched */

typedef struct ls__heap_peer {
    unsigned char *base; /* NULL: not mapped */
    size_t reserve;
    bool remote; /* on another host: `base` is a cached copy of the first part of its heap */
} ls__heap_peer;

typedef struct ls__heap {
    const ls__env *env;
    int fd;
    int rank, size;
    unsigned char *base;
    size_t reserve; /* bytes of address space */
    size_t bytes;   /* of the file */
    ls__lock lock;  /* of blocks and bytes */
    ls__blocks blocks;
    int quarantined; /* blocks held back. Sync: lock */
    int cores;       /* the fewest that a rank of this host may use: all of them find the same */
    ls__heap_peer *peer; /* [size]; [rank] is this heap itself */
} ls__heap;

typedef struct ls__heap_spec {
    int rank, size;     /* in the world */
    int here;           /* ranks of this host, whose heaps are mapped */
    uint64_t job;       /* number of the job, for the nonce */
    size_t ring_bytes;  /* of the transport's area */
    const char *config; /* compared with every peer's */
    size_t reserve;     /* bytes of address space to ask for; less if a limit demands it */
} ls__heap_spec;

/* Makes the own heap; ls__heap_fini also after a failure. */
ls_status ls__heap_init(ls__heap *heap, const ls__env *env, const ls__heap_spec *spec);
/* Publishes it and maps every peer's. LS_ERR_MISMATCH when a peer's configuration differs. */
ls_status ls__heap_join(ls__heap *heap, ls_store *store, const ls__heap_spec *spec,
                        ls__arrival *arrival);
void ls__heap_fini(ls__heap *heap);

/* Aligned to LS__BLOCK_ALIGN (large blocks to a page), zeroed. Thread-safe. */
ls_status ls__heap_alloc(ls__heap *heap, size_t bytes, void **out);
/* LS_ERR_INVALID for memory that did not come from ls__heap_alloc. With `hold` the block stays in
 * quarantine until ls__heap_release. */
ls_status ls__heap_free(ls__heap *heap, void *memory, bool hold);
void ls__heap_release(ls__heap *heap); /* ends the quarantine of all held blocks */

/* The header of a rank's heap; of a remote rank the cached one. */
static inline ls__heap_header *ls__heap_header_of(const ls__heap *heap, int rank)
{
    return (ls__heap_header *)(void *)heap->peer[rank].base;
}

/* Whether [p, p+bytes) lies in the own heap; then *offset is its place. */
static inline bool ls__heap_offset(const ls__heap *heap, const void *p, size_t bytes,
                                   uint64_t *offset)
{
    const uintptr_t at = (uintptr_t)p, base = (uintptr_t)heap->base;
    const bool inside = at >= base && at - base < heap->reserve && bytes <= heap->reserve &&
                        at - base <= heap->reserve - bytes;
    *offset = inside ? at - base : 0;
    return inside;
}

#endif
