/* A CUDA driver of the same ABI without a GPU, for tests of the backend `nccl`: as much of
 * libcuda.so.1 as that uses, and what a program needs to compute (cuLaunchHostFunc is a kernel).
 *
 * Memory of the device lies in one range of addresses, so that pointers can be told apart, and is
 * full of 0xa5 at first. A stream is a thread that runs what is put into it in order, each after a
 * random pause, so that a missing wait is seen within a few operations:
 *
 *     FAKE_CUDA_DELAY_US   the longest pause; default 200
 *     FAKE_CUDA_SEED       of the pauses
 *     FAKE_CUDA_ALL=1      all memory counts as the device's
 *     FAKE_CUDA_DEVICES    how many there are; default 8
 *
 * Events and streams are never freed: tests are short. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MEMORY_BYTES ((size_t)1 << 30)
#define POISON 0xa5
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NO_DEVICE = 100, NOT_READY = 600 };

typedef struct CUctx_st {
    int device;
} * CUcontext;

typedef struct CUevent_st { /* a number for each record; done: the last that was reached */
    _Atomic uint64_t recorded, done;
    struct CUevent_st *older;
} * CUevent;

typedef enum kind { CALL, SIGNAL, WAIT, SET, COPY } kind;

typedef struct item {
    struct item *next;
    kind kind;
    CUevent event;
    uint64_t number;
    void (*call)(void *);
    void *arg;
    void *to;
    const void *from;
    size_t bytes;
    unsigned char value;
} item;

typedef struct CUstream_st {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    item *first, **last;
    uint64_t put, run;
    uint64_t seed;
    bool started;
    struct CUstream_st *older;
} * CUstream;

/* Nothing of these is freed while a stream may use it. */
static _Atomic(CUevent) newest_event;
static _Atomic(CUstream) newest_stream;

static struct CUctx_st contexts[16];
static _Thread_local CUcontext current;
static struct CUstream_st default_stream = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                            .changed = PTHREAD_COND_INITIALIZER};
static pthread_once_t once = PTHREAD_ONCE_INIT;
static unsigned char *memory;
static _Atomic size_t used;
static _Atomic uint64_t streams;

static long setting(const char *name, long fallback)
{
    const char *text = getenv(name);
    return text != NULL ? strtol(text, NULL, 10) : fallback;
}

/* ---- devices and contexts ------------------------------------------------------------------ */

EXPORT int cuInit(unsigned flags);
int cuInit(unsigned flags)
{
    (void)flags;
    return setting("FAKE_CUDA_DEVICES", 8) < 0 ? NO_DEVICE : OK;
}

EXPORT int cuGetErrorName(int error, const char **name);
int cuGetErrorName(int error, const char **name)
{
    *name = error == NOT_READY   ? "CUDA_ERROR_NOT_READY"
            : error == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE"
            : error == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                 : "CUDA_ERROR_INVALID_VALUE";
    return OK;
}

EXPORT int cuDeviceGetCount(int *count);
int cuDeviceGetCount(int *count)
{
    *count = (int)setting("FAKE_CUDA_DEVICES", 8);
    return OK;
}

EXPORT int cuDeviceGet(int *device, int ordinal);
int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= 0 && ordinal < 16 ? OK : INVALID;
}

EXPORT int cuDeviceGetPCIBusId(char *out, int bytes, int device);
int cuDeviceGetPCIBusId(char *out, int bytes, int device)
{
    snprintf(out, (size_t)bytes, "0000:%02x:00.0", device);
    return OK;
}

EXPORT int cuDevicePrimaryCtxRetain(CUcontext *out, int device);
int cuDevicePrimaryCtxRetain(CUcontext *out, int device)
{
    contexts[device].device = device;
    *out = &contexts[device];
    return OK;
}

EXPORT int cuCtxGetCurrent(CUcontext *out);
int cuCtxGetCurrent(CUcontext *out)
{
    *out = current;
    return OK;
}

EXPORT int cuCtxSetCurrent(CUcontext context);
int cuCtxSetCurrent(CUcontext context)
{
    current = context;
    return OK;
}

EXPORT int cuCtxGetDevice(int *out);
int cuCtxGetDevice(int *out)
{
    *out = current != NULL ? current->device : 0;
    return current != NULL ? OK : INVALID;
}

EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest);
int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return OK;
}

/* ---- streams ------------------------------------------------------------------------------- */

/* xorshift64*, Vigna 2014 */
static void pause_some(CUstream s)
{
    const long most = setting("FAKE_CUDA_DELAY_US", 200);
    s->seed ^= s->seed >> 12;
    s->seed ^= s->seed << 25;
    s->seed ^= s->seed >> 27;
    if (most > 0) {
        usleep((unsigned)((s->seed * UINT64_C(2685821657736338717) >> 33) % (uint64_t)most));
    }
}

static void run_item(const item *i)
{
    switch (i->kind) {
    case CALL:
        i->call(i->arg);
        break;
    case SIGNAL:
        atomic_store(&i->event->done, i->number);
        break;
    case WAIT:
        while (atomic_load(&i->event->done) < i->number) {
            usleep(20);
        }
        break;
    case SET:
        memset(i->to, i->value, i->bytes);
        break;
    case COPY:
        memmove(i->to, i->from, i->bytes);
    }
}

static void *run_stream(void *arg)
{
    CUstream s = arg;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (s->first == NULL) {
            pthread_cond_wait(&s->changed, &s->lock);
        }
        item *i = s->first;
        s->first = i->next;
        s->last = s->first == NULL ? &s->first : s->last;
        pthread_mutex_unlock(&s->lock);
        pause_some(s);
        run_item(i);
        free(i);
        pthread_mutex_lock(&s->lock);
        s->run++;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

static int put(CUstream s, item what)
{
    s = s != NULL ? s : &default_stream;
    item *i = malloc(sizeof *i);
    *i = what;
    i->next = NULL;
    pthread_mutex_lock(&s->lock);
    if (!s->started) {
        s->started = true;
        s->last = &s->first;
        s->seed = (uint64_t)setting("FAKE_CUDA_SEED", 1) * 7919 + (uint64_t)getpid() +
                  atomic_fetch_add(&streams, 1) * 104729 + 1;
        pthread_create(&s->thread, NULL, run_stream, s);
    }
    *s->last = i;
    s->last = &i->next;
    s->put++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return OK;
}

EXPORT int cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority);
int cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
    (void)flags;
    (void)priority;
    *out = calloc(1, sizeof **out);
    pthread_mutex_init(&(*out)->lock, NULL);
    pthread_cond_init(&(*out)->changed, NULL);
    (*out)->older = atomic_load(&newest_stream);
    while (!atomic_compare_exchange_weak(&newest_stream, &(*out)->older, *out)) {
    }
    return current != NULL ? OK : INVALID;
}

EXPORT int cuStreamDestroy_v2(CUstream stream);
int cuStreamDestroy_v2(CUstream stream)
{
    (void)stream; /* its thread sleeps until the process ends */
    return OK;
}

EXPORT int cuStreamSynchronize(CUstream stream);
int cuStreamSynchronize(CUstream stream)
{
    CUstream s = stream != NULL ? stream : &default_stream;
    pthread_mutex_lock(&s->lock);
    const uint64_t end = s->put;
    while (s->run < end) {
        pthread_cond_wait(&s->changed, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return OK;
}

EXPORT int cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
int cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    return put(stream,
               (item){.kind = WAIT, .event = event, .number = atomic_load(&event->recorded)});
}

EXPORT int cuLaunchHostFunc(CUstream stream, void (*call)(void *), void *arg);
int cuLaunchHostFunc(CUstream stream, void (*call)(void *), void *arg)
{
    return put(stream, (item){.kind = CALL, .call = call, .arg = arg});
}

/* ---- events -------------------------------------------------------------------------------- */

EXPORT int cuEventCreate(CUevent *out, unsigned flags);
int cuEventCreate(CUevent *out, unsigned flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    (*out)->older = atomic_load(&newest_event);
    while (!atomic_compare_exchange_weak(&newest_event, &(*out)->older, *out)) {
    }
    return OK;
}

EXPORT int cuEventRecord(CUevent event, CUstream stream);
int cuEventRecord(CUevent event, CUstream stream)
{
    return put(stream, (item){.kind = SIGNAL,
                              .event = event,
                              .number = atomic_fetch_add(&event->recorded, 1) + 1});
}

EXPORT int cuEventQuery(CUevent event);
int cuEventQuery(CUevent event)
{
    return atomic_load(&event->done) >= atomic_load(&event->recorded) ? OK : NOT_READY;
}

EXPORT int cuEventDestroy_v2(CUevent event);
int cuEventDestroy_v2(CUevent event)
{
    (void)event;
    return OK;
}

/* ---- memory -------------------------------------------------------------------------------- */

static void make_memory(void)
{
    memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

EXPORT int cuMemAlloc_v2(uintptr_t *out, size_t bytes);
int cuMemAlloc_v2(uintptr_t *out, size_t bytes)
{
    (void)pthread_once(&once, make_memory);
    const size_t room = (bytes + 511) / 256 * 256;
    const size_t at = atomic_fetch_add(&used, room);
    if (memory == MAP_FAILED || at + room > MEMORY_BYTES) {
        return NO_MEMORY;
    }
    memset(memory + at, POISON, bytes);
    *out = (uintptr_t)(memory + at);
    return OK;
}

EXPORT int cuMemFree_v2(uintptr_t at);
int cuMemFree_v2(uintptr_t at)
{
    (void)at;
    return OK;
}

EXPORT int cuPointerGetAttribute(void *out, int attribute, uintptr_t at);
int cuPointerGetAttribute(void *out, int attribute, uintptr_t at)
{
    const bool own = memory != NULL && at - (uintptr_t)memory < MEMORY_BYTES;
    if (!own && setting("FAKE_CUDA_ALL", 0) == 0) {
        return INVALID;
    }
    *(unsigned *)out = attribute == 2 ? 2 : 0; /* memory type: device; managed: no */
    return OK;
}

EXPORT int cuMemsetD8Async(uintptr_t at, unsigned char value, size_t bytes, CUstream stream);
int cuMemsetD8Async(uintptr_t at, unsigned char value, size_t bytes, CUstream stream)
{
    return put(stream, (item){.kind = SET, .to = (void *)at, .value = value, .bytes = bytes});
}

EXPORT int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, CUstream stream);
int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, CUstream stream)
{
    return put(stream,
               (item){.kind = COPY, .to = (void *)to, .from = (const void *)from, .bytes = bytes});
}
