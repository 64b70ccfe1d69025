/* Storages: counted memory from a caching allocator.
 *
 * Small blocks come in size classes, four to a power of two (at most a quarter is wasted), and
 * go back to their class's list, newest first, so a loop of equal steps finds warm memory and
 * asks the system for nothing. Large ones are pieces of regions (regions.h), whose memory serves
 * blocks of all sizes. When the system refuses, cached blocks are given back and it is asked
 * again.
 *
 * A storage is a header (counted) and a block; the last reference returns both. Memory of a
 * caller's, or of a bucket, is borrowed: its storage has a header only. */
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

#define BLOCK_MIN 256u
#define BLOCK_MIN_LOG 8
#define BLOCK_MAX ((size_t)1 << 47)
#define CLASS_LARGE (UINT16_MAX - 1) /* a piece of a region */
#define HEADERS_A_SLAB 255

struct ls__header_slab {
    struct ls__header_slab *next;
    ls__storage header[HEADERS_A_SLAB];
};

/* Memory on its way between a storage and the pools. */
typedef struct block {
    void *data;
    ls__region_piece *piece; /* whose data it is; NULL: it is of a class */
    uint16_t size_class;
} block;

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

/* Adds to the bytes of small blocks and computes what is reserved now, and its peak. Under lock. */
static void count_reserved(ls__tensors *tensors, int64_t small_bytes)
{
    ls_memory_stats *m = &tensors->memory;
    tensors->small_reserved += small_bytes;
    m->reserved = (size_t)(tensors->small_reserved + tensors->regions.reserved);
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

/* Gives the system all free small blocks and all regions in which nothing is used. Under lock. */
static void release_cached(ls__tensors *tensors)
{
    for (int i = 0; i < LS__SIZE_CLASSES; i++) {
        while (tensors->free_blocks[i] != NULL) {
            void *cached = tensors->free_blocks[i];
            tensors->free_blocks[i] = *(void **)cached;
            tensors->env.table.release(&tensors->env.table, cached, class_bytes(i));
            tensors->small_reserved -= (int64_t)class_bytes(i);
        }
    }
    LS_ASSERT(tensors->small_reserved >= 0);
    ls__regions_release_unused(&tensors->regions);
    count_reserved(tensors, 0);
}

/* A block of a class from the system, asked again after cached memory was given back. NULL when
 * memory is out. Under lock. */
static void *small_from_system(ls__tensors *tensors, size_t bytes)
{
    void *data = tensors->env.table.allocate(&tensors->env.table, bytes);
    if (data == NULL) {
        release_cached(tensors);
        data = tensors->env.table.allocate(&tensors->env.table, bytes);
    }
    count_reserved(tensors, data != NULL ? (int64_t)bytes : 0);
    return data;
}

/* A large block, likewise. Under lock. */
static ls__region_piece *piece_get(ls__tensors *tensors, size_t bytes)
{
    ls__region_piece *piece = ls__region_piece_get(&tensors->regions, bytes);
    if (piece == NULL) {
        release_cached(tensors);
        piece = ls__region_piece_get(&tensors->regions, bytes);
    }
    count_reserved(tensors, 0);
    return piece;
}

/* A block of the class, cached or new; no data when memory is out. Counts it. Under lock. */
static block block_get(ls__tensors *tensors, uint16_t size_class, size_t bytes)
{
    block b = {.size_class = size_class};
    if (size_class == CLASS_LARGE) {
        b.piece = piece_get(tensors, bytes);
        b.data = b.piece != NULL ? b.piece->data : NULL;
        bytes = b.piece != NULL ? b.piece->bytes : 0;
    } else if (tensors->free_blocks[size_class] != NULL) {
        b.data = tensors->free_blocks[size_class];
        tensors->free_blocks[size_class] = *(void **)b.data;
    } else {
        b.data = small_from_system(tensors, bytes);
    }
    if (b.data != NULL) {
        count_block(tensors, (int64_t)bytes);
    }
    return b;
}

/* Gives a block back to its list or region; borrowed memory stays the caller's. Under lock. */
static void block_put(ls__tensors *tensors, const block *b)
{
    if (b->size_class == CLASS_LARGE) {
        count_block(tensors, -(int64_t)b->piece->bytes);
        ls__region_piece_put(&tensors->regions, b->piece);
    } else if (b->size_class != LS__STORAGE_BORROWED) {
        *(void **)b->data = tensors->free_blocks[b->size_class];
        tensors->free_blocks[b->size_class] = b->data;
        count_block(tensors, -(int64_t)class_bytes(b->size_class));
    }
}

/* A storage's memory, in the form in which blocks are given back. */
static block block_of(const ls__storage *storage)
{
    return (block){storage->data, storage->piece, storage->size_class};
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

/* Fills the header of a new storage with one reference. It may have been used before: every
 * field is written. */
static void header_init(ls__tensors *tensors, ls__storage *storage, const block *b, size_t bytes)
{
    storage->data = b->data;
    storage->piece = b->piece;
    storage->size_class = b->size_class;
    storage->bytes = bytes;
    storage->owner = tensors;
    storage->fini = NULL;
    storage->next = NULL;
    storage->initial = NULL;
    atomic_store_explicit(&storage->unfilled, false, memory_order_relaxed);
    atomic_store_explicit(&storage->version, 0, memory_order_relaxed);
    atomic_store_explicit(&storage->refs, 1, memory_order_relaxed);
}

/* A header and a block, from the pools if they have them. The lock is held once for both, and
 * the message is written without it. */
ls__storage *ls__storage_new(ls__tensors *tensors, size_t bytes)
{
    uint16_t size_class = 0;
    size_t rounded = 0;
    block b = {0};
    ls__storage *storage = NULL;
    if (class_of(bytes, &size_class, &rounded)) {
        pthread_mutex_lock(&tensors->lock);
        storage = header_get(tensors);
        b = storage != NULL ? block_get(tensors, size_class, rounded) : b;
        if (storage != NULL && b.data == NULL) {
            storage->next = tensors->free_headers;
            tensors->free_headers = storage;
            storage = NULL;
        }
        pthread_mutex_unlock(&tensors->lock);
    }
    if (storage == NULL) {
        (void)ls__fail(LS_ERR_MEMORY,
                       "a new tensor of %zu bytes: out of memory; free tensors, end "
                       "scopes earlier or make batches smaller",
                       bytes);
        return NULL;
    }
    header_init(tensors, storage, &b, bytes);
    return storage;
}

/* The memory stays the user's: the last reference frees the header only. */
ls__storage *ls__storage_borrow(ls__tensors *tensors, void *data, size_t bytes)
{
    pthread_mutex_lock(&tensors->lock);
    ls__storage *storage = header_get(tensors);
    pthread_mutex_unlock(&tensors->lock);
    if (storage == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "a tensor over your memory: out of memory for its header");
        return NULL;
    }
    header_init(tensors, storage, &(block){data, NULL, LS__STORAGE_BORROWED}, bytes);
    return storage;
}

void ls__storage_swap(ls__storage *a, ls__storage *b)
{
    const uint32_t version = ls__storage_version(a);
    LS_ASSERT(a->bytes == b->bytes && a->owner == b->owner);
    pthread_mutex_lock(&a->owner->lock);
    const block x = block_of(a), y = block_of(b);
    a->data = y.data, a->piece = y.piece, a->size_class = y.size_class;
    b->data = x.data, b->piece = x.piece, b->size_class = x.size_class;
    pthread_mutex_unlock(&a->owner->lock);
    atomic_store_explicit(&a->version, ls__storage_version(b), memory_order_relaxed);
    atomic_store_explicit(&b->version, version, memory_order_relaxed);
}

/* The bytes are copied under the lock, which is long but rare: once for each parameter, when DDP
 * lays out its buckets. */
ls_status ls__storage_move(ls__storage *storage, void *memory)
{
    ls__tensors *tensors = storage->owner;
    uint16_t size_class = 0;
    size_t rounded = 0;
    if (memory == NULL) { /* a tensor that exists has a class */
        const bool known = class_of(storage->bytes, &size_class, &rounded);
        LS_ASSERT(known);
    }
    pthread_mutex_lock(&tensors->lock);
    const block from = block_of(storage);
    const block to = memory != NULL ? (block){memory, NULL, LS__STORAGE_BORROWED}
                                    : block_get(tensors, size_class, rounded);
    if (to.data != NULL) {
        if (to.data != from.data && storage->bytes > 0) {
            memcpy(to.data, from.data, storage->bytes);
        }
        block_put(tensors, &from);
        storage->data = to.data;
        storage->piece = to.piece;
        storage->size_class = to.size_class;
    }
    pthread_mutex_unlock(&tensors->lock);
    return to.data != NULL
               ? LS_OK
               : ls__fail(LS_ERR_MEMORY,
                          "moving a tensor of %zu bytes: out of memory; free tensors or make "
                          "batches smaller",
                          storage->bytes);
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
    free(storage->initial);
    storage->initial = NULL;
    ls__tensors *tensors = storage->owner;
    const block b = block_of(storage);
    pthread_mutex_lock(&tensors->lock);
    block_put(tensors, &b);
    storage->data = NULL;
    storage->next = tensors->free_headers;
    tensors->free_headers = storage;
    pthread_mutex_unlock(&tensors->lock);
}

/* Blocks in use stay; the lock is held for the whole walk. */
void ls__storages_release_cached(ls__tensors *tensors)
{
    pthread_mutex_lock(&tensors->lock);
    release_cached(tensors);
    pthread_mutex_unlock(&tensors->lock);
}

/* Blocks in use are found through their headers; pieces of regions go with their region. */
void ls__storages_fini(ls__tensors *tensors)
{
    release_cached(tensors);
    while (tensors->header_slabs != NULL) {
        struct ls__header_slab *slab = tensors->header_slabs;
        tensors->header_slabs = slab->next;
        for (int i = 0; i < HEADERS_A_SLAB; i++) {
            ls__storage *storage = &slab->header[i];
            free(storage->initial);
            if (storage->data != NULL && storage->size_class < LS__SIZE_CLASSES) {
                tensors->env.table.release(&tensors->env.table, storage->data,
                                           class_bytes(storage->size_class));
            }
        }
        tensors->env.table.release(&tensors->env.table, slab, sizeof *slab);
    }
    ls__regions_fini(&tensors->regions);
}
