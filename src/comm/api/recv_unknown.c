/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving what is not known before: from any source, and of any length. */
#include "comm/api/collective.h"
#include "comm/api/control.h"
#include "comm/core/group.h"
#include "comm/engine/engine.h"

/* Source and count are known only after the receive has succeeded. */
static bool has_received(const ls_work *work)
{
    return work != NULL && work->operation == LS__OP_RECV &&
           atomic_load_explicit(&work->status, memory_order_acquire) == LS_OK;
}

int ls_work_source(const ls_work *work)
{
    return has_received(work) ? work->descriptor.root : LS_ANY_SOURCE;
}

int64_t ls_work_count(const ls_work *work)
{
    return has_received(work) ? work->count : -1;
}

ls_status ls_recv_up_to(ls_group *group, void *buf, int64_t count, ls_dtype dtype, int peer,
                        int tag, const ls_collective_options *options, ls_work **work)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_RECV,
                                                  .output = buf,
                                                  .count = count,
                                                  .up_to = true,
                                                  .dtype = dtype,
                                                  .root = peer,
                                                  .tag = tag,
                                                  .options = options},
                                work);
}

ls_status ls__serve_recv(ls_group *group, void *bytes, size_t count, int peer, int tag,
                         const ls_collective_options *options, ls_work **work)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_RECV,
                                                  .output = bytes,
                                                  .count = (int64_t)count,
                                                  .dtype = LS_UINT8,
                                                  .root = peer,
                                                  .tag = tag,
                                                  .idle = true,
                                                  .options = options},
                                work);
}

/* The source must be read before the handle is given back. */
static ls_status wait_for_source(const ls_group *group, ls_work *work, int *source)
{
    ls__engine_wait(group->comm, work, 0);
    if (source != NULL) {
        *source = ls_work_source(work);
    }
    return ls_work_wait(work);
}

ls_status ls_recv_any(ls_group *group, void *buf, int64_t count, ls_dtype dtype, int tag,
                      const ls_collective_options *options, int *source)
{
    ls_work *work = NULL;
    if (source != NULL) {
        *source = LS_ANY_SOURCE;
    }
    LS_TRY(ls__work_may_wait("ls_recv_any"));
    LS_TRY(ls_recv(group, buf, count, dtype, LS_ANY_SOURCE, tag, options, &work));
    return wait_for_source(group, work, source);
}

ls_status ls__serve_recv_any(ls_group *group, void *bytes, size_t count, int tag,
                             const ls_collective_options *options, int *source)
{
    ls_work *work = NULL;
    LS_TRY(ls__work_may_wait("ls_server_run"));
    LS_TRY(ls__serve_recv(group, bytes, count, LS_ANY_SOURCE, tag, options, &work));
    return wait_for_source(group, work, source);
}
