/* SPDX-License-Identifier: Apache-2.0 */
/* What may be received before its turn: of every algorithm, for each receive all steps before it
 * that touch its place, found by walking over all that a step waits for, must be in its `need`, and
 * nothing else. */
#include <stdlib.h>
#include <string.h>

#include "comm/algorithm/registry.h"
#include "sets.h"

static int lane_at(const ls__program *p, int at)
{
    return p->steps[at].lane;
}

/* Marks all steps before `at`, however far. */
static void mark_before(const ls__program *p, int at, bool *marked)
{
    const ls__step *step = &p->steps[at];
    int direct[2] = {-1, -1};
    if (at > p->lane_start[step->lane]) {
        direct[0] = at - 1;
    }
    if (step->wait_lane >= 0) {
        direct[1] = p->lane_start[step->wait_lane] + step->wait_step;
    }
    for (int i = 0; i < 2; i++) {
        if (direct[i] >= 0 && !marked[direct[i]]) {
            marked[direct[i]] = true;
            mark_before(p, direct[i], marked);
        }
    }
}

/* Number of the memory of a ref: INPUT and OUTPUT may be one, a slot of SCRATCH is one. */
static int memory_of(const ls__program *p, ls__ref ref)
{
    if (ref.rank != p->rank) {
        return -1;
    }
    return ref.buffer == LS__BUFFER_SCRATCH ? 1000000 + ref.chunk / p->chunks
           : ref.buffer == LS__BUFFER_STAGE ? 2000000 + ref.chunk
                                            : ref.chunk;
}

static bool uses(const ls__program *p, const ls__step *step, int memory)
{
    bool any = step->kind == LS__STEP_FENCE;
    for (int i = 0; i < step->dst_count; i++) {
        any = any || memory_of(p, p->refs[step->first_dst + i]) == memory;
    }
    for (int i = 0; i < step->src_count; i++) {
        any = any || memory_of(p, p->refs[step->first_src + i]) == memory;
    }
    return any;
}

static void check_step(const ls__program *p, int at)
{
    int want[LS__PROGRAM_LANES_MAX] = {0};
    bool *marked = calloc((size_t)p->step_count, sizeof *marked);
    CHECK(marked != NULL);
    mark_before(p, at, marked);
    const int memory = memory_of(p, p->refs[p->steps[at].first_dst]);
    for (int s = 0; s < p->step_count; s++) {
        const int lane = lane_at(p, s), index = s - p->lane_start[lane];
        if (marked[s] && uses(p, &p->steps[s], memory) && index + 1 > want[lane]) {
            want[lane] = index + 1;
        }
    }
    for (int l = 0; l < p->lanes; l++) {
        CHECK_INT(p->steps[at].need[l], want[l]);
    }
    free(marked);
}

static int check_program(const ls__program *p)
{
    int receives = 0;
    for (int s = 0; s < p->step_count; s++) {
        const int kind = p->steps[s].kind;
        if (kind == LS__STEP_RECV) {
            check_step(p, s);
            receives++;
        }
    }
    return receives;
}

TEST(a_receive_needs_exactly_the_steps_before_it_that_touch_its_place)
{
    static const int sizes[] = {2, 3, 4, 5, 8, 13};
    int count = 0, receives = 0;
    const ls__algorithm *const *algorithms = ls__algorithms(&count);
    for (int a = 0; a < count; a++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            ls__program *programs[RANKS_MAX];
            if ((algorithms[a]->memories & LS__IN_MESSAGES) != 0 &&
                generate(algorithms[a], LS__MEMORY_MESSAGES, sizes[i], 0, programs)) {
                for (int r = 0; r < sizes[i]; r++) {
                    receives += check_program(programs[r]);
                }
                free_all(programs, sizes[i]);
            }
        }
    }
    CHECK(receives > 1000);
}

/* The sums of a direct all-reduce go to slots of their own: all of them at any time. */
TEST(contributions_of_a_direct_all_reduce_may_come_in_any_order)
{
    ls__program *programs[RANKS_MAX];
    int any_time = 0;
    CHECK(generate(find(LS__OP_ALL_REDUCE, "direct"), LS__MEMORY_MESSAGES, 4, 0, programs));
    const ls__program *p = programs[1];
    for (int s = 0; s < p->step_count; s++) {
        bool free_now = p->steps[s].kind == LS__STEP_RECV;
        for (int l = 0; l < p->lanes && free_now; l++) {
            free_now = p->steps[s].need[l] == 0;
        }
        any_time += free_now;
    }
    CHECK_INT(any_time, 3);
    free_all(programs, 4);
}

TEST_MAIN
