/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_scatter "pairwise": one exchange of blocks at a time. In round k every rank sends the rank
 * k below it the block of that one and gets its own from the one k above (Note [Shift]); it sends
 * in a round when it has received in the one before, so no rank is sent to by many at once. When
 * all contributions are there, the canonical tree combines them.
 *
 *     n = 4   round 1   1 ──▶ 0 ──▶ 3 ──▶ 2 ──▶ 1      round 2   0 ◀▶ 2   1 ◀▶ 3      …
 *
 * Cost a rank: (n-1)/n of all blocks sent and received, the bound, in n-1 rounds, each of one
 * message; n-1 blocks of memory. Exact, so it waits with the sum until the last block is there.
 * Thakur, Rabenseifner & Gropp 2005, section 4.2.
 */
#include "comm/algorithm/algorithm.h"

static void wait_for(ls__builder *b, int lane, ls__made made)
{
    if (made.lane >= 0 && made.lane != lane) {
        ls__builder_after(b, lane, made.lane, made.step);
    }
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "pairwise"));
    const int n = spec->size, me = spec->rank;
    ls__builder *b = ls__builder_new(spec, env, "pairwise");
    ls__builder_chunks(b, n, n);
    ls__ref src[LS__PROGRAM_RANKS_MAX];
    ls__made came = {-1, -1};
    src[me] = ls__ref_of(LS__BUFFER_INPUT, me, me);
    for (int k = 1; k < n; k++) {
        const ls__shift s = ls__shift_of(spec, k);
        (void)ls__builder_send(b, s.out, ls__ref_of(LS__BUFFER_INPUT, me, s.to), s.to);
        wait_for(b, s.out, came);
        src[s.from] = ls__ref_scratch(spec, n, s.from, me);
        const int step = ls__builder_recv(b, s.in, src[s.from], s.from);
        wait_for(b, s.in, came); /* so the last one comes when all have */
        came = (ls__made){s.in, step};
    }
    const ls__ref result = ls__ref_of(LS__BUFFER_OUTPUT, me, me);
    (void)ls__builder_reduce(b, n > 1 ? came.lane : 0, &result, 1, src, n);
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__reduce_scatter_pairwise = {"pairwise", LS__OP_REDUCE_SCATTER, true,
                                                   LS__IN_MESSAGES, generate};
