/* SPDX-License-Identifier: Apache-2.0 */
/* Settings that ranks with parts of one model share.
 *
 * A wrapper compares its ranks' settings in each backward, and a pipeline in each call. Ranks that
 * have parts of a parameter along another axis of the mesh ("tp") meet in neither: with another
 * learning rate on one of them, or without one of its steps, all shapes agree, and only the numbers
 * are wrong. So each step compares along these axes before it changes anything: one exchange of 16
 * bytes, and the facts only where they differ. Without a wrapper, which does so itself
 * (ddp/copies.c), the first step also compares the numbers of undivided parameters. */
#include <stdio.h>

#include "autograd/param.h"
#include "base/hash.h"
#include "comm/api/control.h"
#include "dist/agree.h"
#include "dist/mesh.h"
#include "nn/module.h"
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

typedef struct copies {
    const ls_optim *o;
    int axis;
} copies;

static void list_copies(ls__facts *to, const void *arg)
{
    const copies *c = arg;
    char name[256];
    for (int i = 0; i < c->o->count; i++) {
        ls_tensor *t = c->o->params[i].value;
        const unsigned apart = ls__place_parts(c->o->guest.runtime->axes, ls__param_placed(t)) |
                               ls__param_staged_along(t);
        ls__host_view view;
        if (apart >> c->axis & 1 || ls__host_view_of(t, &view) != LS_OK) {
            continue;
        }
        const uint64_t hash = ls__hash_bytes(0, view.data, view.bytes);
        ls__host_view_close(&view, false);
        (void)snprintf(name, sizeof name, "the numbers of %.200s (parameter %d)",
                       c->o->params[i].name, i);
        ls__facts_hash(to, name, hash,
                       "give the ranks of the axis the same first values, by one seed or a "
                       "checkpoint, or their own parts (ls_tensor_shard)");
    }
}

bool ls__optim_shared(const void *optim)
{
    const ls_optim *o = optim;
    for (int i = 0; i < o->count; i++) {
        if (ls__param_is_shared(o->params[i].value)) {
            return true;
        }
    }
    return false;
}

static ls_status agree_along(const ls_optim *o, int a, bool first)
{
    const ls__axis_in_force *axis = &o->guest.runtime->axes->axis[a];
    ls__agree_peers peers = {.group = axis->group, .parts = true, .trains = true};
    (void)snprintf(peers.who, sizeof peers.who, "axis \"%s\"", axis->name);
    LS_TRY(first ? ls__agree_settings(&peers) : LS_OK);
    if (first && o->observer == NULL) {
        LS_TRY(ls__agree(&peers, list_copies, &(copies){.o = o, .axis = a}));
    }
    const uint64_t *seed = &o->guest.runtime->seed;
    const uint64_t seeded = ls__hash_bytes(LS__HASH_START, seed, sizeof *seed);
    const int64_t own = (int64_t)(ls__config_change_hash() ^ seeded);
    int64_t least[2] = {own, ~own}; /* of the hashes, and the inverse of the largest one */
    LS_TRY(ls__control_all_reduce(
        peers.group, least, 2, LS_INT64, LS_MIN,
        LS_OPTIONS(ls_collective_options, .tag = "settings of the ranks of an axis")));
    if (least[0] == ~least[1]) {
        return LS_OK;
    }
    LS_TRY(ls__agree_settings(&peers)); /* a seed that was set again */
    return ls__agree_changes(&peers);
}

ls_status ls__optim_agree(ls_optim *o)
{
    const unsigned first = o->divided & ~o->agreed;
    for (int a = 0; o->divided >> a != 0; a++) {
        LS_TRY(o->divided >> a & 1 ? agree_along(o, a, first >> a & 1) : LS_OK);
    }
    o->agreed |= o->divided;
    return LS_OK;
}
