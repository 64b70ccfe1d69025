/* SPDX-License-Identifier: Apache-2.0 */
/* A team climbs the canonical tree over its members together, each with whole buffers;
 * all_reduce_doubling.c draws it. */
#include "comm/algorithm/algorithm.h"

typedef struct climb {
    ls__builder *b;
    const ls__team *team;
    ls__ref sum, other; /* SCRATCH: mine, the peer's */
    int last;           /* of lane 0 */
} climb;

/* The lower one sends on lane 0, the higher on lane 1, so both flow at once. */
static void emit_exchange(climb *c, int place)
{
    ls__builder *b = c->b;
    const bool lower = c->team->place < place;
    const int peer = c->team->rank[place];
    int second = 0;
    if (lower) {
        (void)ls__builder_send(b, 0, c->sum, peer);
        second = ls__builder_recv(b, 1, c->other, peer);
    } else {
        (void)ls__builder_recv(b, 0, c->other, peer);
        second = ls__builder_send(b, 1, c->sum, peer);
    }
    ls__builder_after(b, 1, 0, c->last);
    const ls__ref left = lower ? c->sum : c->other, right = lower ? c->other : c->sum;
    c->last = ls__builder_reduce(b, 0, &c->sum, 1, (ls__ref[]){left, right}, 2);
    ls__builder_after(b, 0, 1, second);
}

/* Of the places first … first+count-1 the first `have` hand the sum to the others. */
static void emit_spread(climb *c, int first, int have, int count)
{
    const int i = c->team->place - first;
    for (; have < count; have *= 2) {
        if (i < have && i + have < count) {
            c->last = ls__builder_send(c->b, 0, c->sum, c->team->rank[first + i + have]);
        } else if (i >= have && i < 2 * have) {
            c->last = ls__builder_recv(c->b, 0, c->sum, c->team->rank[first + i - have]);
        }
    }
}

static void emit_level(climb *c, int d)
{
    const int n = c->team->size, me = c->team->place;
    const int first = me - me % (2 * d), middle = first + d;
    if (middle >= n) {
        return; /* this subtree has no right half */
    }
    const int right = n - middle < d ? n - middle : d;
    const int i = me < middle ? me - first : me - middle;
    if (i < right) {
        emit_exchange(c, me < middle ? middle + i : first + i);
    }
    if (me < middle) {
        emit_spread(c, first, right, d);
    }
}

void ls__emit_climb(ls__builder *b, const ls__program_spec *spec, const ls__team *team, int last)
{
    climb c = {b, team, ls__ref_scratch(spec, 1, 0, 0), ls__ref_scratch(spec, 1, 1, 0), last};
    for (int d = 1; d < team->size; d *= 2) {
        emit_level(&c, d);
    }
}
