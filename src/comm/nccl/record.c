/* SPDX-License-Identifier: Apache-2.0 */
/* An operation in a step that is captured (lockstep/captured.h). The group's stream joins the
 * capture at the marks after which the operation begins, and the program's stream waits for its
 * end:
 *
 *     program's stream   ── kernels ── mark ── kernels ───────────── kernels ──
 *     group's stream                     └──── ncclAllReduce ──┘
 *
 * The thread that captures calls NCCL itself, as a capture is that of its thread; the driver
 * meanwhile starts nothing in the group's stream. A graph with operations of a communicator must be
 * freed before it: NCCL ends no communicator that a graph still uses, whether it is aborted or
 * not. */
#include "comm/nccl/plugin.h"

static ls_status wait_for_marks(const ls__nccl_group *g, const ls__nccl_mark *first, char *error)
{
    ls_status status = LS_OK;
    for (const ls__nccl_mark *m = first; m != NULL && status == LS_OK; m = m->next) {
        status = ls__cuda_check(ls__cuda.stream_wait(g->stream, m->event, 0), "cuStreamWaitEvent",
                                error);
    }
    return status;
}

/* What is put into the program's stream from now on comes after the group's. */
static ls_status join(const ls__nccl_group *g, ls__cuda_stream program, char *error)
{
    ls__cuda_event end = NULL;
    ls_status status = ls__cuda_check(ls__cuda.event_create(&end, LS__CUDA_EVENT_NO_TIMING),
                                      "cuEventCreate", error);
    if (status != LS_OK) {
        return status;
    }
    status = ls__cuda_check(ls__cuda.event_record(end, g->stream), "cuEventRecord", error);
    status = status != LS_OK ? status
                             : ls__cuda_check(ls__cuda.stream_wait(program, end, 0),
                                              "cuStreamWaitEvent", error);
    (void)ls__cuda.event_destroy(end);
    return status;
}

ls_status ls__nccl_record(void *group, const ls_backend_operation *o, ls_stream *stream,
                          char *error)
{
    ls__nccl_group *g = group;
    ls__nccl_mark *marks = o->after;
    ls_status status = ls__nccl_take_call(g, g->timeout_ms, error);
    if (status != LS_OK) {
        ls__nccl_give_marks(g, marks);
        return status;
    }
    status = atomic_load_explicit(&g->dead, memory_order_acquire) ? ls__nccl_fail_dead(error)
                                                                  : wait_for_marks(g, marks, error);
    atomic_store_explicit(&g->recorded, true, memory_order_relaxed);
    status = status != LS_OK ? status : ls__nccl_launch(g, o, error);
    status = status != LS_OK ? status : join(g, (ls__cuda_stream)(void *)stream, error);
    pthread_mutex_unlock(&g->call);
    ls__nccl_give_marks(g, marks);
    return status;
}
