/* SPDX-License-Identifier: Apache-2.0 */
/* all_to_all "pairwise": one exchange at a time. In round k rank r exchanges blocks with r xor k
 * where the number of ranks is a power of two; otherwise it sends to r+k and receives from r-k. It
 * sends in a round when it has received in the one before, so no rank is sent to by many at once,
 * which is what links and switches with little buffer memory like (direct hands out all it has).
 *
 *     n = 4   round 1  0 ◀▶ 1  2 ◀▶ 3      round 2  0 ◀▶ 2  1 ◀▶ 3      round 3  0 ◀▶ 3  1 ◀▶ 2
 *
 * Cost a rank: n-1 steps, (n-1)/n buffers sent and received. In place the blocks are received into
 * SCRATCH (all_to_all_direct.c says why). Thakur, Rabenseifner & Gropp 2005, section 4.5.
 */
#include "base/error.h"
#include "comm/algorithm/algorithm.h"

typedef struct round {
    int to, from;
    int out, in; /* lanes; a rank's are never the same, and a stream has one at both of its ends */
} round;

static round round_of(const ls__program_spec *spec, int k)
{
    const int n = spec->size, me = spec->rank;
    if ((n & (n - 1)) == 0) {
        const int peer = me ^ k;
        return (round){peer, peer, me < peer ? 0 : 1, me < peer ? 1 : 0};
    }
    round r = {.to = (me + k) % n, .from = (me - k + n) % n};
    r.out = ls__circle_lane(spec, me, k);
    r.in = ls__circle_lane(spec, r.from, k);
    return r;
}

static ls__ref place_of(const ls__program_spec *spec, int peer)
{
    return spec->in_place ? ls__ref_scratch(spec, spec->size, peer, spec->rank)
                          : ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, peer);
}

/* Behind all lanes: the first copy, of the own block, waits for lane 1, the second for lane 2. */
static void emit_copies(ls__builder *b, const ls__program_spec *spec, const int *last)
{
    for (int k = 0; k < (spec->in_place ? spec->size : 1); k++) {
        const int p = (spec->rank + k) % spec->size;
        const ls__ref own = ls__ref_of(LS__BUFFER_INPUT, spec->rank, p);
        (void)ls__builder_copy(b, 0, ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, p),
                               k == 0 ? own : place_of(spec, p));
        if (k < 2 && last[k + 1] >= 0) {
            ls__builder_after(b, 0, k + 1, last[k + 1]);
        }
    }
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "pairwise"));
    ls__builder *b = ls__builder_new(spec, env, "pairwise");
    ls__builder_binding(b);
    ls__builder_chunks(b, spec->size, spec->in_place ? spec->size : 0);
    int last[3] = {-1, -1, -1}; /* step of each lane */
    int received = -1, received_on = -1;
    for (int k = 1; k < spec->size; k++) {
        const round r = round_of(spec, k);
        last[r.out] =
            ls__builder_send(b, r.out, ls__ref_of(LS__BUFFER_INPUT, spec->rank, r.to), r.to);
        if (received_on >= 0 && received_on != r.out) {
            ls__builder_after(b, r.out, received_on, received);
        }
        last[r.in] = ls__builder_recv(b, r.in, place_of(spec, r.from), r.from);
        received = last[r.in];
        received_on = r.in;
    }
    emit_copies(b, spec, last);
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__all_to_all_pairwise = {"pairwise", LS__OP_ALL_TO_ALL, true, LS__IN_MESSAGES,
                                               generate};
