/* SPDX-License-Identifier: Apache-2.0 */
/* broadcast "direct": the root hands its buffer to every other rank.
 *
 *     messages     the root sends to each peer in turn
 *     registered   fence 0 ▸ rank r copies chunk r of the root's INPUT to every OUTPUT ▸ fence 1
 *     staged       the root copies into its STAGE ▸ fence 0 ▸ every peer reads it
 *
 * Cost: one step; the root sends n-1 buffers by messages. In registered memory all ranks share the
 * n-1 copies, the root too: between 2 ranks each copies a half. Staged, each peer reads one buffer;
 * peers only read, so one fence is enough (Note [One fence]) and "one_shot" is the same program.
 */
#include "base/error.h"
#include "comm/algorithm/algorithm.h"

static ls__ref whole(ls__program_buffer buffer, int rank)
{
    return ls__ref_of(buffer, rank, 0);
}

static void emit_messages(ls__builder *b, const ls__program_spec *spec)
{
    if (spec->rank != spec->root) {
        (void)ls__builder_recv(b, 0, whole(LS__BUFFER_OUTPUT, spec->rank), spec->root);
        return;
    }
    for (int k = 1; k < spec->size; k++) {
        const int peer = (spec->root + k) % spec->size;
        (void)ls__builder_send(b, 0, whole(LS__BUFFER_INPUT, spec->rank), peer);
    }
}

/* Every rank copies the chunk of its number, for itself first. */
static void emit_registered(ls__builder *b, const ls__program_spec *spec)
{
    const ls__ref from = ls__ref_of(LS__BUFFER_INPUT, spec->root, spec->rank);
    (void)ls__builder_fence(b, 0);
    for (int k = 0; k < spec->size; k++) {
        const int p = (spec->rank + k) % spec->size;
        if (p != spec->root) {
            (void)ls__builder_peer_copy(b, 0, ls__ref_of(LS__BUFFER_OUTPUT, p, spec->rank), from);
        }
    }
    (void)ls__builder_fence(b, 0);
}

static void emit_staged(ls__builder *b, const ls__program_spec *spec)
{
    const ls__ref stage = whole(LS__BUFFER_STAGE, spec->root);
    if (spec->rank == spec->root) {
        (void)ls__builder_copy(b, 0, stage, whole(LS__BUFFER_INPUT, spec->root));
    }
    (void)ls__builder_fence(b, 0);
    if (spec->rank != spec->root) {
        (void)ls__builder_peer_copy(b, 0, whole(LS__BUFFER_OUTPUT, spec->rank), stage);
    }
}

/* In place: onto itself. */
static void emit_own(ls__builder *b, const ls__program_spec *spec, int chunks)
{
    for (int c = 0; c < chunks && spec->rank == spec->root; c++) {
        (void)ls__builder_copy(b, 0, ls__ref_of(LS__BUFFER_OUTPUT, spec->root, c),
                               ls__ref_of(LS__BUFFER_INPUT, spec->root, c));
    }
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    ls__builder *b = ls__builder_new(spec, env, "direct");
    const int chunks = spec->memory == LS__MEMORY_REGISTERED ? spec->size : 1;
    ls__builder_chunks(b, chunks, 0);
    emit_own(b, spec, chunks);
    if (spec->size > 1 && spec->memory == LS__MEMORY_MESSAGES) {
        emit_messages(b, spec);
    } else if (spec->size > 1 && spec->memory == LS__MEMORY_REGISTERED) {
        emit_registered(b, spec);
    } else if (spec->size > 1) {
        emit_staged(b, spec);
    }
    return ls__builder_finish(b, true, out);
}

static ls_status generate_one_shot(const ls__program_spec *spec, const ls__env *env,
                                   ls__program **out)
{
    *out = NULL;
    if (spec->memory != LS__MEMORY_STAGED) {
        return ls__fail(LS_ERR_UNSUPPORTED, "broadcast one_shot runs through staged memory only");
    }
    LS_TRY(generate(spec, env, out));
    (*out)->algorithm = "one_shot";
    return LS_OK;
}

const ls__algorithm ls__broadcast_direct = {"direct", LS__OP_BROADCAST, true, LS__IN_ALL, generate};
const ls__algorithm ls__broadcast_one_shot = {"one_shot", LS__OP_BROADCAST, true, LS__IN_STAGED,
                                              generate_one_shot};
