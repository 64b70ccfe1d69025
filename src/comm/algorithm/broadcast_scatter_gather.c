/* SPDX-License-Identifier: Apache-2.0 */
/* broadcast "scatter_all_gather": the root sends each rank a chunk; then chunks travel round the
 * ring (Note [Ring]) until every rank has all.
 *
 * Cost: the root sends (n-1)/n buffers twice, all receive (n-1)/n, as fast as one link carries
 * about two buffers whatever the number of ranks; n dependent steps. For large buffers. Thakur,
 * Rabenseifner & Gropp 2005, section 5 (van de Geijn).
 */
#include "comm/algorithm/algorithm.h"

static ls__ref chunk_of(const ls__program_spec *spec, int behind)
{
    const int n = spec->size;
    return ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, (spec->rank - behind + n) % n);
}

/* It sends each rank's chunk to it, in the lane in which that one receives from its neighbour, then
 * all chunks but its own right-hand neighbour's along the ring. */
static void emit_root(ls__builder *b, const ls__program_spec *spec)
{
    const int n = spec->size, me = spec->rank, out = ls__ring_lane(spec, me);
    int copied = -1;
    for (int c = 0; c < n; c++) { /* in place: onto itself */
        copied = ls__builder_copy(b, out, ls__ref_of(LS__BUFFER_OUTPUT, me, c),
                                  ls__ref_of(LS__BUFFER_INPUT, me, c));
    }
    for (int k = 1; k < n; k++) {
        const int p = (me + k) % n, lane = ls__ring_lane(spec, (p - 1 + n) % n);
        (void)ls__builder_send(b, lane, ls__ref_of(LS__BUFFER_OUTPUT, me, p), p);
        if (lane != out) {
            ls__builder_after(b, lane, out, copied);
        }
    }
    for (int k = 1; k < n; k++) {
        (void)ls__builder_send(b, out, chunk_of(spec, k - 1), (me + 1) % n);
    }
}

/* Nothing goes back to the root. */
static void emit_other(ls__builder *b, const ls__program_spec *spec)
{
    const int n = spec->size, me = spec->rank, left = (me - 1 + n) % n, right = (me + 1) % n;
    const int out = ls__ring_lane(spec, me), in = ls__ring_lane(spec, left);
    int came = ls__builder_recv(b, in, chunk_of(spec, 0), spec->root);
    for (int k = 1; k < n; k++) {
        if (right != spec->root) {
            (void)ls__builder_send(b, out, chunk_of(spec, k - 1), right);
            ls__builder_after(b, out, in, came);
        }
        came = ls__builder_recv(b, in, chunk_of(spec, k), left);
    }
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "scatter_all_gather"));
    ls__builder *b = ls__builder_new(spec, env, "scatter_all_gather");
    ls__builder_chunks(b, spec->size, 0);
    if (spec->rank == spec->root) {
        emit_root(b, spec);
    } else {
        emit_other(b, spec);
    }
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__broadcast_scatter_gather = {"scatter_all_gather", LS__OP_BROADCAST, true,
                                                    LS__IN_MESSAGES, generate};
