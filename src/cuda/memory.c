/* SPDX-License-Identifier: Apache-2.0 */
/* Small blocks are cut off slabs and return to lists by their size; large ones are the driver's. */
#include "cuda/memory.h"

#include <pthread.h>
#include <stdlib.h>

#include "cuda/capture.h"
#include "cuda/driver.h"
#include "cuda/launch.h"

#define GRANULE 256
#define CLASSES (LS__CUDA_SMALL / GRANULE)

typedef struct slab slab;
struct slab {
    slab *next;
    char *memory;
    size_t filled; /* bytes that were cut off, from the front */
    int blocks;    /* in use or waiting */
};

typedef struct block block; /* one that was given back, or that another stream uses */
struct block {
    block *next;
    void *memory, *event; /* event: of the other stream; NULL: none */
    size_t bytes;
    bool put; /* given back, and waits */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of everything below */
static slab *slabs;
static block *free_blocks[CLASSES + 1]; /* by multiples of GRANULE */
static block *noted;                    /* with an event */
static ls__cuda_memory_stats figures;

static size_t rounded(size_t bytes)
{
    return bytes < GRANULE ? GRANULE : (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

/* During a capture the driver lets the thread take memory only in the relaxed mode. */
static void exchange_mode(void)
{
    static _Thread_local int mode = LS__CU_CAPTURE_RELAXED;
    if (ls__cuda_capturing()) {
        ls__cuda_check(ls__cu_driver.cuThreadExchangeStreamCaptureMode(&mode),
                       "cuThreadExchangeStreamCaptureMode");
    }
}

static void *from_driver(size_t bytes)
{
    ls__cu_pointer memory = 0;
    exchange_mode();
    const int code = ls__cu_driver.cuMemAlloc_v2(&memory, bytes);
    exchange_mode();
    if (code == LS__CU_SUCCESS) {
        figures.reserved += bytes;
        return (void *)(uintptr_t)memory;
    }
    if (code != LS__CU_OUT_OF_MEMORY) {
        ls__cuda_check(code, "cuMemAlloc");
    }
    return NULL;
}

/* Waits for the device, so that no kernel uses the memory. */
static void to_driver(void *memory, size_t bytes)
{
    ls__cuda_check(ls__cu_driver.cuMemFree_v2((uintptr_t)memory), "cuMemFree");
    figures.reserved -= bytes;
}

static slab *slab_of(const void *memory)
{
    slab *s = slabs;
    while (s != NULL && (size_t)((const char *)memory - s->memory) >= LS__CUDA_SLAB) {
        s = s->next;
    }
    return s;
}

/* Drops the free blocks that lie in `s`. */
static void forget_blocks_of(const slab *s)
{
    for (size_t c = 0; c <= CLASSES; c++) {
        for (block **at = &free_blocks[c]; *at != NULL;) {
            block *b = *at;
            if (slab_of(b->memory) == s) {
                *at = b->next;
                free(b);
            } else {
                at = &b->next;
            }
        }
    }
}

/* Slabs without a block in use go back to the driver. */
static void release_slabs(void)
{
    for (slab **at = &slabs; *at != NULL;) {
        slab *s = *at;
        if (s->blocks > 0) {
            at = &s->next;
            continue;
        }
        forget_blocks_of(s);
        *at = s->next;
        to_driver(s->memory, LS__CUDA_SLAB);
        free(s);
    }
}

/* Gives a block back for good; `b` holds it, or is freed. */
static void settle(block *b)
{
    const size_t size = rounded(b->bytes);
    if (size > LS__CUDA_SMALL) {
        to_driver(b->memory, size);
        free(b);
        return;
    }
    slab_of(b->memory)->blocks--;
    b->next = free_blocks[size / GRANULE];
    free_blocks[size / GRANULE] = b;
}

/* Blocks given back whose other stream is done with them; with `waits` all that were given back. */
static void settle_noted(bool waits)
{
    for (block **at = &noted; *at != NULL;) {
        block *b = *at;
        const int code = !b->put ? LS__CU_NOT_READY
                         : waits ? ls__cu_driver.cuEventSynchronize(b->event)
                                 : ls__cu_driver.cuEventQuery(b->event);
        if (code == LS__CU_NOT_READY) {
            at = &b->next;
            continue;
        }
        ls__cuda_check(code, "cuEventQuery");
        ls__cuda_check(ls__cu_driver.cuEventDestroy_v2(b->event), "cuEventDestroy");
        *at = b->next;
        b->event = NULL;
        figures.waiting--;
        settle(b);
    }
}

/* From the newest slab, or a new one. */
static void *cut(size_t size)
{
    if (slabs == NULL || slabs->filled + size > LS__CUDA_SLAB) {
        slab *s = calloc(1, sizeof *s);
        char *memory = s != NULL ? from_driver(LS__CUDA_SLAB) : NULL;
        if (memory == NULL) {
            free(s);
            return NULL;
        }
        *s = (slab){.next = slabs, .memory = memory};
        slabs = s;
    }
    void *memory = slabs->memory + slabs->filled;
    slabs->filled += size;
    slabs->blocks++;
    return memory;
}

static void *take(size_t size)
{
    if (size > LS__CUDA_SMALL) {
        return from_driver(size);
    }
    block *b = free_blocks[size / GRANULE];
    if (b == NULL) {
        return cut(size);
    }
    void *memory = b->memory;
    free_blocks[size / GRANULE] = b->next;
    free(b);
    slab_of(memory)->blocks++;
    return memory;
}

/* When the driver has none, first what waits and then empty slabs are given back. A capture asks
 * for no event, and gives nothing back. */
void *ls__cuda_memory_get(const ls__env *env, size_t bytes)
{
    const size_t size = rounded(bytes);
    (void)env;
    ls__cuda_enter();
    pthread_mutex_lock(&lock);
    if (!ls__cuda_capturing()) {
        settle_noted(false);
    }
    void *memory = take(size);
    if (memory == NULL && !ls__cuda_capturing()) {
        settle_noted(true);
        release_slabs();
        memory = take(size);
    }
    figures.used += memory != NULL ? size : 0;
    pthread_mutex_unlock(&lock);
    return memory;
}

static block *noted_block(const void *memory)
{
    block *b = noted;
    while (b != NULL && (b->memory != memory || b->put)) {
        b = b->next;
    }
    return b;
}

/* Without memory for its header the block is lost. */
void ls__cuda_memory_put(const ls__env *env, void *memory, size_t bytes)
{
    (void)env;
    ls__cuda_enter();
    pthread_mutex_lock(&lock);
    figures.used -= rounded(bytes);
    block *b = noted_block(memory);
    if (b != NULL) {
        b->bytes = bytes;
        b->put = true;
        figures.waiting++;
        settle_noted(false);
    } else {
        b = calloc(1, sizeof *b);
        if (b != NULL) {
            *b = (block){.memory = memory, .bytes = bytes};
            settle(b);
        }
    }
    pthread_mutex_unlock(&lock);
}

void ls__cuda_memory_used(void *memory, void *stream)
{
    ls__cuda_enter();
    pthread_mutex_lock(&lock);
    block *b = noted_block(memory);
    if (b == NULL) {
        b = calloc(1, sizeof *b);
        if (b != NULL) {
            *b = (block){.next = noted, .memory = memory};
            ls__cuda_check(ls__cu_driver.cuEventCreate(&b->event, LS__CU_EVENT_NO_TIMING),
                           "cuEventCreate");
            noted = b;
        }
    }
    if (b != NULL) { /* a later record takes the place of the one before, on the same stream */
        ls__cuda_check(ls__cu_driver.cuEventRecord(b->event, stream), "cuEventRecord");
    }
    pthread_mutex_unlock(&lock);
}

ls__cuda_memory_stats ls__cuda_memory_figures(void)
{
    pthread_mutex_lock(&lock);
    const ls__cuda_memory_stats now = figures;
    pthread_mutex_unlock(&lock);
    return now;
}
