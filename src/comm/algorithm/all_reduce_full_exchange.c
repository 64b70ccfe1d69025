/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce "full_exchange": every rank sends its whole buffer to every other and adds up all
 * of them.
 *
 * Cost a rank: n-1 buffers sent and received, in one dependent step; n(n-1) buffers in all. Exact.
 */
#include "comm/algorithm/algorithm.h"

static ls__ref send_input(const ls__program_spec *spec, int peer)
{
    (void)peer;
    return ls__ref_of(LS__BUFFER_INPUT, spec->rank, 0);
}

static ls__ref recv_scratch(const ls__program_spec *spec, int peer)
{
    return ls__ref_scratch(spec, 1, peer, 0);
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "full_exchange"));
    ls__builder *b = ls__builder_new(spec, env, "full_exchange");
    const ls__ref result = ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, 0);
    ls__ref src[LS__PROGRAM_RANKS_MAX];
    ls__builder_chunks(b, 1, spec->size);
    ls__emit_exchange(b, spec, &(ls__exchange){send_input, recv_scratch, -1});
    for (int p = 0; p < spec->size; p++) {
        src[p] = p == spec->rank ? send_input(spec, p) : recv_scratch(spec, p);
    }
    (void)ls__builder_reduce(b, 0, &result, 1, src, spec->size);
    if (spec->size > 1) {
        ls__builder_after(b, 0, 1, ls__exchange_last(spec));
    }
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__all_reduce_full_exchange = {"full_exchange", LS__OP_ALL_REDUCE, true,
                                                    LS__IN_MESSAGES, generate};
