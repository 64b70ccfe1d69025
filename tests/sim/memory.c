/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a world: taken from one range that the next world takes again, and memory files.
 *
 * What is allocated is filled with a pattern, and again when it is released, so that a use of
 * either is seen, and alike in every run. A release must name the bytes that were asked for.
 */
#include "sim/entries.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/assert.h"

#define ARENA_BYTES ((size_t)8 << 30)
#define ARENA_KEEP ((size_t)128 << 20) /* more is given back to the system between worlds */
#define HEAD_BYTES 64
#define FILL_MAX 512 /* bytes of a block that are filled at most */
#define MAGIC 0x5ca1ab1eu
#define CLASSES 48
#define SLABS_MAX 320
#define SLAB_SMALL ((size_t)4 << 20)
#define SLAB_LARGE ((size_t)1 << 30)

typedef struct head {
    uint32_t magic;
    int16_t process; /* number; -1: the world's */
    int16_t size_class;
    size_t bytes;
    struct head *next; /* free */
} head;

static struct {
    unsigned char *start, *at, *peak;
    head *free[CLASSES];
} arena;

typedef struct slab { /* address space for a memory file */
    unsigned char *at;
    size_t reserve;
    bool used;
    size_t dirty; /* bytes that may not be zero */
} slab;

static slab slabs[SLABS_MAX];
static int slab_count;

static void *reserve(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    LS_ASSERT(memory != MAP_FAILED);
    (void)madvise(memory, bytes, MADV_NOHUGEPAGE);
    return memory;
}

void ls__sim_memory_begin(void)
{
    if (arena.start == NULL) {
        arena.start = arena.peak = reserve(ARENA_BYTES);
        /* What it gives is released with our free. */
        json_set_alloc_funcs(ls__sim_malloc, ls__sim_free);
    }
    arena.at = arena.start;
    memset(arena.free, 0, sizeof arena.free);
}

/* ---- blocks -------------------------------------------------------------------------------- */

static int class_of(size_t bytes)
{
    int c = 0;
    while (((size_t)64 << c) < bytes) {
        c++;
    }
    return c;
}

static void *take(size_t bytes, int process)
{
    const int c = class_of(bytes);
    LS_ASSERT(c < CLASSES);
    head *h = arena.free[c];
    if (h != NULL) {
        arena.free[c] = h->next;
    } else {
        h = (head *)(void *)arena.at;
        arena.at += HEAD_BYTES + ((size_t)64 << c);
        LS_ASSERT(arena.at <= arena.start + ARENA_BYTES);
    }
    *h = (head){MAGIC, (int16_t)process, (int16_t)c, bytes, NULL};
    return (unsigned char *)h + HEAD_BYTES;
}

static void give(void *memory)
{
    head *h = (head *)(void *)((unsigned char *)memory - HEAD_BYTES);
    memset(memory, 0xdd, h->bytes < FILL_MAX ? h->bytes : FILL_MAX);
    h->magic = 0;
    h->next = arena.free[h->size_class];
    arena.free[h->size_class] = h;
}

void *ls__sim_alloc(size_t bytes)
{
    void *memory = take(bytes, -1);
    memset(memory, 0, bytes);
    return memory;
}

static void *take_for(ls__sim_process *p, size_t bytes)
{
    void *memory = take(bytes, p != NULL ? p->number : -1);
    memset(memory, 0xa5, bytes < FILL_MAX ? bytes : FILL_MAX);
    if (p != NULL) {
        p->bytes += bytes;
        p->blocks++;
    }
    return memory;
}

static head *checked(void *memory, const char *what)
{
    head *h = (head *)(void *)((unsigned char *)memory - HEAD_BYTES);
    if (h->magic != MAGIC) {
        ls__sim_stop("%s of memory that is not in use", what);
        return NULL;
    }
    return h;
}

static void give_back(void *memory, const head *h)
{
    ls__sim_process *owner = h->process >= 0 ? ls__sim->process[h->process] : NULL;
    if (owner != NULL) {
        owner->bytes -= h->bytes;
        owner->blocks--;
    }
    give(memory);
}

void *ls__sim_env_allocate(const ls__env *env LS__UNUSED, size_t bytes)
{
    ls__sim_process *p = ls__sim_current();
    if (p != NULL && p->fail_allocation > 0 && --p->fail_allocation == 0) {
        ls__sim_note("no memory for %zu bytes", bytes);
        return NULL;
    }
    return take_for(p, bytes);
}

void ls__sim_env_release(const ls__env *env LS__UNUSED, void *memory, size_t bytes)
{
    const head *h = checked(memory, "release");
    if (h != NULL && h->bytes != bytes) {
        ls__sim_stop("release of %zu bytes that were %zu", bytes, h->bytes);
    }
    if (h != NULL) {
        give_back(memory, h);
    }
}

/* ---- malloc of the simulated processes ------------------------------------------------------ */

void *ls__sim_malloc(size_t bytes)
{
    return take_for(ls__sim_current(), bytes);
}

void *ls__sim_calloc(size_t count, size_t bytes)
{
    if (bytes != 0 && count > SIZE_MAX / 2 / bytes) {
        return NULL;
    }
    void *memory = ls__sim_malloc(count * bytes);
    memset(memory, 0, count * bytes);
    return memory;
}

void ls__sim_free(void *memory)
{
    const head *h = memory != NULL ? checked(memory, "free") : NULL;
    if (h != NULL) {
        give_back(memory, h);
    }
}

void *ls__sim_realloc(void *memory, size_t bytes)
{
    void *grown = ls__sim_malloc(bytes);
    if (memory != NULL) {
        const head *h = (const head *)(const void *)((unsigned char *)memory - HEAD_BYTES);
        memcpy(grown, memory, h->bytes < bytes ? h->bytes : bytes);
        ls__sim_free(memory);
    }
    return grown;
}

/* ---- memory files: the same bytes for all who map them --------------------------------------- */

ls__sim_memory *ls__sim_memory_new(size_t bytes)
{
    ls__sim_memory *m = ls__sim_alloc(sizeof *m);
    *m = (ls__sim_memory){.refs = 1, .bytes = bytes, .slab = -1};
    return m;
}

static int take_slab(size_t wanted)
{
    const size_t bytes = wanted <= SLAB_SMALL ? SLAB_SMALL : SLAB_LARGE;
    if (wanted > SLAB_LARGE) {
        return -1;
    }
    for (int i = 0; i < slab_count; i++) {
        if (!slabs[i].used && slabs[i].reserve == bytes) {
            return i;
        }
    }
    LS_ASSERT(slab_count < SLABS_MAX);
    slabs[slab_count] = (slab){.at = reserve(bytes), .reserve = bytes};
    return slab_count++;
}

bool ls__sim_memory_map(ls__sim_memory *m, size_t wanted)
{
    if (m->at == NULL) {
        const size_t bytes = wanted > m->bytes ? wanted : m->bytes;
        m->slab = take_slab(bytes);
        if (m->slab < 0) {
            return false;
        }
        slabs[m->slab].used = true;
        m->at = slabs[m->slab].at;
        m->reserve = slabs[m->slab].reserve;
    }
    return wanted <= m->reserve;
}

/* Zeroes what was touched: pages that are there are written, which is cheaper than new ones. */
static void clean(slab *s, size_t bytes)
{
    enum { PAGE = 4096, ROUND = 1024 };
    unsigned char there[ROUND];
    for (size_t at = 0; at < bytes; at += (size_t)PAGE * ROUND) {
        const size_t left = bytes - at;
        const size_t pages = left / PAGE < ROUND ? left / PAGE : ROUND;
        if (mincore(s->at + at, pages * PAGE, there) != 0) {
            (void)madvise(s->at + at, pages * PAGE, MADV_DONTNEED);
            continue;
        }
        const unsigned char *page = memchr(there, 1, pages);
        while (page != NULL) {
            const size_t p = (size_t)(page - there);
            memset(s->at + at + p * PAGE, 0, PAGE);
            page = memchr(page + 1, 1, pages - p - 1);
        }
    }
    s->used = false;
}

void ls__sim_memory_drop(ls__sim_memory *m)
{
    m->refs--; /* its slab is cleaned at the end of the world: the dead may have pointers to it */
}

void ls__sim_memory_end(void)
{
    for (int i = 0; i < slab_count; i++) {
        if (slabs[i].used) {
            clean(&slabs[i], slabs[i].reserve <= SLAB_SMALL ? slabs[i].reserve : SLAB_LARGE / 8);
        }
    }
    arena.peak = arena.at > arena.peak ? arena.at : arena.peak;
    if (arena.peak > arena.start + ARENA_KEEP) {
        (void)madvise(arena.start + ARENA_KEEP, (size_t)(arena.peak - arena.start) - ARENA_KEEP,
                      MADV_DONTNEED);
        arena.peak = arena.start + ARENA_KEEP;
    }
}
