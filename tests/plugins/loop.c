/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the backend `loop`; see loop.h. */
#define LS_BACKEND_PLUGIN
#include "loop.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern loop_counts loop_counters;
__attribute__((visibility("default"))) loop_counts loop_counters;

static int fail(char *error, ls_status status, const char *text)
{
    snprintf(error, LS_BACKEND_ERROR_MAX, "%s", text);
    return status;
}

/* ---- the table ----------------------------------------------------------------------------- */

static bool is_broken(const char *how)
{
    const char *asked = getenv("LOOP_BROKEN");
    return asked != NULL && strcmp(asked, how) == 0;
}

/* LOOP_BROKEN=positive_FUNCTION: that function returns 5. */
static bool is_positive(const char *function)
{
    char how[32];
    snprintf(how, sizeof how, "positive_%s", function);
    return is_broken(how);
}

static bool promises(const char *what)
{
    const char *asked = getenv("LOOP_PROMISES");
    return asked != NULL && strstr(asked, what) != NULL;
}

static ls_status loop_describe(ls_backend_capabilities *out, char *error)
{
    if (is_positive("describe")) {
        return (ls_status)5;
    }
    if (is_broken("absent")) {
        return fail(error, LS_ERR_NOT_FOUND, "libloop.so.1 is not installed");
    }
    out->flags = (is_broken("abort") || promises("abort") ? LS_BACKEND_ABORTABLE : 0) |
                 (is_broken("memory") || promises("registered") ? LS_BACKEND_REGISTERED : 0) |
                 (is_broken("programs") || is_broken("transport") ? LS_BACKEND_PROGRAMS : 0) |
                 (promises("streams") || is_broken("streams") ? LS_BACKEND_STREAMS : 0);
    out->memory = is_broken("device") ? LS_BACKEND_DEVICE : LS_BACKEND_HOST;
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
    if (is_positive("open")) {
        return (ls_status)5;
    }
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
    if (is_positive("connect")) {
        return (ls_status)5;
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
                           g->threads == 0 ? loop_collectives : loop_messages, g) != 0) {
            return fail(error, LS_ERR_SYSTEM, "no thread");
        }
    }
    return LS_OK;
}

static void stop_threads(loop_group *g)
{
    atomic_store(&g->stop, 1);
    for (; g->threads > 0; g->threads--) {
        pthread_join(g->thread[g->threads - 1], NULL);
    }
}

static void loop_close(void *group, bool failed)
{
    (void)failed;
    loop_group *g = group;
    stop_threads(g);
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

static void release(loop_group *g, request *q)
{
    *(q->newer != NULL ? &q->newer->older : &g->newest) = q->older;
    if (q->older != NULL) {
        q->older->newer = q->newer;
    }
    free(q->input);
    free(q);
}

/* Copies what is valid during the call only, and the input; poisons the output. */
static request *request_new(loop_group *g, const ls_backend_operation *op)
{
    request *q = calloc(1, sizeof *q);
    if (q == NULL) {
        return NULL;
    }
    q->op = *op;
    q->older = g->newest;
    if (q->older != NULL) {
        q->older->newer = q;
    }
    g->newest = q;
    for (int side = 0; side < 2 && !loop_is_message(op); side++) {
        if (op->counts[side] != NULL) {
            const size_t bytes = (size_t)g->ranks * sizeof(int64_t);
            q->op.counts[side] = memcpy(q->table[2 * side], op->counts[side], bytes);
            q->op.offsets[side] = memcpy(q->table[2 * side + 1], op->offsets[side], bytes);
        }
    }
    if (op->input != NULL) {
        const size_t bytes = (size_t)loop_extent(&q->op, 0, g->ranks) * op->element;
        q->input = malloc(bytes + 1);
        if (q->input == NULL || bytes > (loop_is_message(op) ? MESSAGE_BYTES : SLOT_BYTES)) {
            release(g, q);
            return NULL;
        }
        memcpy(q->input, op->input, bytes);
    }
    if (op->output != NULL) {
        for (int r = 0; r < g->ranks; r++) {
            int64_t count = 0;
            const int64_t at = loop_block(&q->op, 1, r, &count);
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
    if (is_positive("start")) {
        return (ls_status)5;
    }
    request *q = request_new(g, op);
    if (q == NULL) {
        return fail(error, LS_ERR_LIMIT, "an operation larger than the outbox, or no memory");
    }
    loop_counters.stream = op->stream;
    loop_counters.after = op->after;
    const int queue = loop_is_message(op) ? 1 : 0;
    q->number = queue == 0 ? ++g->begun : 0;
    *out = q;
    loop_push(g, queue, q);
    atomic_fetch_add(&loop_counters.started, 1);
    return LS_OK;
}

static ls_status loop_test(void *group, void *request_, char *error)
{
    request *q = request_;
    const ls_status status = (ls_status)atomic_load(&q->status);
    while (is_broken("stuck")) {
        (void)write(2, "stuck\n", 6);
        (void)pause();
    }
    if (status == LS_IN_PROGRESS) {
        return status;
    }
    release(group, q);
    if (is_positive("test")) {
        return (ls_status)5;
    }
    return status == LS_OK ? LS_OK : fail(error, status, "an injected error");
}

/* The threads end before they touch another buffer. */
static void loop_abort(void *group)
{
    loop_group *g = group;
    stop_threads(g);
    while (g->newest != NULL) {
        release(g, g->newest);
    }
    loop_counters.aborted++;
}

static ls_status loop_alloc(void *group, size_t bytes, void **out, char *error)
{
    (void)group;
    if (is_positive("alloc")) {
        return (ls_status)5;
    }
    *out = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (*out == NULL) {
        return fail(error, LS_ERR_MEMORY, "no memory for a block");
    }
    memset(*out, 0, bytes);
    loop_counters.allocated++;
    return LS_OK;
}

static void loop_dealloc(void *group, void *memory, size_t bytes)
{
    (void)group;
    memset(memory, POISON, bytes);
    free(memory);
    loop_counters.allocated--;
}

/* There are no streams here: a place is the stream itself. */
static ls_status loop_mark(void *group, ls_stream *stream, void **place, char *error)
{
    (void)group;
    *place = stream;
    return is_broken("mark") ? fail(error, LS_ERR_SYSTEM, "no event") : LS_OK;
}

static void loop_unmark(void *group, void *place)
{
    (void)group;
    (void)place;
    loop_counters.unmarked++;
}

static ls_status loop_follow(void *group, void *request_, ls_stream *stream, char *error)
{
    (void)group;
    (void)request_;
    (void)stream;
    return is_broken("follow") ? fail(error, LS_ERR_SYSTEM, "no wait") : LS_IN_PROGRESS;
}

static ls_status loop_zero(void *group, ls_stream *stream, void *memory, size_t bytes, char *error)
{
    (void)group;
    (void)stream;
    (void)error;
    memset(memory, 0, bytes);
    return LS_OK;
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
                               .awaited = loop_awaited,
                               .unmark = loop_unmark,
                               .follow = loop_follow,
                               .zero = loop_zero};
    static const ls_backend_transport half = {.size = sizeof half};
    table.transport = is_broken("transport") ? &half : NULL;
    table.size = is_broken("short") ? LS_BACKEND_LEAST_SIZE - sizeof(void *) : sizeof table;
    table.test = is_broken("half") ? NULL : loop_test;
    table.abort = is_broken("abort") ? NULL : loop_abort;
    table.alloc = is_broken("memory") ? NULL : loop_alloc;
    table.dealloc = loop_dealloc;
    table.mark = is_broken("streams") ? NULL : loop_mark;
    return version == LS_BACKEND_VERSION && !is_broken("version") ? &table : NULL;
}
