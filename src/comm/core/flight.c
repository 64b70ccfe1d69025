/* SPDX-License-Identifier: Apache-2.0 */
/* The flight recorder: the last operations of this rank, on the board, where the launcher and peers
 * read them even after the rank has died. It costs a few stores per operation; `state` is stored
 * last, with release, and pairs with the acquire of every reader. */
#include <stdio.h>
#include <string.h>

#include "base/trace.h"
#include "comm/core/flight.h"
#include "comm/core/group.h"

/* The ring of records; a newer operation overwrites the oldest. */
static ls__flight_record *record_of(ls__comm *comm, uint64_t number)
{
    return &comm->me->flight[number % LS__FLIGHT_MAX];
}

/* Readers take these fields only together with `state`, which is released last. */
static void store(_Atomic uint64_t *field, uint64_t value)
{
    atomic_store_explicit(field, value, memory_order_relaxed);
}

/* The same for 32 bits. */
static void store32(_Atomic uint32_t *field, uint32_t value)
{
    atomic_store_explicit(field, value, memory_order_relaxed);
}

/* The record may still be read as that of the operation before: EMPTY invalidates it. */
uint64_t ls__flight_open(ls__comm *comm, const ls_group *group, const ls__descriptor *descriptor,
                         uint64_t queued_ns)
{
    const uint64_t number = atomic_load_explicit(&comm->me->flight_next, memory_order_relaxed);
    ls__flight_record *record = record_of(comm, number);
    atomic_store_explicit(&record->state, LS__FLIGHT_EMPTY, memory_order_relaxed);
    atomic_thread_fence(memory_order_release); /* readers see EMPTY before the new fields */
    store32(&record->fences_passed, 0);
    store(&record->queued_ns, queued_ns);
    store(&record->started_ns, 0);
    store(&record->ended_ns, 0);
    ls__descriptor_copy(&record->descriptor, descriptor);
    memcpy(record->group_name, group->name, sizeof record->group_name);
    atomic_store_explicit(&record->state, LS__FLIGHT_QUEUED, memory_order_release);
    atomic_store_explicit(&comm->me->flight_next, number + 1, memory_order_release);
    return number;
}

/* Whether the work's record has not been written over by LS__FLIGHT_MAX newer ones. */
static bool still_there(const ls__comm *comm, const ls_work *work)
{
    return atomic_load_explicit(&comm->me->flight_next, memory_order_relaxed) - work->flight <
           LS__FLIGHT_MAX;
}

/* Fence 0 is passed, or the message is matched. The work's own record may be overwritten by
 * then. */
void ls__flight_start(ls__comm *comm, const ls_work *work)
{
    if (still_there(comm, work)) {
        ls__flight_record *record = record_of(comm, work->flight);
        store32(&record->fences_passed, 1);
        /* A small operation lasts about as long as reading the clock twice, so its start is not
         * measured. */
        store(&record->started_ns,
              ls__is_one_shot(work) ? work->queued_ns : comm->env->now_ns(comm->env));
        atomic_store_explicit(&record->state, LS__FLIGHT_STARTED, memory_order_release);
    }
}

/* The operation as a span of the trace. A collective begins when all ranks have announced it. */
static void add_span(ls__trace *trace, const ls__flight_record *record, uint64_t flow,
                     uint64_t now_ns)
{
    const ls__descriptor *d = &record->descriptor;
    const ls__operation operation = (ls__operation)d->operation;
    const uint64_t queued = atomic_load_explicit(&record->queued_ns, memory_order_relaxed);
    const uint64_t started = atomic_load_explicit(&record->started_ns, memory_order_relaxed);
    const bool p2p = ls__operation_is_p2p(operation);
    if (!atomic_load_explicit(&trace->on, memory_order_relaxed)) {
        return;
    }
    const uint64_t begin = p2p || started == 0 ? queued : started;
    const ls__trace_span span = {.kind = !p2p                       ? LS__TRACE_WIRE
                                         : operation == LS__OP_SEND ? LS__TRACE_SEND
                                                                    : LS__TRACE_RECV,
                                 .begin_ns = begin,
                                 .end_ns = now_ns > begin ? now_ns : begin,
                                 .flow = flow,
                                 .bytes = (uint64_t)d->count * ls_dtype_size((ls_dtype)d->dtype),
                                 .name = ls__operation_name(operation),
                                 .detail = d->text[0] != '\0' ? d->text : record->group_name};
    ls__trace_add(trace, &span);
}

/* Equal at both ends of a message, and at a bucket and its all-reduce. */
uint64_t ls__flight_flow(const ls_work *work)
{
    const ls_group *group = work->group;
    const uint64_t here = (uint64_t)group->comm->runtime->rank;
    if (!ls__operation_is_p2p(work->operation)) {
        return ls__trace_flow(group->id, work->descriptor.sequence, here);
    }
    if (work->descriptor.root < 0 || work->descriptor.root >= group->size) {
        return 0; /* a receive from any rank that has failed */
    }
    const uint64_t there = (uint64_t)group->member[work->descriptor.root].world_rank;
    const bool sent = work->operation == LS__OP_SEND;
    const uint64_t pair = sent ? here << 32 | there : there << 32 | here;
    return ls__trace_flow(group->id | UINT64_C(1) << 63, pair, work->message.number);
}

/* `now_ns` is the caller's reading of the clock, which its counters use as well. */
void ls__flight_close(ls__comm *comm, const ls_work *work, ls_status status, uint64_t now_ns)
{
    if (still_there(comm, work)) {
        ls__flight_record *record = record_of(comm, work->flight);
        store(&record->ended_ns, now_ns);
        atomic_store_explicit(&record->state, status == LS_OK ? LS__FLIGHT_DONE : LS__FLIGHT_FAILED,
                              memory_order_release);
        if (LS__UNLIKELY(comm->runtime->trace != NULL)) {
            add_span(comm->runtime->trace, record, ls__flight_flow(work), now_ns);
        }
    }
}

/* An inline operation is the only one in flight when it opens and closes its record, so the record
 * cannot be overwritten between. */
void ls__flight_end(ls__comm *comm, uint64_t number, ls_status status, uint64_t now_ns)
{
    ls__flight_record *record = record_of(comm, number);
    store32(&record->fences_passed, status == LS_OK);
    store(&record->started_ns, atomic_load_explicit(&record->queued_ns, memory_order_relaxed));
    store(&record->ended_ns, now_ns);
    atomic_store_explicit(&record->state, status == LS_OK ? LS__FLIGHT_DONE : LS__FLIGHT_FAILED,
                          memory_order_release);
    if (LS__UNLIKELY(comm->runtime->trace != NULL)) {
        add_span(comm->runtime->trace, record, 0, now_ns);
    }
}
