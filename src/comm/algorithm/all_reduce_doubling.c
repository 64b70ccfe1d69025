/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce "recursive_doubling": the ranks climb the canonical tree together (D5). At level d the
 * ranks of a subtree of 2d ranks hold the sum of its left or of its right half, and exchange them:
 *
 *     level 1   0 ◀▶ 1   2 ◀▶ 3   4 ◀▶ 5   6          0+1   2+3   4+5   6
 *     level 2   0 ◀▶ 2   1 ◀▶ 3   4 ◀▶ 6              (0+1)+(2+3)   (4+5)+6
 *                                  then 4 ──▶ 5
 *     level 4   0 ◀▶ 4   1 ◀▶ 5   2 ◀▶ 6              all
 *               then 0 ──▶ 3
 *
 * If the number of ranks is not a power of two, a right half has m < d ranks. Then the first m of
 * the left exchange with them, and hand the sum on to the other d-m, doubling their number each
 * time. The association stays the canonical one for every number of ranks, unlike with the usual
 * folding of the surplus ranks. Partial sums are wide, so rounding happens once.
 *
 * Cost: for a power of two log2 n steps and log2 n buffers sent and received by each; otherwise at
 * most 2 ceil(log2 n) steps. Good for messages so short that steps are all that counts.
 * Thakur, Rabenseifner & Gropp 2005, section 4.4.
 */
#include "comm/algorithm/algorithm.h"

static void emit(ls__builder *b, const ls__program_spec *spec)
{
    const ls__ref in = ls__ref_of(LS__BUFFER_INPUT, spec->rank, 0);
    const ls__ref out = ls__ref_of(LS__BUFFER_OUTPUT, spec->rank, 0);
    ls__builder_chunks(b, 1, 2);
    ls__builder_wide(b);
    const ls__ref sum = ls__ref_scratch(spec, 1, 0, 0);
    ls__team all;
    ls__team_of_all(spec, &all);
    ls__emit_climb(b, spec, &all, ls__builder_copy(b, 0, sum, in));
    (void)ls__builder_reduce(b, 0, &out, 1, &sum, 1); /* divides and rounds */
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    *out = NULL;
    LS_TRY(ls__only_messages(spec, "recursive_doubling"));
    ls__builder *b = ls__builder_new(spec, env, "recursive_doubling");
    emit(b, spec);
    return ls__builder_finish(b, true, out);
}

const ls__algorithm ls__all_reduce_doubling = {"recursive_doubling", LS__OP_ALL_REDUCE, true,
                                               LS__IN_MESSAGES, generate};
