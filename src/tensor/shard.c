/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting a parameter: it becomes this rank's part, in place, so that the layer that holds it and
 * the name that it has go on. Values that are due are drawn as those of the part (fill.h); values
 * that exist are taken. */
#include <stdio.h>

#include "base/assert.h"
#include "tensor/fill.h"
#include "tensor/placement.h"
#include "tensor/shape.h"

typedef struct cutting {
    ls__record *record;
    const ls__axes_in_force *axes;
    const ls__axis_in_force *axis;
    int number; /* of the axis */
    int dim;
    ls__part_run keep[LS__TENSOR_PART_RUNS_MAX]; /* of this dimension */
    int count;
    char subject[320];
} cutting;

static void name_subject(cutting *c)
{
    const ls__initial *initial = c->record->storage->initial;
    const bool named = initial != NULL && initial->name[0] != '\0';
    (void)snprintf(c->subject, sizeof c->subject, "tensor_shard: %s%.80s of %s",
                   named ? "parameter " : "a tensor", named ? initial->name : "",
                   ls__record_print(c->record).text);
}

/* The optimizer's, the reducer's and a graph's memory has the size that the parameter has now. */
static ls_status check_unused(const cutting *c)
{
    const ls__record *record = c->record;
    const ls__leaf *leaf = record->flags & LS__RECORD_LEAF ? ls__leaf_of(record->node) : NULL;
    const ls__initial *initial = record->storage->initial;
    const char *user = NULL;
    if (initial != NULL && initial->optimized) {
        user = "an optimizer was made over it";
    } else if (leaf != NULL && leaf->observer != NULL) {
        user = "its module is wrapped by ls_ddp_new";
    } else if (leaf != NULL && leaf->grad != NULL) {
        user = "it has a gradient";
    } else if (record->node != NULL && leaf == NULL) {
        user = "it is the result of an operation";
    } else if (leaf != NULL && !ls__storage_sole(leaf->self)) {
        user = "a view of it, or a graph, exists";
    } else if (!ls__record_covers_storage(record) ||
               record->storage->size_class == LS__STORAGE_BORROWED ||
               !ls__storage_has_only(record->storage, leaf != NULL ? 2 : 1)) {
        user = "its elements are shared with another tensor, or lie in the program's memory";
    }
    return user == NULL
               ? LS_OK
               : ls__fail(LS_ERR_STATE, "%s: %s; shard parameters right after the model is built",
                          c->subject, user);
}

static ls_status check_place(const cutting *c)
{
    const int place = ls__place_of(c->record, c->number);
    return place < LS__PLACED_PARTIAL
               ? LS_OK
               : ls__fail(LS_ERR_PLACEMENT,
                          "%s is %s on axis %s already; shard it once along each axis", c->subject,
                          ls_placement_name(ls__placement_public(place)), c->axis->name);
}

/* This rank's runs: of each group its part. */
static ls_status choose(cutting *c, const int64_t *groups, int count)
{
    const int64_t size = c->record->dim[c->dim], n = c->axis->size;
    int64_t begin = 0;
    if (groups != NULL && count > LS__TENSOR_PART_RUNS_MAX) {
        return ls__fail(LS_ERR_LIMIT, "%s: %d groups; give at most %d", c->subject, count,
                        LS__TENSOR_PART_RUNS_MAX);
    }
    c->count = groups != NULL ? count : 1;
    for (int g = 0; g < c->count; g++) {
        const int64_t group = groups != NULL ? groups[g] : size;
        if (group < (groups != NULL) || group > size - begin) {
            begin = -1;
            break;
        }
        if (group % n != 0) {
            return ls__fail(LS_ERR_INVALID,
                            "%s: dimension %d has %s%lld elements, which the %lld ranks of axis %s "
                            "do not divide; give a model or an axis of another size",
                            c->subject, c->dim, groups != NULL ? "a group of " : "",
                            (long long)group, (long long)n, c->axis->name);
        }
        c->keep[g] = (ls__part_run){begin + c->axis->coordinate * (group / n), group / n};
        begin += group;
    }
    return begin == size ? LS_OK
                         : ls__fail(LS_ERR_INVALID,
                                    "%s: the groups do not add up to dimension %d; give the sizes "
                                    "of all of them, of the tensor as it is now",
                                    c->subject, c->dim);
}

/* Copies the elements of `cut`, a part of the record's own elements. */
static void take(const cutting *c, const ls__tensor_part *cut, ls__storage *to)
{
    const ls__pool *on = to->pool;
    const size_t size = ls_dtype_size((ls_dtype)c->record->dtype);
    const int64_t numel = (int64_t)(to->bytes / size);
    for (int64_t at = 0, run; at < numel; at += run) {
        const int64_t from = ls__tensor_part_place(cut, at, &run);
        on->k->copy((char *)to->data + (size_t)at * size,
                    (const char *)c->record->storage->data + (size_t)from * size,
                    (size_t)run * size, on->stream);
    }
    ls__device_wait(on->device);
}

/* The tensor, its leaf and its storage get the size of the part. */
static ls_status shrink(const cutting *c, const ls__tensor_part *cut)
{
    ls__record *record = c->record;
    const ls_shape shape = ls__tensor_part_shape(cut);
    ls__record made = *record;
    if (!ls__record_set_shape(&made, shape, (ls_dtype)record->dtype, "tensor_shard")) {
        return ls__self.status;
    }
    ls__storage *storage = ls__storage_new(
        record->storage->pool, (size_t)made.numel * ls_dtype_size((ls_dtype)record->dtype));
    if (storage == NULL) {
        return ls__self.status;
    }
    if (!atomic_load_explicit(&record->storage->due, memory_order_acquire)) {
        take(c, cut, storage);
    }
    ls__storage_swap(record->storage, storage);
    ls__storage_unref(storage);
    *record = made;
    if (record->flags & LS__RECORD_LEAF) {
        ls__leaf *leaf = ls__leaf_of(record->node);
        leaf->node.numel = record->numel;
        leaf->shape = shape;
    }
    return LS_OK;
}

static ls_status cut_part(const cutting *c)
{
    const ls_shape own = ls__record_shape(c->record);
    ls__initial *initial = ls__initial_of(c->record->storage);
    ls__tensor_part of_whole = ls__fill_part(c->record);
    ls__tensor_part of_own = ls__tensor_part_box(own, (ls_shape){.ndim = own.ndim}, own);
    if (initial == NULL) {
        return ls__self.status;
    }
    if (!ls__tensor_part_cut(&of_own, c->dim, c->keep, c->count) ||
        !ls__tensor_part_cut(&of_whole, c->dim, c->keep, c->count)) {
        return ls__fail(LS_ERR_LIMIT,
                        "%s: its part would have more than %d runs of indices; give "
                        "fewer groups",
                        c->subject, LS__TENSOR_PART_RUNS_MAX);
    }
    LS_TRY(shrink(c, &of_own));
    initial->is_part = true;
    initial->part = of_whole;
    return LS_OK;
}

static ls_status prepare(cutting *c, ls_tensor *t, const char *axis, int dim)
{
    ls__axes_in_force *axes;
    *c = (cutting){.number = ls__axis_find(axis, "tensor_shard", &axes)};
    c->record = c->number >= 0
                    ? ls__record_sound(ls__tensors_get("tensor_shard"), t, "tensor_shard")
                    : NULL;
    if (c->record == NULL) {
        return ls__self.status;
    }
    c->axes = axes;
    c->axis = &axes->axis[c->number];
    name_subject(c);
    if (!ls__shape_dim(c->record, dim, &c->dim)) {
        return ls__fail(LS_ERR_INVALID, "%s: it has no dimension %d", c->subject, dim);
    }
    LS_TRY(check_unused(c));
    return check_place(c);
}

ls_status ls__tensor_shard_check(ls_tensor *t, const char *axis, int dim, const int64_t *groups,
                                 int count)
{
    cutting c;
    LS_TRY(prepare(&c, t, axis, dim));
    return choose(&c, groups, count);
}

ls_status ls_tensor_shard(ls_tensor *t, const char *axis, int dim, const int64_t *groups, int count)
{
    cutting c;
    LS_TRY(prepare(&c, t, axis, dim));
    LS_TRY(choose(&c, groups, count));
    if (c.axis->size > 1) {
        LS_TRY(cut_part(&c));
    }
    ls__place_set(c.axes, c.record, c.number, LS__PLACED_SHARDED + c.dim);
    return LS_OK;
}
