/* SPDX-License-Identifier: Apache-2.0 */
/* Eager receives: messages that may be received before their turn. Steps of a lane are ordered so
 * that programs do not deadlock without buffers, but a message that has arrived need not wait for
 * that order: it may go to its place as soon as every step before it that touches the same place is
 * complete. For each RECV this finds how far each lane must have come (ls__step.need).
 *
 * A step is before another if it stands before it in its lane, or that one waits for it, or both by
 * turns: `before[t][l]` is how many steps of lane l are before step t. Steps that touch the same
 * place are always ordered one way or the other (the checker proves it). INPUT and OUTPUT may be
 * one buffer; peers touch this rank's memory between fences, so a fence touches everything.
 *
 *     lane 0:  copy scratch.0 = input.0 │ send scratch.0        before[recv] = {2, 0}
 *     lane 1:  recv scratch.0 (after lane 0 step 1)             need[recv]   = {2, 0}
 *
 * The receive needs both steps of lane 0, because both use its place. If the send used another
 * chunk, the same search backwards would stop at the copy, and need would be {1, 0}.
 */
#include <string.h>

#include "base/error.h"
#include "base/size.h"
#include "comm/program/program.h"

typedef int32_t before[LS__PROGRAM_LANES_MAX];

/* Element by element, the larger one. */
static void raise_to(before to, const before from)
{
    for (int l = 0; l < LS__PROGRAM_LANES_MAX; l++) {
        to[l] = from[l] > to[l] ? from[l] : to[l];
    }
}

/* Computes the row of one step from the rows of the step before it in its lane and of the step for
 * which it waits; both are known. */
static void find_before(const ls__program *p, before *all, int lane, int index)
{
    const int at = p->lane_start[lane] + index;
    const ls__step *step = &p->steps[at];
    if (index > 0) {
        memcpy(all[at], all[at - 1], sizeof all[at]);
    } else {
        memset(all[at], 0, sizeof all[at]);
    }
    all[at][lane] = index;
    if (step->wait_lane >= 0) {
        raise_to(all[at], all[p->lane_start[step->wait_lane] + step->wait_step]);
        if (all[at][step->wait_lane] < step->wait_step + 1) {
            all[at][step->wait_lane] = step->wait_step + 1;
        }
    }
}

/* Visits steps in an order in which awaited steps come first. Steps that wait for each other in a
 * cycle are skipped; the checker reports them. */
static void find_all(const ls__program *p, before *all)
{
    int done[LS__PROGRAM_LANES_MAX] = {0};
    for (bool moved = true; moved;) {
        moved = false;
        for (int l = 0; l < p->lanes; l++) {
            const int steps = p->lane_start[l + 1] - p->lane_start[l];
            while (done[l] < steps) {
                const ls__step *step = &p->steps[p->lane_start[l] + done[l]];
                if (step->wait_lane >= 0 && done[step->wait_lane] <= step->wait_step) {
                    break;
                }
                find_before(p, all, l, done[l]++);
                moved = true;
            }
        }
    }
}

/* INPUT and OUTPUT may be one buffer, so they count as the same place. Scratch slots are compared
 * as a whole. */
static bool same_place(const ls__program *p, ls__ref a, ls__ref b)
{
    const bool users = a.buffer <= LS__BUFFER_OUTPUT && b.buffer <= LS__BUFFER_OUTPUT;
    if (a.rank != b.rank || (a.buffer != b.buffer && !users)) {
        return false;
    }
    return a.buffer == LS__BUFFER_SCRATCH ? a.chunk / p->chunks == b.chunk / p->chunks
                                          : a.chunk == b.chunk;
}

/* Whether the step reads or writes the place. */
static bool touches(const ls__program *p, const ls__step *step, ls__ref place)
{
    bool any = step->kind == LS__STEP_FENCE;
    for (int i = 0; i < step->dst_count && !any; i++) {
        any = same_place(p, p->refs[step->first_dst + i], place);
    }
    for (int i = 0; i < step->src_count && !any; i++) {
        any = same_place(p, p->refs[step->first_src + i], place);
    }
    return any;
}

/* Skips the last steps of each lane that do not touch the place. */
static void find_need(const ls__program *p, ls__step *step, const before counts)
{
    const ls__ref place = p->refs[step->first_dst];
    for (int l = 0; l < p->lanes; l++) {
        int need = counts[l];
        while (need > 0 && !touches(p, &p->steps[p->lane_start[l] + need - 1], place)) {
            need--;
        }
        step->need[l] = need;
    }
}

/* Called once, when a program is built. Programs without a RECV need no memory for it. */
ls_status ls__program_find_eager_recvs(ls__program *p)
{
    size_t bytes = 0;
    bool any = false;
    for (int i = 0; i < p->step_count; i++) {
        any = any || p->steps[i].kind == LS__STEP_RECV;
    }
    if (!any) {
        return LS_OK;
    }
    before *all =
        ls__bytes_of(p->step_count, sizeof *all, &bytes) ? p->env->allocate(p->env, bytes) : NULL;
    if (all == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory to build a collective's program");
    }
    memset(all, 0, bytes);
    find_all(p, all);
    for (int i = 0; i < p->step_count; i++) {
        if (p->steps[i].kind == LS__STEP_RECV) {
            find_need(p, &p->steps[i], all[i]);
        }
    }
    p->env->release(p->env, all, bytes);
    return LS_OK;
}
