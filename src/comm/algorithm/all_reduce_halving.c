/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce "halving_doubling": reduce-scatter by recursive halving, all-gather by recursive
 * doubling (Note [Halving]).
 *
 *     up     at each level of the canonical tree half of a rank's chunks are given, half received
 *     top    OUTPUT[c] = sum of chunk c, at its owner: divided, rounded
 *     down   the same messages the other way round, with results
 *
 * Cost a rank, for a power of two: 2(n-1)/n buffers sent and received, the ring's, in 2 log2 n
 * dependent steps instead of 2(n-1). Other numbers of ranks take the same steps, rounded up, and
 * somewhat more bytes where halves are not equal. Exact for every number of ranks, unlike the usual
 * form, which folds surplus ranks first. Of 16-bit floats the way up travels as float32.
 * Rabenseifner 2004; Thakur, Rabenseifner & Gropp 2005, section 4.4.
 */
#include "comm/algorithm/algorithm.h"

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "halving_doubling"));
    int16_t owner[LS__PROGRAM_RANKS_MAX];
    ls__made made[LS__PROGRAM_RANKS_MAX];
    ls__builder *b = ls__builder_new(spec, env, "halving_doubling");
    ls__emit_halving(b, spec, owner, made);
    for (int c = 0; c < spec->size; c++) {
        const ls__ref sum = ls__halving_sum(spec, c);
        const ls__ref result = ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, c);
        if (owner[c] == spec->rank) { /* behind its sum, in the same lane */
            const int lane = made[c].lane;
            made[c] = (ls__made){lane, ls__builder_reduce(b, lane, &result, 1, &sum, 1)};
        }
    }
    ls__emit_halving_back(b, spec, made);
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__all_reduce_halving = {"halving_doubling", LS__OP_ALL_REDUCE, true,
                                              LS__IN_MESSAGES, generate};
