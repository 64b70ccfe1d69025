/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce "one_shot", for small messages between ranks that share memory: every rank puts its
 * whole contribution where all can read it and, after one fence, combines everything itself.
 *
 *     staged       copy INPUT into my STAGE ▸ fence 0 ▸ OUTPUT = tree(every rank's STAGE)
 *
 * Cost a rank: n-1 buffers read from peers, one step, one fence. All ranks compute the same tree,
 * so all end with the same bytes. One fence is enough by Note [One fence]; registered memory has no
 * second slot, so there a second fence would be needed and "direct" is better.
 */
#include "base/error.h"
#include "comm/algorithm/algorithm.h"

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    if (spec->memory != LS__MEMORY_STAGED) {
        return ls__fail(LS_ERR_UNSUPPORTED, "all_reduce one_shot runs through staged memory only");
    }
    ls__builder *b = ls__builder_new(spec, env, "one_shot");
    ls__ref src[LS__PROGRAM_RANKS_MAX];
    src[spec->rank] = ls__ref_of(LS__BUFFER_INPUT, spec->rank, 0);
    if (spec->size > 1) {
        (void)ls__builder_copy(b, 0, ls__ref_of(LS__BUFFER_STAGE, spec->rank, 0), src[spec->rank]);
        (void)ls__builder_fence(b, 0);
    }
    for (int p = 0; p < spec->size; p++) {
        if (p != spec->rank) {
            src[p] = ls__ref_of(LS__BUFFER_STAGE, p, 0);
        }
    }
    const ls__ref dst = ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, 0);
    (void)ls__builder_reduce(b, 0, &dst, 1, src, spec->size);
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__all_reduce_one_shot = {"one_shot", LS__OP_ALL_REDUCE, true, LS__IN_STAGED,
                                               generate};
