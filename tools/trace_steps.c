/* SPDX-License-Identifier: Apache-2.0 */
/* Dividing steps: one walk over the spans of a rank's training thread, in order of time, with a
 * stack of those that are open. Each moment counts for one part, so the parts add up to the
 * step. */
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "tools/trace.h"

#define DEPTH_MAX 256

const char *const trace_part_names[TRACE_PARTS] = {"forward",   "backward", "exposed",
                                                   "optimizer", "loader",   "other"};

typedef struct open_span {
    const trace_span *span;
    trace_part part; /* for which its time counts */
    int operation;   /* the innermost one; -1: none */
} open_span;

typedef struct walk {
    trace *t;
    open_span stack[DEPTH_MAX];
    int depth;
    double cursor_us;
    trace_step *step; /* that is open; NULL: none */
} walk;

/* ---- the training thread -------------------------------------------------------------------- */

static trace_part part_within(trace_part outer, trace_part inner)
{
    if (outer == TRACE_LOADER || outer == TRACE_EXPOSED || inner > TRACE_OTHER) {
        return outer;
    }
    return inner == TRACE_EXPOSED || outer == TRACE_OTHER ? inner : outer;
}

/* Whether the open step counts for the means. */
static bool in_mean(const walk *w)
{
    return w->step != NULL && w->step->number >= w->t->first_counted;
}

static void advance(walk *w, double to_us)
{
    const open_span *top = w->depth > 0 ? &w->stack[w->depth - 1] : NULL;
    const double ms = (to_us - w->cursor_us) * 1e-3;
    if (top != NULL && ms > 0.0 && w->step != NULL) {
        w->step->part[top->part] += ms;
        if (top->operation >= 0 && top->part == TRACE_BACKWARD && in_mean(w)) {
            w->t->operations[top->operation].ms += ms;
        }
    }
    w->cursor_us = to_us > w->cursor_us ? to_us : w->cursor_us;
}

/* Closes the spans that have ended by then. */
static void close_until(walk *w, double us)
{
    while (w->depth > 0 && w->stack[w->depth - 1].span->end_us <= us) {
        const trace_span *span = w->stack[w->depth - 1].span;
        advance(w, span->end_us);
        if (span->part == TRACE_STEP) {
            w->step = NULL;
        }
        w->depth--;
    }
}

static trace_step *new_step(trace *t, const trace_span *span)
{
    trace_step *steps = trace_room(t->steps, t->step_count, &t->step_room, sizeof *steps);
    if (steps == NULL) {
        return NULL;
    }
    t->steps = steps;
    trace_step *step = &t->steps[t->step_count++];
    t->counted += span->number >= t->first_counted;
    *step = (trace_step){.rank = span->rank,
                         .number = span->number,
                         .begin_us = span->begin_us,
                         .end_us = span->end_us,
                         .ms = (span->end_us - span->begin_us) * 1e-3};
    return step;
}

/* A span deeper than the stack counts for the one around it. */
static void push(walk *w, const trace_span *span)
{
    const open_span *outer = w->depth > 0 ? &w->stack[w->depth - 1] : NULL;
    const bool operation = span->part == TRACE_OPERATION;
    if (operation && in_mean(w)) {
        w->t->operations[span->number].calls++;
    }
    if (w->depth < DEPTH_MAX) {
        w->stack[w->depth++] =
            (open_span){.span = span,
                        .part = part_within(outer != NULL ? outer->part : TRACE_OTHER, span->part),
                        .operation = operation       ? span->number
                                     : outer != NULL ? outer->operation
                                                     : -1};
    }
}

/* Of a ring that was full the oldest spans are gone, which are those that ended first: a step that
 * began before the first end that is left may lack some. */
static double first_whole_us(const trace *t, int64_t from, int64_t to)
{
    double first = t->spans[from].end_us;
    for (int64_t i = from; i < to; i++) {
        first = t->spans[i].end_us < first ? t->spans[i].end_us : first;
    }
    return t->ranks[t->spans[from].rank].dropped > 0 ? first : -1.0;
}

/* Divides the steps of a thread, whose spans are spans[from … to). */
static ls_status walk_thread(trace *t, int64_t from, int64_t to)
{
    walk w = {.t = t};
    const double whole_us = first_whole_us(t, from, to);
    for (int64_t i = from; i < to; i++) {
        const trace_span *span = &t->spans[i];
        close_until(&w, span->begin_us);
        advance(&w, span->begin_us);
        if (span->part == TRACE_STEP && span->begin_us >= whole_us) {
            w.step = new_step(t, span);
            if (w.step == NULL) {
                return ls__fail(LS_ERR_MEMORY, "no memory for the steps of the trace");
            }
        }
        push(&w, span);
    }
    close_until(&w, INFINITY);
    return LS_OK;
}

/* ---- the engine ----------------------------------------------------------------------------- */

/* Collectives of a rank, spans[from … to), overlap each other: a moment counts once. `step`: the
 * rank's first step; steps follow each other in time. */
static void add_wire(trace *t, int64_t from, int64_t to, int64_t step)
{
    double covered_us = 0.0;
    for (int64_t i = from; i < to; i++) {
        const trace_span *span = &t->spans[i];
        const double begin = span->begin_us > covered_us ? span->begin_us : covered_us;
        covered_us = span->end_us > covered_us ? span->end_us : covered_us;
        while (step < t->step_count && t->steps[step].end_us <= begin) {
            step++;
        }
        for (int64_t s = step; s < t->step_count && t->steps[s].begin_us < span->end_us; s++) {
            trace_step *at = &t->steps[s];
            const double first = at->begin_us > begin ? at->begin_us : begin;
            const double last = at->end_us < span->end_us ? at->end_us : span->end_us;
            at->wire_ms += last > first ? (last - first) * 1e-3 : 0.0;
        }
    }
}

/* ---- all ------------------------------------------------------------------------------------ */

/* By rank; its threads first, one after the other, then its collectives; by time, the outer span
 * before those within it. */
static int by_place(const void *a, const void *b)
{
    const trace_span *x = a, *y = b;
    const int rank = (x->rank > y->rank) - (x->rank < y->rank);
    const int wire = (x->part == TRACE_WIRE) - (y->part == TRACE_WIRE);
    const int track = x->part == TRACE_WIRE ? 0 : (x->track > y->track) - (x->track < y->track);
    const int begin = (x->begin_us > y->begin_us) - (x->begin_us < y->begin_us);
    const int end = (x->end_us < y->end_us) - (x->end_us > y->end_us);
    return rank != 0 ? rank : wire != 0 ? wire : track != 0 ? track : begin != 0 ? begin : end;
}

/* The end of the spans that belong to the same thread, or to the same rank's engine. */
static int64_t group_end(const trace *t, int64_t from)
{
    const trace_span *first = &t->spans[from];
    int64_t to = from;
    while (to < t->span_count && t->spans[to].rank == first->rank &&
           (t->spans[to].part == TRACE_WIRE) == (first->part == TRACE_WIRE) &&
           (first->part == TRACE_WIRE || t->spans[to].track == first->track)) {
        to++;
    }
    return to;
}

static int by_time(const void *a, const void *b)
{
    const trace_operation *x = a, *y = b;
    return (x->ms < y->ms) - (x->ms > y->ms);
}

/* Step 0 prepares kernels, buckets and the allocator, so it counts only where it is alone. */
static void find_first(trace *t)
{
    t->first_counted = 0;
    for (int64_t i = 0; i < t->span_count && t->first_counted == 0; i++) {
        t->first_counted = t->spans[i].part == TRACE_STEP && t->spans[i].number > 0;
    }
}

ls_status trace_divide(const char *path, trace *t)
{
    int64_t first_step = 0; /* of the rank */
    if (t->span_count > 0) {
        qsort(t->spans, (size_t)t->span_count, sizeof *t->spans, by_place);
    }
    find_first(t);
    for (int64_t from = 0, to; from < t->span_count; from = to) {
        to = group_end(t, from);
        if (from == 0 || t->spans[from].rank != t->spans[from - 1].rank) {
            first_step = t->step_count;
        }
        if (t->spans[from].part == TRACE_WIRE) {
            add_wire(t, from, to, first_step);
        } else {
            LS_TRY(walk_thread(t, from, to));
        }
    }
    qsort(t->operations, (size_t)t->operation_count, sizeof *t->operations, by_time);
    return t->step_count > 0
               ? LS_OK
               : ls__fail(LS_ERR_NOT_FOUND,
                          "%s has no whole step: the job ended before its first ls_optim_step, "
                          "does not call it, or LOCKSTEP_TRACE_EVENTS was too small for one",
                          path);
}
