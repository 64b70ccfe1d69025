/* SPDX-License-Identifier: Apache-2.0 */
/* The longest chain of dependent messages through the programs of all ranks. Costs counted from one
 * program assume that all ranks do alike, which trees and rooted operations do not. Here all
 * programs run together, and every value and every message carries the number of messages behind
 * it. */
#include <string.h>

#include "base/assert.h"
#include "comm/program/check.h"

typedef struct stream { /* depths of the messages from one rank to another on one lane */
    int *depth;
    int sent, taken;
} stream;

typedef struct walk {
    ls__program *const *programs;
    int size, deepest;
    ls__arena arena;
    bool failed;
    stream *streams; /* [size * size * LANES_MAX] */
    int **cell;      /* [size][cells of the rank] */
    int *next;       /* [size * LANES_MAX] */
    int *arrived;    /* [size] BARRIER, whose messages are empty: depth of the last arrival */
    ls__message_fn message;
    void *arg;
} walk;

/* The depth of the value in this place. */
static int *cell_of(const walk *w, const ls__program *p, ls__ref ref)
{
    const int at = ref.buffer == LS__BUFFER_SCRATCH ? 3 * p->chunks + ref.chunk / p->chunks
                                                    : ref.buffer * p->chunks + ref.chunk;
    return &w->cell[p->rank][at];
}

/* The stream of one pair of ranks on one lane. */
static stream *stream_of(const walk *w, int from, int to, int lane)
{
    return &w->streams[((size_t)from * (size_t)w->size + (size_t)to) * LS__PROGRAM_LANES_MAX +
                       (size_t)lane];
}

/* A step needs all of its sources. */
static int deepest_source(const walk *w, const ls__program *p, const ls__step *step)
{
    int depth = 0;
    for (int i = 0; i < step->src_count; i++) {
        const int at = *cell_of(w, p, p->refs[step->first_src + i]);
        depth = at > depth ? at : depth;
    }
    return depth;
}

/* Runs a step; false when its message has not arrived. */
static bool visit(walk *w, const ls__program *p, const ls__step *step)
{
    int depth = p->operation == LS__OP_BARRIER ? w->arrived[p->rank] : deepest_source(w, p, step);
    if (step->kind == LS__STEP_SEND) {
        stream *to = stream_of(w, p->rank, step->peer, step->lane);
        LS_ASSERT(to->depth != NULL);
        to->depth[to->sent++] = depth + 1;
        if (w->message != NULL) {
            w->message(w->arg, p, step, depth + 1);
        }
    } else if (step->kind == LS__STEP_RECV) {
        stream *from = stream_of(w, step->peer, p->rank, step->lane);
        if (from->taken == from->sent) {
            return false;
        }
        depth = from->depth[from->taken++];
        w->arrived[p->rank] = depth > w->arrived[p->rank] ? depth : w->arrived[p->rank];
    }
    for (int i = 0; i < step->dst_count; i++) {
        *cell_of(w, p, p->refs[step->first_dst + i]) = depth;
    }
    w->deepest = depth > w->deepest ? depth : w->deepest;
    return true;
}

/* Runs the lanes of a rank as far as possible; whether any moved. */
static bool visit_rank(walk *w, const ls__program *p)
{
    int *next = &w->next[p->rank * LS__PROGRAM_LANES_MAX];
    bool moved = false;
    for (int lane = 0; lane < p->lanes; lane++) {
        const int count = p->lane_start[lane + 1] - p->lane_start[lane];
        while (next[lane] < count) {
            const ls__step *step = &p->steps[p->lane_start[lane] + next[lane]];
            const bool waits = step->wait_lane >= 0 && next[step->wait_lane] <= step->wait_step;
            if (waits || !visit(w, p, step)) {
                break;
            }
            next[lane]++;
            moved = true;
        }
    }
    return moved;
}

/* Zeroed; a failure is recorded and ends the walk. */
static void *take_memory(walk *w, size_t count, size_t bytes)
{
    void *memory = ls__arena_alloc(&w->arena, (count ? count : 1) * bytes);
    w->failed = w->failed || memory == NULL;
    return memory;
}

/* Room for every message of a rank in each of the streams it uses. */
static void set_up_rank(walk *w, const ls__program *p)
{
    w->cell[p->rank] = take_memory(w, (size_t)(3 * p->chunks + p->scratch_slots), sizeof **w->cell);
    for (int s = 0; s < p->step_count && !w->failed; s++) {
        const ls__step *step = &p->steps[s];
        if (step->kind == LS__STEP_SEND) {
            stream *to = stream_of(w, p->rank, step->peer, step->lane);
            const int lane_steps = p->lane_start[step->lane + 1] - p->lane_start[step->lane];
            to->depth =
                to->depth ? to->depth : take_memory(w, (size_t)lane_steps, sizeof *to->depth);
        }
    }
}

/* Whether every lane of every rank has come to its end; otherwise the programs deadlock. */
static bool all_done(const walk *w)
{
    for (int r = 0; r < w->size; r++) {
        for (int lane = 0; lane < LS__PROGRAM_LANES_MAX; lane++) {
            const ls__program *p = w->programs[r];
            if (w->next[r * LS__PROGRAM_LANES_MAX + lane] <
                p->lane_start[lane + 1] - p->lane_start[lane]) {
                return false;
            }
        }
    }
    return true;
}

/* Rounds over all ranks until none moves, as in check.c; -1 also if memory is short. */
int ls__programs_walk(ls__program *const *programs, int size, ls__message_fn message, void *arg)
{
    walk w = {.programs = programs, .size = size, .message = message, .arg = arg};
    const size_t ranks = (size_t)size;
    ls__arena_init(&w.arena, programs[0]->env, (size_t)1 << 16);
    w.streams = take_memory(&w, ranks * ranks * LS__PROGRAM_LANES_MAX, sizeof *w.streams);
    w.cell = take_memory(&w, ranks, sizeof *w.cell);
    w.next = take_memory(&w, ranks * LS__PROGRAM_LANES_MAX, sizeof *w.next);
    w.arrived = take_memory(&w, ranks, sizeof *w.arrived);
    for (int r = 0; r < size && !w.failed; r++) {
        set_up_rank(&w, programs[r]);
    }
    for (bool moved = !w.failed; moved;) {
        moved = false;
        for (int r = 0; r < size; r++) {
            moved |= visit_rank(&w, programs[r]);
        }
    }
    const int steps = !w.failed && all_done(&w) ? w.deepest : -1;
    ls__arena_fini(&w.arena);
    return steps;
}

/* Without a callback. */
int ls__programs_steps(ls__program *const *programs, int size)
{
    return ls__programs_walk(programs, size, NULL, NULL);
}
