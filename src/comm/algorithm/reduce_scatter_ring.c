/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_scatter "ring": the first half of all_reduce ring.
 *
 *     messages     for k = 1 … n-1: send a partial sum right, receive one from the left, add mine
 *
 * Cost a rank: (n-1)/n buffers sent and received, in n-1 dependent steps. Not exact (Note [Ring]).
 * Patarasuk & Yuan 2009.
 */
#include "comm/algorithm/algorithm.h"

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "ring"));
    ls__builder *b = ls__builder_new(spec, env, "ring");
    if (spec->size == 1) {
        const ls__ref dst = ls__ref_of(LS__BUFFER_OUTPUT, 0, 0);
        (void)ls__builder_reduce(b, 0, &dst, 1, (ls__ref[]){ls__ref_of(LS__BUFFER_INPUT, 0, 0)}, 1);
    } else {
        (void)ls__emit_ring_reduce(b, spec);
    }
    return ls__builder_finish(b, false, out);
}

const ls__algorithm ls__reduce_scatter_ring = {"ring", LS__OP_REDUCE_SCATTER, false,
                                               LS__IN_MESSAGES, generate};
