/* SPDX-License-Identifier: Apache-2.0 */
/* all_to_all "direct": every rank hands every other its block, all at once.
 *
 *     messages     exchange blocks ▸ copy my own
 *     registered   fence 0 ▸ read my block of every peer's INPUT ▸ copy my own ▸ fence 1
 *     staged       copy the others' blocks into my STAGE
 *                  fence 0 ▸ read mine of every peer's STAGE
 *
 * Cost a rank: (n-1)/n buffers sent and received by messages, read in memory; one step. No program
 * can move less. Staged, peers only read, so one fence is enough (Note [One fence]), and in place
 * is no other case, since what is written was staged before. By messages in place the blocks are
 * received into SCRATCH and copied at the end: were they received into their places, each of two
 * ranks would have to send its block before it can receive the other's, and messages may be larger
 * than any buffer. In registered memory in place is left to staging.
 */
#include "base/error.h"
#include "comm/algorithm/algorithm.h"

static ls__ref send_block(const ls__program_spec *spec, int peer)
{
    return ls__ref_of(LS__BUFFER_INPUT, spec->rank, peer);
}

static ls__ref final_block(const ls__program_spec *spec, int peer)
{
    return ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, peer);
}

static ls__ref recv_block(const ls__program_spec *spec, int peer)
{
    return spec->in_place ? ls__ref_scratch(spec, spec->size, peer, spec->rank)
                          : final_block(spec, peer);
}

static void emit_own(ls__builder *b, const ls__program_spec *spec)
{
    (void)ls__builder_copy(b, 0, final_block(spec, spec->rank), send_block(spec, spec->rank));
}

static void emit_messages(ls__builder *b, const ls__program_spec *spec)
{
    ls__builder_binding(b);
    ls__builder_chunks(b, spec->size, spec->in_place ? spec->size : 0);
    ls__emit_exchange(b, spec, &(ls__exchange){send_block, recv_block, -1});
    emit_own(b, spec);
    ls__builder_after(b, 0, 1, ls__exchange_last(spec));
    for (int k = 1; spec->in_place && k < spec->size; k++) {
        const int p = (spec->rank + k) % spec->size;
        (void)ls__builder_copy(b, 0, final_block(spec, p), recv_block(spec, p));
    }
}

static void emit_reads(ls__builder *b, const ls__program_spec *spec, ls__program_buffer from)
{
    for (int k = 1; k < spec->size; k++) {
        const int p = (spec->rank + k) % spec->size;
        (void)ls__builder_peer_copy(b, 0, final_block(spec, p), ls__ref_of(from, p, spec->rank));
    }
    emit_own(b, spec);
}

static void emit_registered(ls__builder *b, const ls__program_spec *spec)
{
    ls__builder_binding(b);
    (void)ls__builder_fence(b, 0);
    emit_reads(b, spec, LS__BUFFER_INPUT);
    (void)ls__builder_fence(b, 0);
}

static void emit_staged(ls__builder *b, const ls__program_spec *spec)
{
    for (int k = 1; k < spec->size; k++) {
        const int p = (spec->rank + k) % spec->size;
        (void)ls__builder_copy(b, 0, ls__ref_of(LS__BUFFER_STAGE, spec->rank, p),
                               send_block(spec, p));
    }
    (void)ls__builder_fence(b, 0);
    emit_reads(b, spec, LS__BUFFER_STAGE);
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    if (spec->memory == LS__MEMORY_REGISTERED && spec->in_place) {
        return ls__fail(LS_ERR_UNSUPPORTED, "all_to_all in place is staged");
    }
    ls__builder *b = ls__builder_new(spec, env, "direct");
    ls__builder_chunks(b, spec->size, 0);
    if (spec->size == 1) {
        emit_own(b, spec);
    } else if (spec->memory == LS__MEMORY_MESSAGES) {
        emit_messages(b, spec);
    } else if (spec->memory == LS__MEMORY_REGISTERED) {
        emit_registered(b, spec);
    } else {
        emit_staged(b, spec);
    }
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__all_to_all_direct = {"direct", LS__OP_ALL_TO_ALL, true, LS__IN_ALL,
                                             generate};
