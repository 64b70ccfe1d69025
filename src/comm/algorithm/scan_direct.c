/* SPDX-License-Identifier: Apache-2.0 */
/* scan and exscan "direct": every rank gets the contributions of all lower ranks and combines them
 * itself, in the canonical tree over ranks 0 … r (exscan: … r-1). So the last rank's scan has the
 * bits that all_reduce gives, and every prefix those it would have among its ranks alone.
 *
 *     messages     send INPUT to all higher ranks, receive from all lower ones ▸ OUTPUT = tree
 *     registered   fence 0 ▸ OUTPUT = tree(INPUT of ranks 0 … r) ▸ fence 1
 *     staged       copy INPUT into my STAGE
 *                  fence 0 ▸ OUTPUT = tree(STAGE of the lower ranks, mine)
 *
 * Cost: one step. By messages rank r sends n-1-r buffers and receives r; in memory it reads r. For
 * more than a few ranks by messages recursive_doubling is better. Staged, peers only read: one
 * fence (Note [One fence]). In registered memory in place is left to staging, since a rank would
 * overwrite what higher ones still read. MPI 4.0, sections 6.11.1 and 6.11.2.
 */
#include "base/error.h"
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

static ls__ref contribution(const ls__program_spec *spec, int rank)
{
    if (rank == spec->rank || spec->memory == LS__MEMORY_REGISTERED) {
        return ls__ref_of(LS__BUFFER_INPUT, rank, 0);
    }
    return spec->memory == LS__MEMORY_STAGED ? ls__ref_of(LS__BUFFER_STAGE, rank, 0)
                                             : recv_scratch(spec, rank);
}

static void emit_tree(ls__builder *b, const ls__program_spec *spec)
{
    ls__ref src[LS__PROGRAM_RANKS_MAX];
    const int count = spec->operation == LS__OP_SCAN ? spec->rank + 1 : spec->rank;
    for (int p = 0; p < count; p++) {
        src[p] = contribution(spec, p);
    }
    if (count > 0) {
        const ls__ref dst = ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, 0);
        (void)ls__builder_reduce(b, 0, &dst, 1, src, count);
    }
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    if (spec->memory == LS__MEMORY_REGISTERED && spec->in_place) {
        return ls__fail(LS_ERR_UNSUPPORTED, "%s in place is staged",
                        ls__operation_name(spec->operation));
    }
    ls__builder *b = ls__builder_new(spec, env, "direct");
    const bool alone = spec->size == 1;
    if (spec->memory == LS__MEMORY_MESSAGES) {
        ls__builder_chunks(b, 1, spec->size); /* as many on all ranks: slices depend on it */
        ls__emit_upward(b, spec, &(ls__exchange){send_input, recv_scratch, -1});
    } else if (spec->memory == LS__MEMORY_STAGED && !alone) {
        (void)ls__builder_copy(b, 0, ls__ref_of(LS__BUFFER_STAGE, spec->rank, 0),
                               send_input(spec, 0));
        (void)ls__builder_fence(b, 0);
    } else if (!alone) {
        ls__builder_binding(b);
        (void)ls__builder_fence(b, 0);
    }
    emit_tree(b, spec);
    if (spec->memory == LS__MEMORY_REGISTERED && !alone) {
        (void)ls__builder_fence(b, 0);
    }
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__scan_direct = {"direct", LS__OP_SCAN, true, LS__IN_ALL, generate};
const ls__algorithm ls__exscan_direct = {"direct", LS__OP_EXSCAN, true, LS__IN_ALL, generate};
