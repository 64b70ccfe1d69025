/* Storages: counted memory from a caching allocator.
 *
 * Blocks come in size classes, four to a power of two (at most a quarter is wasted), and go back to
 * their class's list, newest first, so a loop of equal steps finds warm memory and asks the system
 * for nothing. When the system refuses, all cached blocks are given back and it is asked again. */
#include "tensor/tensor.h"

#include <string.h>

#include "base/assert.h"

#define BLOCK_MIN 256u
#define BLOCK_MIN_LOG 8
#define BLOCK_MAX ((size_t)1 << 47)
#define HEADERS_A_SLAB 255

struct ls__header_slab {
    struct ls__header_slab *next;
    ls__storage header[HEADERS_A_SLAB];
};

/* The class of `bytes` and, rounded up, its size. False when there is none so large. */
static bool class_of(size_t bytes, uint16_t *size_class, size_t *rounded)
{
    bytes = bytes < BLOCK_MIN ? BLOCK_MIN : bytes;
    if (bytes > BLOCK_MAX) {
        return false;
    }
    int log = 63 - __builtin_clzll((unsigned long long)bytes);
    int step = log - 2;
    size_t quarters = (bytes + ((size_t)1 << step) - 1) >> step; /* 4 … 8 */
    *size_class = (uint16_t)(4 * (log - BLOCK_MIN_LOG) + (int)quarters - 4);
    *rounded = quarters << step;
    return *size_class < LS__SIZE_CLASSES;
}

static size_t class_bytes(int size_class)
{
    int step = size_class / 4 + BLOCK_MIN_LOG - 2;
    return (size_t)(size_class % 4 + 4) << step;
}

/* Under lock. */
static void release_cached(ls__tensors *tensors)
{
    for (int i = 0; i < LS__SIZE_CLASSES; i++) {
        while (tensors->free_blocks[i] != NULL) {
            void *block = tensors->free_blocks[i];
            tensors->free_blocks[i] = *(void **)block;
            tensors->env.table.release(&tensors->env.table, block, class_bytes(i));
            tensors->memory.reserved -= (int64_t)class_bytes(i);
        }
    }
}

static void raise_to(int64_t *peak, int64_t now)
{
    *peak = now > *peak ? now : *peak;
}

/* Under lock. */
static void *block_from_system(ls__tensors *tensors, size_t bytes)
{
    void *block = tensors->env.table.allocate(&tensors->env.table, bytes);
    if (block == NULL) {
        release_cached(tensors);
        block = tensors->env.table.allocate(&tensors->env.table, bytes);
    }
    if (block != NULL) {
        tensors->memory.reserved += (int64_t)bytes;
        raise_to(&tensors->memory.reserved_peak, tensors->memory.reserved);
    }
    return block;
}

/* Under lock. */
static void *block_get(ls__tensors *tensors, uint16_t size_class, size_t bytes)
{
    void *block = tensors->free_blocks[size_class];
    if (block != NULL) {
        tensors->free_blocks[size_class] = *(void **)block;
    } else {
        block = block_from_system(tensors, bytes);
    }
    if (block != NULL) {
        tensors->memory.blocks++;
        tensors->memory.allocated += (int64_t)bytes;
        raise_to(&tensors->memory.allocated_peak, tensors->memory.allocated);
    }
    return block;
}

/* Under lock. Borrowed memory is the caller's. */
static void block_put(ls__tensors *tensors, void *block, uint16_t size_class)
{
    if (size_class != LS__STORAGE_BORROWED) {
        *(void **)block = tensors->free_blocks[size_class];
        tensors->free_blocks[size_class] = block;
        tensors->memory.blocks--;
        tensors->memory.allocated -= (int64_t)class_bytes(size_class);
    }
}

/* Under lock. */
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

static void header_init(ls__tensors *tensors, ls__storage *storage, void *data, size_t bytes,
                        uint16_t size_class)
{
    storage->data = data;
    storage->bytes = bytes;
    storage->owner = tensors;
    storage->size_class = size_class;
    storage->fini = NULL;
    storage->next = NULL;
    atomic_store_explicit(&storage->version, 0, memory_order_relaxed);
    atomic_store_explicit(&storage->refs, 1, memory_order_relaxed);
}

ls__storage *ls__storage_new(ls__tensors *tensors, size_t bytes)
{
    uint16_t size_class = 0;
    size_t rounded = 0;
    void *data = NULL;
    ls__storage *storage = NULL;
    if (class_of(bytes, &size_class, &rounded)) {
        pthread_mutex_lock(&tensors->lock);
        storage = header_get(tensors);
        data = storage != NULL ? block_get(tensors, size_class, rounded) : NULL;
        if (storage != NULL && data == NULL) {
            storage->next = tensors->free_headers;
            tensors->free_headers = storage;
            storage = NULL;
        }
        pthread_mutex_unlock(&tensors->lock);
    }
    if (storage == NULL) {
        (void)ls__fail(LS_ERR_MEMORY,
                       "a new tensor of %zu bytes: memory could not be had; free tensors, end "
                       "scopes earlier or make batches smaller",
                       bytes);
        return NULL;
    }
    header_init(tensors, storage, data, bytes, size_class);
    return storage;
}

ls__storage *ls__storage_borrow(ls__tensors *tensors, void *data, size_t bytes)
{
    pthread_mutex_lock(&tensors->lock);
    ls__storage *storage = header_get(tensors);
    pthread_mutex_unlock(&tensors->lock);
    if (storage == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "a tensor over your memory: its header could not be had");
        return NULL;
    }
    header_init(tensors, storage, data, bytes, LS__STORAGE_BORROWED);
    return storage;
}

ls_status ls__storage_move(ls__storage *storage, void *memory)
{
    ls__tensors *tensors = storage->owner;
    uint16_t size_class = LS__STORAGE_BORROWED;
    size_t rounded = 0;
    if (memory == NULL && !class_of(storage->bytes, &size_class, &rounded)) {
        return ls__fail(LS_ERR_MEMORY, "moving a tensor of %zu bytes", storage->bytes);
    }
    pthread_mutex_lock(&tensors->lock);
    void *data = memory != NULL ? memory : block_get(tensors, size_class, rounded);
    if (data != NULL) {
        if (data != storage->data && storage->bytes > 0) {
            memcpy(data, storage->data, storage->bytes);
        }
        block_put(tensors, storage->data, storage->size_class);
        storage->data = data;
        storage->size_class = size_class;
    }
    pthread_mutex_unlock(&tensors->lock);
    return data != NULL ? LS_OK
                        : ls__fail(LS_ERR_MEMORY, "moving a tensor of %zu bytes", storage->bytes);
}

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
    ls__tensors *tensors = storage->owner;
    pthread_mutex_lock(&tensors->lock);
    block_put(tensors, storage->data, storage->size_class);
    storage->data = NULL;
    storage->next = tensors->free_headers;
    tensors->free_headers = storage;
    pthread_mutex_unlock(&tensors->lock);
}

void ls__storages_release_cached(ls__tensors *tensors)
{
    pthread_mutex_lock(&tensors->lock);
    release_cached(tensors);
    pthread_mutex_unlock(&tensors->lock);
}

void ls__storages_fini(ls__tensors *tensors)
{
    release_cached(tensors);
    while (tensors->header_slabs != NULL) {
        struct ls__header_slab *slab = tensors->header_slabs;
        tensors->header_slabs = slab->next;
        for (int i = 0; i < HEADERS_A_SLAB; i++) {
            ls__storage *storage = &slab->header[i];
            if (storage->data != NULL && storage->size_class != LS__STORAGE_BORROWED) {
                tensors->env.table.release(&tensors->env.table, storage->data,
                                           class_bytes(storage->size_class));
            }
        }
        tensors->env.table.release(&tensors->env.table, slab, sizeof *slab);
    }
}
