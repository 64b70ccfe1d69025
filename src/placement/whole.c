/* SPDX-License-Identifier: Apache-2.0 */
/* The whole of a parameter of which each rank has a part. Along one axis after the other the ranks
 * exchange the descriptions of their parts (tensor/part.h) and the elements, until every rank has
 * all parts; the descriptions say where the elements belong. */
#include <string.h>

#include <lockstep/comm.h>
#include <lockstep/ops.h>

#include "base/error.h"
#include "base/options.h"
#include "tensor/across.h"
#include "tensor/fill.h"
#include "tensor/op.h"
#include "tensor/placement.h"
#include "tensor/shape.h"

#define TAG "tensor_whole"

typedef struct gathered {
    ls__storage *parts;  /* ls__tensor_part, … */
    ls__storage *values; /* … and the elements of each, in host memory */
    ls_dtype dtype;
} gathered;

/* ---- gathering ---------------------------------------------------------------------------- */

static ls__storage *copy_of(ls__pool *host, const void *data, size_t bytes)
{
    ls__storage *copy = ls__storage_new(host, bytes);
    if (copy != NULL) {
        memcpy(copy->data, data, bytes);
    }
    return copy;
}

/* What all ranks of the axis have takes the place of what this one has. */
static ls_status exchange(const ls__axis_in_force *axis, ls__storage **of)
{
    ls__storage *mine = *of;
    ls_bytes *all = NULL;
    size_t bytes = 0, at = 0;
    LS_TRY(ls_all_gather_bytes(axis->group, mine->data, mine->bytes,
                               LS_OPTIONS(ls_collective_options, .tag = TAG), &all));
    for (int r = 0; r < axis->size; r++) {
        bytes += all[r].length;
    }
    ls__storage *joined = ls__storage_new(mine->pool, bytes);
    for (int r = 0; joined != NULL && r < axis->size; at += all[r++].length) {
        memcpy((char *)joined->data + at, all[r].data, all[r].length);
    }
    ls_bytes_free(all);
    if (joined == NULL) {
        return ls__self.status;
    }
    ls__storage_unref(mine);
    *of = joined;
    return LS_OK;
}

static bool is_divided(const ls__record *record, const ls__axes_in_force *axes, int a)
{
    return axes->axis[a].size > 1 && ls__place_dim(ls__place_of(record, a)) >= 0;
}

static ls_status gather_along_axes(gathered *g, const ls__record *record)
{
    const ls__axes_in_force *axes = ls__axes_of(g->parts->pool->tensors);
    for (int a = 0; axes != NULL && a < axes->count; a++) {
        if (is_divided(record, axes, a)) {
            LS_TRY(exchange(&axes->axis[a], &g->parts));
            LS_TRY(exchange(&axes->axis[a], &g->values));
        }
    }
    return LS_OK;
}

/* Begins with this rank's part. */
static ls_status gather(gathered *g, ls__tensors *tensors, ls_tensor *t, const ls__record *record)
{
    const ls__tensor_part own = ls__fill_part(record);
    ls__host_view view;
    LS_TRY(ls__host_view_of(t, &view));
    g->parts = copy_of(&tensors->host, &own, sizeof own);
    g->values = copy_of(&tensors->host, view.data, (size_t)record->numel * ls_dtype_size(g->dtype));
    ls__host_view_close(&view, false);
    return g->parts != NULL && g->values != NULL ? gather_along_axes(g, record) : ls__self.status;
}

/* ---- putting together --------------------------------------------------------------------- */

static ls_status check_parts(const gathered *g, const ls__record *record)
{
    const ls__tensor_part *part = g->parts->data;
    const int count = (int)(g->parts->bytes / sizeof *part);
    int64_t numel = 0;
    char subject[160];
    const bool whole = ls__tensor_part_tile(part, count) && ls__shape_numel(part->whole, &numel) &&
                       g->values->bytes == (size_t)numel * ls_dtype_size(g->dtype);
    return whole ? LS_OK
                 : ls__fail(LS_ERR_MISMATCH,
                            "tensor_whole: the %d parts of %s do not make up one tensor of %s; "
                            "pass the same parameter on all ranks, and give each rank the part of "
                            "its own, as ls_tensor_shard does",
                            count, ls__place_subject(record, 1, subject, sizeof subject),
                            ls__shape_print(part->whole).text);
}

/* Returns the elements of `part`. */
static int64_t put(const ls__tensor_part *part, const char *values, char *whole, size_t size)
{
    const ls_shape shape = ls__tensor_part_shape(part);
    int64_t numel = 0;
    (void)ls__shape_numel(shape, &numel);
    for (int64_t at = 0, run; at < numel; at += run) {
        const int64_t place = ls__tensor_part_place(part, at, &run);
        memcpy(whole + (size_t)place * size, values + (size_t)at * size, (size_t)run * size);
    }
    return numel;
}

static ls_tensor *put_together(const gathered *g)
{
    const ls__tensor_part *part = g->parts->data;
    const size_t size = ls_dtype_size(g->dtype);
    const char *values = g->values->data;
    ls_tensor *out = ls__tensor_here(part->whole, g->dtype);
    char *whole = ls_tensor_status(out) == LS_OK ? ls_data(out) : NULL;
    const size_t count = whole != NULL ? g->parts->bytes / sizeof *part : 0;
    for (size_t i = 0; i < count; i++) {
        values += (size_t)put(&part[i], values, whole, size) * size;
    }
    return whole != NULL ? ls__tensor_to_made(out) : out;
}

/* ---- the call ----------------------------------------------------------------------------- */

static bool is_part(const ls__record *record)
{
    const ls_shape whole = ls__fill_whole(record), own = ls__record_shape(record);
    return memcmp(whole.dim, own.dim, (size_t)own.ndim * sizeof own.dim[0]) != 0;
}

/* What is equal on all ranks, or the part that a description belongs to. */
static ls_status check_placed(const ls__record *record, const ls__axes_in_force *axes)
{
    char subject[160];
    for (int a = 0; axes != NULL && a < axes->count; a++) {
        const int place = ls__place_of(record, a);
        const bool known =
            place <= LS__PLACED_INVARIANT || (ls__place_dim(place) >= 0 && is_part(record));
        if (axes->axis[a].size > 1 && !known) {
            return ls__fail(LS_ERR_PLACEMENT,
                            "tensor_whole: on axis %s %s is %s and no part that ls_tensor_shard "
                            "has made; convert results of operations with ls_redistribute",
                            axes->axis[a].name,
                            ls__place_subject(record, 1, subject, sizeof subject),
                            ls_placement_name(ls__placement_public(place)));
        }
    }
    return LS_OK;
}

/* NULL with the error set. */
static ls_tensor *whole_of(ls__tensors *tensors, ls_tensor *t, const ls__record *record)
{
    gathered g = {.dtype = (ls_dtype)record->dtype};
    ls_tensor *out = NULL;
    if (check_placed(record, ls__axes_of(tensors)) < 0) {
        return NULL;
    }
    if (!is_part(record)) {
        return ls_detach(t);
    }
    if (gather(&g, tensors, t, record) == LS_OK && check_parts(&g, record) == LS_OK) {
        out = put_together(&g);
    }
    ls__storage_unref(g.parts);
    ls__storage_unref(g.values);
    return out;
}

ls_tensor *(ls_tensor_whole)(ls_tensor *t)
{
    ls__tensors *tensors = ls__tensors_get("tensor_whole");
    const ls__record *record =
        tensors != NULL ? ls__record_sound(tensors, t, "tensor_whole") : NULL;
    if (record == NULL && tensors != NULL && t != NULL && ls_tensor_status(t) < 0) {
        return t; /* poisoned: passed on */
    }
    ls_tensor *out = record != NULL ? whole_of(tensors, t, record) : NULL;
    return out != NULL ? out : ls__call_refused();
}
