/* SPDX-License-Identifier: Apache-2.0 */
/* reduce "binomial": partial sums climb the canonical tree to rank 0, which hands the sum to the
 * root.
 *
 * Cost: ceil(log2 n) dependent steps, one more for another root than 0; every rank sends one buffer
 * and receives at most ceil(log2 n). Exact. Thakur, Rabenseifner & Gropp 2005, section 4.3.
 */
#include "comm/algorithm/algorithm.h"

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "binomial"));
    ls__builder *b = ls__builder_new(spec, env, "binomial");
    const ls__ref sum = ls__ref_scratch(spec, 1, 0, 0);
    ls__emit_tree(b, spec);
    if (spec->rank == 0 && spec->root != 0) {
        (void)ls__builder_send(b, 0, sum, spec->root); /* not rounded yet */
    } else if (spec->rank == spec->root) {
        const ls__ref result = ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, 0);
        if (spec->root != 0) {
            (void)ls__builder_recv(b, 0, sum, 0);
        }
        (void)ls__builder_reduce(b, 0, &result, 1, &sum, 1);
    }
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__reduce_binomial = {"binomial", LS__OP_REDUCE, true, LS__IN_MESSAGES,
                                           generate};
