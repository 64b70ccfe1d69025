/* SPDX-License-Identifier: Apache-2.0 */
/* See wrapper.h. */

#include <stdio.h>
#include <string.h>

#include "autograd/param.h"
#include "base/axes.h"
#include "base/hash.h"
#include "comm/diagnose/fail.h"
#include "ddp/wrapper.h"
#include "dist/agree.h"
#include "dist/mesh.h"
#include "reduce/domain.h"
#include "tensor/placement.h"
#include "tensor/tensor.h"

typedef struct copies {
    const ls__ddp *d;
    const ls__axes_in_force *axes;
    int axis;
} copies;

/* Axes along which a parameter has no copies, or the reducer compares them. Parameters follow each
 * other that are summed over one group: *group and *mask are those of the last. */
static unsigned axes_without(const copies *c, int param, const ls_group **group, int *mask)
{
    const ls_tensor *value = c->d->params[param].value;
    if (c->d->sums[param] != *group) {
        *group = c->d->sums[param];
        *mask = ls__mesh_axes_of(c->axes->mesh, *group);
    }
    return (unsigned)*mask | ls__place_parts(c->axes, ls__param_placed(value)) |
           ls__param_staged_along(value);
}

/* The same for a frozen parameter; the ranks of the group have it from rank 0. */
static unsigned axes_without_frozen(const copies *c, int param)
{
    const ls_tensor *value = c->d->frozen[param].value;
    return (unsigned)c->d->axes.group | ls__place_parts(c->axes, ls__param_placed(value)) |
           ls__param_staged_along(value);
}

static void list_one(ls__facts *to, const char *param, uint64_t hash, const char *remedy)
{
    char name[256];
    (void)snprintf(name, sizeof name, "the numbers of %.200s", param);
    ls__facts_hash(to, name, hash, remedy);
}

static void list_copies(ls__facts *to, const void *arg)
{
    const copies *c = arg;
    const ls_group *group = NULL;
    int mask = 0;
    for (int i = 0; i < c->d->param_count; i++) {
        if (!(axes_without(c, i, &group, &mask) >> c->axis & 1)) {
            list_one(to, c->d->params[i].name, c->d->hashes[i],
                     "a gradient lacks a conversion along this axis (ls_redistribute), a bit has "
                     "flipped, or the program changed it on one rank");
        }
    }
    for (int i = 0; i < c->d->frozen_count && !c->d->frozen_compared; i++) {
        ls__host_view view;
        if (!(axes_without_frozen(c, i) >> c->axis & 1) &&
            ls__host_view_of(c->d->frozen[i].value, &view) == LS_OK) {
            list_one(to, c->d->frozen[i].name, ls__hash_bytes(0, view.data, view.bytes),
                     "give the ranks of the axis the same values, by one seed or a checkpoint");
            ls__host_view_close(&view, false);
        }
    }
}

static bool has_copies(const copies *c)
{
    const ls_group *group = NULL;
    int mask = 0;
    for (int i = 0; i < c->d->frozen_count && !c->d->frozen_compared; i++) {
        if (!(axes_without_frozen(c, i) >> c->axis & 1)) {
            return true;
        }
    }
    for (int i = 0; i < c->d->param_count; i++) {
        if (!(axes_without(c, i, &group, &mask) >> c->axis & 1)) {
            return true;
        }
    }
    return false;
}

static ls_status compare(const copies *c)
{
    const ls__axis_in_force *axis = &c->axes->axis[c->axis];
    ls__agree_peers peers = {.group = axis->group};
    (void)snprintf(peers.who, sizeof peers.who, "ddp, copies along axis %s", axis->name);
    return ls__agree(&peers, list_copies, c);
}

ls_status ls__ddp_copies_check(ls__ddp *d, ls_status reduced)
{
    const bool due = d->hashed;
    char text[LS__MESSAGE_MAX];
    ls_status status = reduced;
    d->hashed = false;
    for (int a = 0; due && d->axes.known && a < d->runtime->axes->count; a++) {
        const copies c = {.d = d, .axes = d->runtime->axes, .axis = a};
        if (c.axes->axis[a].size == 1 || !has_copies(&c)) {
            continue;
        }
        status = status < 0 ? status : compare(&c);
        if (status < 0) {
            memcpy(text, ls_error_message(), sizeof text);
            ls__group_fail(c.axes->axis[a].group, status, text);
            (void)ls__fail_again(status, text);
        }
    }
    d->frozen_compared = d->frozen_compared || due;
    if (status < 0 && reduced == LS_OK) {
        memcpy(text, ls_error_message(), sizeof text);
        ls__reducer_fail(d->reducer, status, text);
        return ls__fail_again(status, text);
    }
    return status;
}
