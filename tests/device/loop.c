/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, stream and trap of the loop device; its table is written by loop_kernels.py. */
#include "loop.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/runtime.h"
#include "tensor/tensor.h"

#define MEMORY_BYTES ((size_t)4 << 30) /* of addresses; pages are made when they are used */
#define ALIGN 4096
#define DELAYED 8       /* one kernel in so many */
#define DELAY_NS 200000 /* at most */

typedef struct launch {
    struct launch *next;
    void (*run)(void *args);
    size_t bytes;
    _Alignas(16) char args[];
} launch;

struct ls_stream {
    pthread_t thread;
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t changed;
    launch *first, **last;
    bool running, stop; /* a kernel runs; the thread is to end */
    uint64_t started, random;
    bool late; /* always */
};

const ls__kernels *loop_real;
static ls__kernels table;
static ls__device device;
static ls__env memory;
static struct ls_stream stream;
static char *seen, *own; /* the mapping of the program, and of the kernels */
static size_t used;

/* ---- memory ------------------------------------------------------------------------------- */

/* Never reused: the library's pools do that, and a test ends soon. */
static void *allocate(const ls__env *env, size_t bytes)
{
    (void)env;
    pthread_mutex_lock(&stream.lock);
    const size_t at = used;
    used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    pthread_mutex_unlock(&stream.lock);
    return used <= MEMORY_BYTES ? seen + at : NULL;
}

static void release(const ls__env *env, void *address, size_t bytes)
{
    (void)env, (void)address, (void)bytes;
}

static void map_memory(void)
{
    const int file = memfd_create("loop device", MFD_CLOEXEC);
    const bool sized = file >= 0 && ftruncate(file, (off_t)MEMORY_BYTES) == 0;
    LS_ASSERT(sized);
    seen = mmap(NULL, MEMORY_BYTES, PROT_NONE, MAP_SHARED, file, 0);
    own = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    LS_ASSERT(seen != MAP_FAILED && own != MAP_FAILED);
    close(file);
    used = 0;
}

static bool is_seen(uintptr_t address)
{
    return address - (uintptr_t)seen < MEMORY_BYTES;
}

/* ---- the trap ----------------------------------------------------------------------------- */

/* The tensor whose elements lie there. The process ends, so no lock is taken. */
static const ls__record *tensor_at(uintptr_t address)
{
    const ls__tensors *tensors =
        ls__self.runtime != NULL ? ls__self.runtime->layer[LS__LAYER_TENSOR].data : NULL;
    for (int s = 0; tensors != NULL && s < atomic_load(&tensors->slab_count); s++) {
        for (int64_t i = 0; i < tensors->slab[s].count; i++) {
            const ls__record *r = (const void *)(tensors->slab[s].first + i * LS__RECORD_BYTES);
            if ((r->flags & LS__RECORD_LIVE) && r->storage != NULL &&
                address - (uintptr_t)r->storage->data < r->storage->bytes) {
                return r;
            }
        }
    }
    return NULL;
}

static void trapped(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    const uintptr_t address = (uintptr_t)info->si_addr;
    if (!is_seen(address)) {
        signal(SIGSEGV, SIG_DFL); /* another fault: it comes again */
        return;
    }
    const ls__record *r = tensor_at(address);
    fprintf(stderr, "loop device: the program read or wrote elements of a tensor made at %s:%d\n",
            r != NULL && r->file != NULL ? r->file : "?", r != NULL ? r->line : 0);
    _exit(LOOP_TRAPPED);
}

/* ---- the stream --------------------------------------------------------------------------- */

static uint64_t draw(struct ls_stream *s)
{
    s->random ^= s->random << 13, s->random ^= s->random >> 7, s->random ^= s->random << 17;
    return s->random;
}

/* Any word that is an address of the program's mapping: no number of an argument is as large. */
static void translate(void *args, size_t bytes)
{
    uintptr_t *word = args;
    for (size_t i = 0; i < bytes / sizeof *word; i++) {
        word[i] = is_seen(word[i]) ? word[i] - (uintptr_t)seen + (uintptr_t)own : word[i];
    }
}

static void *run_stream(void *arg)
{
    struct ls_stream *s = arg;
    ls__kernels_set_threads(1);
    pthread_mutex_lock(&s->lock);
    while (!s->stop || s->first != NULL) {
        launch *l = s->first;
        if (l == NULL) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        s->first = l->next;
        s->last = s->first != NULL ? s->last : &s->first;
        s->running = true;
        const bool late = s->late || draw(s) % DELAYED == 0;
        const long delay = late ? (long)(draw(s) % DELAY_NS) : 0;
        pthread_mutex_unlock(&s->lock);
        if (delay > 0) {
            nanosleep(&(struct timespec){.tv_nsec = delay}, NULL);
        }
        l->run(l->args);
        free(l);
        pthread_mutex_lock(&s->lock);
        s->running = false;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void loop_check_pointers(const char *name, const void *args, const size_t *places, int count)
{
    for (int i = 0; device.apart && strcmp(name, "copy") != 0 && i < count; i++) {
        uintptr_t address;
        memcpy(&address, (const char *)args + places[i], sizeof address);
        if (address != 0 && !is_seen(address)) {
            fprintf(stderr, "loop device: %s was given memory of the program\n", name);
            _exit(LOOP_TRAPPED);
        }
    }
}

/* Arrays of the host go behind the arguments. */
void loop_start(ls_stream *s, const char *name, void (*run)(void *args), const void *args,
                size_t bytes, const loop_array *arrays, int array_count)
{
    size_t all = (bytes + 15) / 16 * 16;
    for (int i = 0; i < array_count; i++) {
        all += (arrays[i].bytes + 15) / 16 * 16;
    }
    if (s != &stream) {
        fprintf(stderr, "loop device: %s was started on another stream\n", name);
        abort();
    }
    launch *l = calloc(1, sizeof *l + all);
    LS_ASSERT(l != NULL);
    l->run = run;
    l->bytes = all;
    memcpy(l->args, args, bytes);
    char *to = l->args + (bytes + 15) / 16 * 16;
    for (int i = 0; i < array_count; i++) {
        void **from = (void **)(void *)(l->args + arrays[i].offset);
        if (arrays[i].bytes > 0) {
            memcpy(to, *from, arrays[i].bytes);
        }
        *from = to;
        to += (arrays[i].bytes + 15) / 16 * 16;
    }
    translate(l->args, all);
    pthread_mutex_lock(&s->lock);
    *s->last = l;
    s->last = &l->next;
    s->started++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void synchronize(const ls__device *of)
{
    (void)of;
    pthread_mutex_lock(&stream.lock);
    while (stream.first != NULL || stream.running) {
        pthread_cond_wait(&stream.changed, &stream.lock);
    }
    pthread_mutex_unlock(&stream.lock);
}

uint64_t loop_started(void)
{
    return stream.started;
}

const ls__device *loop_new(uint64_t seed)
{
    const struct sigaction trap = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};
    loop_real = ls__kernels_cpu();
    loop_kernels(&table);
    stream = (struct ls_stream){
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .changed = PTHREAD_COND_INITIALIZER,
        .last = &stream.first,
        .random = (seed + 1) * 0x9E3779B97F4A7C15u, /* small ones would have like beginnings */
        .late = seed == 0};
    map_memory();
    const bool made = sigaction(SIGSEGV, &trap, NULL) == 0 &&
                      pthread_create(&stream.thread, NULL, run_stream, &stream) == 0;
    LS_ASSERT(made);
    memory = *ls__env_posix();
    memory.allocate = allocate;
    memory.release = release;
    device = (ls__device){.name = "loop",
                          .kernels = &table,
                          .stream = &stream,
                          .memory = &memory,
                          .apart = seed % 2 == 0,
                          .synchronize = synchronize};
    return &device;
}

void loop_free(void)
{
    pthread_mutex_lock(&stream.lock);
    stream.stop = true;
    pthread_cond_broadcast(&stream.changed);
    pthread_mutex_unlock(&stream.lock);
    pthread_join(stream.thread, NULL);
    munmap(seen, MEMORY_BYTES);
    munmap(own, MEMORY_BYTES);
}
