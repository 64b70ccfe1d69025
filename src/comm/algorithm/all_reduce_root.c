/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce "root": all ranks send to one, which reduces and sends the result to all: a parameter
 * server of one rank, or a reduce followed by a broadcast.
 *
 * Cost: the root receives n-1 buffers and sends n-1, over one link each in turn; all others one
 * each way. Two dependent steps. The baseline of the others. Exact.
 */
#include "comm/algorithm/algorithm.h"

#define ROOT 0

static void emit_root(ls__builder *b, const ls__program_spec *spec)
{
    const int n = spec->size;
    const ls__ref out = ls__ref_of(LS__BUFFER_OUTPUT, ROOT, 0);
    ls__ref src[LS__PROGRAM_RANKS_MAX] = {ls__ref_of(LS__BUFFER_INPUT, ROOT, 0)};
    ls__builder_chunks(b, 1, n);
    for (int p = 1; p < n; p++) {
        src[p] = ls__ref_scratch(spec, 1, p, 0);
        (void)ls__builder_recv(b, 0, src[p], p);
    }
    (void)ls__builder_reduce(b, 0, &out, 1, src, n);
    for (int p = 1; p < n; p++) {
        (void)ls__builder_send(b, 0, out, p);
    }
}

static void emit_other(ls__builder *b, const ls__program_spec *spec)
{
    ls__builder_chunks(b, 1, spec->size);
    (void)ls__builder_send(b, 0, ls__ref_of(LS__BUFFER_INPUT, spec->rank, 0), ROOT);
    (void)ls__builder_recv(b, 0, ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, 0), ROOT);
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "root"));
    ls__builder *b = ls__builder_new(spec, env, "root");
    if (spec->rank == ROOT) {
        emit_root(b, spec);
    } else {
        emit_other(b, spec);
    }
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__all_reduce_root = {"root", LS__OP_ALL_REDUCE, true, LS__IN_MESSAGES,
                                           generate};
