/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the GPU: whether a buffer lies there, and blocks that are registered once with the
 * group's communicator. */
#include "comm/nccl/plugin.h"

#include <stdlib.h>
#include <time.h>

/* NCCL runs the messages of a communicator one after the other, and matches them by that order. The
 * library starts those of one way in the same order on both sides; two that cross would wait for
 * each other. */
static ls_status take_way(ls__nccl_group *g, ls_backend_kind kind, char *error)
{
    pthread_mutex_lock(&g->lock);
    g->way = g->has_way ? g->way : kind;
    g->has_way = true;
    const bool fits = g->ranks == 2 && g->way == kind;
    pthread_mutex_unlock(&g->lock);
    return fits ? LS_OK
                : ls__nccl_fail(LS_ERR_UNSUPPORTED, error,
                                "messages of NCCL go one way over a group of two ranks; make a "
                                "group for each pair and direction, or use one of backend "
                                "\"native\"");
}

ls_status ls__nccl_accepts(void *group, ls_backend_kind kind, const void *input, const void *output,
                           char *error)
{
    const void *const buffer[2] = {input, output};
    for (int i = 0; i < 2; i++) {
        unsigned type = 0, managed = 0;
        const ls__cuda_pointer at = (ls__cuda_pointer)buffer[i];
        if (buffer[i] == NULL) {
            continue;
        }
        (void)ls__cuda.pointer_get(&type, LS__CUDA_POINTER_MEMORY_TYPE, at);
        (void)ls__cuda.pointer_get(&managed, LS__CUDA_POINTER_IS_MANAGED, at);
        if (type != LS__CUDA_MEMORY_DEVICE && managed == 0) {
            return ls__nccl_fail(LS_ERR_UNSUPPORTED, error,
                                 "the %s is not memory of a GPU; give memory of cudaMalloc or "
                                 "ls_group_alloc, or use a group of backend \"native\"",
                                 i == 0 ? "input" : "output");
        }
    }
    if (kind == LS_BACKEND_SEND || kind == LS_BACKEND_RECV) {
        return take_way(group, kind, error);
    }
    return input == NULL || input != output ||
                   (kind != LS_BACKEND_ALL_TO_ALL && kind != LS_BACKEND_ALL_TO_ALL_V)
               ? LS_OK
               : ls__nccl_fail(LS_ERR_UNSUPPORTED, error,
                               "NCCL does not exchange blocks in place; give two buffers");
}

/* Memory is made in the calling thread's context, and a thread may have none. */
static void adopt_context(const ls__nccl_group *g)
{
    ls__cuda_context now = NULL;
    if (ls__cuda.context_get(&now) == LS__CUDA_OK && now == NULL) {
        (void)ls__cuda.context_set(g->context);
    }
}

ls_status ls__nccl_take_call(ls__nccl_group *g, int64_t wait_ms, char *error)
{
    struct timespec end;
    (void)clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += wait_ms / 1000 + 1;
    return pthread_mutex_timedlock(&g->call, &end) == 0
               ? LS_OK
               : ls__nccl_fail(LS_ERR_TIMEOUT, error, "%s has not returned",
                               atomic_load_explicit(&g->calling, memory_order_relaxed));
}

/* Registers it with the communicator, where NCCL has a use for that. */
static ls_status enroll(ls__nccl_group *g, ls__nccl_block *b, size_t bytes, char *error)
{
    ls_status status = ls__nccl_take_call(g, g->timeout_ms, error);
    if (status != LS_OK) {
        return status;
    }
    const ls__nccl_comm comm = atomic_load_explicit(&g->comm, memory_order_acquire);
    status = ls__nccl_settle(g, ls__nccl.enroll(comm, b->memory, bytes, &b->handle),
                             "ncclCommRegister", error);
    pthread_mutex_unlock(&g->call);
    return status;
}

ls_status ls__nccl_alloc(void *group, size_t bytes, void **out, char *error)
{
    ls__nccl_group *g = group;
    ls__nccl_block *b = calloc(1, sizeof *b);
    if (b == NULL) {
        return ls__nccl_fail(LS_ERR_MEMORY, error, "no memory for a block");
    }
    bytes = bytes > 0 ? bytes : 1;
    adopt_context(g);
    ls_status status =
        ls__nccl_check(ls__nccl.alloc(&b->memory, bytes), "ncclMemAlloc", NULL, error);
    if (status != LS_OK) {
        free(b);
        return status;
    }
    status = ls__nccl_zero(g, NULL, b->memory, bytes, error);
    status = status != LS_OK ? status : enroll(g, b, bytes, error);
    if (status != LS_OK) {
        (void)ls__nccl.free(b->memory);
        free(b);
        return status;
    }
    pthread_mutex_lock(&g->lock);
    b->next = g->blocks;
    g->blocks = b;
    pthread_mutex_unlock(&g->lock);
    *out = b->memory;
    return LS_OK;
}

/* Of a dead communicator nothing is left to be told. */
void ls__nccl_dealloc(void *group, void *memory, size_t bytes)
{
    ls__nccl_group *g = group;
    ls__nccl_block *found = NULL;
    (void)bytes;
    pthread_mutex_lock(&g->lock);
    for (ls__nccl_block **at = &g->blocks; *at != NULL && found == NULL; at = &(*at)->next) {
        if ((*at)->memory == memory) {
            found = *at;
            *at = found->next;
            break;
        }
    }
    pthread_mutex_unlock(&g->lock);
    if (found == NULL) {
        return;
    }
    if (!atomic_load_explicit(&g->dead, memory_order_acquire) && found->handle != NULL) {
        char error[LS_BACKEND_ERROR_MAX];
        adopt_context(g);
        if (ls__nccl_take_call(g, 0, error) == LS_OK) {
            (void)ls__nccl.dismiss(atomic_load_explicit(&g->comm, memory_order_acquire),
                                   found->handle);
            pthread_mutex_unlock(&g->call);
        }
    }
    (void)ls__nccl.free(memory);
    free(found);
}

/* The default stream, for a caller without one, waits for the streams of the program. */
ls_status ls__nccl_zero(void *group, ls_stream *stream, void *memory, size_t bytes, char *error)
{
    (void)group;
    const ls_status status = ls__cuda_check(
        ls__cuda.set((ls__cuda_pointer)memory, 0, bytes, (ls__cuda_stream)(void *)stream),
        "cuMemsetD8Async", error);
    return status != LS_OK || stream != NULL
               ? status
               : ls__cuda_check(ls__cuda.stream_synchronize(NULL), "cuStreamSynchronize", error);
}
