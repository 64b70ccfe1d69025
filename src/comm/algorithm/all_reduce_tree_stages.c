/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce "tree_stages": a tree of reductions towards rank 0, each stage's partial sums made in
 * full before the next one begins, then the result from rank 0 to each rank: what a data-flow
 * system does that shuffles partial sums from stage to stage and collects the last one in a driver.
 *
 * Cost: ceil(log2 n) steps up with a buffer each, then one step in which rank 0 sends n-1 buffers.
 * No chunks, so nothing flows while something else is added. Exact.
 */
#include "comm/algorithm/algorithm.h"

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "tree_stages"));
    ls__builder *b = ls__builder_new(spec, env, "tree_stages");
    const ls__ref result = ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, 0);
    const ls__ref sum = ls__ref_scratch(spec, 1, 0, 0);
    ls__emit_tree(b, spec);
    if (spec->rank != 0) {
        (void)ls__builder_recv(b, 0, result, 0);
        return ls__builder_finish(b, true, out);
    }
    (void)ls__builder_reduce(b, 0, &result, 1, &sum, 1);
    for (int p = 1; p < spec->size; p++) {
        (void)ls__builder_send(b, 0, result, p);
    }
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__all_reduce_tree_stages = {"tree_stages", LS__OP_ALL_REDUCE, true,
                                                  LS__IN_MESSAGES, generate};
