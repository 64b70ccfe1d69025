/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_scatter "direct": every rank gets the others' contributions to its own block and combines
 * them by the canonical tree. The first half of all_reduce direct.
 *
 *     messages     exchange blocks ▸ OUTPUT[r] = tree(all contributions to block r)
 *     registered   fence 0 ▸ OUTPUT[r] = tree(every rank's INPUT[r]) ▸ fence 1
 *     staged       copy the others' blocks into my STAGE ▸ fence 0 ▸ OUTPUT[r] = tree
 *
 * Cost a rank: (n-1)/n buffers sent and received, one step. Staged, peers only read: one fence
 * (Note [One fence]). Registered, fence 1 says that no peer reads my INPUT any more.
 */
#include "comm/algorithm/algorithm.h"

static ls__ref send_input(const ls__program_spec *spec, int peer)
{
    return ls__ref_of(LS__BUFFER_INPUT, spec->rank, peer);
}

static ls__ref recv_scratch(const ls__program_spec *spec, int peer)
{
    return ls__ref_scratch(spec, spec->size, peer, spec->rank);
}

static int emit_tree(ls__builder *b, const ls__program_spec *spec)
{
    const int n = spec->size, me = spec->rank;
    ls__ref src[LS__PROGRAM_RANKS_MAX];
    for (int p = 0; p < n; p++) {
        if (p == me || spec->memory == LS__MEMORY_REGISTERED) {
            src[p] = ls__ref_of(LS__BUFFER_INPUT, p, me);
        } else if (spec->memory == LS__MEMORY_STAGED) {
            src[p] = ls__ref_of(LS__BUFFER_STAGE, p, me);
        } else {
            src[p] = recv_scratch(spec, p);
        }
    }
    const ls__ref dst = ls__ref_of(LS__BUFFER_OUTPUT, me, me);
    return ls__builder_reduce(b, 0, &dst, 1, src, n);
}

static void emit_messages(ls__builder *b, const ls__program_spec *spec)
{
    ls__builder_chunks(b, spec->size, spec->size);
    ls__emit_exchange(b, spec, &(ls__exchange){send_input, recv_scratch, -1});
    (void)emit_tree(b, spec);
    ls__builder_after(b, 0, 1, ls__exchange_last(spec));
}

static void emit_registered(ls__builder *b, const ls__program_spec *spec)
{
    (void)ls__builder_fence(b, 0);
    (void)emit_tree(b, spec);
    (void)ls__builder_fence(b, 0);
}

static void emit_staged(ls__builder *b, const ls__program_spec *spec)
{
    for (int k = 1; k < spec->size; k++) {
        const int c = (spec->rank + k) % spec->size;
        (void)ls__builder_copy(b, 0, ls__ref_of(LS__BUFFER_STAGE, spec->rank, c),
                               send_input(spec, c));
    }
    (void)ls__builder_fence(b, 0);
    (void)emit_tree(b, spec);
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    ls__builder *b = ls__builder_new(spec, env, "direct");
    ls__builder_chunks(b, spec->size, 0);
    if (spec->size == 1) {
        (void)emit_tree(b, spec);
    } else if (spec->memory == LS__MEMORY_MESSAGES) {
        emit_messages(b, spec);
    } else if (spec->memory == LS__MEMORY_REGISTERED) {
        emit_registered(b, spec);
    } else {
        emit_staged(b, spec);
    }
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__reduce_scatter_direct = {"direct", LS__OP_REDUCE_SCATTER, true, LS__IN_ALL,
                                                 generate};
