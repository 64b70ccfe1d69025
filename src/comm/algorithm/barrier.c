/* SPDX-License-Identifier: Apache-2.0 */
/* barrier: with shared memory one fence; by messages the dissemination barrier (Hensgen, Finkel &
 * Manber 1988): in round k rank r sends to r + 2^k and receives from r - 2^k, so after ceil(log2 n)
 * rounds it knows, directly or not, that all have come. Its messages are empty: one fits into any
 * stream, so sending before receiving cannot block.
 */
#include "comm/algorithm/algorithm.h"

static void emit_messages(ls__builder *b, const ls__program_spec *spec)
{
    const int n = spec->size;
    const ls__ref nothing = ls__ref_of(LS__BUFFER_INPUT, spec->rank, 0);
    const ls__ref nowhere = ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, 0);
    for (int distance = 1; distance < n; distance *= 2) {
        (void)ls__builder_send(b, 0, nothing, (spec->rank + distance) % n);
        (void)ls__builder_recv(b, 0, nowhere, (spec->rank - distance + n) % n);
    }
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    ls__builder *b = ls__builder_new(spec, env, "direct");
    if (spec->size > 1 && spec->memory == LS__MEMORY_MESSAGES) {
        emit_messages(b, spec);
    } else if (spec->size > 1) {
        (void)ls__builder_fence(b, 0);
    }
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__barrier_direct = {"direct", LS__OP_BARRIER, true, LS__IN_ALL, generate};
