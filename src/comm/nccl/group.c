/* SPDX-License-Identifier: Apache-2.0 */
/* A group: what the library's threads do. Nothing here waits for another rank. */
#include "comm/nccl/plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ------------------------------------------------------------------------------- */

/* The GPU: of the thread's context if it has one, as after cudaSetDevice, else the one with the
 * number of this rank among those of its host. */
static ls_status choose_device(ls__nccl_group *g, const ls_backend_group_spec *spec,
                               ls__nccl_address *out, char *error)
{
    int count = 0, local = 0, device = 0;
    for (int r = 0; r < spec->rank; r++) {
        local += spec->host[r] == spec->host[spec->rank];
    }
    ls_status status = ls__cuda_check(ls__cuda.context_get(&g->context), "cuCtxGetCurrent", error);
    if (status == LS_OK && g->context == NULL) {
        (void)ls__cuda.device_count(&count);
        status = ls__cuda_check(ls__cuda.device_get(&device, local % (count > 0 ? count : 1)),
                                "cuDeviceGet", error);
        status = status != LS_OK ? status
                                 : ls__cuda_check(ls__cuda.context_retain(&g->context, device),
                                                  "cuDevicePrimaryCtxRetain", error);
        status = status != LS_OK
                     ? status
                     : ls__cuda_check(ls__cuda.context_set(g->context), "cuCtxSetCurrent", error);
    } else if (status == LS_OK) {
        status = ls__cuda_check(ls__cuda.context_device(&device), "cuCtxGetDevice", error);
    }
    return status != LS_OK
               ? status
               : ls__cuda_check(ls__cuda.device_bus_id(out->bus, (int)sizeof out->bus, device),
                                "cuDeviceGetPCIBusId", error);
}

static ls_status open_parts(ls__nccl_group *g, const ls_backend_group_spec *spec,
                            ls__nccl_address *out, char *error)
{
    const char *host = getenv("NCCL_HOSTID"); /* makes ranks of one host look like several hosts */
    (void)snprintf(out->host, sizeof out->host, "%s %d", host != NULL ? host : "host",
                   spec->host[spec->rank]);
    const ls_status status = choose_device(g, spec, out, error);
    return status != LS_OK || spec->rank != 0
               ? status
               : ls__nccl_check(ls__nccl.unique_id(&out->id), "ncclGetUniqueId", NULL, error);
}

ls_status ls__nccl_open(const ls_backend_group_spec *spec, void *address, void **group, char *error)
{
    ls__nccl_address own = {0};
    ls__nccl_group *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return ls__nccl_fail(LS_ERR_MEMORY, error, "no memory for a group");
    }
    (void)snprintf(g->name, sizeof g->name, "%s", spec->name);
    g->rank = spec->rank;
    g->ranks = spec->ranks;
    g->world_rank = spec->world_rank[spec->rank];
    g->timeout_ms = spec->timeout_ms;
    g->queue_end = &g->queue;
    g->all_end = &g->all;
    pthread_mutex_init(&g->call, NULL);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->work, NULL);
    const ls_status status = open_parts(g, spec, &own, error);
    memcpy(address, &own, sizeof own);
    ls__nccl_enter(g);
    *group = g;
    return status;
}

/* NCCL refuses two ranks on one GPU in words that name neither, unless it is told to allow them. */
static ls_status check_devices(const ls__nccl_address *all, int ranks, char *error)
{
    for (int b = 1; b < ranks && getenv("NCCL_MULTI_RANK_GPU_ENABLE") == NULL; b++) {
        for (int a = 0; a < b; a++) {
            if (strcmp(all[a].bus, all[b].bus) == 0 && strcmp(all[a].host, all[b].host) == 0) {
                return ls__nccl_fail(
                    LS_ERR_INVALID, error,
                    "ranks %d and %d of the group both have the GPU %.23s; call cudaSetDevice "
                    "before the group is made, or, for tests, give each rank its own NCCL_HOSTID",
                    a, b, all[a].bus);
            }
        }
    }
    return LS_OK;
}

ls_status ls__nccl_connect(void *group, const void *addresses, char *error)
{
    ls__nccl_group *g = group;
    if (!g->has_driver) {
        memcpy(&g->id, addresses, sizeof g->id);
        const ls_status status = check_devices(addresses, g->ranks, error);
        if (status != LS_OK) {
            return status;
        }
        if (pthread_create(&g->driver, NULL, ls__nccl_drive, g) != 0) {
            return ls__nccl_fail(LS_ERR_SYSTEM, error, "no thread for a group");
        }
        (void)pthread_detach(g->driver);
        g->has_driver = true;
    }
    const int connected = atomic_load_explicit(&g->connected, memory_order_acquire);
    if (connected < 0) {
        return ls__nccl_fail((ls_status)connected, error, "%s", g->error);
    }
    return connected == 0 ? LS_IN_PROGRESS : LS_OK;
}

/* ---- closing ------------------------------------------------------------------------------- */

static void free_marks(ls__nccl_mark *m)
{
    while (m != NULL) {
        ls__nccl_mark *next = m->next;
        free(m);
        m = next;
    }
}

static void free_requests(ls__nccl_request *q)
{
    while (q != NULL) {
        ls__nccl_request *next = q->next;
        free_marks(q->after);
        free(q);
        q = next;
    }
}

void ls__nccl_free(ls__nccl_group *g)
{
    free_requests(g->queue);
    free_requests(g->all);
    free_marks(g->free_marks);
    pthread_mutex_destroy(&g->call);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->work);
    free(g);
}

/* In order: the driver finalizes the communicator, and frees the group. */
void ls__nccl_close(void *group, bool failed)
{
    ls__nccl_group *g = group;
    const bool dead = atomic_load_explicit(&g->dead, memory_order_acquire);
    if (!failed && !dead && g->has_driver) {
        pthread_mutex_lock(&g->lock);
        g->closing = true;
        atomic_store_explicit(&g->stop, true, memory_order_release);
        pthread_cond_signal(&g->work);
        pthread_mutex_unlock(&g->lock);
        return;
    }
    ls__nccl_abort_one(g);
    ls__nccl_leave(g);
    ls__nccl_free(g);
}

/* ---- places in streams --------------------------------------------------------------------- */

/* `place` is a list of marks. */
static ls__nccl_mark *take_mark(ls__nccl_group *g, char *error)
{
    pthread_mutex_lock(&g->lock);
    ls__nccl_mark *m = g->free_marks;
    g->free_marks = m != NULL ? m->next : NULL;
    pthread_mutex_unlock(&g->lock);
    if (m != NULL) {
        return m;
    }
    m = calloc(1, sizeof *m);
    if (m == NULL) {
        (void)ls__nccl_fail(LS_ERR_MEMORY, error, "no memory for an event");
        return NULL;
    }
    if (ls__cuda_check(ls__cuda.event_create(&m->event, LS__CUDA_EVENT_NO_TIMING), "cuEventCreate",
                       error) != LS_OK) {
        free(m);
        return NULL;
    }
    return m;
}

void ls__nccl_give_marks(ls__nccl_group *g, ls__nccl_mark *first)
{
    pthread_mutex_lock(&g->lock);
    while (first != NULL) {
        ls__nccl_mark *next = first->next;
        first->next = g->free_marks;
        g->free_marks = first;
        first = next;
    }
    pthread_mutex_unlock(&g->lock);
}

/* A later mark in a stream covers the earlier one. */
ls_status ls__nccl_mark_stream(void *group, ls_stream *stream, void **place, char *error)
{
    ls__cuda_stream in = (ls__cuda_stream)(void *)stream;
    ls__nccl_mark *m = *place;
    while (m != NULL && m->stream != in) {
        m = m->next;
    }
    if (m == NULL) {
        m = take_mark(group, error);
        if (m == NULL) {
            return LS_ERR_SYSTEM;
        }
        m->stream = in;
        m->next = *place;
        *place = m;
    }
    return ls__cuda_check(ls__cuda.event_record(m->event, in), "cuEventRecord", error);
}

void ls__nccl_unmark(void *group, void *place)
{
    ls__nccl_give_marks(group, place);
}

/* ---- operations ---------------------------------------------------------------------------- */

/* Copies what is valid during the call only. */
static ls__nccl_request *copy_request(const ls__nccl_group *g, const ls_backend_operation *o)
{
    const size_t ranks = (size_t)g->ranks;
    ls__nccl_request *q = calloc(1, sizeof *q + 4 * ranks * sizeof(int64_t));
    if (q == NULL) {
        return NULL;
    }
    q->operation = *o;
    q->after = o->after;
    for (size_t side = 0; side < 2; side++) {
        if (o->counts[side] != NULL) {
            int64_t *counts = q->tables + 2 * side * ranks, *offsets = counts + ranks;
            memcpy(counts, o->counts[side], ranks * sizeof *counts);
            memcpy(offsets, o->offsets[side], ranks * sizeof *offsets);
            q->operation.counts[side] = counts;
            q->operation.offsets[side] = offsets;
        }
    }
    return q;
}

ls_status ls__nccl_fail_dead(char *error)
{
    return ls__nccl_fail(LS_ERR_ABORTED, error,
                         "another group of this process has failed, and its communicators are "
                         "aborted together");
}

ls_status ls__nccl_start(void *group, const ls_backend_operation *o, void **request, char *error)
{
    ls__nccl_group *g = group;
    if (atomic_load_explicit(&g->dead, memory_order_acquire)) {
        return ls__nccl_fail_dead(error);
    }
    ls__nccl_request *q = copy_request(g, o);
    if (q == NULL) {
        return ls__nccl_fail(LS_ERR_MEMORY, error, "no memory for a request");
    }
    pthread_mutex_lock(&g->lock);
    *g->queue_end = q;
    g->queue_end = &q->next;
    pthread_cond_signal(&g->work);
    pthread_mutex_unlock(&g->lock);
    *request = q;
    return LS_OK;
}

ls_status ls__nccl_test(void *group, void *request, char *error)
{
    ls__nccl_group *g = group;
    ls__nccl_request *q = request;
    const int state = atomic_load_explicit(&q->state, memory_order_acquire);
    if (state != LS__NCCL_DONE && state != LS__NCCL_FAILED) { /* freed with the dead group */
        return atomic_load_explicit(&g->dead, memory_order_acquire) ? ls__nccl_fail_dead(error)
                                                                    : LS_IN_PROGRESS;
    }
    const ls_status status = state == LS__NCCL_DONE ? LS_OK : q->status;
    if (status != LS_OK) {
        (void)snprintf(error, LS_BACKEND_ERROR_MAX, "%s", q->error);
    }
    ls__nccl_give_marks(g, q->after);
    if (q->end != NULL) {
        (void)ls__cuda.event_destroy(q->end);
    }
    free(q);
    return status;
}

ls_status ls__nccl_follow(void *group, void *request, ls_stream *stream, char *error)
{
    const ls__nccl_request *q = request;
    const int state = atomic_load_explicit(&q->state, memory_order_acquire);
    (void)group;
    if (state == LS__NCCL_QUEUED || state == LS__NCCL_CALLING) {
        return LS_IN_PROGRESS;
    }
    return state == LS__NCCL_FAILED
               ? LS_IN_PROGRESS /* `test` says why */
               : ls__cuda_check(ls__cuda.stream_wait((ls__cuda_stream)(void *)stream, q->end, 0),
                                "cuStreamWaitEvent", error);
}

const char *ls__nccl_waits(void *group, void *request)
{
    const ls__nccl_group *g = group;
    const ls__nccl_request *q = request;
    const int state = atomic_load_explicit(&q->state, memory_order_acquire);
    if (state == LS__NCCL_HELD && q->operation.kind == LS_BACKEND_REPLAY) {
        return "the captured step that this rank has started does not end; look for a kernel of it "
               "that hangs, here or on another rank";
    }
    switch (state) {
    case LS__NCCL_QUEUED:
        return "an earlier operation of the group has not been given to the GPU";
    case LS__NCCL_CALLING:
        return atomic_load_explicit(&g->calling, memory_order_relaxed);
    case LS__NCCL_HELD:
        return "the program's stream has not come to it; look for a kernel that does not end, or a "
               "stream that waits for this operation";
    default:
        return "its kernel runs, and waits for another rank's";
    }
}
