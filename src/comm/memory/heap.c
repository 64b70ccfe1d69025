/* SPDX-License-Identifier: Apache-2.0 */
/* The heap: making it, sharing it with the local ranks, and allocating blocks of it. See heap.h.
 *
 *     ls__heap_init    memory file ▸ address space ▸ header, control block, rings ▸ table of blocks
 *     ls__heap_join    publish the descriptor ▸ receive the peers' ▸ check their headers ▸ map them
 */
#include "comm/memory/heap.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/size.h"
#include "base/splitmix64.h"
#include "comm/join/arrival.h"
#include "comm/memory/blocks.h"
#include "comm/memory/control.h"
#include "job/store/store.h"

#define RESERVE_MIN ((size_t)128 << 20) /* less than this is not worth starting with */
#define SPACE_FOR_HEAPS 2 /* of a limited address space heaps take one part in so many */
#define KEY_MAX 32

/* Heaps of two ranks of one job, or of two jobs, do not get the same number by accident. */
static uint64_t nonce_of(uint64_t job, int rank)
{
    return ls__splitmix64(job + LS__SPLITMIX64_GAMMA * (uint64_t)rank);
}

/* Note [Staggered heaps]
 * The first-level data cache of AMD's Zen predicts the way of a line from a hash of its virtual
 * address: bits 12^27, 13^26, 14^25, 15^20, 16^21, 17^22, 18^23, 19^24 (Lipp et al., "Take A Way",
 * AsiaCCS 2020). Two lines with equal bits 6 to 11 and equal hash evict each other. Programs read
 * the same offset in all heaps in step, so heaps that lie a multiple of 256 MiB apart, as large
 * mappings do, would make every such read a miss. Hence the heap of rank r begins 2 MiB * r behind
 * a multiple of 256 MiB: at every offset, bits 21 to 27 of two addresses differ while those below
 * are equal, so the hashes differ, for up to 128 ranks; and huge pages remain possible. */
#define STAGGER ((size_t)2 << 20)

static size_t phase_of(int rank)
{
    return (size_t)rank * STAGGER % LS__MAP_PHASES;
}

/* The address space to ask for. Every rank of the host maps the heaps of all, so under a limit
 * (ulimit -v) each heap gets its share of the half that heaps may take; the rest is for tensors,
 * threads and libraries. */
static size_t fit_limit(const ls__env *env, const ls__heap_spec *spec)
{
    const size_t room = env->address_space(env);
    LS_ASSERT(spec->here >= 1);
    const size_t share = room / SPACE_FOR_HEAPS / (size_t)spec->here;
    if (share >= spec->reserve) {
        return spec->reserve;
    }
    const size_t whole = share / LS__HEAP_STEP * LS__HEAP_STEP;
    return whole > RESERVE_MIN ? whole : RESERVE_MIN;
}

/* `bytes` of address space for the heap of a rank were refused. */
static ls_status fail_space(const ls__heap *heap, int rank, size_t bytes, int error)
{
    const ls__env *env = heap->env;
    const size_t left = env->address_space(env);
    char limit[96] = "";
    if (left != SIZE_MAX) {
        (void)snprintf(limit, sizeof limit, " (%zu MiB are left of the limit of virtual memory)",
                       left >> 20);
    }
    return ls__fail(LS_ERR_MEMORY,
                    "ls_init: cannot reserve %zu MiB of address space for the shared heap of rank "
                    "%d: %s%s; raise the limit (ulimit -v unlimited), or start fewer ranks",
                    bytes >> 20, rank, strerror(-error), limit);
}

/* Maps address space, half as much with every refusal. Pages exist only once touched. */
static ls_status reserve_space(ls__heap *heap, int rank, size_t wanted)
{
    int error = -ENOMEM;
    LS_ASSERT(wanted >= RESERVE_MIN);
    for (size_t reserve = wanted; reserve >= RESERVE_MIN && error != 0; reserve /= 2) {
        void *memory = NULL;
        error = heap->env->shm_map(heap->env, heap->fd, reserve, phase_of(rank), &memory);
        heap->base = memory;
        heap->reserve = reserve;
    }
    if (error != 0) {
        heap->base = NULL;
        return fail_space(heap, rank, RESERVE_MIN, error);
    }
    return LS_OK;
}

/* Grows the file to hold `bytes`, in steps; mappings of peers see the new pages at once. The caller
 * holds heap->lock or has not shared the heap yet. */
static ls_status grow_to(ls__heap *heap, size_t bytes)
{
    if (bytes <= heap->bytes) {
        return LS_OK;
    }
    size_t grown = ls__round_up(bytes, LS__HEAP_STEP);
    grown = grown < heap->reserve ? grown : heap->reserve;
    LS_ASSERT(grown >= bytes); /* blocks end at heap->reserve */
    int error = heap->env->shm_resize(heap->env, heap->fd, grown);
    if (error != 0) {
        return ls__fail(LS_ERR_MEMORY, "cannot grow the shared heap from %zu to %zu MiB: %s",
                        heap->bytes >> 20, grown >> 20, strerror(-error));
    }
    heap->bytes = grown;
    return LS_OK;
}

/* The file has no name: peers receive its descriptor. */
static ls_status open_file(ls__heap *heap, const ls__heap_spec *spec)
{
    heap->fd = heap->env->shm_create(heap->env, "lockstep-heap", LS__HEAP_STEP);
    if (heap->fd < 0) {
        return ls__fail(LS_ERR_SYSTEM,
                        "ls_init: cannot create the memory file of the shared heap: %s",
                        strerror(-heap->fd));
    }
    heap->bytes = LS__HEAP_STEP;
    return reserve_space(heap, spec->rank, fit_limit(heap->env, spec));
}

/* Lays out header, world control block and rings; the rest is for blocks. */
static ls_status lay_out(ls__heap *heap, const ls__heap_spec *spec)
{
    LS_ASSERT(heap->base != NULL);
    const size_t world = ls__round_up(sizeof(ls__heap_header), LS__PAGE_ALIGN);
    const size_t rings = ls__round_up(world + sizeof(ls__control_block), LS__PAGE_ALIGN);
    const size_t start = ls__round_up(rings + spec->ring_bytes, LS__PAGE_ALIGN);
    if (start >= heap->reserve) {
        return ls__fail(LS_ERR_MEMORY,
                        "ls_init: a shared heap of %zu MiB is too small for %d "
                        "ranks; raise LOCKSTEP_HEAP_RESERVE",
                        heap->reserve >> 20, spec->size);
    }
    LS_TRY(grow_to(heap, start));
    if (ls__blocks_init(&heap->blocks, heap->env, start, heap->reserve) != 0) {
        return ls__fail(LS_ERR_MEMORY, "ls_init: no memory for the heap's table");
    }
    ls__heap_header *header = (ls__heap_header *)(void *)heap->base;
    header->magic = LS__HEAP_MAGIC;
    header->version = LS__HEAP_VERSION;
    header->nonce = nonce_of(spec->job, spec->rank);
    header->pid = heap->env->pid(heap->env);
    header->cores = heap->cores = heap->env->cores(heap->env);
    header->reserve = heap->reserve;
    header->world = world;
    header->rings = rings;
    snprintf(header->config, sizeof header->config, "%s", spec->config);
    return LS_OK;
}

/* On failure the caller calls ls__heap_fini, which takes a heap in any state. */
ls_status ls__heap_init(ls__heap *heap, const ls__env *env, const ls__heap_spec *spec)
{
    *heap = (ls__heap){.env = env, .fd = -1, .rank = spec->rank, .size = spec->size};
    const size_t bytes = (size_t)spec->size * sizeof *heap->peer;
    heap->peer = env->allocate(env, bytes);
    if (heap->peer == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_init: no memory for %d peers", spec->size);
    }
    memset(heap->peer, 0, bytes);
    LS_TRY(open_file(heap, spec));
    heap->peer[spec->rank] = (ls__heap_peer){.base = heap->base, .reserve = heap->reserve};
    return lay_out(heap, spec);
}

/* Reads the peer's header through a mapping of its own, since that says how much to map. */
static ls_status read_header(const ls__heap *heap, int fd, int rank, ls__heap_header *out)
{
    void *memory = NULL;
    const size_t bytes = ls__round_up(sizeof *out, LS__PAGE_ALIGN);
    int error = heap->env->shm_map(heap->env, fd, bytes, LS__MAP_ANYWHERE, &memory);
    if (error != 0) {
        return ls__fail(LS_ERR_SYSTEM, "ls_init: cannot map the heap of rank %d: %s", rank,
                        strerror(-error));
    }
    memcpy(out, memory, offsetof(ls__heap_header, left));
    heap->env->shm_unmap(heap->env, memory, bytes);
    return LS_OK;
}

/* Whether the mapped memory is the heap of this rank of this job, set up like ours. */
static ls_status check_header(const ls__heap_header *header, const ls__heap_spec *spec, int rank)
{
    if (header->magic != LS__HEAP_MAGIC || header->version != LS__HEAP_VERSION ||
        header->nonce != nonce_of(spec->job, rank)) {
        return ls__fail(
            LS_ERR_PEER,
            "ls_init: the memory that rank %d shared is not its heap (magic %08x, version "
            "%u); do all ranks run the same build?",
            rank, header->magic, header->version);
    }
    if (strncmp(header->config, spec->config, sizeof header->config - 1) != 0) {
        char theirs[LS__CONFIG_MAX];
        snprintf(theirs, sizeof theirs, "%.*s", (int)sizeof header->config - 1, header->config);
        return ls__settings_differ((ls__settings_side){spec->rank, spec->config},
                                   (ls__settings_side){rank, theirs});
    }
    return LS_OK;
}

/* Maps as much address space as the peer has reserved, so later growth needs no new mapping. */
static ls_status map_peer(ls__heap *heap, int fd, const ls__heap_spec *spec, int rank)
{
    ls__heap_header header;
    LS_TRY(read_header(heap, fd, rank, &header));
    LS_TRY(check_header(&header, spec, rank));
    void *memory = NULL;
    int error = heap->env->shm_map(heap->env, fd, (size_t)header.reserve, phase_of(rank), &memory);
    if (error != 0) {
        return fail_space(heap, rank, (size_t)header.reserve, error);
    }
    heap->peer[rank] = (ls__heap_peer){.base = memory, .reserve = (size_t)header.reserve};
    heap->cores = header.cores < heap->cores ? header.cores : heap->cores;
    return LS_OK;
}

/* Publishes first and reads afterwards, so ranks wait for each other without an order. */
ls_status ls__heap_join(ls__heap *heap, ls_store *store, const ls__heap_spec *spec,
                        ls__arrival *arrival)
{
    bool alone = true;
    for (int r = 0; r < spec->size; r++) {
        alone = alone && (r == spec->rank || heap->peer[r].remote);
    }
    if (alone) {
        return LS_OK;
    }
    char key[KEY_MAX];
    snprintf(key, sizeof key, "heap/%d", spec->rank);
    LS_TRY(ls__store_put_fd(store, key, heap->fd, ls__arrival_left_ms(arrival)));
    for (int i = 1; i < spec->size; i++) { /* from the right neighbour on: spread over the peers */
        const int rank = (spec->rank + i) % spec->size;
        int fd = -1;
        if (heap->peer[rank].remote) {
            continue;
        }
        snprintf(key, sizeof key, "heap/%d", rank);
        ls_status status;
        do {
            status = ls__store_get_fd(store, key, &fd, ls__arrival_slice_ms(arrival));
        } while (ls__arrival_goes_on(arrival, status, rank));
        if (status == LS_ERR_TIMEOUT || status == LS_ERR_MISMATCH) {
            return status;
        }
        if (status != LS_OK) {
            return ls__fail_within(status, "ls_init: waiting for rank %d", rank);
        }
        status = map_peer(heap, fd, spec, rank);
        heap->env->close(heap->env, fd);
        LS_TRY(status);
    }
    return LS_OK;
}

/* Unmaps the own heap and all peers'; pointers into them become invalid. */
void ls__heap_fini(ls__heap *heap)
{
    const ls__env *env = heap->env;
    for (int r = 0; heap->peer != NULL && r < heap->size; r++) {
        if (heap->peer[r].base != NULL && !heap->peer[r].remote) {
            env->shm_unmap(env, heap->peer[r].base, heap->peer[r].reserve);
        }
    }
    if (heap->peer != NULL) {
        env->release(env, heap->peer, (size_t)heap->size * sizeof *heap->peer);
    }
    if (heap->fd >= 0) {
        env->close(env, heap->fd);
    }
    if (heap->blocks.env != NULL) {
        ls__blocks_fini(&heap->blocks);
    }
    *heap = (ls__heap){.env = env, .fd = -1};
}

/* The caller holds heap->lock. A block beyond the end of the file is given back if the file cannot
 * grow. */
static ls_status take_block(ls__heap *heap, size_t bytes, size_t *offset, size_t *dirty)
{
    if (ls__blocks_take(&heap->blocks, bytes, offset, dirty) != 0) {
        return ls__fail(
            LS_ERR_MEMORY,
            "cannot allocate %zu bytes of shared memory: the heap of %zu MiB is full; raise "
            "LOCKSTEP_HEAP_RESERVE and the limit of virtual memory (ulimit -v), or free some",
            bytes, heap->reserve >> 20);
    }
    ls_status status = grow_to(heap, *offset + bytes);
    if (status != LS_OK) {
        ls__blocks_give(&heap->blocks, ls__blocks_find(&heap->blocks, *offset));
    }
    return status;
}

/* Memory is cleared outside the lock; it belongs to the caller already. */
ls_status ls__heap_alloc(ls__heap *heap, size_t bytes, void **out)
{
    size_t offset = 0, dirty = 0;
    ls__lock_take(&heap->lock, heap->env);
    ls_status status = take_block(heap, bytes, &offset, &dirty);
    ls__unlock(&heap->lock, heap->env);
    if (status == LS_OK) {
        *out = heap->base + offset;
        memset(*out, 0, dirty);
    }
    return status;
}

/* A quarantined block stays taken, and freeing it again is an error like any double free. */
ls_status ls__heap_free(ls__heap *heap, void *memory, bool hold)
{
    uint64_t offset = 0;
    const bool inside = ls__heap_offset(heap, memory, 0, &offset);
    ls_status status = LS_OK;
    ls__lock_take(&heap->lock, heap->env);
    ls__block *block = inside ? ls__blocks_find(&heap->blocks, (size_t)offset) : NULL;
    if (block == NULL || block->state != LS__BLOCK_USED) {
        status = LS_ERR_INVALID;
    } else if (hold) {
        block->state = LS__BLOCK_QUARANTINED;
        heap->quarantined++;
    } else {
        ls__blocks_give(&heap->blocks, block);
    }
    ls__unlock(&heap->lock, heap->env);
    if (status != LS_OK) {
        return ls__fail(
            status,
            "cannot free %p: it is not a block of the shared heap, or was freed before; pass "
            "the pointer that ls_group_alloc returned, once",
            memory);
    }
    return LS_OK;
}

/* Called when no peer touches memory of a failed group any more. */
void ls__heap_release(ls__heap *heap)
{
    ls__lock_take(&heap->lock, heap->env);
    LS_ASSERT(heap->quarantined >= 0);
    for (int i = 0; heap->quarantined > 0 && i < heap->blocks.count; i++) {
        ls__block *block = &heap->blocks.at[i];
        if (block->state == LS__BLOCK_QUARANTINED) {
            ls__blocks_give(&heap->blocks, block);
            heap->quarantined--;
            i = -1; /* blocks have merged, so the scan starts again; this is rare and short */
        }
    }
    ls__unlock(&heap->lock, heap->env);
}
