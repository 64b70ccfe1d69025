/* SPDX-License-Identifier: Apache-2.0 */
/* The checker: runs all ranks' programs symbolically and proves what program.h promises.
 *
 * Every (rank, lane) is a thread; its steps run one at a time, in rounds over all threads, until
 * all are done or none can move. One schedule is enough: a step's readiness depends only on streams
 * with one writer and one reader, on fences and on waits, and none of these ever takes a step's
 * readiness away again (a Kahn network with bounded streams), so every schedule ends alike; and
 * races follow from the happened-before order, which is the same in every schedule.
 *
 * Capacity 0 means that a send ends only when its message is taken, as one that is larger than any
 * buffer does.
 *
 * Staged programs run three slices in a row without a pause, STAGE slots taken in turn, so that the
 * reuse of a slot is checked too. Every program runs in place and out of place; out of place the
 * input is read-only. The user's own accesses count: input and output are touched before the first
 * step and after the last one.
 */
#include "base/assert.h"
#include "base/error.h"
#include "comm/program/check_run.h"

/* ---- threads ------------------------------------------------------------------------------ */

/* Whether the step another lane must have completed is complete; takes over its clock. */
static bool wait_is_over(ls__checker *c, ls__check_thread *t, const ls__step *step)
{
    if (step->wait_lane < 0) {
        return true;
    }
    const ls__check_thread *other = &c->thread[t->rank * c->lanes + step->wait_lane];
    if (other->next <= step->wait_step) {
        return false;
    }
    const int at = c->programs[t->rank]->lane_start[step->wait_lane] + step->wait_step;
    ls__check_join(c, t->clock, c->rank[t->rank].done_clock[at]);
    t->published = t->published || other->published;
    return true;
}

/* The clock after a step is kept only if another lane waits for that step. */
static void complete(ls__checker *c, ls__check_thread *t)
{
    LS_ASSERT(t->next < t->count && !t->offered);
    ls__check_rank *rank = &c->rank[t->rank];
    const int at = c->programs[t->rank]->lane_start[t->lane] + t->next;
    if (rank->awaited[at]) {
        rank->done_clock[at] = ls__check_clock_copy(c, t->clock);
    }
    t->next++;
    t->clock[t->index]++;
}

/* Runs a thread as far as possible; true when it moved. */
static bool advance(ls__checker *c, ls__check_thread *t)
{
    bool moved = false;
    while (c->status == LS_OK && !c->model.failed && !c->values.failed && t->next < t->count) {
        const ls__step *step = ls__check_step(c, t);
        const bool was_offered = t->offered;
        if (!was_offered && !wait_is_over(c, t, step)) {
            break;
        }
        if (!ls__check_run_step(c, t)) {
            moved = moved || t->offered != was_offered;
            break;
        }
        complete(c, t);
        moved = true;
    }
    return moved;
}

/* ---- slices ------------------------------------------------------------------------------- */

/* The user may touch its buffers again when the operation has ended. */
static void fail_end_race(ls__checker *c, int r, const char *buffer, int chunk, int other)
{
    (void)ls__check_fail(
        c,
        "race on %s[%d].%d: rank %d (lane %d) may still touch it when rank %d is done (or "
        "touches it before rank %d began)",
        buffer, r, chunk, other / c->lanes, other % c->lanes, r, r);
}

/* The user writes input and output before the first step and after the last one. */
static void touch_as_user(ls__checker *c, int r)
{
    const ls__check_thread *t = &c->thread[r * c->lanes];
    for (int b = 0; b < 2 && c->status == LS_OK; b++) {
        for (int chunk = 0; chunk < c->chunks; chunk++) {
            const ls__ref ref = {(uint8_t)b, (int16_t)r, chunk};
            ls__cell *cell = ls__check_cell(c, ref, 0);
            const int other = ls__cell_write(&c->model, cell, t->index, t->clock);
            if (other >= 0) {
                fail_end_race(c, r, ls__buffer_name((ls__program_buffer)b), chunk, other);
                return;
            }
        }
    }
}

/* All lanes begin after the user's last access. Outputs are undefined, inputs hold this rank's
 * contributions, and each slice has contributions of its own. */
static void begin_slice(ls__checker *c, int r)
{
    ls__check_rank *rank = &c->rank[r];
    LS_ASSERT(rank->slice < c->slices);
    for (int lane = 0; lane < c->lanes; lane++) {
        ls__check_thread *t = &c->thread[r * c->lanes + lane];
        t->next = 0;
        t->published = false;
        t->clock[t->index]++;
    }
    for (int lane = 1; lane < c->lanes; lane++) {
        ls__check_thread *t = &c->thread[r * c->lanes + lane];
        ls__check_join(c, c->thread[r * c->lanes].clock, t->clock);
    }
    touch_as_user(c, r);
    ls__check_thread *first = &c->thread[r * c->lanes];
    rank->start_clock[rank->slice] = first->clock[first->index];
    rank->fences_reached = 0;
    for (int chunk = 0; chunk < c->chunks; chunk++) {
        const ls__ref in = {LS__BUFFER_INPUT, (int16_t)r, chunk};
        const ls__ref out = {LS__BUFFER_OUTPUT, (int16_t)r, chunk};
        ls__check_cell(c, out, 0)->value = 0;
        if (ls__check_ref_exists(c, in)) {
            ls__check_cell(c, in, 0)->value =
                ls__value_leaf(&c->values, r, rank->slice * c->chunks + chunk);
        }
    }
    for (int lane = 1; lane < c->lanes; lane++) {
        ls__check_join(c, c->thread[r * c->lanes + lane].clock, first->clock);
    }
    first->clock[first->index]++;
}

/* Whether rank r, which has completed the barrier, knows that every rank has begun it. */
static void check_barrier(ls__checker *c, int r)
{
    const uint32_t *clock = c->thread[r * c->lanes].clock;
    for (int p = 0; p < c->size; p++) {
        const uint32_t start = c->rank[p].start_clock[c->rank[r].slice];
        if (start == 0 || clock[p * c->lanes] < start) {
            (void)ls__check_fail(c, "rank %d leaves without knowing that rank %d has come", r, p);
            return;
        }
    }
}

/* A rank goes on to the next slice without waiting for the others, as the engine does. */
static void end_slice(ls__checker *c, int r)
{
    ls__check_thread *first = &c->thread[r * c->lanes];
    for (int lane = 1; lane < c->lanes; lane++) {
        ls__check_join(c, first->clock, c->thread[r * c->lanes + lane].clock);
    }
    if (c->operation == LS__OP_BARRIER) {
        check_barrier(c, r);
    } else {
        ls__check_result(c, r);
    }
    if (c->status == LS_OK) {
        touch_as_user(c, r);
    }
    c->rank[r].slice++;
    if (c->status == LS_OK && c->rank[r].slice < c->slices) {
        begin_slice(c, r);
    }
}

/* Whether all lanes of the rank have completed the slice. */
static bool rank_is_done(const ls__checker *c, int r)
{
    for (int lane = 0; lane < c->lanes; lane++) {
        const ls__check_thread *t = &c->thread[r * c->lanes + lane];
        if (t->next < t->count) {
            return false;
        }
    }
    return true;
}

/* Whether anything moved; a rank that is ahead may run all of its slices here. */
static bool advance_rank(ls__checker *c, int r)
{
    bool moved = false;
    ls__check_rank *rank = &c->rank[r];
    while (c->status == LS_OK && rank->slice < c->slices) {
        for (int lane = 0; lane < c->lanes; lane++) {
            moved |= advance(c, &c->thread[r * c->lanes + lane]);
        }
        if (c->status != LS_OK || !rank_is_done(c, r)) {
            break;
        }
        end_slice(c, r);
        moved = true;
    }
    return moved;
}

/* ---- the end ------------------------------------------------------------------------------ */

/* Names the step that cannot run and the reason. */
static void fail_stuck(ls__checker *c, const ls__check_thread *t)
{
    const ls__step *step = ls__check_step(c, t);
    if (step->wait_lane >= 0 &&
        c->thread[t->rank * c->lanes + step->wait_lane].next <= step->wait_step) {
        (void)ls__check_fail_at(c, t, "deadlock: waits for step %d of lane %d", step->wait_step,
                                step->wait_lane);
    } else if (step->kind == LS__STEP_FENCE) {
        const int slice = c->rank[t->rank].slice;
        const bool *reached = c->fence[slice * c->fences + step->fence].reached;
        int missing = 0;
        while (missing < c->size - 1 && reached[missing]) {
            missing++;
        }
        (void)ls__check_fail_at(c, t, "deadlock: fence %d is never reached by rank %d", step->fence,
                                missing);
    } else if (step->kind == LS__STEP_SEND) {
        (void)ls__check_fail_at(c, t, "deadlock: rank %d does not take the message", step->peer);
    } else {
        (void)ls__check_fail_at(c, t, "deadlock: no message comes from rank %d", step->peer);
    }
}

/* Most threads are stuck because of others. The one to report waits for a message to or from a lane
 * that has come to its end; failing that, for anything except another lane of its own rank. */
static int blame(const ls__checker *c, const ls__check_thread *t)
{
    const ls__step *step = ls__check_step(c, t);
    if (step->wait_lane >= 0) {
        return 1;
    }
    if (step->peer < 0) {
        return 2;
    }
    const ls__check_thread *peer = &c->thread[step->peer * c->lanes + t->lane];
    return peer->next >= peer->count ? 3 : 2;
}

/* Called when no thread can move: if one of them has steps left, the programs deadlock. */
static void report_deadlock(ls__checker *c)
{
    const ls__check_thread *stuck = NULL;
    for (int i = 0; i < c->threads; i++) {
        const ls__check_thread *t = &c->thread[i];
        const bool waits = c->rank[t->rank].slice < c->slices && t->next < t->count;
        if (waits && (stuck == NULL || blame(c, t) > blame(c, stuck))) {
            stuck = t;
        }
    }
    if (stuck != NULL) {
        fail_stuck(c, stuck);
    }
}

/* A message that is never received would be taken for the next operation's. */
static void check_streams(ls__checker *c)
{
    for (int from = 0; from < c->size; from++) {
        for (int to = 0; to < c->size; to++) {
            for (int lane = 0; lane < c->lanes; lane++) {
                if (ls__check_stream_of(c, from, to, lane)->count > 0) {
                    (void)ls__check_fail(
                        c, "a message of rank %d to rank %d on lane %d is never received", from, to,
                        lane);
                    return;
                }
            }
        }
    }
}

/* Rounds over all ranks until no thread moves. The result is in c->status. */
void ls__check_run(ls__checker *c)
{
    for (int r = 0; r < c->size; r++) {
        begin_slice(c, r);
    }
    bool moved = true;
    while (moved && c->status == LS_OK && !c->model.failed && !c->values.failed) {
        moved = false;
        for (int r = 0; r < c->size; r++) {
            moved |= advance_rank(c, r);
        }
    }
    if (c->model.failed || c->values.failed) {
        c->status = ls__fail(LS_ERR_MEMORY, "no memory to check a program of %d ranks", c->size);
    }
    if (c->status == LS_OK) {
        report_deadlock(c);
    }
    if (c->status == LS_OK) {
        check_streams(c);
    }
}
