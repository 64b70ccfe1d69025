/* SPDX-License-Identifier: Apache-2.0 */
/* broadcast "chain": chunks go from rank to rank, counted from the root on; each is passed on while
 * the next one comes.
 *
 *     root ──▶ root+1 ──▶ root+2 ──▶ …
 *
 * Cost: every link carries the buffer once; n-2 dependent steps more than CHUNKS, each of a chunk.
 * For large buffers and few ranks.
 */
#include "comm/algorithm/algorithm.h"

#define CHUNKS 8

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "chain"));
    const int n = spec->size, me = spec->rank, place = (me - spec->root + n) % n;
    const int in = (place + 1) % 2, on = place % 2; /* lanes: links take them in turn */
    ls__builder *b = ls__builder_new(spec, env, "chain");
    ls__builder_chunks(b, CHUNKS, 0);
    for (int c = 0; c < CHUNKS; c++) {
        const ls__ref chunk = ls__ref_of(LS__BUFFER_OUTPUT, me, c);
        int came = -1;
        if (place == 0) { /* in place: onto itself */
            (void)ls__builder_copy(b, on, chunk, ls__ref_of(LS__BUFFER_INPUT, me, c));
        } else {
            came = ls__builder_recv(b, in, chunk, (me - 1 + n) % n);
        }
        if (place + 1 < n) {
            (void)ls__builder_send(b, on, chunk, (me + 1) % n);
        }
        if (place + 1 < n && came >= 0) {
            ls__builder_after(b, on, in, came);
        }
    }
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__broadcast_chain = {"chain", LS__OP_BROADCAST, true, LS__IN_MESSAGES,
                                           generate};
