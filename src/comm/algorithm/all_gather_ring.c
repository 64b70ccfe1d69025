/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather "ring": every block is passed on to the right until all have it.
 *
 *     messages     copy my block
 *                  for k = 1 … n-1: send a block right, receive one from the left
 *
 * Cost a rank: (n-1)/n buffers sent and received, in n-1 dependent steps (Note [Ring]).
 * Thakur, Rabenseifner & Gropp 2005, section 4.1.
 */
#include "comm/algorithm/algorithm.h"

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "ring"));
    ls__builder *b = ls__builder_new(spec, env, "ring");
    const int me = spec->rank;
    ls__builder_chunks(b, spec->size, 0);
    /* in the lane of the sends: the first of them needs it */
    (void)ls__builder_copy(b, ls__ring_lane(spec, me), ls__ref_of(LS__BUFFER_OUTPUT, me, me),
                           ls__ref_of(LS__BUFFER_INPUT, me, me));
    ls__emit_ring_gather(b, spec, -1);
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__all_gather_ring = {"ring", LS__OP_ALL_GATHER, true, LS__IN_MESSAGES,
                                           generate};
