/* SPDX-License-Identifier: Apache-2.0 */
/* The v-variants, where blocks have lengths of their own: "direct" for all, "pairwise" for
 * all_to_all_v. A program does not depend on the count, so these are the programs of equal blocks;
 * what is uneven is the chunk table to which they are bound. Not so "bruck", where ranks pass on
 * blocks whose lengths they do not know.
 *
 * In shared memory "direct" only reads what peers give (INPUT or STAGE) and writes its own OUTPUT:
 * Note [Published layouts] in v_layout.c rests on it.
 *
 * Cost: as with equal blocks; what counts is the rank with most to send or receive.
 */
#include "base/error.h"
#include "comm/algorithm/algorithm.h"
#include "comm/algorithm/registry.h"

static ls_status generate_as(const char *name, const ls__program_spec *spec, const ls__env *env,
                             ls__program **out)
{
    return ls__algorithm_find(ls__operation_plain(spec->operation), name)->generate(spec, env, out);
}

static ls_status generate(const ls__program_spec *spec, const ls__env *env, ls__program **out)
{
    return generate_as("direct", spec, env, out);
}

static ls_status generate_pairwise(const ls__program_spec *spec, const ls__env *env,
                                   ls__program **out)
{
    return generate_as("pairwise", spec, env, out);
}

const ls__algorithm ls__all_to_all_v_direct = {"direct", LS__OP_ALL_TO_ALL_V, true, LS__IN_ALL,
                                               generate};
const ls__algorithm ls__all_to_all_v_pairwise = {"pairwise", LS__OP_ALL_TO_ALL_V, true,
                                                 LS__IN_MESSAGES, generate_pairwise};
const ls__algorithm ls__all_gather_v_direct = {"direct", LS__OP_ALL_GATHER_V, true, LS__IN_ALL,
                                               generate};
const ls__algorithm ls__reduce_scatter_v_direct = {"direct", LS__OP_REDUCE_SCATTER_V, true,
                                                   LS__IN_ALL, generate};
const ls__algorithm ls__gather_v_direct = {"direct", LS__OP_GATHER_V, true, LS__IN_ALL, generate};
const ls__algorithm ls__scatter_v_direct = {"direct", LS__OP_SCATTER_V, true, LS__IN_ALL, generate};
