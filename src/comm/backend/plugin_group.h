/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a group whose data a plug-in moves. The group keeps its control blocks, its numbers,
 * its descriptors and its failures; only the phase RUN of an operation (exec.c) is the plug-in's.
 *
 *     ls__plugin_attach   open ▸ all_gather of addresses (native) ▸ connect … ▸ agreement (native)
 *     ls__plugin_start    when all members have announced the same operation
 *     ls__plugin_test     at every turn of the engine, at least every poll_us
 *
 * A backend with streams is given the next operation while the one before runs, since the device
 * keeps their order: so the host does not wait for it between the buckets of a backward.
 *
 * Calls into a plug-in are made by the holder of the progress lock, one at a time. */
#ifndef LS_COMM_BACKEND_PLUGIN_GROUP_H
#define LS_COMM_BACKEND_PLUGIN_GROUP_H

#include "comm/backend/plugin.h"
#include "comm/core/group.h"

typedef struct ls__plugin_group {
    ls__plugin *plugin;
    void *group;     /* the plug-in's own; NULL: not opened */
    int flying;      /* progress: collectives that were started and have not ended, the first of the
                        group's queue; at most one without streams */
    ls__list blocks; /* lock: registered memory, ls__plugin_block */
} ls__plugin_group;

/* The name of the group's backend. */
const char *ls__backend_name(const ls_group *group);

/* Frees the part of a group, and closes what the plug-in has of it. */
void ls__plugin_part_free(ls_group *group, ls__plugin_group *part, bool failed);
void ls__plugin_close(ls_group *group); /* progress lock; local */
/* When the runtime closes, and no transport uses them any more. */
void ls__plugins_unload(ls__comm *comm, bool failed);
/* The runtime's plug-in of this name or path, loaded at its first use. Called by the thread that
 * makes groups, or in ls_init. */
ls_status ls__plugin_of(ls__comm *comm, const char *asked, ls__plugin **out);

/* Whether the plug-in of the group moves the operation's data: not that of a barrier, and not what
 * the library exchanges for itself, which is control. */
static inline bool ls__plugin_carries(const ls_group *group, ls__operation operation, bool control)
{
    return group->plugin != NULL && operation != LS__OP_BARRIER && !control;
}

/* The sum in a plug-in has the integers' own type and may overflow, so their averages stay here. */
static inline bool ls__plugin_carries_work(const ls_group *group, const ls_work *work)
{
    return work->plugin.replay ||
           (ls__plugin_carries(group, work->operation, work->plugin.control) &&
            !(work->divisor != 0 && ls__reduce_widens(work->dtype)));
}

/* progress lock; proposes a failure of the plug-in as the group's cause (ls__group_cause). */
void ls__plugin_cause(ls_group *group, ls_status status, const char *text);
/* progress lock; errors are those of the operation, with the text set. */
ls_status ls__plugin_start(ls_group *group, ls_work *work);
ls_status ls__plugin_test(ls_group *group, ls_work *work);
ls_status ls__plugin_test_message(ls_work *work);
/* progress lock; the group has failed: ends all requests, or leaves their buffers to the
 * plug-in. */
void ls__plugin_reset(ls_group *group);
/* " … waits for rank 2"; appended to a report of an operation that all ranks have called. */
void ls__plugin_awaited(const ls_group *group, const ls_work *work, char *out, size_t bytes);

/* plugin_messages.c; progress lock. The bytes of a send or receive that has been matched: whether
 * they were handed to the plug-in (else the group has failed). */
bool ls__plugin_message(ls_work *work);
/* Tests those in flight, calls `ended` for each that has its bytes; whether there was one. */
bool ls__plugin_messages(ls_group *group, void (*ended)(ls_work *work));

/* ---- streams and memory of devices --------------------------------------------------------- */

/* Whether the library may read and write the group's buffers. */
static inline bool ls__group_on_host(const ls_group *group)
{
    return (group->can->memory & LS_BACKEND_HOST) != 0;
}

static inline bool ls__group_has_streams(const ls_group *group)
{
    return (group->can->flags & LS_BACKEND_STREAMS) != 0;
}

/* Whether the plug-in multiplies and divides, and not the library. */
static inline bool ls__group_scales(const ls_group *group)
{
    return group->plugin != NULL && (group->can->flags & LS_BACKEND_SCALES) != 0;
}

/* Adds to *place (NULL: a new one) that an operation waits for what is in the stream now. */
ls_status ls__group_mark(ls_group *group, ls_stream *stream, void **place);
void ls__group_unmark(ls_group *group, void *place); /* NULL is allowed */
/* Whether operations of the group can be captured with the work of a stream. */
bool ls__group_records(const ls_group *group);
/* Puts an all_reduce in place into the capture of the stream, after `place`, which it takes, and
 * before what the stream gets next. `divisor` 0: none. */
ls_status ls__group_record(ls_group *group, const ls__collective *args, double divisor,
                           ls_stream *stream);
/* progress lock; LS_IN_PROGRESS: the device has not been given the operation yet. */
ls_status ls__plugin_follow(ls_work *work, ls_stream *stream);
/* Zeroes memory of ls__group_buffers in the order of the stream. */
ls_status ls__group_zero(ls_group *group, ls_stream *stream, void *memory, size_t bytes);

/* Memory that the library itself writes: registered if the backend has that on the host, else of
 * the heap. ls_group_dealloc frees both. */
ls_status ls__group_memory(ls_group *group, size_t bytes, void **out);
/* Memory for buffers of the group's operations, which is the device's where the backend's is. */
ls_status ls__group_buffers(ls_group *group, size_t bytes, void **out);
/* The bytes are undefined from now on; whole pages of the heap are given back to the system until
 * they are written again. No operation may use them. */
void ls__group_discard(ls_group *group, void *memory, size_t bytes);
/* Frees a block of the plug-in's memory; false: it is not one. */
bool ls__plugin_dealloc(ls_group *group, void *memory);

/* promise.c: refuses in words what the group's backend does not promise. */
ls_status ls__promise_check(const char *what, const ls_group *group, const ls__collective *args,
                            const ls_collective_options *options);
ls_status ls__promise_abort(const char *what, const ls_group *group);
ls_status ls__promise_memory(const ls_group *group);
ls_status ls__promise_streams(const char *what, const ls_group *group);
/* For functions that read or write buffers themselves. */
ls_status ls__promise_host(const char *what, const ls_group *group);
/* Whether an operation may use this memory, as far as the backend can tell. */
bool ls__group_reaches(const ls_group *group, const void *memory);

/* When the thread that holds the progress lock must look again; `end_ns` if nothing is in
 * flight. */
static inline uint64_t ls__plugin_poll_end(const ls__comm *comm, uint64_t end_ns)
{
    const uint64_t poll_ns = atomic_load_explicit(&comm->plugins.poll_ns, memory_order_relaxed);
    if (poll_ns == 0 || atomic_load_explicit(&comm->plugins.requests, memory_order_relaxed) == 0) {
        return end_ns;
    }
    const uint64_t poll_end = comm->env->now_ns(comm->env) + poll_ns;
    return poll_end < end_ns ? poll_end : end_ns;
}

#endif
