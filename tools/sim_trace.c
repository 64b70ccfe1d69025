/* SPDX-License-Identifier: Apache-2.0 */
/* The timeline of a simulated step as a trace: the spans that a rank would record, in its form
 * (base/trace.h), which src/trace writes as it writes those of a job. */
#include "tools/sim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env_posix.h"
#include "base/error.h"
#include "trace/file.h"

typedef struct rank_spans {
    ls__trace_head head;
    ls__trace_event *events;
    const ls__trace_event **order; /* by time */
    int count, room;
} rank_spans;

typedef struct writing {
    const ls__sim_job *job;
    const ls__sim_step *step;
    rank_spans *ranks; /* [pp] */
} writing;

static uint64_t ns_of(double seconds)
{
    return (uint64_t)llround(seconds * 1e9);
}

static void add(rank_spans *r, ls__trace_kind kind, double begin, double end, uint64_t bytes,
                uint64_t flow, const char *name, const char *detail)
{
    if (r->count == r->room) {
        return; /* `room` counts all of them */
    }
    ls__trace_event *e = &r->events[r->count++];
    *e = (ls__trace_event){.begin_ns = ns_of(begin),
                           .end_ns = ns_of(end),
                           .flow = flow,
                           .bytes = bytes,
                           .kind = (uint16_t)kind,
                           .thread = kind < LS__TRACE_BUCKET};
    const size_t length = strlen(name) + 1;
    memcpy(e->text, name, length);
    memcpy(e->text + length, detail, strnlen(detail, sizeof e->text - length - 1));
}

/* Computations of a rank, and its waits between them. */
static void add_computations(const writing *w, int rank)
{
    rank_spans *r = &w->ranks[rank];
    const ls__actions *list = &w->step->schedule->rank[rank];
    char detail[LS__TRACE_TEXT];
    double free = 0.0;
    for (int i = 0; i < list->count; i++) {
        const ls__action *a = &list->list[i];
        const double begin = w->step->result.begin[rank][i], end = w->step->result.end[rank][i];
        if (a->kind > LS__WEIGHT_PART) {
            continue;
        }
        (void)snprintf(detail, sizeof detail, "stage %d, micro-batch %d", a->stage, a->micro_batch);
        if (begin > free) {
            add(r, LS__TRACE_EXPOSED, free, begin, 0, 0, "wait", detail);
        }
        add(r,
            a->kind == LS__FORWARD     ? LS__TRACE_FORWARD
            : a->kind == LS__RECOMPUTE ? LS__TRACE_RECOMPUTE
                                       : LS__TRACE_BACKWARD,
            begin, end, 0, 0,
            a->kind == LS__FORWARD       ? "forward"
            : a->kind == LS__RECOMPUTE   ? "recompute"
            : a->kind == LS__WEIGHT_PART ? "weight part"
            : a->kind == LS__INPUT_PART  ? "input part"
                                         : "backward",
            detail);
        free = end;
    }
    const bool flushes = w->step->schedule->delay == 0; /* else steps are part of backwards */
    const double summed = fmax(w->step->result.makespan, w->step->result.reduced);
    const double stepped = summed + (flushes ? w->step->optimizer : 0.0);
    const double gathered = stepped + w->step->gather;
    if (summed > free) {
        add(r, LS__TRACE_EXPOSED, free, summed, 0, 0, "wait for buckets", "");
    }
    if (stepped > summed) {
        add(r, LS__TRACE_OPTIMIZER, summed, stepped, 0, 0, "adamw", "");
    }
    if (w->step->gather > 0.0) {
        add(r, LS__TRACE_EXPOSED, stepped, gathered, 0, 0, "gather parameters", "");
    }
    add(r, LS__TRACE_STEP, 0.0, gathered, 0, 0, "step", "");
}

static void add_travels(const writing *w)
{
    char detail[LS__TRACE_TEXT];
    const ls__schedule *s = w->step->schedule;
    for (int i = 0; i < w->step->result.span_count; i++) {
        const ls__sim_span *span = &w->step->result.spans[i];
        if (span->kind == LS__SIM_REDUCTION) {
            (void)snprintf(detail, sizeof detail, "stage %d", span->stage);
            add(&w->ranks[s->rank_of[span->stage]], LS__TRACE_BUCKET, span->begin, span->end,
                (uint64_t)w->step->reductions[span->micro_batch].route.bytes, 0, "bucket", detail);
            continue;
        }
        const bool forward = span->kind == LS__SIM_ACTIVATION;
        const int to = s->rank_of[span->stage + (forward ? 1 : -1)];
        const uint64_t flow = ls__trace_flow((uint64_t)span->kind + 1, (uint64_t)span->stage,
                                             (uint64_t)span->micro_batch);
        (void)snprintf(detail, sizeof detail, "micro-batch %d", span->micro_batch);
        const char *name = forward ? "activation" : "gradient";
        add(&w->ranks[s->rank_of[span->stage]], LS__TRACE_SEND, span->begin, span->end, 0, flow,
            name, detail);
        add(&w->ranks[to], LS__TRACE_RECV, span->begin, span->end, 0, flow, name, detail);
    }
}

static int by_time(const void *a, const void *b)
{
    const ls__trace_event *x = *(const ls__trace_event *const *)a;
    const ls__trace_event *y = *(const ls__trace_event *const *)b;
    if (x->begin_ns != y->begin_ns) {
        return x->begin_ns < y->begin_ns ? -1 : 1;
    }
    if (x->end_ns != y->end_ns) {
        return x->end_ns > y->end_ns ? -1 : 1;
    }
    return x->kind != y->kind ? (x->kind > y->kind) - (x->kind < y->kind) : (x > y) - (x < y);
}

static bool allocate(writing *w, int rank)
{
    rank_spans *r = &w->ranks[rank];
    r->room = 2 * w->step->schedule->rank[rank].count + 4;
    for (int i = 0; i < w->step->result.span_count; i++) {
        const ls__sim_span *span = &w->step->result.spans[i];
        const int user = span->stage + (span->kind == LS__SIM_ACTIVATION ? 1
                                        : span->kind == LS__SIM_GRADIENT ? -1
                                                                         : 0);
        r->room += w->step->schedule->rank_of[span->stage] == rank;
        r->room += user != span->stage && w->step->schedule->rank_of[user] == rank;
    }
    r->events = calloc((size_t)r->room, sizeof *r->events);
    r->order = calloc((size_t)r->room, sizeof *r->order);
    return r->events != NULL && r->order != NULL;
}

static void sort(const writing *w, int rank, ls__trace_part *parts)
{
    rank_spans *r = &w->ranks[rank];
    const int host = rank * w->job->pp.stride / w->job->cluster.level[0].count;
    for (int i = 0; i < r->count; i++) {
        r->order[i] = &r->events[i];
    }
    qsort((void *)r->order, (size_t)r->count, sizeof *r->order, by_time);
    r->head = (ls__trace_head){.rank = rank, .node = host};
    atomic_store_explicit(&r->head.left, 1, memory_order_relaxed);
    (void)snprintf(r->head.host, sizeof r->head.host, "host %d", host);
    parts[rank] = (ls__trace_part){.head = &r->head, .events = r->order, .count = r->count};
}

static ls_status no_memory(void)
{
    return ls__fail(LS_ERR_MEMORY, "trace: no memory for its spans");
}

static ls_status write_all(writing *w, ls__trace_part *parts, const char *path)
{
    for (int r = 0; r < w->job->pp.size; r++) {
        if (!allocate(w, r)) {
            return no_memory();
        }
        add_computations(w, r);
    }
    add_travels(w);
    for (int r = 0; r < w->job->pp.size; r++) {
        sort(w, r, parts);
    }
    return ls__trace_write(ls__env_posix(), parts, w->job->pp.size, path);
}

ls_status sim_write_trace(const ls__sim_job *job, const ls__sim_step *step, const char *path)
{
    writing w = {job, step, calloc((size_t)job->pp.size, sizeof *w.ranks)};
    ls__trace_part *parts = calloc((size_t)job->pp.size, sizeof *parts);
    const ls_status status =
        w.ranks != NULL && parts != NULL ? write_all(&w, parts, path) : no_memory();
    for (int r = 0; w.ranks != NULL && r < job->pp.size; r++) {
        free(w.ranks[r].events);
        free((void *)w.ranks[r].order);
    }
    free(w.ranks);
    free(parts);
    return status;
}
