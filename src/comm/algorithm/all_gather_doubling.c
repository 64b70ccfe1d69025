/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather "recursive_doubling": ranks a distance d apart exchange all the blocks they have, for
 * d = 1, 2, 4 … If the number of ranks is not a power of two, the ranks of a left half that have
 * no partner receive the blocks from those that have one.
 *
 * Cost a rank, for a power of two: n-1 blocks sent and received, the bound, in log2 n dependent
 * steps; otherwise up to twice the steps. Thakur, Rabenseifner & Gropp 2005, section 3.1.
 */
#include "comm/algorithm/algorithm.h"

typedef struct climb {
    ls__builder *b;
    const ls__program_spec *spec;
    ls__made made[LS__PROGRAM_RANKS_MAX]; /* [block] */
} climb;

static ls__ref block_of(const climb *c, int block)
{
    return ls__ref_of(LS__BUFFER_OUTPUT, c->spec->rank, block);
}

/* Sends blocks first to end-1, each when it is here. */
static void emit_send(climb *c, int lane, int peer, int first, int end)
{
    for (int k = first; k < end; k++) {
        (void)ls__builder_send(c->b, lane, block_of(c, k), peer);
        if (c->made[k].lane != lane) {
            ls__builder_after(c->b, lane, c->made[k].lane, c->made[k].step);
        }
    }
}

/* Receives blocks first to end-1. */
static void emit_recv(climb *c, int lane, int peer, int first, int end)
{
    for (int k = first; k < end; k++) {
        c->made[k] = (ls__made){lane, ls__builder_recv(c->b, lane, block_of(c, k), peer)};
    }
}

/* To the right on lane 0, to the left on lane 1. */
static void emit_level(climb *c, int d)
{
    const int n = c->spec->size, me = c->spec->rank;
    const int first = me - me % (2 * d), middle = first + d;
    const int end = middle + d < n ? middle + d : n, right = end - middle;
    if (middle >= n) {
        return;
    }
    if (me >= middle) {
        const int peer = me - d;
        emit_recv(c, 0, peer, first, middle);
        emit_send(c, 1, peer, middle, end);
        return;
    }
    const int i = me - first;
    if (i < right) {
        emit_send(c, 0, me + d, first, middle);
        emit_recv(c, 1, me + d, middle, end);
    }
    for (int have = right; have < d; have *= 2) {
        if (i < have && i + have < d) {
            emit_send(c, 2, me + have, middle, end);
        } else if (i >= have && i < 2 * have) {
            emit_recv(c, 2, me - have, middle, end);
        }
    }
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "recursive_doubling"));
    const int me = spec->rank;
    climb c = {.b = ls__builder_new(spec, env, "recursive_doubling"), .spec = spec};
    ls__builder_chunks(c.b, spec->size, 0);
    c.made[me] = (ls__made){
        0, ls__builder_copy(c.b, 0, block_of(&c, me), ls__ref_of(LS__BUFFER_INPUT, me, me))};
    for (int d = 1; d < spec->size; d *= 2) {
        emit_level(&c, d);
    }
    return ls__builder_finish(c.b, true, out);
}

const ls__algorithm ls__all_gather_doubling = {"recursive_doubling", LS__OP_ALL_GATHER, true,
                                               LS__IN_MESSAGES, generate};
