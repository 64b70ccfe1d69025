/* SPDX-License-Identifier: Apache-2.0 */
/* See inputs.h. */
#include "placement/inputs.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/options.h"
#include "comm/api/control.h"
#include "tensor/across.h"
#include "tensor/op.h"
#include "tensor/placement.h"

/* Of the elements of inputs that are unplaced on the axis. */
static ls_status hash_inputs(ls_tensor *const *inputs, int count, int axis, uint64_t *out)
{
    *out = 0;
    for (int i = 0; i < count; i++) {
        ls__host_view view;
        const ls__record *record =
            inputs[i] != NULL ? ls__record_sound(ls__tensors_get("inputs"), inputs[i], "inputs")
                              : NULL;
        if (record == NULL || ls__place_at(record->place, axis) != 0) {
            continue;
        }
        ls_tensor *dense = ls_contiguous(inputs[i]);
        LS_TRY(ls__host_view_of(dense, &view));
        *out = ls__hash_bytes(*out, view.data, view.bytes);
        ls__host_view_close(&view, false);
    }
    return LS_OK;
}

ls_status ls__inputs_compare(const ls__axes_in_force *axes, int axis, ls_tensor *const *inputs,
                             int count, const char *what)
{
    ls_group *along = axes->axis[axis].group;
    const ls_collective_options *o = LS_OPTIONS(ls_collective_options, .tag = "inputs");
    uint64_t own;
    LS_TRY(hash_inputs(inputs, count, axis, &own));
    uint64_t first = own;
    LS_TRY(ls__control_broadcast(along, &first, 1, LS_UINT64, 0, o));
    int32_t other = own != first ? ls_group_rank(along) : 0;
    LS_TRY(ls__control_all_reduce(along, &other, 1, LS_INT32, LS_MAX, o));
    return other == 0
               ? LS_OK
               : ls__fail(LS_ERR_MISMATCH,
                          "%s: the inputs of rank %d of axis %s are not those of rank 0, and the "
                          "ranks of this axis work on the same samples; let them read the part of "
                          "the data that their coordinates in the axes of batches say, or ls_place "
                          "what differs",
                          what, (int)other, axes->axis[axis].name);
}
