/* SPDX-License-Identifier: Apache-2.0 */
/* scatter "direct": the root hands each rank its block.
 *
 *     messages     the root sends to each peer in turn, from the next rank on
 *     registered   fence 0 ▸ every peer reads its block of the root's INPUT ▸ fence 1
 *     staged       the root copies the peers' blocks into its STAGE
 *                  fence 0 ▸ every peer reads its block
 *
 * Cost: one step; the root sends (n-1)/n of its buffer by messages, each peer reads 1/n in memory.
 * Staged, peers only read, so one fence is enough (Note [One fence]). The root's own block is
 * copied (in place onto itself).
 */
#include "comm/algorithm/algorithm.h"

static void emit_root(ls__builder *b, const ls__program_spec *spec)
{
    for (int k = 1; k < spec->size; k++) {
        const int p = (spec->root + k) % spec->size;
        const ls__ref from = ls__ref_of(LS__BUFFER_INPUT, spec->root, p);
        if (spec->memory == LS__MEMORY_MESSAGES) {
            (void)ls__builder_send(b, 0, from, p);
        } else if (spec->memory == LS__MEMORY_STAGED) {
            (void)ls__builder_copy(b, 0, ls__ref_of(LS__BUFFER_STAGE, spec->root, p), from);
        }
    }
}

static void emit_peer(ls__builder *b, const ls__program_spec *spec)
{
    const ls__ref to = ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, spec->rank);
    const ls__program_buffer from =
        spec->memory == LS__MEMORY_STAGED ? LS__BUFFER_STAGE : LS__BUFFER_INPUT;
    if (spec->memory == LS__MEMORY_MESSAGES) {
        (void)ls__builder_recv(b, 0, to, spec->root);
    } else {
        (void)ls__builder_peer_copy(b, 0, to, ls__ref_of(from, spec->root, spec->rank));
    }
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    ls__builder *b = ls__builder_new(spec, env, "direct");
    const bool root = spec->rank == spec->root;
    ls__builder_chunks(b, spec->size, 0);
    if (root) {
        emit_root(b, spec);
    }
    if (spec->memory != LS__MEMORY_MESSAGES && spec->size > 1) {
        (void)ls__builder_fence(b, 0);
    }
    if (root) {
        (void)ls__builder_copy(b, 0, ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, spec->rank),
                               ls__ref_of(LS__BUFFER_INPUT, spec->rank, spec->rank));
    } else {
        emit_peer(b, spec);
    }
    if (spec->memory == LS__MEMORY_REGISTERED && spec->size > 1) {
        (void)ls__builder_fence(b, 0);
    }
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__scatter_direct = {"direct", LS__OP_SCATTER, true, LS__IN_ALL, generate};
