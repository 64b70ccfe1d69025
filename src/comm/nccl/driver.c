/* SPDX-License-Identifier: Apache-2.0 */
/* The driver: a group's thread. Note [Who calls NCCL] in plugin.h. */
#include "comm/nccl/plugin.h"

#include <stdio.h>
#include <time.h>

#define NAP_US 20       /* between two looks at the device, while something is in flight */
#define LOOK_AT_COMM 50 /* in so many looks ncclCommGetAsyncError is asked once */

void ls__nccl_nap(long us)
{
    const struct timespec pause = {.tv_nsec = us * 1000};
    (void)nanosleep(&pause, NULL);
}

static bool stopped(const ls__nccl_group *g)
{
    return atomic_load_explicit(&g->stop, memory_order_acquire);
}

ls_status ls__nccl_settle(ls__nccl_group *g, int result, const char *call, char *error)
{
    const ls__nccl_comm comm = atomic_load_explicit(&g->comm, memory_order_relaxed);
    while (result == LS__NCCL_IN_PROGRESS) {
        if (atomic_load_explicit(&g->dead, memory_order_acquire)) {
            return ls__nccl_fail(LS_ERR_ABORTED, error, "%s was aborted", call);
        }
        ls__nccl_nap(NAP_US);
        const int asked = ls__nccl.async_error(comm, &result);
        result = asked != LS__NCCL_OK ? asked : result;
    }
    return ls__nccl_check(result, call, comm, error);
}

/* ---- the communicator ---------------------------------------------------------------------- */

static ls_status make_stream(ls__nccl_group *g)
{
    int least = 0, greatest = 0;
    ls_status status =
        ls__cuda_check(ls__cuda.context_set(g->context), "cuCtxSetCurrent", g->error);
    if (status == LS_OK) { /* ahead of kernels of the program, so that it overlaps with them */
        (void)ls__cuda.priorities(&least, &greatest);
        status = ls__cuda_check(
            ls__cuda.stream_create(&g->stream, LS__CUDA_STREAM_NON_BLOCKING, greatest),
            "cuStreamCreateWithPriority", g->error);
    }
    return status;
}

static ls_status connect(ls__nccl_group *g)
{
    ls__nccl_config config = {.size = sizeof config,
                              .magic = LS__NCCL_CONFIG_MAGIC,
                              .version = LS__NCCL_CONFIG_VERSION,
                              .blocking = 0,
                              .cga_cluster_size = LS__NCCL_UNDEFINED,
                              .min_ctas = LS__NCCL_UNDEFINED,
                              .max_ctas = LS__NCCL_UNDEFINED,
                              .split_share = LS__NCCL_UNDEFINED};
    const ls_status status = make_stream(g);
    if (status != LS_OK) {
        return status;
    }
    ls__nccl_comm comm = NULL;
    atomic_store_explicit(&g->calling, "ncclCommInitRankConfig", memory_order_relaxed);
    const int result = ls__nccl.init(&comm, g->ranks, g->id, g->rank, &config);
    atomic_store_explicit(&g->comm, comm, memory_order_release);
    return comm != NULL ? ls__nccl_settle(g, result, "ncclCommInitRankConfig", g->error)
                        : ls__nccl_check(result, "ncclCommInitRankConfig", NULL, g->error);
}

/* ---- requests ------------------------------------------------------------------------------ */

static void set_state(ls__nccl_request *q, ls__nccl_state state)
{
    atomic_store_explicit(&q->state, state, memory_order_release);
}

static void fail(ls__nccl_request *q, ls_status status)
{
    q->status = status;
    set_state(q, LS__NCCL_FAILED);
}

/* Waits in the stream for the program's, puts the operation there, unless a graph has done it, and
 * an event behind it. */
static ls_status launch(ls__nccl_group *g, ls__nccl_request *q)
{
    ls_status status = LS_OK;
    atomic_store_explicit(&g->calling, "cuStreamWaitEvent", memory_order_relaxed);
    for (const ls__nccl_mark *m = q->after; m != NULL && status == LS_OK; m = m->next) {
        status = ls__cuda_check(ls__cuda.stream_wait(g->stream, m->event, 0), "cuStreamWaitEvent",
                                q->error);
    }
    status = status != LS_OK
                 ? status
                 : ls__cuda_check(ls__cuda.event_create(&q->end, LS__CUDA_EVENT_NO_TIMING),
                                  "cuEventCreate", q->error);
    status = status != LS_OK || q->operation.kind == LS_BACKEND_REPLAY
                 ? status
                 : ls__nccl_launch(g, &q->operation, q->error);
    return status == LS_OK
               ? ls__cuda_check(ls__cuda.event_record(q->end, g->stream), "cuEventRecord", q->error)
               : status;
}

static ls__nccl_request *take_queued(ls__nccl_group *g)
{
    pthread_mutex_lock(&g->lock);
    ls__nccl_request *q = g->queue;
    if (q != NULL) {
        g->queue = q->next;
        g->queue_end = g->queue == NULL ? &g->queue : g->queue_end;
    }
    pthread_mutex_unlock(&g->lock);
    return q;
}

static void begin(ls__nccl_group *g, ls__nccl_request *q)
{
    set_state(q, LS__NCCL_CALLING);
    pthread_mutex_lock(&g->call);
    const ls_status status = launch(g, q);
    pthread_mutex_unlock(&g->call);
    if (status != LS_OK) {
        fail(q, status);
        return;
    }
    q->next = NULL;
    *g->all_end = q;
    g->all_end = &q->next;
    set_state(q, LS__NCCL_HELD);
}

/* Whether the program's streams have come to where the operation may begin. */
static bool is_free(const ls__nccl_request *q)
{
    for (const ls__nccl_mark *m = q->after; m != NULL; m = m->next) {
        if (ls__cuda.event_query(m->event) == LS__CUDA_NOT_READY) {
            return false;
        }
    }
    return true;
}

/* From the state on the request is the library's, which may free it. */
static void look_at_device(ls__nccl_group *g)
{
    while (g->all != NULL) {
        ls__nccl_request *q = g->all;
        const int result = ls__cuda.event_query(q->end);
        if (result == LS__CUDA_NOT_READY) {
            if (atomic_load_explicit(&q->state, memory_order_relaxed) == LS__NCCL_HELD &&
                is_free(q)) {
                set_state(q, LS__NCCL_RUNNING);
            }
            return;
        }
        g->all = q->next;
        g->all_end = g->all == NULL ? &g->all : g->all_end;
        if (result == LS__CUDA_OK) {
            set_state(q, LS__NCCL_DONE);
        } else {
            fail(q, ls__cuda_check(result, "cuEventQuery", q->error));
        }
    }
}

/* The oldest request reports the error. */
static void look_at_comm(ls__nccl_group *g)
{
    const ls__nccl_comm comm = atomic_load_explicit(&g->comm, memory_order_relaxed);
    int result = LS__NCCL_OK;
    const int asked = ls__nccl.async_error(comm, &result);
    ls__nccl_request *q = g->all;
    if (asked == LS__NCCL_OK && (result == LS__NCCL_OK || result == LS__NCCL_IN_PROGRESS)) {
        return;
    }
    g->all = q->next;
    g->all_end = g->all == NULL ? &g->all : g->all_end;
    fail(q, ls__nccl_check(asked != LS__NCCL_OK ? asked : result, "ncclCommGetAsyncError", comm,
                           q->error));
}

static void wait_for_work(ls__nccl_group *g)
{
    pthread_mutex_lock(&g->lock);
    while (g->queue == NULL && !stopped(g)) {
        pthread_cond_wait(&g->work, &g->lock);
    }
    pthread_mutex_unlock(&g->lock);
}

/* Until it is told to stop. */
static void serve(ls__nccl_group *g)
{
    for (unsigned looks = 0; !stopped(g); looks++) {
        ls__nccl_request *q = take_queued(g);
        if (q != NULL) {
            begin(g, q);
        } else if (g->all == NULL) {
            wait_for_work(g);
        } else {
            ls__nccl_nap(NAP_US);
        }
        look_at_device(g);
        if (g->all != NULL && looks % LOOK_AT_COMM == 0) {
            look_at_comm(g);
        }
    }
}

/* ---- the end ------------------------------------------------------------------------------- */

/* Other ranks end theirs at their own time, so this thread and not the program's waits for them. */
static void destroy(ls__nccl_group *g)
{
    char error[LS_BACKEND_ERROR_MAX];
    ls__nccl_comm comm = atomic_load_explicit(&g->comm, memory_order_relaxed);
    if (ls__nccl_settle(g, ls__nccl.finalize(comm), "ncclCommFinalize", error) != LS_OK) {
        return;
    }
    comm = atomic_exchange_explicit(&g->comm, NULL, memory_order_acq_rel);
    if (comm != NULL) {
        (void)ls__nccl.destroy(comm);
    }
    for (const ls__nccl_mark *m = g->free_marks; m != NULL; m = m->next) {
        (void)ls__cuda.event_destroy(m->event);
    }
    (void)ls__cuda.stream_destroy(g->stream);
}

void *ls__nccl_drive(void *group)
{
    ls__nccl_group *g = group;
    const ls_status status = connect(g);
    atomic_store_explicit(&g->connected, status == LS_OK ? 1 : (int)status, memory_order_release);
    if (status == LS_OK) {
        serve(g);
    } else {
        wait_for_work(g);
    }
    if (!atomic_load_explicit(&g->dead, memory_order_acquire) && status == LS_OK) {
        destroy(g);
    }
    pthread_mutex_lock(&g->lock);
    const bool mine = g->closing && !atomic_load_explicit(&g->dead, memory_order_relaxed);
    /* Sync: release; pairs with abort.c, which waits for it. */
    atomic_store_explicit(&g->ended, true, memory_order_release);
    pthread_mutex_unlock(&g->lock);
    if (mine) { /* nobody else knows it any more */
        ls__nccl_leave(g);
        ls__nccl_free(g);
    }
    return NULL;
}
