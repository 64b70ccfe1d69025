/* SPDX-License-Identifier: Apache-2.0 */
/* reduce "direct": every rank reduces one chunk, for the root. all_reduce direct without handing
 * the results to all.
 *
 *     messages     exchange chunks ▸ tree(all contributions to my chunk) ▸ send it to the root
 *     registered   fence 0 ▸ the root's OUTPUT[r] = tree(every rank's INPUT[r]) ▸ fence 1
 *     staged       copy the others' chunks into my STAGE ▸ fence 0 ▸ the root's STAGE[r] = tree ▸
 *                  fence 1 ▸ the root copies the chunks out of its STAGE
 *
 * "one_shot", staged, for small messages: the root alone combines, after one fence (Note [One
 * fence]): copy INPUT into my STAGE ▸ fence 0 ▸ the root's OUTPUT = tree(every rank's STAGE).
 *
 * Cost, in buffers: by messages all send and receive (n-1)/n, then the root receives (n-1)/n more;
 * two steps. In memory a rank reads (n-1)/n from peers and writes 1/n to the root; one step. The
 * root of one_shot reads n-1. Exact. Thakur, Rabenseifner & Gropp 2005, section 4.3 (reduce-scatter
 * and gather).
 */
#include "base/error.h"
#include "comm/algorithm/algorithm.h"

static bool is_root(const ls__program_spec *spec)
{
    return spec->rank == spec->root;
}

static ls__ref own(const ls__program_spec *spec, ls__program_buffer buffer, int chunk)
{
    return ls__ref_of(buffer, spec->rank, chunk);
}

/* ---- messages ----------------------------------------------------------------------------- */

static ls__ref send_input(const ls__program_spec *spec, int peer)
{
    return own(spec, LS__BUFFER_INPUT, peer);
}

static ls__ref recv_scratch(const ls__program_spec *spec, int peer)
{
    return ls__ref_scratch(spec, spec->size, peer, spec->rank);
}

static void emit_messages(ls__builder *b, const ls__program_spec *spec)
{
    const int n = spec->size, me = spec->rank;
    ls__builder_chunks(b, n, n + 1);
    ls__emit_exchange(b, spec, &(ls__exchange){send_input, recv_scratch, -1});
    ls__ref src[LS__PROGRAM_RANKS_MAX];
    for (int p = 0; p < n; p++) {
        src[p] = p == me ? own(spec, LS__BUFFER_INPUT, p) : recv_scratch(spec, p);
    }
    /* the root has an OUTPUT; the others make their result in the scratch slot behind the rest */
    const ls__ref result =
        is_root(spec) ? own(spec, LS__BUFFER_OUTPUT, me) : ls__ref_scratch(spec, n, n, me);
    (void)ls__builder_reduce(b, 0, &result, 1, src, n);
    ls__builder_after(b, 0, 1, ls__exchange_last(spec));
    for (int k = 1; is_root(spec) && k < n; k++) {
        const int p = (me + k) % n;
        (void)ls__builder_recv(b, 0, own(spec, LS__BUFFER_OUTPUT, p), p);
    }
    if (!is_root(spec)) {
        (void)ls__builder_send(b, 0, result, spec->root);
    }
}

/* ---- shared memory ------------------------------------------------------------------------ */

static void emit_registered(ls__builder *b, const ls__program_spec *spec)
{
    const int n = spec->size, me = spec->rank;
    ls__builder_chunks(b, n, 0);
    (void)ls__builder_fence(b, 0);
    ls__ref src[LS__PROGRAM_RANKS_MAX];
    for (int p = 0; p < n; p++) {
        src[p] = ls__ref_of(LS__BUFFER_INPUT, p, me);
    }
    const ls__ref dst = ls__ref_of(LS__BUFFER_OUTPUT, spec->root, me);
    (void)ls__builder_reduce(b, 0, &dst, 1, src, n);
    (void)ls__builder_fence(b, 0);
}

static void emit_staged(ls__builder *b, const ls__program_spec *spec)
{
    const int n = spec->size, me = spec->rank;
    ls__builder_chunks(b, n, 0);
    for (int k = 1; k < n; k++) {
        const int c = (me + k) % n;
        (void)ls__builder_copy(b, 0, own(spec, LS__BUFFER_STAGE, c), send_input(spec, c));
    }
    (void)ls__builder_fence(b, 0);
    ls__ref src[LS__PROGRAM_RANKS_MAX];
    for (int p = 0; p < n; p++) {
        src[p] = ls__ref_of(p == me ? LS__BUFFER_INPUT : LS__BUFFER_STAGE, p, me);
    }
    const ls__ref dst =
        ls__ref_of(is_root(spec) ? LS__BUFFER_OUTPUT : LS__BUFFER_STAGE, spec->root, me);
    (void)ls__builder_reduce(b, 0, &dst, 1, src, n);
    (void)ls__builder_fence(b, 0);
    for (int k = 1; is_root(spec) && k < n; k++) {
        const int c = (me + k) % n;
        (void)ls__builder_copy(b, 0, own(spec, LS__BUFFER_OUTPUT, c),
                               own(spec, LS__BUFFER_STAGE, c));
    }
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    ls__builder *b = ls__builder_new(spec, env, "direct");
    if (spec->size == 1) {
        const ls__ref dst = own(spec, LS__BUFFER_OUTPUT, 0), src = own(spec, LS__BUFFER_INPUT, 0);
        (void)ls__builder_reduce(b, 0, &dst, 1, &src, 1); /* a reduce, so that it may divide */
    } else if (spec->memory == LS__MEMORY_MESSAGES) {
        emit_messages(b, spec);
    } else if (spec->memory == LS__MEMORY_REGISTERED) {
        emit_registered(b, spec);
    } else {
        emit_staged(b, spec);
    }
    return ls__builder_finish(b, true, out);
}

static ls_status generate_one_shot(const ls__program_spec *spec, const ls__env *env,
                                   ls__program **out)
{
    *out = NULL;
    if (spec->memory != LS__MEMORY_STAGED) {
        return ls__fail(LS_ERR_UNSUPPORTED, "reduce one_shot runs through staged memory only");
    }
    ls__builder *b = ls__builder_new(spec, env, "one_shot");
    if (!is_root(spec)) {
        (void)ls__builder_copy(b, 0, own(spec, LS__BUFFER_STAGE, 0),
                               own(spec, LS__BUFFER_INPUT, 0));
    }
    if (spec->size > 1) {
        (void)ls__builder_fence(b, 0);
    }
    if (is_root(spec)) {
        ls__ref src[LS__PROGRAM_RANKS_MAX];
        for (int p = 0; p < spec->size; p++) {
            src[p] = ls__ref_of(p == spec->rank ? LS__BUFFER_INPUT : LS__BUFFER_STAGE, p, 0);
        }
        const ls__ref dst = own(spec, LS__BUFFER_OUTPUT, 0);
        (void)ls__builder_reduce(b, 0, &dst, 1, src, spec->size);
    }
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__reduce_direct = {"direct", LS__OP_REDUCE, true, LS__IN_ALL, generate};
const ls__algorithm ls__reduce_one_shot = {"one_shot", LS__OP_REDUCE, true, LS__IN_STAGED,
                                           generate_one_shot};
