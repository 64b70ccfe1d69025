/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL of the same ABI for processes of one host without a GPU, over the fake CUDA
 * (fake.h). Collectives go through a file in shared memory that the communicator's id
 * names; they run in the stream, as kernels do, and end early when the communicator is aborted.
 * Communicators are non-blocking: a call returns ncclInProgress, and some looks later it is done.
 *
 * Sums are added from rank 1 on, so that they are not in the library's order.
 *
 *     FAKE_NCCL_VERSION=21800        what ncclGetVersion says
 *     FAKE_NCCL_FAULT=KIND:RANK:N    from the N-th collective of a communicator on, rank RANK's
 *         hang    kernel never ends, until it is aborted
 *         stuck   call never returns, and neither does ncclCommAbort
 *         late    call never returns, and ncclCommAbort does
 *         error   communicator has an asynchronous error
 *     FAKE_NCCL_FAULT=init:RANK:0    communicator is never made
 *
 * Ranks that call different collectives are told apart: ncclCommGetAsyncError is an error then. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"
#include "reduce.h"

#define RANKS_MAX 8
#define PIECE ((size_t)1 << 20) /* bytes that go through a slot at a time */
#define NAP_US 30
enum { OK = 0, INTERNAL = 3, INVALID = 4, REMOTE = 6, IN_PROGRESS = 7 };
enum { LOOKS = 3 }; /* at ncclCommGetAsyncError until a call is done */

typedef struct CUstream_st *stream;
int cuLaunchHostFunc(stream s, void (*call)(void *), void *arg);
int cuStreamIsCapturing(stream s, int *status);
int cuMemAlloc_v2(uint64_t *out, size_t bytes);
int cuMemFree_v2(uint64_t memory);

typedef struct slot { /* what a rank shows to all */
    _Atomic uint64_t shown, read;
    uint64_t what; /* hash of the call */
    unsigned char data[PIECE];
} slot;

typedef struct pipe { /* from one rank to another */
    _Atomic uint64_t sent, received;
    size_t bytes;
    unsigned char data[PIECE];
} pipe_slot;

typedef struct shared {
    _Atomic int joined;
    slot slot[RANKS_MAX];
    pipe_slot pipe[RANKS_MAX][RANKS_MAX];
} shared;

typedef struct made_op {
    double factor;
    bool used;
} made_op;

typedef struct ncclComm {
    shared *shared;
    int rank, ranks;
    uint64_t pieces; /* shown so far */
    _Atomic uint64_t calls;
    _Atomic int looks;   /* left until the last call is done; while > 0 it is in progress */
    _Atomic int joining; /* 1: the init is not done */
    _Atomic int failed;  /* an ncclResult_t */
    _Atomic bool aborted;
    _Atomic int running; /* kernels */
    _Atomic int graphs;  /* kernels in graphs that exist: no communicator ends before them */
    made_op op[8];
    char name[128];         /* of the file */
    struct ncclComm *older; /* nothing is freed: kernels may be a little behind */
} * comm_t;
static _Atomic(comm_t) newest;

typedef struct id {
    char bytes[128];
} id_t_;

/* ---- faults -------------------------------------------------------------------------------- */

static bool has_fault(const char *kind, int rank, uint64_t number)
{
    char text[16] = "";
    int of = 0;
    unsigned long long from = 0;
    const char *asked = getenv("FAKE_NCCL_FAULT");
    return asked != NULL && sscanf(asked, "%15[a-z]:%d:%llu", text, &of, &from) == 3 &&
           strcmp(text, kind) == 0 && of == rank && number >= from;
}

static void never_return(void)
{
    for (;;) {
        (void)pause();
    }
}

/* ---- one call ------------------------------------------------------------------------------ */

typedef enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE, SEND, RECV } kind;

typedef struct call {
    kind kind;
    comm_t comm;
    const unsigned char *in;
    unsigned char *out;
    size_t count;
    int type, op, root;
    made_op made;
    uint64_t number;
    size_t done; /* bytes; of a message */
} call;

typedef struct batch { /* what one kernel runs */
    comm_t comm;
    stream in;
    int count;
    call calls[4 * RANKS_MAX];
} batch;

static bool ends(const comm_t c)
{
    return atomic_load(&c->aborted) || atomic_load(&c->failed) != OK;
}

/* Until the words of all ranks have come so far; false: aborted. */
static bool wait_all(const comm_t c, bool read, uint64_t number)
{
    for (int r = 0; r < c->ranks; r++) {
        _Atomic uint64_t *word = read ? &c->shared->slot[r].read : &c->shared->slot[r].shown;
        while (atomic_load(word) < number) {
            if (ends(c)) {
                return false;
            }
            usleep(NAP_US);
        }
    }
    return true;
}

/* Shows bytes to all ranks, after all have read what was shown before; then waits for theirs. */
static bool show(const call *k, const unsigned char *from, size_t bytes)
{
    const comm_t c = k->comm;
    slot *mine = &c->shared->slot[c->rank];
    if (!wait_all(c, true, c->pieces)) {
        return false;
    }
    mine->what =
        (uint64_t)k->kind * 1000003 + k->count * 31 + (uint64_t)k->type * 7 + (uint64_t)k->root;
    if (from != NULL) {
        memcpy(mine->data, from, bytes);
    }
    atomic_store(&mine->shown, ++c->pieces);
    if (!wait_all(c, false, c->pieces)) {
        return false;
    }
    for (int r = 0; r < c->ranks; r++) {
        if (c->shared->slot[r].what != mine->what) {
            atomic_store(&c->failed, INVALID);
            return false;
        }
    }
    return true;
}

static void read_done(const comm_t c)
{
    atomic_store(&c->shared->slot[c->rank].read, c->pieces);
}

static void combine_all(const call *k, unsigned char *out, size_t count)
{
    const comm_t c = k->comm;
    const unsigned char *from[RANKS_MAX];
    for (int i = 0; i < c->ranks; i++) {
        from[i] = c->shared->slot[(i + 1) % c->ranks].data;
    }
    fake_reduce(out, from, c->ranks, count, k->type, k->op);
}

/* All inputs have `count` elements; where the sum goes. */
static bool reduce(const call *k, const unsigned char *in, unsigned char *out, size_t count)
{
    static _Thread_local unsigned char scaled[PIECE];
    const size_t element = fake_bytes(k->type), most = PIECE / element;
    for (size_t at = 0; at < count; at += most) {
        const size_t n = count - at < most ? count - at : most;
        const unsigned char *from = in + at * element;
        if (k->made.used) {
            fake_scale(scaled, from, n, k->type, k->made.factor);
            from = scaled;
        }
        if (!show(k, from, n * element)) {
            return false;
        }
        if (out != NULL) {
            combine_all(k, out + at * element, n);
        }
        read_done(k->comm);
    }
    return true;
}

/* Rank r's bytes go to out[r], unless that is NULL. */
static bool spread(const call *k, const unsigned char *in, unsigned char *const *out, size_t bytes)
{
    const comm_t c = k->comm;
    for (size_t at = 0; at < bytes; at += PIECE) {
        const size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        if (!show(k, in != NULL ? in + at : NULL, n)) {
            return false;
        }
        for (int r = 0; r < c->ranks; r++) {
            if (out[r] != NULL) {
                memcpy(out[r] + at, c->shared->slot[r].data, n);
            }
        }
        read_done(c);
    }
    return true;
}

static bool run_collective(const call *k)
{
    const comm_t c = k->comm;
    const size_t bytes = k->count * fake_bytes(k->type);
    unsigned char *out[RANKS_MAX] = {NULL};
    bool sound = true;
    switch (k->kind) {
    case ALL_REDUCE:
        return reduce(k, k->in, k->out, k->count);
    case REDUCE:
        return reduce(k, k->in, c->rank == k->root ? k->out : NULL, k->count);
    case REDUCE_SCATTER:
        for (int r = 0; r < c->ranks && sound; r++) {
            sound = reduce(k, k->in + (size_t)r * bytes, r == c->rank ? k->out : NULL, k->count);
        }
        return sound;
    case ALL_GATHER:
        for (int r = 0; r < c->ranks; r++) {
            out[r] = k->out + (size_t)r * bytes;
        }
        return spread(k, k->in, out, bytes);
    default:
        out[k->root] = k->out;
        return spread(k, c->rank == k->root ? k->in : NULL, out, bytes);
    }
}

/* A piece of a message, if there is room or one has come; true: it has ended. */
static bool move_message(call *k)
{
    const comm_t c = k->comm;
    const bool sends = k->kind == SEND;
    pipe_slot *p = sends ? &c->shared->pipe[c->rank][k->root] : &c->shared->pipe[k->root][c->rank];
    const size_t bytes = k->count * fake_bytes(k->type);
    if (sends && k->done < bytes && atomic_load(&p->sent) == atomic_load(&p->received)) {
        p->bytes = bytes - k->done < PIECE ? bytes - k->done : PIECE;
        memcpy(p->data, k->in + k->done, p->bytes);
        k->done += p->bytes;
        atomic_fetch_add(&p->sent, 1);
    } else if (!sends && k->done < bytes && atomic_load(&p->sent) > atomic_load(&p->received)) {
        if (k->done + p->bytes > bytes) {
            atomic_store(&c->failed, INVALID);
            return true;
        }
        memcpy(k->out + k->done, p->data, p->bytes);
        k->done += p->bytes;
        atomic_fetch_add(&p->received, 1);
    }
    return k->done == bytes;
}

static void run_messages(batch *b)
{
    bool all = false;
    while (!all && !ends(b->comm)) {
        all = true;
        for (int i = 0; i < b->count; i++) {
            call *k = &b->calls[i];
            if (k->kind == SEND || k->kind == RECV) {
                all = move_message(k) && all;
            }
        }
        usleep(all ? 0 : NAP_US);
    }
}

static void run_kernel(batch *b)
{
    const comm_t c = b->comm;
    bool sound = true;
    while (has_fault("hang", c->rank, b->calls[0].number) && !ends(c)) {
        usleep(1000);
    }
    if (has_fault("error", c->rank, b->calls[0].number)) {
        atomic_store(&c->failed, REMOTE);
    }
    for (int i = 0; i < b->count && sound; i++) {
        sound = !ends(c) && (b->calls[i].kind >= SEND || run_collective(&b->calls[i]));
    }
    run_messages(b);
    while (atomic_load(&c->failed) != OK && !atomic_load(&c->aborted)) {
        usleep(1000); /* a kernel after an error hangs until it is aborted */
    }
    free(b);
    atomic_fetch_sub(&c->running, 1);
}

static void run_batch(void *arg)
{
    run_kernel(arg);
}

/* In a graph: each start counts as a call. */
static void run_again(void *arg)
{
    const batch *b = arg;
    batch *now = malloc(sizeof *now);
    *now = *b;
    atomic_fetch_add(&b->comm->running, 1);
    now->calls[0].number = atomic_fetch_add(&b->comm->calls, 1) + 1;
    run_kernel(now);
}

static void graph_ended(void *arg)
{
    batch *b = arg;
    atomic_fetch_sub(&b->comm->graphs, 1);
    free(b);
}

/* ---- calling ------------------------------------------------------------------------------- */

static _Thread_local batch *open_batch;
static _Thread_local int depth;

static int launch(batch *b)
{
    if (b == NULL) {
        return OK;
    }
    const comm_t c = b->comm;
    int captures = 0;
    atomic_store(&c->looks, LOOKS);
    (void)cuStreamIsCapturing(b->in, &captures);
    if (captures != 0) {
        atomic_fetch_add(&c->graphs, 1);
        fake_cuda_on_graph_end(b->in, graph_ended, b);
    } else {
        atomic_fetch_add(&c->running, 1);
    }
    (void)cuLaunchHostFunc(b->in, captures != 0 ? run_again : run_batch, b);
    return IN_PROGRESS;
}

static int add(call k, stream s)
{
    const comm_t c = k.comm;
    if (c == NULL || atomic_load(&c->joining) != 0 || atomic_load(&c->looks) > 0) {
        return INVALID; /* the call before is still in progress */
    }
    batch *b = depth > 0 && open_batch != NULL ? open_batch : calloc(1, sizeof *b);
    k.number = b->count > 0 ? b->calls[0].number : atomic_fetch_add(&c->calls, 1) + 1;
    if (has_fault("stuck", c->rank, k.number) || has_fault("late", c->rank, k.number)) {
        never_return();
    }
    if (k.op >= FAKE_MADE) {
        k.made = c->op[k.op - FAKE_MADE];
        k.op = FAKE_SUM;
    }
    k.in = fake_cuda_reach(k.in);
    k.out = fake_cuda_reach(k.out);
    b->comm = c;
    b->in = s;
    b->calls[b->count++] = k;
    open_batch = depth > 0 ? b : NULL;
    return depth > 0 ? OK : launch(b);
}

FAKE_PUBLIC int ncclGroupStart(void)
{
    depth++;
    return OK;
}

FAKE_PUBLIC int ncclGroupEnd(void)
{
    batch *b = open_batch;
    if (--depth > 0) {
        return OK;
    }
    open_batch = NULL;
    return launch(b);
}

#define CALL(...) add((call){__VA_ARGS__}, s)

FAKE_PUBLIC int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, comm_t c,
                              stream s)
{
    return CALL(ALL_REDUCE, .comm = c, .in = in, .out = out, .count = n, .type = type, .op = op);
}

FAKE_PUBLIC int ncclReduceScatter(const void *in, void *out, size_t n, int type, int op, comm_t c,
                                  stream s)
{
    return CALL(REDUCE_SCATTER, .comm = c, .in = in, .out = out, .count = n, .type = type,
                .op = op);
}

FAKE_PUBLIC int ncclAllGather(const void *in, void *out, size_t n, int type, comm_t c, stream s)
{
    return CALL(ALL_GATHER, .comm = c, .in = in, .out = out, .count = n, .type = type);
}

FAKE_PUBLIC int ncclBroadcast(const void *in, void *out, size_t n, int type, int root, comm_t c,
                              stream s)
{
    return CALL(BROADCAST, .comm = c, .in = in, .out = out, .count = n, .type = type, .root = root);
}

FAKE_PUBLIC int ncclReduce(const void *in, void *out, size_t n, int type, int op, int root,
                           comm_t c, stream s)
{
    return CALL(REDUCE, .comm = c, .in = in, .out = out, .count = n, .type = type, .op = op,
                .root = root);
}

FAKE_PUBLIC int ncclSend(const void *in, size_t n, int type, int peer, comm_t c, stream s)
{
    return CALL(SEND, .comm = c, .in = in, .count = n, .type = type, .root = peer);
}

FAKE_PUBLIC int ncclRecv(void *out, size_t n, int type, int peer, comm_t c, stream s)
{
    return CALL(RECV, .comm = c, .out = out, .count = n, .type = type, .root = peer);
}

/* ---- operators, memory --------------------------------------------------------------------- */

FAKE_PUBLIC int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, comm_t c)
{
    (void)residence;
    for (int i = 0; i < 8; i++) {
        if (!c->op[i].used) {
            c->op[i] = (made_op){.factor = fake_value(scalar, type), .used = true};
            *op = FAKE_MADE + i;
            return OK;
        }
    }
    return INVALID;
}

FAKE_PUBLIC int ncclRedOpDestroy(int op, comm_t c)
{
    c->op[op - FAKE_MADE].used = false;
    return OK;
}

#ifndef FAKE_HALF /* half a library: tests/dist/comm/test_nccl.c */
FAKE_PUBLIC int ncclMemAlloc(void **out, size_t bytes)
{
    uint64_t at = 0;
    const int error = cuMemAlloc_v2(&at, bytes);
    *out = (void *)at;
    return error == 0 ? OK : INTERNAL;
}
#endif

FAKE_PUBLIC int ncclMemFree(void *memory)
{
    return cuMemFree_v2((uintptr_t)memory) == 0 ? OK : INVALID;
}

static _Atomic int enrolled;

FAKE_PUBLIC int ncclCommRegister(comm_t c, void *memory, size_t bytes, void **handle)
{
    (void)bytes;
    (void)c;
    atomic_fetch_add(&enrolled, 1);
    *handle = memory;
    return OK;
}

FAKE_PUBLIC int ncclCommDeregister(comm_t c, void *handle)
{
    (void)c;
    (void)handle;
    atomic_fetch_sub(&enrolled, 1);
    return OK;
}

FAKE_PUBLIC int fake_nccl_enrolled(void)
{
    return atomic_load(&enrolled);
}

/* ---- communicators ------------------------------------------------------------------------- */

FAKE_PUBLIC int ncclGetVersion(int *version)
{
    const char *asked = getenv("FAKE_NCCL_VERSION");
    *version = asked != NULL ? atoi(asked) : 23007;
    return OK;
}

FAKE_PUBLIC const char *ncclGetErrorString(int result)
{
    return result == REMOTE    ? "remote process exited or there was a network error"
           : result == INVALID ? "invalid argument"
                               : "internal error";
}

FAKE_PUBLIC const char *ncclGetLastError(comm_t c)
{
    return c != NULL && atomic_load(&c->failed) == INVALID ? "ranks called different collectives"
                                                           : "";
}

FAKE_PUBLIC int ncclGetUniqueId(id_t_ *id)
{
    static _Atomic int made;
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "/fake-nccl-%d-%d", (int)getpid(),
             atomic_fetch_add(&made, 1));
    return OK;
}

static void *join(void *arg)
{
    const comm_t c = arg;
    while (has_fault("init", c->rank, 0) && !atomic_load(&c->aborted)) {
        usleep(1000);
    }
    atomic_fetch_add(&c->shared->joined, 1);
    while (atomic_load(&c->shared->joined) < c->ranks && !atomic_load(&c->aborted)) {
        usleep(NAP_US);
    }
    if (c->rank == 0) {
        (void)shm_unlink(c->name);
    }
    atomic_store(&c->joining, 0);
    return NULL;
}

typedef struct config {
    size_t size;
    unsigned magic, version;
    int blocking;
} config;

FAKE_PUBLIC int ncclCommInitRankConfig(comm_t *out, int ranks, id_t_ id, int rank, config *given)
{
    pthread_t thread;
    if (given->magic != 0xcafebeefu || given->blocking != 0 || ranks > RANKS_MAX) {
        return INVALID;
    }
    const int fd = shm_open(id.bytes, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    void *at = fd >= 0 && ftruncate(fd, sizeof(shared)) == 0
                   ? mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                   : MAP_FAILED;
    if (fd >= 0) {
        close(fd);
    }
    if (at == MAP_FAILED) {
        return INTERNAL;
    }
    const comm_t c = calloc(1, sizeof *c);
    *c = (struct ncclComm){.shared = at, .rank = rank, .ranks = ranks, .joining = 1};
    memcpy(c->name, id.bytes, sizeof c->name);
    c->older = atomic_load(&newest);
    while (!atomic_compare_exchange_weak(&newest, &c->older, c)) {
    }
    *out = c;
    if (pthread_create(&thread, NULL, join, c) != 0) {
        return INTERNAL;
    }
    pthread_detach(thread);
    return IN_PROGRESS;
}

FAKE_PUBLIC int ncclCommGetAsyncError(comm_t c, int *result)
{
    if (c == NULL) {
        return INVALID;
    }
    const int failed = atomic_load(&c->failed);
    *result = failed != OK                         ? failed
              : atomic_load(&c->joining) != 0      ? IN_PROGRESS
              : atomic_load(&c->looks) == 0        ? OK
              : atomic_fetch_sub(&c->looks, 1) > 1 ? IN_PROGRESS
                                                   : OK;
    return OK;
}

FAKE_PUBLIC int ncclCommFinalize(comm_t c)
{
    atomic_store(&c->looks, LOOKS);
    return IN_PROGRESS;
}

static void leave(comm_t c)
{
    munmap(c->shared, sizeof(shared));
    c->shared = NULL;
}

FAKE_PUBLIC int ncclCommDestroy(comm_t c)
{
    while (atomic_load(&c->running) > 0 || atomic_load(&c->graphs) > 0) {
        usleep(NAP_US);
    }
    leave(c);
    return OK;
}

/* Ends kernels in flight, and returns when they have. */
FAKE_PUBLIC int ncclCommAbort(comm_t c)
{
    if (has_fault("stuck", c->rank, atomic_load(&c->calls))) {
        never_return();
    }
    atomic_store(&c->aborted, true);
    while (atomic_load(&c->running) > 0 || atomic_load(&c->joining) != 0 ||
           atomic_load(&c->graphs) > 0) {
        usleep(NAP_US);
    }
    leave(c);
    return OK;
}
