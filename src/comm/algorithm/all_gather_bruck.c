/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather "bruck": in round k every rank sends all the blocks it has, up to 2^k, to the rank 2^k
 * below and gets as many from the one above (Note [Shift]). After ceil(log2 n) rounds it has all.
 *
 *     round 1   1 ──▶ 0   2 ──▶ 1   3 ──▶ 2   4 ──▶ 3   0 ──▶ 4      one block each
 *     round 2   2 ──▶ 0   3 ──▶ 1   4 ──▶ 2   0 ──▶ 3   1 ──▶ 4      two
 *     round 3   4 ──▶ 0   0 ──▶ 1   1 ──▶ 2   2 ──▶ 3   3 ──▶ 4      the last one
 *
 * Blocks go straight to their places, so nothing is turned round at the end. Cost a rank: n-1
 * blocks sent and received, the bound, in ceil(log2 n) dependent steps for every number of ranks.
 * Bruck, Ho, Kipnis, Upfal & Weathersby 1997.
 */
#include "comm/algorithm/algorithm.h"

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "bruck"));
    const int n = spec->size, me = spec->rank;
    ls__builder *b = ls__builder_new(spec, env, "bruck");
    ls__builder_chunks(b, n, 0);
    ls__made made[LS__PROGRAM_RANKS_MAX]; /* of the block of the rank i above */
    made[0] = (ls__made){0, ls__builder_copy(b, 0, ls__ref_of(LS__BUFFER_OUTPUT, me, me),
                                             ls__ref_of(LS__BUFFER_INPUT, me, me))};
    for (int have = 1; have < n; have *= 2) {
        const ls__shift s = ls__shift_of(spec, have);
        for (int i = 0; i < have && have + i < n; i++) {
            (void)ls__builder_send(b, s.out, ls__ref_of(LS__BUFFER_OUTPUT, me, (me + i) % n), s.to);
            if (made[i].lane != s.out) {
                ls__builder_after(b, s.out, made[i].lane, made[i].step);
            }
            const ls__ref to = ls__ref_of(LS__BUFFER_OUTPUT, me, (me + have + i) % n);
            made[have + i] = (ls__made){s.in, ls__builder_recv(b, s.in, to, s.from)};
        }
    }
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__all_gather_bruck = {"bruck", LS__OP_ALL_GATHER, true, LS__IN_MESSAGES,
                                            generate};
