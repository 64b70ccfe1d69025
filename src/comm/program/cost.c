/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of a program, counted from its steps.
 *
 * Bytes: every chunk is 1/chunks of the buffer; an empty message of a barrier counts as a step
 * only. Steps: the longest chain of steps that move data between ranks, each of which needs what
 * the one before it produced. Within a rank this follows from the chunks: a step depends on the
 * steps that wrote its sources. Across ranks one program does not show it, but algorithms are
 * symmetric: the k-th message that arrives was sent by a step like our own k-th send, so it is as
 * deep as that. The sources of a PEER_ step are as deep as anything before the last fence.
 */
#include <string.h>

#include "comm/program/check.h"

typedef struct depths {
    const ls__program *program;
    ls__arena arena;
    int *written; /* per cell: depth of its value */
    int cells;
    int *sent; /* depth of the k-th send */
    int sends, receives;
    int deepest, fenced; /* of all steps so far; of those before the last fence */
} depths;

/* Three user-visible buffers chunk by chunk, then one cell per scratch slot. */
static int *cell_of(depths *d, ls__ref ref)
{
    const ls__program *p = d->program;
    if (ref.buffer == LS__BUFFER_SCRATCH) {
        return &d->written[3 * p->chunks + ref.chunk / p->chunks];
    }
    return &d->written[ref.buffer * p->chunks + ref.chunk];
}

/* A peer's value from before the last fence counts as deep as the deepest step before that
 * fence. */
static int depth_of_sources(depths *d, const ls__step *step)
{
    int depth = 0;
    for (int i = 0; i < step->src_count; i++) {
        const ls__ref ref = d->program->refs[step->first_src + i];
        const int at = ref.rank == d->program->rank ? *cell_of(d, ref) : d->fenced;
        depth = at > depth ? at : depth;
    }
    return depth;
}

/* Records the depth of the written values; only this rank's cells are known. */
static void store(depths *d, const ls__step *step, int depth)
{
    for (int i = 0; i < step->dst_count; i++) {
        const ls__ref ref = d->program->refs[step->first_dst + i];
        if (ref.rank == d->program->rank) {
            *cell_of(d, ref) = depth;
        }
    }
    d->deepest = depth > d->deepest ? depth : d->deepest;
}

/* The k-th message that arrives is as deep as this rank's k-th send: algorithms are symmetric. */
static int depth_of_recv(depths *d)
{
    const int k = d->receives++;
    return k < d->sends ? d->sent[k] : 1;
}

/* Visits one step; its sources have their depths already. */
static void visit(depths *d, const ls__step *step)
{
    switch ((ls__step_kind)step->kind) {
    case LS__STEP_SEND:
        d->sent[d->sends] = depth_of_sources(d, step) + 1;
        store(d, step, d->sent[d->sends++]);
        break;
    case LS__STEP_RECV:
        store(d, step, depth_of_recv(d));
        break;
    case LS__STEP_PEER_COPY:
    case LS__STEP_PEER_REDUCE:
        store(d, step, depth_of_sources(d, step) + 1);
        break;
    case LS__STEP_FENCE:
        d->fenced = d->deepest;
        break;
    case LS__STEP_COPY:
    case LS__STEP_REDUCE:
    default:
        store(d, step, depth_of_sources(d, step));
        break;
    }
}

/* Whether this receive has no counterpart among the sends visited so far; another lane may still
 * send it. */
static bool is_unmatched(const depths *d, const ls__step *step)
{
    return step->kind == LS__STEP_RECV && d->receives >= d->sends;
}

/* Visits every lane as far as possible; whether any moved. With `in_order` a receive waits until
 * its counterpart is sent; without, one step is visited. */
static bool visit_lanes(depths *d, int *next, bool in_order)
{
    const ls__program *p = d->program;
    bool moved = false;
    for (int lane = 0; lane < p->lanes; lane++) {
        const int count = p->lane_start[lane + 1] - p->lane_start[lane];
        while (next[lane] < count) {
            const ls__step *step = &p->steps[p->lane_start[lane] + next[lane]];
            if ((step->wait_lane >= 0 && next[step->wait_lane] <= step->wait_step) ||
                (in_order && is_unmatched(d, step))) {
                break;
            }
            visit(d, step);
            next[lane]++;
            moved = true;
            if (!in_order) {
                return true;
            }
        }
    }
    return moved;
}

/* Visits all steps in an order that respects lanes and waits. Where no lane can move in order, one
 * step is visited out of order. */
static void visit_all(depths *d)
{
    int next[LS__PROGRAM_LANES_MAX] = {0};
    while (visit_lanes(d, next, true) || visit_lanes(d, next, false)) {
    }
}

/* Writes to peers count as sent, reads from peers as received. */
static void count_bytes(const ls__program *p, ls__program_cost *out)
{
    const double chunk = p->operation == LS__OP_BARRIER ? 0.0 : 1.0 / p->chunks;
    for (int s = 0; s < p->step_count; s++) {
        const ls__step *step = &p->steps[s];
        if (step->kind == LS__STEP_SEND) {
            const bool wide = p->wide && p->refs[step->first_src].buffer == LS__BUFFER_SCRATCH;
            out->sent += chunk;
            out->wide += wide ? chunk : 0.0;
        }
        out->received += step->kind == LS__STEP_RECV ? chunk : 0.0;
        for (int i = 0; i < step->src_count; i++) {
            out->received += p->refs[step->first_src + i].rank != p->rank ? chunk : 0.0;
        }
        for (int i = 0; i < step->dst_count; i++) {
            out->sent += p->refs[step->first_dst + i].rank != p->rank ? chunk : 0.0;
        }
    }
}

/* Without memory the steps are 0. */
void ls__program_cost_count(const ls__program *program, ls__program_cost *out)
{
    *out = (ls__program_cost){0};
    count_bytes(program, out);
    depths d = {.program = program};
    ls__arena_init(&d.arena, program->env, (size_t)1 << 14);
    d.cells = 3 * program->chunks + program->scratch_slots;
    d.written = ls__arena_alloc(&d.arena, (size_t)d.cells * sizeof *d.written);
    d.sent = ls__arena_alloc(&d.arena, ((size_t)program->step_count + 1) * sizeof *d.sent);
    if (d.written != NULL && d.sent != NULL) {
        visit_all(&d);
        out->steps = d.deepest;
    }
    ls__arena_fini(&d.arena);
}
