/* Receiving from any source: ls_recv with LS_ANY_SOURCE, and the rank that has sent. */
#include "comm/engine/engine.h"
#include "comm/group/group.h"

/* The source is known only after the receive has succeeded. */
int ls_work_source(const ls_work *work)
{
    const bool came = work != NULL && work->operation == LS__OP_RECV &&
                      atomic_load_explicit(&work->status, memory_order_acquire) == LS_OK;
    return came ? work->descriptor.root : LS_ANY_SOURCE;
}

/* The source must be read before the handle is given back. */
ls_status ls_recv_any(ls_group *group, void *buf, int64_t count, ls_dtype dtype, int tag,
                      const ls_collective_options *options, int *source)
{
    ls_work *work = NULL;
    if (source != NULL) {
        *source = LS_ANY_SOURCE;
    }
    LS_TRY(ls__work_may_wait("ls_recv_any"));
    LS_TRY(ls_recv(group, buf, count, dtype, LS_ANY_SOURCE, tag, options, &work));
    ls__engine_wait(group->comm, work, 0);
    if (source != NULL) {
        *source = ls_work_source(work);
    }
    return ls_work_wait(work);
}
