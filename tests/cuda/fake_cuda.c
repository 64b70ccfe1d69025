/* See fake.h. Memory is mapped twice, as the loop device's is (tests/device/loop.c): at its address
 * the program may not touch it, and what runs on a stream uses the second mapping. Memory that is
 * taken or given back is filled with ones, which are NaN. */
#include "fake.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "emulator.h"

#define MEMORY_BYTES ((size_t)8 << 30) /* of addresses */
#define ALIGN 4096
#define BLOCKS_MAX 4096
#define DELAYED 16
#define DELAY_NS 100000
#define NAMES "cuda_" /* in front of the names of kernels */

enum {
    SUCCESS,
    INVALID = 1,
    OUT_OF_MEMORY = 2,
    NO_FILE = 301,
    NO_CONTEXT = 201,
    NOT_FOUND = 500,
    NOT_READY = 600
};

typedef struct work {
    struct work *next;
    void (*run)(void *args);
    size_t bytes;
    _Alignas(16) char args[];
} work;

typedef struct stream {
    pthread_t thread;
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t changed;
    work *first, **last;
    bool running, held;
    uint64_t random;
} stream;

typedef struct event {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded, reached;
} event;

typedef struct block {
    size_t at, bytes;
    bool used;
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of everything below */
static char *seen, *own;
static size_t end, used, limit = MEMORY_BYTES;
static block blocks[BLOCKS_MAX];
static int block_count, fail_code;
static uint64_t launched;
static stream *streams[16];
static int stream_count;
static _Thread_local bool has_context;

/* ---- control --------------------------------------------------------------------------------- */

void fake_cuda_limit(size_t bytes)
{
    limit = bytes;
}

size_t fake_cuda_used(void)
{
    return used;
}

uint64_t fake_cuda_launched(void)
{
    return __atomic_load_n(&launched, __ATOMIC_RELAXED);
}

void fake_cuda_fail_next(int code)
{
    fail_code = code;
}

void fake_cuda_hold(void *of, int holds)
{
    stream *s = of;
    pthread_mutex_lock(&s->lock);
    s->held = holds != 0;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool is_seen(uintptr_t address)
{
    return seen != NULL && address - (uintptr_t)seen < MEMORY_BYTES;
}

static void *translated(uintptr_t address)
{
    return (void *)(is_seen(address) ? address - (uintptr_t)seen + (uintptr_t)own : address);
}

/* Any word that is an address of the device: no number of an argument is as large. */
static void translate(void *args, size_t bytes)
{
    uintptr_t *word = args;
    for (size_t i = 0; i < bytes / sizeof *word; i++) {
        word[i] = (uintptr_t)translated(word[i]);
    }
}

/* Under lock. */
static void map_memory(void)
{
    const int file = memfd_create("fake CUDA", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)MEMORY_BYTES) != 0) {
        abort();
    }
    own = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    seen = mmap(NULL, MEMORY_BYTES, PROT_NONE, MAP_SHARED, file, 0);
    if (seen == MAP_FAILED || own == MAP_FAILED) {
        abort();
    }
    close(file);
}

/* A block of the size that was given back, or a new one. */
static block *find_block(size_t bytes)
{
    for (int i = 0; i < block_count; i++) {
        if (!blocks[i].used && blocks[i].bytes == bytes) {
            return &blocks[i];
        }
    }
    if (block_count == BLOCKS_MAX || bytes > MEMORY_BYTES - end) {
        return NULL;
    }
    blocks[block_count] = (block){.at = end, .bytes = bytes};
    end += bytes;
    return &blocks[block_count++];
}

FAKE_PUBLIC int cuMemAlloc_v2(uint64_t *memory, size_t bytes)
{
    const size_t size = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (!has_context) {
        return NO_CONTEXT;
    }
    pthread_mutex_lock(&lock);
    block *b = used + size <= limit ? find_block(size) : NULL;
    if (b != NULL) {
        b->used = true;
        used += size;
        memset(own + b->at, 0xff, size < ((size_t)4 << 20) ? size : (size_t)4 << 20);
        *memory = (uintptr_t)(seen + b->at);
    }
    pthread_mutex_unlock(&lock);
    return b != NULL ? SUCCESS : OUT_OF_MEMORY;
}

static void drain(stream *s);

FAKE_PUBLIC int cuMemFree_v2(uint64_t memory)
{
    for (int i = 0; i < stream_count; i++) {
        drain(streams[i]);
    }
    int code = INVALID;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < block_count; i++) {
        if (blocks[i].used && memory == (uintptr_t)(seen + blocks[i].at)) {
            blocks[i].used = false;
            used -= blocks[i].bytes;
            memset(own + blocks[i].at, 0xff, blocks[i].bytes);
            code = SUCCESS;
        }
    }
    pthread_mutex_unlock(&lock);
    return code;
}

/* ---- streams --------------------------------------------------------------------------------- */

static uint64_t draw(stream *s)
{
    s->random ^= s->random << 13, s->random ^= s->random >> 7, s->random ^= s->random << 17;
    return s->random;
}

static void *run_stream(void *arg)
{
    stream *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        work *w = s->held ? NULL : s->first;
        if (w == NULL) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        s->first = w->next;
        s->last = s->first != NULL ? s->last : &s->first;
        s->running = true;
        const long delay = draw(s) % DELAYED == 0 ? (long)(draw(s) % DELAY_NS) : 0;
        pthread_mutex_unlock(&s->lock);
        if (delay > 0) {
            nanosleep(&(struct timespec){.tv_nsec = delay}, NULL);
        }
        w->run(w->args);
        free(w);
        pthread_mutex_lock(&s->lock);
        s->running = false;
        pthread_cond_broadcast(&s->changed);
    }
    return NULL;
}

static void drain(stream *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->first != NULL || s->running) {
        pthread_cond_wait(&s->changed, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

/* Stream NULL runs at once. */
static void enqueue(void *to, void (*run)(void *args), const void *args, size_t bytes,
                    const void *more, size_t more_bytes)
{
    stream *s = to;
    work *w = calloc(1, sizeof *w + bytes + more_bytes + 16);
    if (w == NULL) {
        abort();
    }
    w->run = run;
    w->bytes = bytes;
    memcpy(w->args, args, bytes);
    memcpy(w->args + bytes, more, more_bytes);
    if (s == NULL) {
        run(w->args);
        free(w);
        return;
    }
    pthread_mutex_lock(&s->lock);
    *s->last = w;
    s->last = &w->next;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void fake_cuda_enqueue(void *to, void (*run)(void *args), const void *args, size_t bytes)
{
    char copy[1024];
    memcpy(copy, args, bytes);
    translate(copy, bytes);
    __atomic_fetch_add(&launched, 1, __ATOMIC_RELAXED);
    enqueue(to, run, copy, bytes, NULL, 0);
}

FAKE_PUBLIC int cuStreamCreate(void **out, unsigned flags)
{
    (void)flags;
    stream *s = calloc(1, sizeof *s);
    if (s == NULL || stream_count == 16) {
        return OUT_OF_MEMORY;
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->last = &s->first;
    s->random = (uint64_t)getpid() * 2 + 1;
    if (pthread_create(&s->thread, NULL, run_stream, s) != 0) {
        return OUT_OF_MEMORY;
    }
    streams[stream_count++] = s;
    *out = s;
    return SUCCESS;
}

FAKE_PUBLIC int cuStreamSynchronize(void *s)
{
    if (s != NULL) {
        drain(s);
    }
    return SUCCESS;
}

/* ---- events ---------------------------------------------------------------------------------- */

FAKE_PUBLIC int cuEventCreate(void **out, unsigned flags)
{
    (void)flags;
    event *e = calloc(1, sizeof *e);
    if (e == NULL) {
        return OUT_OF_MEMORY;
    }
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    *out = e;
    return SUCCESS;
}

typedef struct mark {
    event *of;
    uint64_t number;
} mark;

static void reach(void *args)
{
    const mark *m = args;
    pthread_mutex_lock(&m->of->lock);
    m->of->reached = m->number > m->of->reached ? m->number : m->of->reached;
    pthread_cond_broadcast(&m->of->changed);
    pthread_mutex_unlock(&m->of->lock);
}

FAKE_PUBLIC int cuEventRecord(void *of, void *s)
{
    event *e = of;
    pthread_mutex_lock(&e->lock);
    const mark m = {e, ++e->recorded};
    pthread_mutex_unlock(&e->lock);
    enqueue(s, reach, &m, sizeof m, NULL, 0);
    return SUCCESS;
}

FAKE_PUBLIC int cuEventQuery(void *of)
{
    event *e = of;
    pthread_mutex_lock(&e->lock);
    const bool ready = e->reached == e->recorded;
    pthread_mutex_unlock(&e->lock);
    return ready ? SUCCESS : NOT_READY;
}

FAKE_PUBLIC int cuEventSynchronize(void *of)
{
    event *e = of;
    pthread_mutex_lock(&e->lock);
    while (e->reached != e->recorded) {
        pthread_cond_wait(&e->changed, &e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return SUCCESS;
}

FAKE_PUBLIC int cuEventDestroy_v2(void *of)
{
    free(of);
    return SUCCESS;
}

/* ---- work ------------------------------------------------------------------------------------ */

typedef struct copy {
    void *to;
    const void *from; /* NULL: behind this */
    size_t bytes;
    int value; /* with `fills` */
    bool fills;
} copy;

static void run_copy(void *args)
{
    const copy *c = args;
    if (c->fills) {
        memset(c->to, c->value, c->bytes);
    } else {
        memmove(c->to, c->from != NULL ? c->from : (const void *)(c + 1), c->bytes);
    }
}

/* Memory of the program is read before the call returns, and written late. */
FAKE_PUBLIC int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *s)
{
    const bool staged = !is_seen(from);
    const copy c = {.to = translated(to), .from = staged ? NULL : translated(from), .bytes = bytes};
    if (!has_context) {
        return NO_CONTEXT;
    }
    enqueue(s, run_copy, &c, sizeof c, (const void *)from, staged ? bytes : 0);
    return SUCCESS;
}

FAKE_PUBLIC int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *s)
{
    const copy c = {.to = translated(to), .bytes = bytes, .value = value, .fills = true};
    if (!has_context) {
        return NO_CONTEXT;
    }
    enqueue(s, run_copy, &c, sizeof c, NULL, 0);
    return SUCCESS;
}

typedef struct start {
    const emulated_kernel *kernel;
    unsigned blocks, threads;
} start;

static void run_kernel(void *args)
{
    const start *l = args;
    emulated_launch(l->kernel, l + 1, l->blocks, l->threads);
}

FAKE_PUBLIC int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                               unsigned block_x, unsigned block_y, unsigned block_z,
                               unsigned shared_bytes, void *s, void **arguments, void **extra)
{
    const emulated_kernel *kernel = function;
    const start l = {kernel, grid_x, block_x};
    const int failed = fail_code;
    fail_code = SUCCESS;
    (void)extra;
    if (failed != SUCCESS || !has_context) {
        return failed != SUCCESS ? failed : NO_CONTEXT;
    }
    if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 ||
        shared_bytes != 0) {
        return INVALID;
    }
    char *args = malloc(kernel->bytes);
    memcpy(args, arguments[0], kernel->bytes);
    translate(args, kernel->bytes);
    __atomic_fetch_add(&launched, 1, __ATOMIC_RELAXED);
    enqueue(s, run_kernel, &l, sizeof l, args, kernel->bytes);
    free(args);
    return SUCCESS;
}

/* ---- the rest -------------------------------------------------------------------------------- */

static int number_of(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : otherwise;
}

FAKE_PUBLIC int cuInit(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    if (seen == NULL) {
        map_memory();
    }
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

FAKE_PUBLIC int cuDriverGetVersion(int *version)
{
    *version = number_of("FAKE_CUDA_VERSION", 13000);
    return SUCCESS;
}

FAKE_PUBLIC int cuDeviceGetCount(int *count)
{
    *count = number_of("FAKE_CUDA_DEVICES", 2);
    return SUCCESS;
}

FAKE_PUBLIC int cuDeviceGet(int *device, int number)
{
    *device = number;
    return SUCCESS;
}

FAKE_PUBLIC int cuGetErrorString(int error, const char **text)
{
    *text = error == OUT_OF_MEMORY ? "out of memory"
            : error == 700         ? "an illegal memory access was encountered"
                                   : "invalid argument";
    return SUCCESS;
}

FAKE_PUBLIC int cuDevicePrimaryCtxRetain(void **context, int device)
{
    static char of[16];
    *context = &of[device];
    return SUCCESS;
}

FAKE_PUBLIC int cuCtxSetCurrent(void *context)
{
    has_context = context != NULL;
    return SUCCESS;
}

FAKE_PUBLIC int cuModuleLoad(void **module, const char *path)
{
    static char loaded;
    *module = &loaded;
    return strstr(path, ".fatbin") != NULL && number_of("FAKE_CUDA_KERNELS", 1) ? SUCCESS : NO_FILE;
}

FAKE_PUBLIC int cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module;
    for (const emulated_kernel *k = emulated_kernels; k->name != NULL; k++) {
        if (strncmp(name, NAMES, strlen(NAMES)) == 0 &&
            strcmp(name + strlen(NAMES), k->name) == 0) {
            *function = (void *)(uintptr_t)k;
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}
