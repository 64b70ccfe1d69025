/* SPDX-License-Identifier: Apache-2.0 */
/* Storages: counted memory from a caching allocator, with a pool for each device.
 *
 * Small blocks come in size classes, four to a power of two (at most a quarter is wasted), and
 * go back to their class's list, newest first, so a loop of equal steps finds warm memory and
 * asks the system for nothing. A free block stays with its header, because a device's memory holds
 * no link that this file could read. Large ones are pieces of regions (regions.h), whose memory
 * serves blocks of all sizes. When the system refuses, cached blocks are given back and it is asked
 * again.
 *
 * A storage is a header (counted) and a block; the last reference returns both. Memory of a
 * caller's, or of a bucket, is borrowed: its storage has a header only. */
#include "tensor/tensor.h"

#include <stdlib.h>

#include "base/assert.h"
#include "device/captured.h"

#define BLOCK_MIN 256u
#define BLOCK_MIN_LOG 8
#define BLOCK_MAX ((size_t)1 << 47)
#define CLASS_LARGE (UINT16_MAX - 1) /* a piece of a region */
#define HEADERS_A_SLAB 255

struct ls__header_slab {
    struct ls__header_slab *next;
    ls__storage header[HEADERS_A_SLAB];
};

/* The class of `bytes` and, rounded up, its size: with 2^log <= bytes, the next multiple of a
 * quarter of 2^log. Large blocks are all CLASS_LARGE. False when the size is larger than any
 * block. */
static bool class_of(size_t bytes, uint16_t *size_class, size_t *rounded)
{
    bytes = bytes < BLOCK_MIN ? BLOCK_MIN : bytes;
    if (bytes > BLOCK_MAX) {
        return false;
    }
    if (bytes >= LS__LARGE_BYTES) {
        *size_class = CLASS_LARGE;
        *rounded = bytes;
        return true;
    }
    int log = 63 - __builtin_clzll((unsigned long long)bytes);
    int step = log - 2;
    size_t quarters = (bytes + ((size_t)1 << step) - 1) >> step; /* 4 … 8 */
    *size_class = (uint16_t)(4 * (log - BLOCK_MIN_LOG) + (int)quarters - 4);
    *rounded = quarters << step;
    LS_ASSERT(*rounded >= bytes);
    LS_ASSERT(*size_class < LS__SIZE_CLASSES);
    return true;
}

/* The inverse of class_of, for blocks of a class. */
static size_t class_bytes(int size_class)
{
    int step = size_class / 4 + BLOCK_MIN_LOG - 2;
    return (size_t)(size_class % 4 + 4) << step;
}

/* What is reserved in a pool, for captured steps, too. */
static int64_t reserved_in(const ls__pool *pool)
{
    int64_t bytes = pool->own.small_reserved + pool->own.regions.reserved;
    for (const ls__pool_blocks *b = pool->captured; b != NULL; b = b->next) {
        bytes += b->small_reserved + b->regions.reserved;
    }
    return bytes;
}

/* Adds to the bytes of small blocks and computes what is reserved now, and its peak. Under lock. */
static void count_reserved(ls__pool *pool, ls__pool_blocks *blocks, int64_t small_bytes)
{
    const ls__tensors *tensors = pool->tensors;
    ls_memory_stats *m = &pool->tensors->memory;
    blocks->small_reserved += small_bytes;
    m->reserved = (size_t)(reserved_in(&tensors->host) + reserved_in(&tensors->other));
    m->reserved_peak = m->reserved > m->reserved_peak ? m->reserved : m->reserved_peak;
}

/* Counts a block that was taken (bytes above 0) or given back (below 0). Under lock. */
static void count_block(ls__tensors *tensors, int64_t bytes)
{
    ls_memory_stats *m = &tensors->memory;
    m->blocks += bytes > 0 ? 1 : -1;
    LS_ASSERT(m->blocks >= 0 && (bytes > 0 || m->allocated >= (size_t)-bytes));
    m->allocated += (size_t)bytes; /* modulo 2^64: fewer, where it is negative */
    m->allocated_peak = m->allocated > m->allocated_peak ? m->allocated : m->allocated_peak;
}

/* Returns a header without a block. Under lock. */
static void header_put(ls__tensors *tensors, ls__storage *storage)
{
    storage->data = NULL;
    storage->next = tensors->free_headers;
    tensors->free_headers = storage;
}

/* A free header, from a new slab if need be; NULL when memory is out. Headers of a slab are
 * given back together at the end. Under lock. */
static ls__storage *header_get(ls__tensors *tensors)
{
    if (tensors->free_headers == NULL) {
        struct ls__header_slab *slab =
            tensors->env.table.allocate(&tensors->env.table, sizeof *slab);
        if (slab == NULL) {
            return NULL;
        }
        slab->next = tensors->header_slabs;
        tensors->header_slabs = slab;
        for (int i = HEADERS_A_SLAB - 1; i >= 0; i--) {
            slab->header[i] = (ls__storage){.next = tensors->free_headers};
            tensors->free_headers = &slab->header[i];
        }
    }
    ls__storage *storage = tensors->free_headers;
    tensors->free_headers = storage->next;
    return storage;
}

static void small_to_system(ls__pool *pool, void *data, int size_class)
{
    const ls__env *memory = pool->device->memory;
    memory->release(memory, data, class_bytes(size_class));
}

/* Gives the system all free small blocks and all regions in which nothing is used; nothing while a
 * step is captured, which waits for no device. Under lock. */
static void release_cached(ls__pool *pool)
{
    ls__pool_blocks *own = &pool->own;
    if (pool->device == NULL || ls__captured_records()) {
        return;
    }
    for (int i = 0; i < LS__SIZE_CLASSES; i++) {
        while (own->free_blocks[i] != NULL) {
            ls__storage *cached = own->free_blocks[i];
            own->free_blocks[i] = cached->next;
            small_to_system(pool, cached->data, i);
            header_put(pool->tensors, cached);
            own->small_reserved -= (int64_t)class_bytes(i);
        }
    }
    LS_ASSERT(own->small_reserved >= 0);
    ls__regions_release_unused(&own->regions);
    count_reserved(pool, own, 0);
}

/* A block of a class from the system, asked again after cached memory was given back. NULL when
 * memory is out. Under lock. */
static void *small_from_system(ls__pool *pool, ls__pool_blocks *blocks, size_t bytes)
{
    const ls__env *memory = pool->device->memory;
    void *data = memory->allocate(memory, bytes);
    if (data == NULL) {
        release_cached(pool);
        data = memory->allocate(memory, bytes);
    }
    count_reserved(pool, blocks, data != NULL ? (int64_t)bytes : 0);
    return data;
}

/* A large block, likewise. Under lock. */
static ls__region_piece *piece_get(ls__pool *pool, ls__pool_blocks *blocks, size_t bytes)
{
    ls__region_piece *piece = ls__region_piece_get(&blocks->regions, bytes);
    if (piece == NULL) {
        release_cached(pool);
        piece = ls__region_piece_get(&blocks->regions, bytes);
    }
    count_reserved(pool, blocks, 0);
    return piece;
}

/* Where this thread takes blocks from: those of the step that it captures, if it does. */
static ls__pool_blocks *blocks_of_thread(ls__pool *pool)
{
    const ls__captured *c = ls__self.captured;
    return LS__UNLIKELY(c != NULL) && c->records && c->device == pool->device ? c->blocks
                                                                              : &pool->own;
}

/* A header with a block of the class, cached or new; NULL when memory is out. Counts the block.
 * Under lock. */
static ls__storage *block_get(ls__pool *pool, uint16_t size_class, size_t bytes)
{
    ls__pool_blocks *blocks = blocks_of_thread(pool);
    ls__storage *storage = size_class != CLASS_LARGE ? blocks->free_blocks[size_class] : NULL;
    if (storage != NULL) {
        blocks->free_blocks[size_class] = storage->next;
        count_block(pool->tensors, (int64_t)bytes);
        return storage;
    }
    storage = header_get(pool->tensors);
    if (storage == NULL) {
        return NULL;
    }
    storage->piece = size_class == CLASS_LARGE ? piece_get(pool, blocks, bytes) : NULL;
    storage->data = storage->piece != NULL     ? storage->piece->data
                    : size_class < CLASS_LARGE ? small_from_system(pool, blocks, bytes)
                                               : NULL;
    storage->size_class = size_class;
    storage->blocks = blocks;
    if (storage->data == NULL) {
        header_put(pool->tensors, storage);
        return NULL;
    }
    count_block(pool->tensors, (int64_t)(storage->piece != NULL ? storage->piece->bytes : bytes));
    return storage;
}

/* Gives header and block back; borrowed memory stays the caller's. Under lock. */
static void block_put(ls__pool *pool, ls__storage *storage)
{
    if (storage->size_class < LS__SIZE_CLASSES) {
        storage->next = storage->blocks->free_blocks[storage->size_class];
        storage->blocks->free_blocks[storage->size_class] = storage;
        count_block(pool->tensors, -(int64_t)class_bytes(storage->size_class));
        return;
    }
    if (storage->size_class == CLASS_LARGE) {
        count_block(pool->tensors, -(int64_t)storage->piece->bytes);
        ls__region_piece_put(&storage->blocks->regions, storage->piece);
    }
    header_put(pool->tensors, storage);
}

/* Fills the header of a new storage with one reference. It may have been used before: every
 * field but those of its memory is written. */
static void header_init(ls__pool *pool, ls__storage *storage, size_t bytes)
{
    storage->bytes = bytes;
    storage->pool = pool;
    storage->fini = NULL;
    storage->next = NULL;
    storage->initial = NULL;
    storage->rounded = NULL;
    atomic_store_explicit(&storage->due, false, memory_order_relaxed);
    atomic_store_explicit(&storage->version, 0, memory_order_relaxed);
    atomic_store_explicit(&storage->refs, 1, memory_order_relaxed);
}

/* Exchanges the memory of two headers. */
static void swap_memory(ls__storage *a, ls__storage *b)
{
    void *data = a->data;
    ls__region_piece *piece = a->piece;
    ls__pool_blocks *blocks = a->blocks;
    const uint16_t size_class = a->size_class;
    a->data = b->data, a->piece = b->piece, a->size_class = b->size_class, a->blocks = b->blocks;
    b->data = data, b->piece = piece, b->size_class = size_class, b->blocks = blocks;
}

/* A header over memory of the caller's; NULL when memory is out. Under lock. */
static ls__storage *borrow(ls__pool *pool, void *data)
{
    ls__storage *storage = header_get(pool->tensors);
    if (storage != NULL) {
        storage->data = data;
        storage->piece = NULL;
        storage->blocks = NULL;
        storage->size_class = LS__STORAGE_BORROWED;
    }
    return storage;
}

static ls__storage *no_memory(const ls__pool *pool, size_t bytes)
{
    if (pool->device->host) {
        (void)ls__fail(LS_ERR_MEMORY,
                       "a new tensor of %zu bytes: out of memory; free tensors, end "
                       "scopes earlier or make batches smaller",
                       bytes);
    } else {
        (void)ls__fail(LS_ERR_MEMORY,
                       "a new tensor of %zu bytes: memory of device \"%s\" is out; free tensors, "
                       "end scopes earlier or make batches smaller",
                       bytes, pool->device->name);
    }
    return NULL;
}

/* The lock is held once for header and block, and the message is written without it. */
ls__storage *ls__storage_new(ls__pool *pool, size_t bytes)
{
    uint16_t size_class = 0;
    size_t rounded = 0;
    ls__storage *storage = NULL;
    if (class_of(bytes, &size_class, &rounded)) {
        pthread_mutex_lock(&pool->tensors->lock);
        storage = block_get(pool, size_class, rounded);
        pthread_mutex_unlock(&pool->tensors->lock);
    }
    if (storage == NULL) {
        return no_memory(pool, bytes);
    }
    header_init(pool, storage, bytes);
    return storage;
}

/* The memory stays the user's: the last reference frees the header only. */
ls__storage *ls__storage_borrow(ls__pool *pool, void *data, size_t bytes)
{
    pthread_mutex_lock(&pool->tensors->lock);
    ls__storage *storage = borrow(pool, data);
    pthread_mutex_unlock(&pool->tensors->lock);
    if (storage == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "a tensor over your memory: out of memory for its header");
        return NULL;
    }
    header_init(pool, storage, bytes);
    return storage;
}

/* The copy is of elements that are no longer here. */
static void forget_rounded(ls__storage *storage)
{
    ls__storage_unref(storage->rounded);
    storage->rounded = NULL;
}

void ls__storages_moved(ls__tensors *tensors)
{
    pthread_mutex_lock(&tensors->lock);
    tensors->moves++;
    pthread_mutex_unlock(&tensors->lock);
}

void ls__storage_swap(ls__storage *a, ls__storage *b)
{
    const uint32_t version = ls__storage_version(a);
    const size_t bytes = a->bytes;
    LS_ASSERT(a->pool == b->pool);
    forget_rounded(a);
    forget_rounded(b);
    pthread_mutex_lock(&a->pool->tensors->lock);
    swap_memory(a, b);
    a->pool->tensors->moves++;
    a->bytes = b->bytes, b->bytes = bytes;
    pthread_mutex_unlock(&a->pool->tensors->lock);
    atomic_store_explicit(&a->version, ls__storage_version(b), memory_order_relaxed);
    atomic_store_explicit(&b->version, version, memory_order_relaxed);
}

/* The bytes are copied under the lock, which is long but rare: once for each parameter, when DDP
 * lays out its buckets. */
ls_status ls__storage_move(ls__storage *storage, void *memory)
{
    ls__pool *pool = storage->pool;
    uint16_t size_class = 0;
    size_t rounded = 0;
    if (memory == NULL) { /* a tensor that exists has a class */
        const bool known = class_of(storage->bytes, &size_class, &rounded);
        LS_ASSERT(known);
    }
    pthread_mutex_lock(&pool->tensors->lock);
    ls__storage *other =
        memory != NULL ? borrow(pool, memory) : block_get(pool, size_class, rounded);
    if (other != NULL) {
        if (other->data != storage->data && storage->bytes > 0) {
            pool->k->copy(other->data, storage->data, storage->bytes, pool->stream);
            ls__device_wait(pool->device); /* one of the two is the program's */
        }
        swap_memory(storage, other);
        pool->tensors->moves++;
        block_put(pool, other);
    }
    pthread_mutex_unlock(&pool->tensors->lock);
    return other != NULL
               ? LS_OK
               : ls__fail(LS_ERR_MEMORY,
                          "moving a tensor of %zu bytes: out of memory; free tensors or make "
                          "batches smaller",
                          storage->bytes);
}

/* Both are header and block, and the blocks change places, each with its pool. */
ls_status ls__storage_to(ls__storage *storage, ls__pool *on)
{
    ls__pool *from = storage->pool;
    ls__storage *other = from != on ? ls__storage_new(on, storage->bytes) : NULL;
    if (other == NULL) {
        return from != on ? ls__self.status : LS_OK;
    }
    forget_rounded(storage);
    ls__device_carry(on->device, other->data, from->device, storage->data, storage->bytes);
    pthread_mutex_lock(&from->tensors->lock);
    swap_memory(storage, other);
    from->tensors->moves++;
    storage->pool = on;
    other->pool = from;
    pthread_mutex_unlock(&from->tensors->lock);
    ls__storage_unref(other);
    return LS_OK;
}

/* Drops a reference; the last one runs `fini`, then returns block and header. NULL is allowed.
 * Any thread may drop the last reference. */
void ls__storage_unref(ls__storage *storage)
{
    if (storage == NULL) {
        return;
    }
    /* Release: our uses are done before the count falls; acquire: before the block is reused. */
    int32_t before = atomic_fetch_sub_explicit(&storage->refs, 1, memory_order_acq_rel);
    LS_ASSERT(before > 0);
    if (before > 1) {
        return;
    }
    if (storage->fini != NULL) {
        storage->fini(storage);
    }
    forget_rounded(storage);
    free(storage->initial);
    storage->initial = NULL;
    ls__pool *pool = storage->pool;
    pthread_mutex_lock(&pool->tensors->lock);
    block_put(pool, storage);
    pthread_mutex_unlock(&pool->tensors->lock);
}

/* Blocks in use stay; the lock is held for the whole walk. */
void ls__storages_release_cached(ls__tensors *tensors)
{
    pthread_mutex_lock(&tensors->lock);
    release_cached(&tensors->host);
    release_cached(&tensors->other);
    pthread_mutex_unlock(&tensors->lock);
}

/* Blocks in use are found through their headers; pieces of regions go with their region. */
void ls__storages_fini(ls__tensors *tensors)
{
    release_cached(&tensors->host);
    release_cached(&tensors->other);
    while (tensors->header_slabs != NULL) {
        struct ls__header_slab *slab = tensors->header_slabs;
        tensors->header_slabs = slab->next;
        for (int i = 0; i < HEADERS_A_SLAB; i++) {
            ls__storage *storage = &slab->header[i];
            free(storage->initial);
            if (storage->data != NULL && storage->size_class < LS__SIZE_CLASSES) {
                small_to_system(storage->pool, storage->data, storage->size_class);
            }
        }
        tensors->env.table.release(&tensors->env.table, slab, sizeof *slab);
    }
    ls__regions_fini(&tensors->host.own.regions);
    if (tensors->other.device != NULL) {
        ls__regions_fini(&tensors->other.own.regions);
    }
    LS_ASSERT(tensors->other.captured == NULL); /* its owner is a guest of the runtime */
}

/* ---- captured steps ------------------------------------------------------------------------- */

ls__pool_blocks *ls__pool_blocks_new(ls__pool *pool)
{
    ls__tensors *tensors = pool->tensors;
    ls__pool_blocks *blocks = tensors->env.table.allocate(&tensors->env.table, sizeof *blocks);
    if (blocks == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "a captured step: no memory");
        return NULL;
    }
    *blocks = (ls__pool_blocks){0};
    ls__regions_init(&blocks->regions, &tensors->env.table, pool->device->memory);
    blocks->regions.keeps = true;
    pthread_mutex_lock(&tensors->lock);
    blocks->next = pool->captured;
    pool->captured = blocks;
    pthread_mutex_unlock(&tensors->lock);
    return blocks;
}

/* Blocks in use, too, go back to the pool's from now on. Under lock. */
static void join_blocks(ls__tensors *tensors, ls__pool_blocks *into, ls__pool_blocks *from)
{
    for (struct ls__header_slab *slab = tensors->header_slabs; slab != NULL; slab = slab->next) {
        for (int i = 0; i < HEADERS_A_SLAB; i++) {
            ls__storage *storage = &slab->header[i];
            storage->blocks = storage->blocks == from ? into : storage->blocks;
        }
    }
    for (int i = 0; i < LS__SIZE_CLASSES; i++) {
        while (from->free_blocks[i] != NULL) {
            ls__storage *cached = from->free_blocks[i];
            from->free_blocks[i] = cached->next;
            cached->next = into->free_blocks[i];
            into->free_blocks[i] = cached;
        }
    }
    ls__regions_join(&into->regions, &from->regions);
    into->small_reserved += from->small_reserved;
}

void ls__pool_blocks_give_up(ls__pool *pool, ls__pool_blocks *blocks)
{
    ls__tensors *tensors = pool->tensors;
    pthread_mutex_lock(&tensors->lock);
    ls__pool_blocks **at = &pool->captured;
    while (*at != blocks) {
        at = &(*at)->next;
    }
    *at = blocks->next;
    join_blocks(tensors, &pool->own, blocks);
    pthread_mutex_unlock(&tensors->lock);
    tensors->env.table.release(&tensors->env.table, blocks, sizeof *blocks);
}
