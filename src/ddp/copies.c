/* SPDX-License-Identifier: Apache-2.0 */
/* See wrapper.h. */

#include <stdio.h>
#include <string.h>

#include "autograd/param.h"
#include "base/axes.h"
#include "comm/diagnose/fail.h"
#include "ddp/wrapper.h"
#include "dist/agree.h"
#include "dist/mesh.h"
#include "reduce/domain.h"
#include "tensor/placement.h"

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

static void list_copies(ls__facts *to, const void *arg)
{
    const copies *c = arg;
    const ls_group *group = NULL;
    int mask = 0;
    char name[256], value[32];
    for (int i = 0; i < c->d->param_count; i++) {
        if (axes_without(c, i, &group, &mask) >> c->axis & 1) {
            continue;
        }
        (void)snprintf(name, sizeof name, "the numbers of %.200s (parameter %d)",
                       c->d->params[i].name, i);
        (void)snprintf(value, sizeof value, "hash %016llx", (unsigned long long)c->d->hashes[i]);
        ls__facts_text(to, name, value,
                       "a gradient lacks a conversion along this axis (ls_redistribute), a bit has "
                       "flipped, or the program changed it on one rank");
    }
}

static bool has_copies(const copies *c)
{
    const ls_group *group = NULL;
    int mask = 0;
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
    if (status < 0 && reduced == LS_OK) {
        memcpy(text, ls_error_message(), sizeof text);
        ls__reducer_fail(d->reducer, status, text);
        return ls__fail_again(status, text);
    }
    return status;
}
