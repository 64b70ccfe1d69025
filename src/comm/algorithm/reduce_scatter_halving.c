/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_scatter "recursive_halving": blocks climb the canonical tree (Note [Halving]). For a power
 * of two block c ends at rank c; otherwise it is handed to it at the end.
 *
 * Cost a rank, for a power of two: (n-1)/n of all blocks sent and received, the bound, in log2 n
 * steps; otherwise one step more. Exact. Thakur, Rabenseifner & Gropp 2005, section 4.2.
 */
#include "comm/algorithm/algorithm.h"

/* Sums that ended at another rank than they belong to, on lane 2, in the order of their blocks. */
static void emit_home(ls__builder *b, const ls__program_spec *spec, const int16_t *owner,
                      ls__made *made)
{
    const int me = spec->rank;
    for (int c = 0; c < spec->size; c++) {
        const ls__ref sum = ls__halving_sum(spec, c);
        if (owner[c] == c || (owner[c] != me && c != me)) {
            continue;
        }
        if (c == me) {
            made[c] = (ls__made){2, ls__builder_recv(b, 2, sum, owner[c])};
        } else {
            (void)ls__builder_send(b, 2, sum, c);
        }
        if (made[c].lane != 2 || c != me) {
            ls__builder_after(b, 2, made[c].lane, made[c].step);
        }
    }
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "recursive_halving"));
    int16_t owner[LS__PROGRAM_RANKS_MAX];
    ls__made made[LS__PROGRAM_RANKS_MAX];
    const int me = spec->rank;
    ls__builder *b = ls__builder_new(spec, env, "recursive_halving");
    ls__emit_halving(b, spec, owner, made);
    emit_home(b, spec, owner, made);
    const ls__ref sum = ls__halving_sum(spec, me), result = ls__ref_of(LS__BUFFER_OUTPUT, me, me);
    (void)ls__builder_reduce(b, made[me].lane, &result, 1, &sum, 1);
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__reduce_scatter_halving = {"recursive_halving", LS__OP_REDUCE_SCATTER, true,
                                                  LS__IN_MESSAGES, generate};
