/* SPDX-License-Identifier: Apache-2.0 */
/* gather "direct": every rank hands its block to the root.
 *
 *     messages     each sends its block; the root receives them in turn from the next rank on
 *     registered   fence 0 ▸ the root reads every peer's INPUT ▸ fence 1
 *     staged       the peers copy their block into their STAGE ▸ fence 0 ▸ the root reads it
 *
 * Cost: one step; the root receives or reads (n-1)/n of its buffer. Staged, the root only reads, so
 * one fence is enough (Note [One fence]). The root's own block is copied (in place onto itself).
 */
#include "comm/algorithm/algorithm.h"

static ls__ref block(ls__program_buffer buffer, int rank, int of)
{
    return ls__ref_of(buffer, rank, of);
}

static void emit_copy(ls__builder *b, const ls__program_spec *spec, ls__program_buffer to)
{
    (void)ls__builder_copy(b, 0, block(to, spec->rank, spec->rank),
                           block(LS__BUFFER_INPUT, spec->rank, spec->rank));
}

/* What the root takes from each peer, by message or from its memory. */
static void emit_root(ls__builder *b, const ls__program_spec *spec)
{
    const int root = spec->root;
    const ls__program_buffer from =
        spec->memory == LS__MEMORY_STAGED ? LS__BUFFER_STAGE : LS__BUFFER_INPUT;
    for (int k = 1; k < spec->size; k++) {
        const int p = (root + k) % spec->size;
        const ls__ref to = block(LS__BUFFER_OUTPUT, root, p);
        if (spec->memory == LS__MEMORY_MESSAGES) {
            (void)ls__builder_recv(b, 0, to, p);
        } else {
            (void)ls__builder_peer_copy(b, 0, to, block(from, p, p));
        }
    }
    emit_copy(b, spec, LS__BUFFER_OUTPUT);
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    ls__builder *b = ls__builder_new(spec, env, "direct");
    const bool root = spec->rank == spec->root, fenced = spec->memory != LS__MEMORY_MESSAGES;
    ls__builder_chunks(b, spec->size, 0);
    if (!root && spec->memory == LS__MEMORY_STAGED) {
        emit_copy(b, spec, LS__BUFFER_STAGE);
    }
    if (fenced && spec->size > 1) {
        (void)ls__builder_fence(b, 0);
    }
    if (root) {
        emit_root(b, spec);
    } else if (!fenced) {
        (void)ls__builder_send(b, 0, block(LS__BUFFER_INPUT, spec->rank, spec->rank), spec->root);
    }
    if (spec->memory == LS__MEMORY_REGISTERED && spec->size > 1) {
        (void)ls__builder_fence(b, 0);
    }
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__gather_direct = {"direct", LS__OP_GATHER, true, LS__IN_ALL, generate};
