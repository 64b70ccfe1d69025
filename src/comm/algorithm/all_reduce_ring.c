/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce "ring": chunks travel round the ring of ranks and are summed on the way; then the sums
 * travel round once more (Note [Ring]).
 *
 *     messages     for k = 1 … n-1: send a partial sum right, receive one from the left, add mine
 *                  for k = 1 … n-1: send a result right, receive one from the left
 *
 * Cost a rank: 2(n-1)/n buffers sent and received, the bound, in 2(n-1) dependent steps; of 16-bit
 * floats the first half travels as float32. Each rank exchanges messages with its two neighbours
 * only, which is the reason to choose it. All ranks end with the same bytes, but not with those of
 * the canonical order (D5): the ring is not exact, so it runs only if it is selected by name.
 * Patarasuk & Yuan 2009, section 3.
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
        const int reduced = ls__emit_ring_reduce(b, spec);
        ls__emit_ring_gather(b, spec, reduced);
    }
    return ls__builder_finish(b, false, out);
}

const ls__algorithm ls__all_reduce_ring = {"ring", LS__OP_ALL_REDUCE, false, LS__IN_MESSAGES,
                                           generate};
