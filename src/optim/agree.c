/* SPDX-License-Identifier: Apache-2.0 */
/* Settings that ranks with parts of one model share.
 *
 * A wrapper compares its ranks' settings in each backward, and a pipeline in each call. Ranks that
 * have parts of a parameter along another axis of the mesh ("tp") meet in neither: with another
 * learning rate on one of them, or without one of its steps, all shapes agree, and only the numbers
 * are wrong. So each step compares along these axes before it changes anything: one exchange of 16
 * bytes, and the facts only where they differ. */
#include <stdio.h>

#include "autograd/param.h"
#include "comm/api/control.h"
#include "dist/agree.h"
#include "dist/mesh.h"
#include "optim/optim.h"
#include "tensor/placement.h"

/* Bit a: a parameter is divided along axis a of the mesh in force, whose ranks no wrapper
 * compares. */
unsigned ls__optim_divided(const ls_optim *o)
{
    const ls__axes_in_force *axes = o->guest.runtime->axes;
    unsigned along = 0, left = 0;
    if (axes == NULL) {
        return 0;
    }
    for (int i = 0; i < o->count; i++) {
        along |= ls_requires_grad(o->params[i].value)
                     ? ls__place_parts(axes, ls__param_placed(o->params[i].value))
                     : 0;
    }
    for (int a = 0; a < axes->count; a++) {
        const bool leads =
            ls__axis_leads_out(&axes->axis[a], o->observer != NULL ? o->observer->group : NULL);
        left |= (unsigned)leads << a;
    }
    return along & left;
}

static ls_status agree_along(const ls__axis_in_force *axis, bool first)
{
    ls__agree_peers peers = {.group = axis->group, .stages = true, .trains = true};
    (void)snprintf(peers.who, sizeof peers.who, "axis \"%s\"", axis->name);
    LS_TRY(first ? ls__agree_settings(&peers) : LS_OK);
    const int64_t own = (int64_t)ls__config_change_hash();
    int64_t least[2] = {own, ~own}; /* of the hashes, and the inverse of the largest one */
    LS_TRY(ls__control_all_reduce(
        peers.group, least, 2, LS_INT64, LS_MIN,
        LS_OPTIONS(ls_collective_options, .tag = "settings of the ranks of an axis")));
    return least[0] != ~least[1] ? ls__agree_changes(&peers) : LS_OK;
}

ls_status ls__optim_agree(ls_optim *o)
{
    const ls__axes_in_force *axes = o->guest.runtime->axes;
    const unsigned first = o->divided & ~o->agreed;
    for (int a = 0; o->divided >> a != 0; a++) {
        LS_TRY(o->divided >> a & 1 ? agree_along(&axes->axis[a], first >> a & 1) : LS_OK);
    }
    o->agreed |= o->divided;
    return LS_OK;
}
