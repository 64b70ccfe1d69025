/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce "direct": every rank reduces one chunk for all. The bytes of a ring, in two dependent
 * steps instead of 2(n-1), and in the canonical association: the owner of a chunk has all n
 * contributions at once and combines them by the tree.
 *
 *     messages     exchange chunks ▸ tree(all contributions to my chunk) ▸ exchange results
 *     registered   fence 0 ▸ every rank's OUTPUT[r] = tree(every rank's INPUT[r]) ▸ fence 1
 *     staged       copy the others' chunks into my STAGE
 *                  fence 0 ▸ my OUTPUT[r] and the others' STAGE[r] = tree
 *                  fence 1 ▸ copy the others' chunks out of my STAGE
 *
 * Cost a rank, in buffers: (n-1)/n sent and received twice by messages; (n-1)/n read from peers and
 * as much written to them in memory. Patarasuk & Yuan 2009 (the bound), Thakur, Rabenseifner &
 * Gropp 2005, section 4 (reduce-scatter and all-gather).
 */
#include "comm/algorithm/algorithm.h"

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

static ls__ref send_result(const ls__program_spec *spec, int peer)
{
    (void)peer;
    return own(spec, LS__BUFFER_OUTPUT, spec->rank);
}

static ls__ref recv_result(const ls__program_spec *spec, int peer)
{
    return own(spec, LS__BUFFER_OUTPUT, peer);
}

static void emit_messages(ls__builder *b, const ls__program_spec *spec)
{
    const int n = spec->size;
    ls__builder_chunks(b, n, n);
    ls__emit_exchange(b, spec, &(ls__exchange){send_input, recv_scratch, -1});
    ls__ref src[LS__PROGRAM_RANKS_MAX];
    for (int p = 0; p < n; p++) {
        src[p] = p == spec->rank ? own(spec, LS__BUFFER_INPUT, p) : recv_scratch(spec, p);
    }
    const ls__ref dst = own(spec, LS__BUFFER_OUTPUT, spec->rank);
    const int reduced = ls__builder_reduce(b, 0, &dst, 1, src, n);
    ls__builder_after(b, 0, 1, ls__exchange_last(spec));
    ls__emit_exchange(b, spec, &(ls__exchange){send_result, recv_result, reduced});
}

/* ---- shared memory ------------------------------------------------------------------------ */

static void emit_registered(ls__builder *b, const ls__program_spec *spec)
{
    const int n = spec->size;
    ls__builder_chunks(b, n, 0);
    (void)ls__builder_fence(b, 0);
    ls__ref dst[LS__PROGRAM_RANKS_MAX], src[LS__PROGRAM_RANKS_MAX];
    for (int p = 0; p < n; p++) {
        src[p] = ls__ref_of(LS__BUFFER_INPUT, p, spec->rank);
        dst[p] = ls__ref_of(LS__BUFFER_OUTPUT, p, spec->rank);
    }
    (void)ls__builder_reduce(b, 0, dst, n, src, n);
    (void)ls__builder_fence(b, 0);
}

/* A rank's own chunk is never staged: it reads INPUT and writes OUTPUT itself. See Note [One
 * fence] for why two fences are needed and enough. */
static void emit_staged(ls__builder *b, const ls__program_spec *spec)
{
    const int n = spec->size, me = spec->rank;
    ls__builder_chunks(b, n, 0);
    for (int k = 1; k < n; k++) {
        const int c = (me + k) % n;
        (void)ls__builder_copy(b, 0, own(spec, LS__BUFFER_STAGE, c), send_input(spec, c));
    }
    (void)ls__builder_fence(b, 0);
    ls__ref dst[LS__PROGRAM_RANKS_MAX], src[LS__PROGRAM_RANKS_MAX];
    for (int p = 0; p < n; p++) {
        src[p] = ls__ref_of(p == me ? LS__BUFFER_INPUT : LS__BUFFER_STAGE, p, me);
        dst[p] = ls__ref_of(p == me ? LS__BUFFER_OUTPUT : LS__BUFFER_STAGE, p, me);
    }
    (void)ls__builder_reduce(b, 0, dst, n, src, n);
    (void)ls__builder_fence(b, 0);
    for (int k = 1; k < n; k++) {
        const int c = (me + k) % n;
        (void)ls__builder_copy(b, 0, recv_result(spec, c), own(spec, LS__BUFFER_STAGE, c));
    }
}

static void emit_alone(ls__builder *b, const ls__program_spec *spec)
{
    const ls__ref dst = own(spec, LS__BUFFER_OUTPUT, 0), src = own(spec, LS__BUFFER_INPUT, 0);
    (void)ls__builder_reduce(b, 0, &dst, 1, &src, 1); /* a reduce, so that it may divide */
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    ls__builder *b = ls__builder_new(spec, env, "direct");
    if (spec->size == 1) {
        emit_alone(b, spec);
    } else if (spec->memory == LS__MEMORY_MESSAGES) {
        emit_messages(b, spec);
    } else if (spec->memory == LS__MEMORY_REGISTERED) {
        emit_registered(b, spec);
    } else {
        emit_staged(b, spec);
    }
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__all_reduce_direct = {"direct", LS__OP_ALL_REDUCE, true, LS__IN_ALL,
                                             generate};
