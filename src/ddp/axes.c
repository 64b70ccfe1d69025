/* SPDX-License-Identifier: Apache-2.0 */
/* See axes.h. */
#include "ddp/axes.h"

#include <string.h>

#include "autograd/param.h"
#include "base/axes.h"
#include "base/runtime.h"
#include "ddp/wrapper.h"
#include "dist/mesh.h"
#include "nn/module.h"
#include "placement/inputs.h"
#include "tensor/op.h"

static ls__axes_in_force *axes_of(const ls__ddp *d)
{
    return d->runtime->axes;
}

/* Bits of the axes in a list of names. */
static ls_status read_axes(const ls__ddp *d, const char *list, int *out)
{
    *out = 0;
    for (const char *at = list; *at != '\0';) {
        const size_t length = strcspn(at, ",");
        int found = -1;
        for (int a = 0; a < axes_of(d)->count; a++) {
            const char *name = axes_of(d)->axis[a].name;
            found = strlen(name) == length && memcmp(name, at, length) == 0 ? a : found;
        }
        if (found < 0 || (axes_of(d)->axis[found].size > 1 && !(d->axes.group >> found & 1))) {
            return ls__fail(LS_ERR_INVALID,
                            "batch_axes is \"%.100s\"; \"%.*s\" is no axis of the mesh along which "
                            "the group \"%s\" extends",
                            list, (int)length, at, ls_group_name(d->group));
        }
        *out |= axes_of(d)->axis[found].size > 1 ? 1 << found : 0;
        at += length + (at[length] == ',');
    }
    return LS_OK;
}

ls_status ls__ddp_axes_init(ls__ddp *d, const ls_ddp_options *options)
{
    ls__ddp_axes *x = &d->axes;
    if (axes_of(d) == NULL) {
        return options->batch_axes == NULL
                   ? LS_OK
                   : ls__fail(LS_ERR_STATE,
                              "batch_axes is \"%.100s\", and no mesh is in force; "
                              "make one with ls_mesh_new before",
                              options->batch_axes);
    }
    x->group = ls__mesh_axes_of(axes_of(d)->mesh, d->group);
    x->known = x->group >= 0;
    x->batches = x->group;
    if (options->batch_axes == NULL) {
        return LS_OK;
    }
    if (!x->known) {
        return ls__fail(LS_ERR_INVALID,
                        "batch_axes is \"%.100s\", and the ranks of group \"%s\" are not all those "
                        "along some axes of the mesh; give the group of a mesh",
                        options->batch_axes, ls_group_name(d->group));
    }
    return read_axes(d, options->batch_axes, &x->batches);
}

/* Which of the groups over the axes `mask` this rank is in: its coordinates along the others. */
static int color_of(const ls__ddp *d, int mask)
{
    int color = 0;
    for (int a = 0; a < axes_of(d)->count; a++) {
        if (d->axes.group >> a & 1 && !(mask >> a & 1)) {
            color = color * axes_of(d)->axis[a].size + axes_of(d)->axis[a].coordinate;
        }
    }
    return color;
}

/* The ranks of the wrapper's group along these axes; NULL: all of it. */
static ls_status group_over(ls__ddp *d, int mask, ls_group **out)
{
    ls__ddp_axes *x = &d->axes;
    *out = NULL;
    if (mask == x->group) {
        return LS_OK;
    }
    for (int i = 0; i < x->made_count; i++) {
        if (x->made_mask[i] == mask) {
            *out = x->made[i];
            return LS_OK;
        }
    }
    if (x->made_count == LS__DDP_GROUPS_MAX) {
        return ls__fail(LS_ERR_LIMIT,
                        "the parameters are summed over more than %d sets of axes; place them "
                        "alike",
                        LS__DDP_GROUPS_MAX);
    }
    ls_group **made = &x->made[x->made_count];
    LS_TRY(ls_group_split(d->group, color_of(d, mask), 0, NULL, made));
    x->made_mask[x->made_count++] = mask;
    *out = *made;
    return LS_OK;
}

/* Axes over which the gradient is summed: those of batches, unless it is complete there (experts),
 * and those of the group along which the parameter was placed as replicated. */
static ls_status axes_of_sum(const ls__ddp *d, const ls_param *param, int *out)
{
    *out = 0;
    for (int a = 0; a < axes_of(d)->count; a++) {
        const ls__axis_in_force *axis = &axes_of(d)->axis[a];
        const int place = ls__place_at(ls__param_placed(param->value), a);
        const bool inside = d->axes.group >> a & 1, batch = d->axes.batches >> a & 1;
        if (axis->size == 1 || (ls__param_complete(param->value) >> a & 1)) {
            continue;
        }
        if (place >= LS__PLACED_SHARDED && batch) {
            return ls__fail(LS_ERR_PLACEMENT,
                            "parameter %s is %s on axis %s, and the wrapper would add the "
                            "gradients of different parts; give it the group of the other axes, "
                            "or name the axes of batches in batch_axes (\"\": none)",
                            param->name, ls_placement_name(ls__placement_public(place)),
                            axis->name);
        }
        if (place == LS__PLACED_REPLICATED && !inside) {
            return ls__fail(LS_ERR_PLACEMENT,
                            "parameter %s is replicated on axis %s, over which group \"%s\" does "
                            "not add its gradient; give ls_ddp_new a group with this axis, and "
                            "batch_axes",
                            param->name, axis->name, ls_group_name(d->group));
        }
        *out |= batch || (inside && place == LS__PLACED_REPLICATED) ? 1 << a : 0;
    }
    return LS_OK;
}

ls_status ls__ddp_axes_place(ls__ddp *d, const ls_param *param, ls_ddp_place *place)
{
    int sum = 0;
    if (!d->axes.known || place->reduce_group != NULL) {
        return LS_OK;
    }
    LS_TRY(axes_of_sum(d, param, &sum));
    LS_TRY(group_over(d, sum, &place->reduce_group));
    if (place->batch_group == NULL && place->divisor == 0.0) {
        return group_over(d, d->axes.batches, &place->batch_group);
    }
    return LS_OK;
}

ls_status ls__ddp_axes_copies(ls__ddp *d, const ls_param *param, ls_group **out)
{
    *out = NULL;
    if (!d->axes.known) {
        return LS_OK;
    }
    const unsigned apart = ls__place_parts(axes_of(d), ls__param_placed(param->value));
    return group_over(d, d->axes.group & ~(int)apart, out);
}

ls_status ls__ddp_axes_note(ls__ddp *d, const ls_param *param, const ls_group *sums)
{
    if (!d->axes.known) {
        return LS_OK;
    }
    const int mask = ls__mesh_axes_of(axes_of(d)->mesh, sums);
    return ls__param_set_summed(param->value, mask > 0 ? (unsigned)mask : 0u);
}

void ls__ddp_axes_count(ls__ddp *d, bool begin)
{
    if (d->axes.counted == begin || axes_of(d) == NULL) {
        return;
    }
    d->axes.counted = begin;
    for (int a = 0; a < axes_of(d)->count && d->axes.known; a++) {
        if (d->axes.batches >> a & 1) {
            axes_of(d)->axis[a].batches += begin ? 1 : -1;
        }
    }
}

void ls__ddp_axes_mark(const ls__ddp *d, ls_tensor *const *inputs, int count)
{
    for (int i = 0; i < count && d->axes.known; i++) {
        ls__record *record =
            inputs[i] != NULL ? ls__record_sound(ls__tensors_get("ddp"), inputs[i], "ddp") : NULL;
        if (record == NULL || record->node != NULL) {
            continue;
        }
        for (int a = 0; a < axes_of(d)->count; a++) {
            if (d->axes.batches >> a & 1 && ls__place_at(record->place, a) == 0) {
                record->place = ls__place_with(record->place, a, LS__PLACED_VARYING);
            }
        }
    }
}

/* Axes along which parameters are divided, or summed though the samples are equal there. */
static int axes_of_model(const ls__ddp *d)
{
    int mask = 0;
    for (int i = 0; i < d->param_count; i++) {
        for (int a = 0; a < axes_of(d)->count; a++) {
            const bool placed = ls__place_at(ls__param_placed(d->params[i].value), a) != 0;
            mask |= placed && axes_of(d)->axis[a].size > 1 ? 1 << a : 0;
        }
    }
    return mask & ~d->axes.batches;
}

ls_status ls__ddp_axes_check_hook(const ls__ddp *d)
{
    for (int i = 0; axes_of(d) != NULL && i < d->param_count; i++) {
        for (int a = 0; a < axes_of(d)->count; a++) {
            const int place = ls__place_at(ls__param_placed(d->params[i].value), a);
            if (place >= LS__PLACED_SHARDED && axes_of(d)->axis[a].size > 1) {
                return ls__fail(LS_ERR_UNSUPPORTED,
                                "a communication hook, and parameter %s is divided along axis %s "
                                "of the mesh: a checkpoint could not show what the hook keeps for "
                                "its parts; leave the hook out",
                                d->params[i].name, axes_of(d)->axis[a].name);
            }
        }
    }
    return LS_OK;
}

ls_status ls__ddp_axes_check_inputs(ls__ddp *d, ls_tensor *const *inputs, int count)
{
    if (!d->axes.known || d->axes.compared) {
        return LS_OK;
    }
    d->axes.compared = true;
    const int mask = axes_of_model(d);
    for (int a = 0; a < axes_of(d)->count; a++) {
        if (mask >> a & 1) {
            LS_TRY(ls__inputs_compare(axes_of(d), a, inputs, count, "ddp"));
        }
    }
    return LS_OK;
}

ls_status ls__ddp_axes_fini(ls__ddp *d)
{
    ls_status status = LS_OK;
    for (int i = d->axes.made_count - 1; i >= 0; i--) {
        const ls_status freed = ls_group_free(d->axes.made[i]);
        status = status < 0 ? status : freed;
    }
    d->axes.made_count = 0;
    return status;
}
