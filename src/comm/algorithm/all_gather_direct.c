/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather "direct": every rank hands its block to every other.
 *
 *     messages     copy my block ▸ exchange
 *     registered   fence 0 ▸ read every peer's INPUT ▸ copy my block ▸ fence 1
 *     staged       copy my block into my STAGE and OUTPUT ▸ fence 0 ▸ read every peer's STAGE
 *
 * Cost a rank: (n-1)/n buffers sent by messages, read in memory; one step. Staged, peers only read,
 * so one fence is enough (Note [One fence]); "one_shot" copies to OUTPUT last. Peers are read in
 * turn from the next rank on, so that not all begin with rank 0. In place the copy is onto itself.
 */
#include "base/error.h"
#include "comm/algorithm/algorithm.h"

static ls__ref own_block(const ls__program_spec *spec, ls__program_buffer buffer)
{
    return ls__ref_of(buffer, spec->rank, spec->rank);
}

static ls__ref send_block(const ls__program_spec *spec, int peer)
{
    (void)peer;
    return own_block(spec, LS__BUFFER_INPUT);
}

static ls__ref recv_block(const ls__program_spec *spec, int peer)
{
    return ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, peer);
}

static void emit_reads(ls__builder *b, const ls__program_spec *spec, ls__program_buffer from)
{
    for (int k = 1; k < spec->size; k++) {
        const int p = (spec->rank + k) % spec->size;
        (void)ls__builder_peer_copy(b, 0, recv_block(spec, p), ls__ref_of(from, p, p));
    }
}

static void emit_copy(ls__builder *b, const ls__program_spec *spec, ls__program_buffer to)
{
    (void)ls__builder_copy(b, 0, own_block(spec, to), own_block(spec, LS__BUFFER_INPUT));
}

/* In slices the own block is copied to OUTPUT while it is still in the caches. `own_last`: behind
 * the fence, where all else has been done by the announcement (plan.c; Note [Published
 * layouts]). */
static void emit_staged(ls__builder *b, const ls__program_spec *spec, bool own_last)
{
    emit_copy(b, spec, LS__BUFFER_STAGE);
    if (!own_last) {
        emit_copy(b, spec, LS__BUFFER_OUTPUT);
    }
    (void)ls__builder_fence(b, 0);
    emit_reads(b, spec, LS__BUFFER_STAGE);
    if (own_last) {
        emit_copy(b, spec, LS__BUFFER_OUTPUT);
    }
}

static void emit_registered(ls__builder *b, const ls__program_spec *spec)
{
    (void)ls__builder_fence(b, 0);
    emit_reads(b, spec, LS__BUFFER_INPUT);
    emit_copy(b, spec, LS__BUFFER_OUTPUT);
    (void)ls__builder_fence(b, 0);
}

static ls_status make_program(const ls__program_spec *spec, const ls__env *env, bool own_last,
                              ls__program **out)
{
    ls__builder *b = ls__builder_new(spec, env, "direct");
    ls__builder_chunks(b, spec->size, 0);
    if (spec->size == 1) {
        emit_copy(b, spec, LS__BUFFER_OUTPUT);
    } else if (spec->memory == LS__MEMORY_MESSAGES) {
        emit_copy(b, spec, LS__BUFFER_OUTPUT);
        ls__emit_exchange(b, spec, &(ls__exchange){send_block, recv_block, -1});
    } else if (spec->memory == LS__MEMORY_REGISTERED) {
        emit_registered(b, spec);
    } else {
        emit_staged(b, spec, own_last);
    }
    return ls__builder_finish(b, true, out);
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    return make_program(spec, env, ls__operation_is_v(spec->operation), out);
}

static ls_status generate_one_shot(const ls__program_spec *spec, const ls__env *env,
                                   ls__program **out)
{
    *out = NULL;
    if (spec->memory != LS__MEMORY_STAGED) {
        return ls__fail(LS_ERR_UNSUPPORTED, "all_gather one_shot runs through staged memory only");
    }
    LS_TRY(make_program(spec, env, true, out));
    (*out)->algorithm = "one_shot";
    return LS_OK;
}

const ls__algorithm ls__all_gather_direct = {"direct", LS__OP_ALL_GATHER, true, LS__IN_ALL,
                                             generate};
const ls__algorithm ls__all_gather_one_shot = {"one_shot", LS__OP_ALL_GATHER, true, LS__IN_STAGED,
                                               generate_one_shot};
