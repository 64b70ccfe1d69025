/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a table whose rows the ranks of an axis share (Shoeybi et al. 2019, section 3): each
 * looks up those that it has and gives zeros for the others, so the sum over the ranks is the
 * lookup in the whole table, to the bit: one term of it is not zero. */
#include <lockstep/sharded.h>

#include "placement/sharded.h"
#include "tensor/indices.h"

ls_tensor *ls_sharded_embedding(ls_tensor *weight, ls_tensor *index, const char *axis)
{
    ls__call call;
    if (!ls__call_begin(&call, "sharded_embedding", 2, (ls_tensor *[]){weight, index})) {
        return call.failed;
    }
    const ls__axis_in_force *along =
        ls__sharded_begin(&call, axis, 0, LS__PLACED_PARTIAL, "a whole table goes to ls_embedding");
    return along != NULL ? ls__call_embed(&call, along->coordinate, along->size) : call.failed;
}
