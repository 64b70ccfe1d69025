/* SPDX-License-Identifier: Apache-2.0 */
/* See fake.h. Memory is mapped twice, as the loop device's is (tests/device/loop.c): at its address
 * the program may not touch it, and what runs on a stream uses the second mapping. */
#include "fake.h"

#include <dlfcn.h>
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
#define FILLED_BYTES ((size_t)4 << 20) /* of new memory: the tests' blocks are smaller */
#define ALIGN 4096
#define BLOCKS_MAX 4096
#define DEVICES_MAX 16
#define DELAY_US 200
#define STREAMS_MAX 8   /* in a capture */
#define ENDINGS_MAX 256 /* of a graph */
#define NAMES "cuda_"   /* in front of the names of kernels */

enum {
    SUCCESS,
    INVALID = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    NO_CONTEXT = 201,
    NO_FILE = 301,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908
};

enum { MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED }; /* CUstreamCaptureMode */

enum { MEMORY_TYPE = 2, IS_MANAGED = 8, OF_DEVICE = 2 }; /* CUpointer_attribute, CUmemorytype */

typedef struct work {
    struct work *next;
    void (*run)(void *args);
    _Alignas(16) char args[];
} work;

typedef struct branch { /* what a capture has recorded of one stream */
    work *first, **last;
    uint64_t count;  /* of its work */
    uint64_t joined; /* of that, how much the first stream has waited for */
} branch;

typedef struct ending { /* of a graph: told when it is freed */
    void (*tell)(void *arg);
    void *arg;
} ending;

typedef struct graph { /* of a capture: a stream has begun it, and others have joined */
    int refs;          /* its handles, and launches that run. Sync: atomic */
    uint64_t number;
    branch branches[STREAMS_MAX];
    struct stream *streams[STREAMS_MAX];
    int count, endings;
    ending ending[ENDINGS_MAX];
    long delay_us;
} graph;

typedef struct stream {
    struct stream *older;
    pthread_t thread;
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t changed;
    work *first, **last;
    uint64_t put, ended;
    bool held;
    graph *captures; /* into which work goes; NULL: it runs */
    int place;       /* of its branch */
    pthread_t capturer;
    bool invalid; /* the capture has failed; of the stream that has begun it */
    uint64_t random;
    long delay_us;
} stream;

typedef struct event { /* a number for each record */
    struct event *older;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    uint64_t recorded, reached;
    uint64_t graph; /* number of the capture that has recorded it last; 0: none has */
    int branch;
    uint64_t after; /* so much work of the branch */
} event;

typedef struct block {
    size_t at, bytes;
    bool used;
} block;

typedef struct context {
    int device;
} context;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of everything below */
static char *seen, *own;
static size_t end, used, limit = MEMORY_BYTES;
static block blocks[BLOCKS_MAX];
static int block_count, fail_code, fail_graph_code;
static uint64_t launched, replayed;
static int graph_count;
static uint64_t graph_number;
static stream *streams; /* the newest */
static event *events;
static context contexts[DEVICES_MAX];
static const emulated_module *module_loaded;
static _Thread_local context *current;
static _Thread_local stream *capturing; /* by this thread */
static _Thread_local int mode = MODE_GLOBAL;

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtol(text, NULL, 10) : otherwise;
}

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

void fake_cuda_fail_graph(int code)
{
    fail_graph_code = code;
}

uint64_t fake_cuda_replayed(void)
{
    return __atomic_load_n(&replayed, __ATOMIC_RELAXED);
}

int fake_cuda_graphs(void)
{
    return __atomic_load_n(&graph_count, __ATOMIC_RELAXED);
}

void fake_cuda_hold(void *of, int holds)
{
    stream *s = of;
    pthread_mutex_lock(&s->lock);
    s->held = holds != 0;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* ---- what a capture forbids ------------------------------------------------------------------ */

/* A call that waits, or that CUDA calls unsafe, by a thread that captures; `safe` calls may be made
 * in a relaxed mode. The capture is lost. */
static bool forbidden(bool safe)
{
    if (capturing == NULL || (safe && mode == MODE_RELAXED)) {
        return false;
    }
    capturing->invalid = true;
    return true;
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

void *fake_cuda_reach(const void *memory)
{
    return translated((uintptr_t)memory);
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
    const int access = setting("FAKE_CUDA_OPEN", 0) != 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
    const int file = memfd_create("fake CUDA", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)MEMORY_BYTES) != 0) {
        abort();
    }
    own = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    seen = mmap(NULL, MEMORY_BYTES, access, MAP_SHARED, file, 0);
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
    if (current == NULL || forbidden(true)) {
        return current == NULL ? NO_CONTEXT : CAPTURE_UNSUPPORTED;
    }
    pthread_mutex_lock(&lock);
    block *b = used + size <= limit ? find_block(size) : NULL;
    if (b != NULL) {
        b->used = true;
        used += size;
        memset(own + b->at, 0xff, size < FILLED_BYTES ? size : FILLED_BYTES);
        *memory = (uintptr_t)(seen + b->at);
    }
    pthread_mutex_unlock(&lock);
    return b != NULL ? SUCCESS : OUT_OF_MEMORY;
}

static void drain(stream *s);

/* Waits for the device, as CUDA's does. */
FAKE_PUBLIC int cuMemFree_v2(uint64_t memory)
{
    int code = INVALID;
    if (forbidden(false)) {
        return CAPTURE_UNSUPPORTED;
    }
    pthread_mutex_lock(&lock);
    stream *newest = streams;
    pthread_mutex_unlock(&lock);
    for (stream *s = newest; s != NULL; s = s->older) {
        drain(s);
    }
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

FAKE_PUBLIC int cuPointerGetAttribute(void *out, int attribute, uint64_t memory)
{
    if (!is_seen(memory) && setting("FAKE_CUDA_ALL", 0) == 0) {
        return INVALID;
    }
    const unsigned type = OF_DEVICE, managed = 0;
    if (attribute != MEMORY_TYPE && attribute != IS_MANAGED) {
        return INVALID;
    }
    memcpy(out, attribute == MEMORY_TYPE ? &type : &managed, sizeof type);
    return SUCCESS;
}

/* ---- streams --------------------------------------------------------------------------------- */

static long draw_delay(stream *s)
{
    s->random ^= s->random << 13, s->random ^= s->random >> 7, s->random ^= s->random << 17;
    return s->delay_us > 0 ? (long)((s->random >> 33) % (uint64_t)s->delay_us) : 0;
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
        pthread_mutex_unlock(&s->lock);
        nanosleep(&(struct timespec){.tv_nsec = draw_delay(s) * 1000}, NULL);
        w->run(w->args);
        free(w);
        pthread_mutex_lock(&s->lock);
        s->ended++;
        pthread_cond_broadcast(&s->changed);
    }
    return NULL;
}

/* Waits for what is in the stream now. */
static void drain(stream *s)
{
    pthread_mutex_lock(&s->lock);
    for (const uint64_t last = s->put; s->ended < last;) {
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
    memcpy(w->args, args, bytes);
    if (more_bytes > 0) {
        memcpy(w->args + bytes, more, more_bytes);
    }
    if (s == NULL) {
        run(w->args);
        free(w);
        return;
    }
    pthread_mutex_lock(&s->lock);
    if (s->captures != NULL) {
        branch *b = &s->captures->branches[s->place];
        *b->last = w;
        b->last = &w->next;
        b->count++;
    } else {
        *s->last = w;
        s->last = &w->next;
        s->put++;
        pthread_cond_broadcast(&s->changed);
    }
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
    static uint64_t count;
    (void)flags;
    stream *s = calloc(1, sizeof *s);
    if (s == NULL || current == NULL) {
        free(s);
        return current == NULL ? NO_CONTEXT : OUT_OF_MEMORY;
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->last = &s->first;
    s->delay_us = setting("FAKE_CUDA_DELAY_US", DELAY_US);
    pthread_mutex_lock(&lock);
    s->random =
        ((uint64_t)setting("FAKE_CUDA_SEED", 1) * 7919 + (uint64_t)getpid() + count++ * 104729) *
            2 +
        1;
    s->older = streams;
    streams = s;
    pthread_mutex_unlock(&lock);
    *out = s;
    return pthread_create(&s->thread, NULL, run_stream, s) == 0 ? SUCCESS : OUT_OF_MEMORY;
}

FAKE_PUBLIC int cuStreamCreateWithPriority(void **out, unsigned flags, int priority)
{
    (void)priority;
    return cuStreamCreate(out, flags);
}

FAKE_PUBLIC int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return SUCCESS;
}

/* Its thread sleeps until the process ends. */
FAKE_PUBLIC int cuStreamDestroy_v2(void *s)
{
    (void)s;
    return SUCCESS;
}

/* Of a stream that is captured nobody may wait, and that ends the capture. */
FAKE_PUBLIC int cuStreamSynchronize(void *of)
{
    stream *s = of;
    if (s != NULL && s->captures != NULL) {
        s->captures->streams[0]->invalid = true;
        return CAPTURE_UNSUPPORTED;
    }
    if (s != NULL) {
        drain(s);
    }
    return SUCCESS;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static void unref(graph *g)
{
    if (__atomic_sub_fetch(&g->refs, 1, __ATOMIC_ACQ_REL) > 0) {
        return;
    }
    for (int i = 0; i < g->count; i++) {
        while (g->branches[i].first != NULL) {
            work *w = g->branches[i].first;
            g->branches[i].first = w->next;
            free(w);
        }
    }
    for (int i = 0; i < g->endings; i++) {
        g->ending[i].tell(g->ending[i].arg);
    }
    free(g);
    __atomic_fetch_sub(&graph_count, 1, __ATOMIC_RELAXED);
}

/* The stream becomes part of the capture. */
static bool join_capture(graph *g, stream *s)
{
    if (g->count == STREAMS_MAX) {
        return false;
    }
    branch *b = &g->branches[g->count];
    b->last = &b->first;
    pthread_mutex_lock(&s->lock);
    s->captures = g;
    s->place = g->count;
    pthread_mutex_unlock(&s->lock);
    g->streams[g->count++] = s;
    return true;
}

FAKE_PUBLIC int cuStreamBeginCapture_v2(void *of, int how)
{
    stream *s = of;
    if (s == NULL || s->captures != NULL || capturing != NULL || how != MODE_THREAD_LOCAL) {
        return CAPTURE_UNSUPPORTED;
    }
    graph *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return OUT_OF_MEMORY;
    }
    g->refs = 1;
    g->number = __atomic_add_fetch(&graph_number, 1, __ATOMIC_RELAXED);
    g->delay_us = s->delay_us;
    __atomic_fetch_add(&graph_count, 1, __ATOMIC_RELAXED);
    s->capturer = pthread_self();
    s->invalid = false;
    (void)join_capture(g, s);
    capturing = s;
    return SUCCESS;
}

/* Whether the first stream has waited for the end of all others. */
static bool is_joined(const graph *g)
{
    bool joined = true;
    for (int i = 1; i < g->count; i++) {
        joined = joined && g->branches[i].joined == g->branches[i].count;
    }
    return joined;
}

FAKE_PUBLIC int cuStreamEndCapture(void *of, void **out)
{
    stream *s = of;
    *out = NULL;
    if (s->captures == NULL || s->place != 0 || !pthread_equal(s->capturer, pthread_self())) {
        return CAPTURE_WRONG_THREAD;
    }
    graph *g = s->captures;
    for (int i = 0; i < g->count; i++) {
        pthread_mutex_lock(&g->streams[i]->lock);
        g->streams[i]->captures = NULL;
        pthread_mutex_unlock(&g->streams[i]->lock);
    }
    capturing = NULL;
    if (s->invalid || !is_joined(g)) {
        unref(g);
        return s->invalid ? CAPTURE_INVALIDATED : CAPTURE_UNJOINED;
    }
    *out = g;
    return SUCCESS;
}

FAKE_PUBLIC int cuStreamIsCapturing(void *of, int *status)
{
    *status = of != NULL && ((stream *)of)->captures != NULL ? 1 : 0;
    return SUCCESS;
}

void fake_cuda_on_graph_end(void *of, void (*tell)(void *arg), void *arg)
{
    graph *g = ((stream *)of)->captures;
    if (g == NULL || g->endings == ENDINGS_MAX) {
        abort();
    }
    g->ending[g->endings++] = (ending){tell, arg};
}

FAKE_PUBLIC int cuThreadExchangeStreamCaptureMode(int *other)
{
    const int before = mode;
    mode = *other;
    *other = before;
    return SUCCESS;
}

FAKE_PUBLIC int cuGraphInstantiateWithFlags(void **executable, void *of, unsigned long long flags)
{
    graph *g = of;
    const int failed = fail_graph_code;
    fail_graph_code = SUCCESS;
    if (failed != SUCCESS || flags != 0) {
        return failed != SUCCESS ? failed : INVALID;
    }
    __atomic_fetch_add(&g->refs, 1, __ATOMIC_RELAXED);
    *executable = g;
    return SUCCESS;
}

typedef struct graph_run { /* one start of a graph: each branch has a thread */
    graph *of;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t done[STREAMS_MAX]; /* work of each branch */
    uint64_t random;
} graph_run;

typedef struct branch_run {
    graph_run *run;
    int place;
} branch_run;

static _Thread_local graph_run *running; /* by this thread */

/* Work of a capture that waits for so much of another branch. */
typedef struct graph_wait {
    int branch;
    uint64_t count;
} graph_wait;

static void wait_in_graph(void *args)
{
    const graph_wait *w = args;
    graph_run *r = running;
    pthread_mutex_lock(&r->lock);
    while (r->done[w->branch] < w->count) {
        pthread_cond_wait(&r->changed, &r->lock);
    }
    pthread_mutex_unlock(&r->lock);
}

static void *run_branch(void *arg)
{
    const branch_run *b = arg;
    graph_run *r = b->run;
    uint64_t random = r->random + (uint64_t)b->place * 104729;
    running = r;
    for (work *w = r->of->branches[b->place].first; w != NULL; w = w->next) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        if (r->of->count > 1 && r->of->delay_us > 0 && random % 8 == 0) {
            nanosleep(
                &(struct timespec){.tv_nsec =
                                       (long)((random >> 33) % (uint64_t)r->of->delay_us) * 1000},
                NULL);
        }
        w->run(w->args);
        pthread_mutex_lock(&r->lock);
        r->done[b->place]++;
        pthread_cond_broadcast(&r->changed);
        pthread_mutex_unlock(&r->lock);
    }
    running = NULL;
    return NULL;
}

static void run_graph(void *args)
{
    graph *g = *(graph **)args;
    static uint64_t starts;
    graph_run r = {.of = g, .random = __atomic_add_fetch(&starts, 1, __ATOMIC_RELAXED) * 7919 + 1};
    branch_run runs[STREAMS_MAX];
    pthread_t threads[STREAMS_MAX];
    pthread_mutex_init(&r.lock, NULL);
    pthread_cond_init(&r.changed, NULL);
    for (int i = g->count - 1; i >= 0; i--) {
        runs[i] = (branch_run){&r, i};
        if (i == 0) {
            (void)run_branch(&runs[0]);
        } else if (pthread_create(&threads[i], NULL, run_branch, &runs[i]) != 0) {
            abort();
        }
    }
    for (int i = 1; i < g->count; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    unref(g);
}

FAKE_PUBLIC int cuGraphLaunch(void *executable, void *s)
{
    graph *g = executable;
    if (s == NULL || ((stream *)s)->captures != NULL) {
        return CAPTURE_UNSUPPORTED;
    }
    __atomic_fetch_add(&g->refs, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&replayed, 1, __ATOMIC_RELAXED);
    enqueue(s, run_graph, &g, sizeof g, NULL, 0);
    return SUCCESS;
}

FAKE_PUBLIC int cuGraphExecDestroy(void *executable)
{
    unref(executable);
    return SUCCESS;
}

FAKE_PUBLIC int cuGraphDestroy(void *of)
{
    unref(of);
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
    pthread_mutex_lock(&lock);
    e->older = events;
    events = e;
    pthread_mutex_unlock(&lock);
    *out = e;
    return SUCCESS;
}

/* A stream may still wait for it. */
FAKE_PUBLIC int cuEventDestroy_v2(void *of)
{
    (void)of;
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

static void wait_for(void *args)
{
    const mark *m = args;
    pthread_mutex_lock(&m->of->lock);
    while (m->of->reached < m->number) {
        pthread_cond_wait(&m->of->changed, &m->of->lock);
    }
    pthread_mutex_unlock(&m->of->lock);
}

/* The last record; `more`: and one more. */
static mark mark_of(event *e, int more)
{
    pthread_mutex_lock(&e->lock);
    e->recorded += (uint64_t)more;
    const mark m = {e, e->recorded};
    pthread_mutex_unlock(&e->lock);
    return m;
}

/* Makes the capture of the thread, or that of the stream, fail. */
static int spoil(const stream *s, int code)
{
    stream *first = s != NULL && s->captures != NULL ? s->captures->streams[0] : capturing;
    if (first != NULL) {
        first->invalid = true;
    }
    return code;
}

FAKE_PUBLIC int cuEventRecord(void *of, void *in)
{
    stream *s = in;
    event *e = of;
    if (s != NULL && s->captures != NULL) {
        pthread_mutex_lock(&e->lock);
        e->graph = s->captures->number;
        e->branch = s->place;
        e->after = s->captures->branches[s->place].count;
        pthread_mutex_unlock(&e->lock);
        return SUCCESS;
    }
    e->graph = 0;
    const mark m = mark_of(e, 1);
    enqueue(s, reach, &m, sizeof m, NULL, 0);
    return SUCCESS;
}

/* Of a capture under way, by its number; NULL: it has ended. */
static graph *capture_of(uint64_t number)
{
    graph *g = capturing != NULL ? capturing->captures : NULL;
    return g != NULL && g->number == number ? g : NULL;
}

/* An event of the capture: the stream joins it. One of before may not be waited for in it. */
static int wait_captured(stream *s, const event *e)
{
    graph *g = capture_of(e->graph);
    if (g == NULL || (s->captures != NULL && s->captures != g)) {
        return spoil(s, e->graph == 0 ? CAPTURE_ISOLATION : CAPTURED_EVENT);
    }
    if (s->captures == NULL && !join_capture(g, s)) {
        return spoil(s, CAPTURE_UNSUPPORTED);
    }
    const graph_wait w = {e->branch, e->after};
    if (s->place == 0 && g->branches[e->branch].joined < e->after) {
        g->branches[e->branch].joined = e->after;
    }
    enqueue(s, wait_in_graph, &w, sizeof w, NULL, 0);
    return SUCCESS;
}

FAKE_PUBLIC int cuStreamWaitEvent(void *in, void *of, unsigned flags)
{
    stream *s = in;
    event *e = of;
    (void)flags;
    if (e->graph != 0 || (s != NULL && s->captures != NULL)) {
        return wait_captured(s, e);
    }
    const mark m = mark_of(e, 0);
    if (setting("FAKE_CUDA_WAITS", 1) != 0) {
        enqueue(s, wait_for, &m, sizeof m, NULL, 0);
    }
    return SUCCESS;
}

FAKE_PUBLIC int cuEventQuery(void *of)
{
    event *e = of;
    if (forbidden(true)) {
        return CAPTURE_UNSUPPORTED;
    }
    if (e->graph != 0) {
        return spoil(NULL, CAPTURED_EVENT);
    }
    pthread_mutex_lock(&e->lock);
    const bool ready = e->reached == e->recorded;
    pthread_mutex_unlock(&e->lock);
    return ready ? SUCCESS : NOT_READY;
}

FAKE_PUBLIC int cuEventSynchronize(void *of)
{
    mark m = mark_of(of, 0);
    if (forbidden(true)) {
        return CAPTURE_UNSUPPORTED;
    }
    wait_for(&m);
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

static int enqueue_copy(const copy *c, const void *staged, void *s)
{
    if (current == NULL) {
        return NO_CONTEXT;
    }
    enqueue(s, run_copy, c, sizeof *c, staged, staged != NULL ? c->bytes : 0);
    return SUCCESS;
}

/* Memory of the program is read before the call returns, but for a copy that is captured, and
 * written late. */
FAKE_PUBLIC int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *s)
{
    const bool staged = !is_seen(from) && (s == NULL || ((stream *)s)->captures == NULL);
    const copy c = {.to = translated(to), .from = staged ? NULL : translated(from), .bytes = bytes};
    return enqueue_copy(&c, staged ? (const void *)from : NULL, s);
}

FAKE_PUBLIC int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *s)
{
    const copy c = {.to = translated(to), .from = translated(from), .bytes = bytes};
    return enqueue_copy(&c, NULL, s);
}

FAKE_PUBLIC int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *s)
{
    const copy c = {.to = translated(to), .bytes = bytes, .value = value, .fills = true};
    return enqueue_copy(&c, NULL, s);
}

FAKE_PUBLIC int cuMemsetD32Async(uint64_t to, unsigned value, size_t count, void *s)
{
    unsigned *words = malloc(count * sizeof value);
    for (size_t i = 0; words != NULL && i < count; i++) {
        words[i] = value;
    }
    const copy c = {.to = translated(to), .bytes = count * sizeof value};
    const int code = words != NULL ? enqueue_copy(&c, words, s) : OUT_OF_MEMORY;
    free(words);
    return code;
}

/* These block, and streams of flag NON_BLOCKING are not waited for. */
FAKE_PUBLIC int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
    return cuMemcpyAsync(to, (uintptr_t)from, bytes, NULL);
}

FAKE_PUBLIC int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
    return cuMemcpyAsync((uintptr_t)to, from, bytes, NULL);
}

typedef struct awaited_word {
    const volatile unsigned *at;
    unsigned value;
} awaited_word;

static void wait_for_word(void *args)
{
    const awaited_word *w = args;
    while (*w->at < w->value) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* CU_STREAM_WAIT_VALUE_GEQ, of small numbers. */
FAKE_PUBLIC int cuStreamWaitValue32_v2(void *s, uint64_t memory, uint32_t value, unsigned flags)
{
    const awaited_word w = {translated(memory), value};
    enqueue(s, wait_for_word, &w, sizeof w, NULL, 0);
    return flags == 0 ? SUCCESS : INVALID;
}

typedef struct host_call {
    void (*run)(void *arg);
    void *arg;
} host_call;

static void run_host_call(void *args)
{
    const host_call *c = args;
    c->run(c->arg);
}

FAKE_PUBLIC int cuLaunchHostFunc(void *s, void (*run)(void *arg), void *arg)
{
    const host_call c = {run, arg};
    enqueue(s, run_host_call, &c, sizeof c, NULL, 0);
    return SUCCESS;
}

typedef struct start {
    const emulated_kernel *kernel;
    unsigned blocks, threads;
} start;

static void run_kernel(void *args)
{
    const start *l = args;
    module_loaded->launch(l->kernel, l + 1, l->blocks, l->threads);
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
    if (failed != SUCCESS || current == NULL) {
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

/* ---- modules --------------------------------------------------------------------------------- */

/* The emulated kernels, for whichever file of compiled ones; NULL: they are not built. */
static const emulated_module *open_kernels(void)
{
    Dl_info self = {0};
    char path[4096];
    (void)dladdr((const void *)&lock, &self);
    const char *slash = strrchr(self.dli_fname, '/');
    snprintf(path, sizeof path, "%.*s/kernels.fatbin",
             slash != NULL ? (int)(slash - self.dli_fname) : 1,
             slash != NULL ? self.dli_fname : ".");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return library != NULL ? dlsym(library, EMULATED_MODULE) : NULL;
}

FAKE_PUBLIC int cuModuleLoad(void **module, const char *path)
{
    static char loaded;
    pthread_mutex_lock(&lock);
    module_loaded = module_loaded != NULL ? module_loaded : open_kernels();
    const bool found = module_loaded != NULL;
    pthread_mutex_unlock(&lock);
    *module = &loaded;
    return found && strstr(path, ".fatbin") != NULL && setting("FAKE_CUDA_KERNELS", 1) != 0
               ? SUCCESS
               : NO_FILE;
}

FAKE_PUBLIC int cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module;
    for (const emulated_kernel *k = module_loaded->kernels; k->name != NULL; k++) {
        if (strncmp(name, NAMES, strlen(NAMES)) == 0 &&
            strcmp(name + strlen(NAMES), k->name) == 0) {
            *function = (void *)(uintptr_t)k;
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

/* ---- devices and contexts -------------------------------------------------------------------- */

FAKE_PUBLIC int cuInit(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    if (seen == NULL) {
        map_memory();
    }
    pthread_mutex_unlock(&lock);
    return setting("FAKE_CUDA_DEVICES", 8) < 0 ? NO_DEVICE : SUCCESS;
}

FAKE_PUBLIC int cuDriverGetVersion(int *version)
{
    *version = (int)setting("FAKE_CUDA_VERSION", 13000);
    return SUCCESS;
}

FAKE_PUBLIC int cuGetErrorName(int error, const char **name)
{
    *name = error == NOT_READY       ? "CUDA_ERROR_NOT_READY"
            : error == NO_DEVICE     ? "CUDA_ERROR_NO_DEVICE"
            : error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                     : "CUDA_ERROR_INVALID_VALUE";
    return SUCCESS;
}

FAKE_PUBLIC int cuGetErrorString(int error, const char **text)
{
    *text = error == OUT_OF_MEMORY       ? "out of memory"
            : error == ILLEGAL_ADDRESS   ? "an illegal memory access was encountered"
            : error == CAPTURE_UNJOINED  ? "capturing stream has unjoined work"
            : error == CAPTURE_ISOLATION ? "dependency created on uncaptured work in another stream"
            : error == CAPTURED_EVENT
                ? "operation not permitted on an event last recorded in a capturing stream"
            : error == CAPTURE_UNSUPPORTED ? "operation not permitted when stream is capturing"
            : error == CAPTURE_INVALIDATED
                ? "operation failed due to a previous error during capture"
                : "invalid argument";
    return SUCCESS;
}

FAKE_PUBLIC int cuDeviceGetCount(int *count)
{
    *count = (int)setting("FAKE_CUDA_DEVICES", 8);
    return SUCCESS;
}

FAKE_PUBLIC int cuDeviceGet(int *device, int number)
{
    *device = number;
    return number >= 0 && number < DEVICES_MAX ? SUCCESS : INVALID;
}

FAKE_PUBLIC int cuDeviceGetPCIBusId(char *out, int bytes, int device)
{
    snprintf(out, (size_t)bytes, "0000:%02x:00.0", (unsigned)device);
    return SUCCESS;
}

FAKE_PUBLIC int cuDevicePrimaryCtxRetain(void **out, int device)
{
    contexts[device].device = device;
    *out = &contexts[device];
    return SUCCESS;
}

FAKE_PUBLIC int cuCtxGetCurrent(void **out)
{
    *out = current;
    return SUCCESS;
}

FAKE_PUBLIC int cuCtxSetCurrent(void *of)
{
    current = of;
    return SUCCESS;
}

FAKE_PUBLIC int cuCtxGetDevice(int *out)
{
    *out = current != NULL ? current->device : 0;
    return current != NULL ? SUCCESS : INVALID;
}
