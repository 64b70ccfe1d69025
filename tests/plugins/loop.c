/* The backend `loop`: threads move the data between the processes of one host, with random delays.
 *
 * It is for tests, and it is what a plug-in looks like. It promises less than the native backend: its
 * sums have another order, it cannot abort, has no registered memory, no scans, four dtypes and four
 * operators. From `start` until an operation has ended, its output holds poison (bytes 0xff: NaN, -1),
 * so whoever reads a result without waiting for it does not get the right one by luck.
 *
 * Every rank has an outbox, a memfd that its peers map through /proc/PID/fd:
 *
 *     finished · two slots of collectives, in turns ── sequence, where each rank's block is, bytes
 *              · slots of messages ── receiver and number, bytes
 *
 * A collective: put my input into my slot, wait until the slots of all peers have this sequence,
 * compute my output from them, count it as finished. A slot is used again when all have finished the
 * collective that used it before.
 *
 * LOOP_SEED seeds the delays, LOOP_DELAY_US is the longest one. LOOP_FAULT=KIND:RANK:SEQUENCE makes
 * one rank misbehave from that collective on: hang, error, early (it says that the operation has ended
 * before its result is there). LOOP_BROKEN makes the plug-in unusable; the words are below. */
#define LS_BACKEND_PLUGIN
#include <lockstep/backend.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RANKS_MAX 32
#define SLOT_BYTES ((size_t)64 << 20)
#define MESSAGE_SLOTS 32
#define MESSAGE_BYTES ((size_t)4 << 20)
#define POISON 0xff

typedef struct slot { /* of a collective */
    _Atomic uint64_t sequence;
    int64_t at[RANKS_MAX]; /* bytes: the block for each rank */
    _Alignas(64) unsigned char data[SLOT_BYTES];
} slot;

typedef struct message_slot {
    _Atomic uint64_t number; /* 0: free */
    int to;
    _Alignas(64) unsigned char data[MESSAGE_BYTES];
} message_slot;

typedef struct outbox {
    _Atomic uint64_t finished;
    slot slot[2];
    message_slot message[MESSAGE_SLOTS];
} outbox;

typedef struct address {
    int pid, fd;
} address;

typedef struct request {
    struct request *next;
    ls_backend_operation op;
    int64_t table[4][RANKS_MAX]; /* copies of counts and offsets */
    unsigned char *input;        /* a copy */
    uint64_t number;             /* of the collective, from 1 */
    _Atomic int awaited;
    _Atomic int32_t status;
} request;

typedef struct loop_group {
    int rank, ranks, fd;
    outbox *box[RANKS_MAX];
    pthread_t thread[2]; /* of collectives, of messages */
    pthread_mutex_t lock;
    request *first[2], *last[2]; /* lock */
    _Atomic int stop;
    int threads;
    uint64_t begun; /* collectives */
    uint64_t seed;
    unsigned delay_us;
    char fault[16];
    int fault_rank;
    uint64_t fault_from;
} loop_group;

static int fail(char *error, ls_status status, const char *text)
{
    snprintf(error, LS_BACKEND_ERROR_MAX, "%s", text);
    return status;
}

/* ---- blocks -------------------------------------------------------------------------------- */

static bool is_message(const ls_backend_operation *op)
{
    return op->kind == LS_BACKEND_SEND || op->kind == LS_BACKEND_RECV;
}

static bool reduces(const ls_backend_operation *op)
{
    return op->kind == LS_BACKEND_ALL_REDUCE || op->kind == LS_BACKEND_REDUCE ||
           op->kind == LS_BACKEND_REDUCE_SCATTER || op->kind == LS_BACKEND_REDUCE_SCATTER_V;
}

/* Whether the input (else the output) has a block for each rank. */
static bool has_blocks(const ls_backend_operation *op, bool input)
{
    switch (op->kind) {
    case LS_BACKEND_ALL_TO_ALL:
    case LS_BACKEND_ALL_TO_ALL_V:
        return true;
    case LS_BACKEND_REDUCE_SCATTER:
    case LS_BACKEND_REDUCE_SCATTER_V:
    case LS_BACKEND_SCATTER:
    case LS_BACKEND_SCATTER_V:
        return input;
    case LS_BACKEND_ALL_GATHER:
    case LS_BACKEND_ALL_GATHER_V:
    case LS_BACKEND_GATHER:
    case LS_BACKEND_GATHER_V:
        return !input;
    default:
        return false;
    }
}

/* Where block r of one side is, and how many elements it has. */
static int64_t block(const ls_backend_operation *op, int side, int r, int64_t *count)
{
    if (op->counts[side] != NULL) {
        *count = op->counts[side][r];
        return op->offsets[side][r];
    }
    *count = op->count;
    return has_blocks(op, side == 0) ? r * op->count : 0;
}

/* Elements from the start of the buffer to the end of its last block. */
static int64_t extent(const ls_backend_operation *op, int side, int ranks)
{
    int64_t end = 0;
    for (int r = 0; r < ranks; r++) {
        int64_t count = 0;
        const int64_t at = block(op, side, r, &count);
        end = at + count > end ? at + count : end;
    }
    return end;
}

/* ---- sums ---------------------------------------------------------------------------------- */

#define COMBINE(type)                                                                              \
    static void combine_##type(type *into, const type *from, int64_t n, ls_reduce_op op)           \
    {                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                          \
            into[i] = op == LS_SUM       ? (type)(into[i] + from[i])                               \
                      : op == LS_PRODUCT ? (type)(into[i] * from[i])                               \
                      : op == LS_MIN     ? (from[i] < into[i] ? from[i] : into[i])                 \
                                         : (from[i] > into[i] ? from[i] : into[i]);                    \
        }                                                                                          \
    }
COMBINE(float)
COMBINE(double)
COMBINE(int32_t)
COMBINE(int64_t)

static void combine(void *into, const void *from, const ls_backend_operation *op, int64_t n)
{
    switch (op->dtype) {
    case LS_FLOAT32:
        combine_float(into, from, n, op->op);
        break;
    case LS_FLOAT64:
        combine_double(into, from, n, op->op);
        break;
    case LS_INT32:
        combine_int32_t(into, from, n, op->op);
        break;
    default:
        combine_int64_t(into, from, n, op->op);
    }
}

/* ---- a thread's work ----------------------------------------------------------------------- */

static void pause_us(unsigned us)
{
    usleep(us > 0 ? us : 1);
}

/* xorshift64*, Vigna 2014 */
static void delay(loop_group *g)
{
    pthread_mutex_lock(&g->lock);
    g->seed ^= g->seed >> 12;
    g->seed ^= g->seed << 25;
    g->seed ^= g->seed >> 27;
    const uint64_t drawn = g->seed * UINT64_C(2685821657736338717) >> 33;
    pthread_mutex_unlock(&g->lock);
    if (g->delay_us > 0) {
        pause_us((unsigned)(drawn % g->delay_us));
    }
}

static bool has_fault(const loop_group *g, const request *q, const char *kind)
{
    return strcmp(g->fault, kind) == 0 && g->rank == g->fault_rank && q->number >= g->fault_from;
}

/* Until the word of every rank has come so far; false: the group is closed. */
static bool wait_all(loop_group *g, request *q, uint64_t number, bool finished)
{
    for (int r = 0; r < g->ranks; r++) {
        _Atomic uint64_t *word =
            finished ? &g->box[r]->finished : &g->box[r]->slot[q->number % 2].sequence;
        while (atomic_load(word) < number) {
            atomic_store(&q->awaited, r);
            if (atomic_load(&g->stop)) {
                return false;
            }
            pause_us(20);
        }
    }
    atomic_store(&q->awaited, -1);
    return true;
}

static void publish(loop_group *g, request *q)
{
    slot *mine = &g->box[g->rank]->slot[q->number % 2];
    const size_t bytes = (size_t)extent(&q->op, 0, g->ranks) * q->op.element;
    for (int r = 0; r < g->ranks; r++) {
        int64_t count = 0;
        mine->at[r] = block(&q->op, 0, r, &count) * (int64_t)q->op.element;
    }
    if (q->input != NULL) {
        memcpy(mine->data, q->input, bytes);
    }
    atomic_store(&mine->sequence, q->number);
}

/* The block of rank r that is for this rank. */
static const unsigned char *from_peer(const loop_group *g, const request *q, int r)
{
    const slot *s = &g->box[r]->slot[q->number % 2];
    return s->data + s->at[g->rank];
}

/* The sum begins with rank 1, so that it is not the canonical one. */
static void take_sum(const loop_group *g, const request *q)
{
    const size_t bytes = (size_t)q->op.count * q->op.element;
    unsigned char *sum = malloc(bytes + 1);
    for (int i = 0; i < g->ranks && sum != NULL; i++) {
        const unsigned char *from = from_peer(g, q, (i + 1) % g->ranks);
        if (i == 0) {
            memcpy(sum, from, bytes);
        } else {
            combine(sum, from, &q->op, q->op.count);
        }
    }
    if (sum != NULL && bytes > 0) {
        memcpy(q->op.output, sum, bytes);
    }
    free(sum);
}

static void take(const loop_group *g, const request *q)
{
    const ls_backend_operation *op = &q->op;
    if (op->output == NULL) {
        return;
    }
    if (reduces(op)) {
        take_sum(g, q);
        return;
    }
    const bool from_root = op->kind == LS_BACKEND_BROADCAST || op->kind == LS_BACKEND_SCATTER ||
                           op->kind == LS_BACKEND_SCATTER_V;
    for (int r = 0; r < g->ranks; r++) {
        int64_t count = 0;
        const int64_t at = block(op, 1, r, &count);
        if (count > 0 && (!from_root || r == op->root)) {
            memcpy((unsigned char *)op->output + (size_t)at * op->element, from_peer(g, q, r),
                   (size_t)count * op->element);
        }
    }
}

static void run_collective(loop_group *g, request *q)
{
    delay(g);
    while (has_fault(g, q, "hang") && !atomic_load(&g->stop)) {
        pause_us(1000);
    }
    if (has_fault(g, q, "error")) {
        atomic_store(&q->status, LS_ERR_SYSTEM);
        return;
    }
    if (q->number > 2 && !wait_all(g, q, q->number - 2, true)) {
        return;
    }
    publish(g, q);
    delay(g);
    if (!wait_all(g, q, q->number, false)) {
        return;
    }
    if (has_fault(g, q, "early")) { /* as if nobody waited for the last copy */
        atomic_store(&g->box[g->rank]->finished, q->number);
        atomic_store(&q->status, LS_OK);
        return;
    }
    take(g, q);
    atomic_store(&g->box[g->rank]->finished, q->number);
    delay(g);
    atomic_store(&q->status, LS_OK);
}

/* Whether it has ended: a send in a free slot of this rank, a receive from that of its peer. */
static bool try_message(loop_group *g, request *q)
{
    const ls_backend_operation *op = &q->op;
    const bool send = op->kind == LS_BACKEND_SEND;
    const size_t bytes = (size_t)op->count * op->element;
    outbox *box = g->box[send ? g->rank : op->root];
    for (int i = 0; i < MESSAGE_SLOTS; i++) {
        message_slot *m = &box->message[i];
        const uint64_t number = atomic_load(&m->number);
        if (send && number == 0) {
            m->to = op->root;
            memcpy(m->data, q->input, bytes);
            atomic_store(&m->number, op->message);
            return true;
        }
        if (!send && number == op->message && m->to == g->rank) {
            memcpy(op->output, m->data, bytes);
            atomic_store(&m->number, 0);
            return true;
        }
    }
    return false;
}

static void push(loop_group *g, int queue, request *q)
{
    pthread_mutex_lock(&g->lock);
    q->next = NULL;
    *(g->last[queue] != NULL ? &g->last[queue]->next : &g->first[queue]) = q;
    g->last[queue] = q;
    pthread_mutex_unlock(&g->lock);
}

static request *pop(loop_group *g, int queue)
{
    pthread_mutex_lock(&g->lock);
    request *q = g->first[queue];
    if (q != NULL) {
        g->first[queue] = q->next;
        g->last[queue] = g->first[queue] != NULL ? g->last[queue] : NULL;
    }
    pthread_mutex_unlock(&g->lock);
    return q;
}

static void *collectives_main(void *arg)
{
    loop_group *g = arg;
    while (!atomic_load(&g->stop)) {
        request *q = pop(g, 0);
        if (q != NULL) {
            run_collective(g, q);
        } else {
            pause_us(20);
        }
    }
    return NULL;
}

/* A message whose peer is late goes to the end of the queue. */
static void *messages_main(void *arg)
{
    loop_group *g = arg;
    while (!atomic_load(&g->stop)) {
        request *q = pop(g, 1);
        if (q != NULL && try_message(g, q)) {
            delay(g);
            atomic_store(&q->status, LS_OK);
            continue;
        }
        if (q != NULL) {
            atomic_store(&q->awaited, q->op.root);
            push(g, 1, q);
        }
        pause_us(20);
    }
    return NULL;
}

/* ---- the table ----------------------------------------------------------------------------- */

static bool is_broken(const char *how)
{
    const char *asked = getenv("LOOP_BROKEN");
    return asked != NULL && strcmp(asked, how) == 0;
}

static ls_status loop_describe(ls_backend_capabilities *out, char *error)
{
    if (is_broken("absent")) {
        return fail(error, LS_ERR_NOT_FOUND, "libloop.so.1 is not installed");
    }
    out->flags = is_broken("abort")      ? LS_BACKEND_ABORTABLE
                 : is_broken("memory")   ? LS_BACKEND_REGISTERED
                 : is_broken("programs") ? LS_BACKEND_PROGRAMS
                                         : 0;
    out->memory = LS_BACKEND_HOST;
    out->operations = ((1u << (LS_BACKEND_SCATTER_V + 1)) - 1) & ~(1u << 4) &
                      ~(1u << LS_BACKEND_SCAN) & ~(1u << LS_BACKEND_EXSCAN) &
                      ~(is_broken("messages") ? 1u << LS_BACKEND_SEND : 0);
    out->dtypes = 1u << LS_FLOAT32 | 1u << LS_FLOAT64 | 1u << LS_INT32 | 1u << LS_INT64;
    out->reduce_ops =
        (is_broken("other") ? 0 : 1u << LS_SUM) | 1u << LS_PRODUCT | 1u << LS_MIN | 1u << LS_MAX;
    out->poll_us = 100;
    out->address_bytes = is_broken("address") ? 5000 : sizeof(address);
    return LS_OK;
}

static uint64_t number_of(const char *name, uint64_t fallback)
{
    return getenv(name) != NULL ? strtoull(getenv(name), NULL, 10) : fallback;
}

static ls_status loop_open(const ls_backend_group_spec *spec, void *out, void **group, char *error)
{
    loop_group *g = calloc(1, sizeof *g);
    if (g == NULL || spec->ranks > RANKS_MAX) {
        free(g);
        return fail(error, LS_ERR_LIMIT, "more than 32 ranks, or no memory");
    }
    g->rank = spec->rank;
    g->ranks = spec->ranks;
    g->fd = memfd_create("loop", MFD_CLOEXEC);
    pthread_mutex_init(&g->lock, NULL);
    g->seed = (number_of("LOOP_SEED", 1) << 20) + (uint64_t)spec->world_rank[spec->rank] * 977 + 1;
    g->delay_us = (unsigned)number_of("LOOP_DELAY_US", 300);
    unsigned long long from = 0;
    const char *fault = getenv("LOOP_FAULT");
    if (fault != NULL && sscanf(fault, "%15[a-z]:%d:%llu", g->fault, &g->fault_rank, &from) == 3) {
        g->fault_from = from;
    }
    *group = g;
    if (g->fd < 0 || ftruncate(g->fd, sizeof(outbox)) != 0) {
        return fail(error, LS_ERR_SYSTEM, "no shared memory for the outbox");
    }
    const address mine = {getpid(), g->fd};
    memcpy(out, &mine, sizeof mine);
    return LS_OK;
}

static ls_status loop_connect(void *group, const void *addresses, char *error)
{
    loop_group *g = group;
    if (is_broken("connect")) {
        return LS_IN_PROGRESS;
    }
    for (int r = 0; r < g->ranks; r++) {
        char path[64];
        address a;
        memcpy(&a, (const char *)addresses + (size_t)r * sizeof a, sizeof a);
        snprintf(path, sizeof path, "/proc/%d/fd/%d", a.pid, a.fd);
        const int fd = open(path, O_RDWR | O_CLOEXEC);
        void *at = fd >= 0 ? mmap(NULL, sizeof(outbox), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                           : MAP_FAILED;
        if (fd >= 0) {
            close(fd);
        }
        if (at == MAP_FAILED) {
            return fail(error, LS_ERR_SYSTEM, "an outbox cannot be mapped");
        }
        g->box[r] = at;
    }
    for (; g->threads < 2; g->threads++) {
        if (pthread_create(&g->thread[g->threads], NULL,
                           g->threads == 0 ? collectives_main : messages_main, g) != 0) {
            return fail(error, LS_ERR_SYSTEM, "no thread");
        }
    }
    return LS_OK;
}

static void loop_close(void *group, bool failed)
{
    (void)failed;
    loop_group *g = group;
    atomic_store(&g->stop, 1);
    for (int t = 0; t < g->threads; t++) {
        pthread_join(g->thread[t], NULL);
    }
    for (int r = 0; r < g->ranks; r++) {
        if (g->box[r] != NULL) {
            munmap(g->box[r], sizeof(outbox));
        }
    }
    if (g->fd >= 0) {
        close(g->fd);
    }
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static void release(request *q)
{
    free(q->input);
    free(q);
}

/* Copies what is valid during the call only, and the input; poisons the output. */
static request *request_new(const loop_group *g, const ls_backend_operation *op)
{
    request *q = calloc(1, sizeof *q);
    if (q == NULL) {
        return NULL;
    }
    q->op = *op;
    for (int side = 0; side < 2 && !is_message(op); side++) {
        if (op->counts[side] != NULL) {
            const size_t bytes = (size_t)g->ranks * sizeof(int64_t);
            q->op.counts[side] = memcpy(q->table[2 * side], op->counts[side], bytes);
            q->op.offsets[side] = memcpy(q->table[2 * side + 1], op->offsets[side], bytes);
        }
    }
    if (op->input != NULL) {
        const size_t bytes = (size_t)extent(&q->op, 0, g->ranks) * op->element;
        q->input = malloc(bytes + 1);
        if (q->input == NULL || bytes > (is_message(op) ? MESSAGE_BYTES : SLOT_BYTES)) {
            release(q);
            return NULL;
        }
        memcpy(q->input, op->input, bytes);
    }
    if (op->output != NULL) {
        for (int r = 0; r < g->ranks; r++) {
            int64_t count = 0;
            const int64_t at = block(&q->op, 1, r, &count);
            memset((unsigned char *)op->output + (size_t)at * op->element, POISON,
                   (size_t)count * op->element);
        }
    }
    atomic_store(&q->awaited, -1);
    atomic_store(&q->status, LS_IN_PROGRESS);
    return q;
}

static ls_status loop_start(void *group, const ls_backend_operation *op, void **out, char *error)
{
    loop_group *g = group;
    request *q = request_new(g, op);
    if (q == NULL) {
        return fail(error, LS_ERR_LIMIT, "an operation larger than the outbox, or no memory");
    }
    const int queue = is_message(op) ? 1 : 0;
    q->number = queue == 0 ? ++g->begun : 0;
    *out = q;
    push(g, queue, q);
    return LS_OK;
}

static ls_status loop_test(void *group, void *request_, char *error)
{
    request *q = request_;
    const ls_status status = group != NULL ? (ls_status)atomic_load(&q->status) : LS_ERR_INTERNAL;
    if (status == LS_IN_PROGRESS) {
        return status;
    }
    release(q);
    return status == LS_OK ? LS_OK : fail(error, status, "an injected error");
}

static int loop_awaited(void *group, void *request_)
{
    (void)group;
    return atomic_load(&((request *)request_)->awaited);
}

const ls_backend *ls_backend_plugin(uint32_t version)
{
    static ls_backend table = {.size = sizeof table,
                               .version = LS_BACKEND_VERSION,
                               .name = "loop",
                               .describe = loop_describe,
                               .open = loop_open,
                               .connect = loop_connect,
                               .close = loop_close,
                               .start = loop_start,
                               .test = loop_test,
                               .awaited = loop_awaited};
    table.size = sizeof table - (is_broken("short") ? sizeof(void *) : 0);
    table.test = is_broken("half") ? NULL : loop_test;
    return version == LS_BACKEND_VERSION && !is_broken("version") ? &table : NULL;
}
