/* SPDX-License-Identifier: Apache-2.0 */
/* The zigzag order of context.h: of 2n chunks rank r holds r and 2n-1-r. */
#include <lockstep/context.h>
#include <lockstep/mesh.h>
#include <lockstep/placement.h>

#include "base/error.h"
#include "base/options.h"
#include "tensor/across.h"
#include "tensor/op.h"
#include "tensor/placement.h"

typedef struct zigzag {
    const char *name; /* of the public call */
    ls__axis_in_force *axis;
    int number;
    int dim;
    int64_t chunk; /* elements of a chunk along dim */
} zigzag;

/* Where this rank's chunk i (0, 1) begins in the sequence. */
static int64_t chunk_at(const zigzag *z, int rank, int i)
{
    return z->chunk * (i == 0 ? rank : 2 * z->axis->size - 1 - rank);
}

/* The axis, and x as a record; NULL with the error set. */
static ls__record *begin(zigzag *z, ls_tensor *x, const char *axis)
{
    ls__axes_in_force *axes;
    z->number = ls__axis_find(axis, z->name, &axes);
    if (z->number < 0) {
        return NULL;
    }
    z->axis = &axes->axis[z->number];
    return ls__record_sound(ls__tensors_get(z->name), x, z->name);
}

/* `size` elements, of which each rank is to hold two of 2n chunks, or has them (parts 2). */
static ls_status cut(zigzag *z, int64_t size, int parts)
{
    z->chunk = size / parts;
    return size % parts == 0
               ? LS_OK
               : ls__fail(LS_ERR_INVALID,
                          "%s: %lld positions cannot be cut into the %d chunks of %s on axis %s; "
                          "give a length that %d divides (pad it, and ignore the targets there)",
                          z->name, (long long)size, parts, parts > 2 ? "all ranks" : "a rank",
                          z->axis->name, parts);
}

static ls_status find_dim(zigzag *z, const ls__record *x, int dim)
{
    z->dim = dim < 0 ? dim + x->ndim : dim;
    return z->dim >= 0 && z->dim < x->ndim
               ? LS_OK
               : ls__fail(LS_ERR_INVALID, "%s: dimension %d of %s; give one that it has", z->name,
                          dim, ls__record_print(x).text);
}

static ls_status refuse_placed(const zigzag *z, const ls__record *x, const char *wanted)
{
    char subject[160];
    return ls__fail(LS_ERR_PLACEMENT, "%s: on axis %s %s is %s; %s", z->name, z->axis->name,
                    ls__place_subject(x, 1, subject, sizeof subject),
                    ls_placement_name(ls__placement_public(ls__place_of(x, z->number))), wanted);
}

/* The same elements, marked as `place` on the axis. */
static ls_tensor *marked(const zigzag *z, ls_tensor *t, int place)
{
    ls_tensor *seen = ls_reshape(t, ls_shape_of(t));
    ls__record *record = ls__record_sound(ls__tensors_get(z->name), seen, z->name);
    if (record == NULL) {
        return ls__call_refused();
    }
    record->place = ls__place_with(record->place, z->number, place);
    return seen;
}

/* ---- taking and joining -------------------------------------------------------------------- */

ls_tensor *(ls_context_shard)(ls_tensor *x, int dim, const char *axis)
{
    zigzag z = {.name = "context_shard"};
    const ls__record *in = begin(&z, x, axis);
    if (in == NULL || find_dim(&z, in, dim) < 0) {
        return ls__call_refused();
    }
    if (z.axis->size == 1) {
        return x;
    }
    const int place = ls__place_of(in, z.number);
    if (cut(&z, in->dim[z.dim], 2 * z.axis->size) < 0 ||
        (place > LS__PLACED_INVARIANT &&
         refuse_placed(&z, in, "give what is equal on all of its ranks") < 0)) {
        return ls__call_refused();
    }
    ls_tensor *part[2];
    if (place == LS__PLACED_INVARIANT) {
        x = ls_redistribute(x, axis, LS_INVARIANT, LS_REPLICATED);
    }
    for (int i = 0; i < 2; i++) {
        const int64_t at = chunk_at(&z, z.axis->coordinate, i);
        part[i] = ls_slice(x, z.dim, at, at + z.chunk);
    }
    return marked(&z, ls_concat(part, 2, z.dim), ls__place_along(LS__PLACED_ZIGZAG, z.dim));
}

static bool is_part(const zigzag *z, const ls__record *x)
{
    const int place = ls__place_of(x, z->number);
    return place == LS__PLACED_VARYING || place == ls__place_along(LS__PLACED_ZIGZAG, z->dim);
}

/* From the parts in the order of the ranks to the chunks in theirs. */
static ls_tensor *in_order(const zigzag *z, ls_tensor *all)
{
    const int n = z->axis->size;
    ls_tensor *first = NULL, *second = NULL;
    for (int r = 0; r < n; r++) {
        const int64_t at = 2 * r * z->chunk;
        ls_tensor *low = ls_slice(all, z->dim, at, at + z->chunk);
        ls_tensor *high = ls_slice(all, z->dim, at + z->chunk, at + 2 * z->chunk);
        first = r == 0 ? low : ls_concat((ls_tensor *[]){first, low}, 2, z->dim);
        second = r == 0 ? high : ls_concat((ls_tensor *[]){high, second}, 2, z->dim);
    }
    return ls_concat((ls_tensor *[]){first, second}, 2, z->dim);
}

ls_tensor *(ls_context_gather)(ls_tensor *x, int dim, const char *axis)
{
    zigzag z = {.name = "context_gather"};
    const ls__record *in = begin(&z, x, axis);
    if (in == NULL || find_dim(&z, in, dim) < 0) {
        return ls__call_refused();
    }
    if (z.axis->size == 1) {
        return x;
    }
    if (cut(&z, in->dim[z.dim], 2) < 0 ||
        (!is_part(&z, in) &&
         refuse_placed(&z, in, "give this rank's part, of ls_context_shard") < 0)) {
        return ls__call_refused();
    }
    const ls_placement parts = LS_SHARDED(z.dim);
    ls_tensor *part = marked(&z, x, LS__PLACED_SHARDED + z.dim);
    return in_order(&z, ls_redistribute(part, axis, parts, LS_REPLICATED));
}

/* ---- positions ----------------------------------------------------------------------------- */

bool ls_context_divides(const ls_tensor *x, const char *axis)
{
    const ls_mesh *mesh = ls_mesh_in_force();
    if (x == NULL || mesh == NULL || !ls_mesh_has(mesh, axis) || ls_mesh_size(mesh, axis) == 1) {
        return false;
    }
    return ls_tensor_status(x) == LS_OK && ls_placement_of(x, axis) >= LS_VARYING;
}

ls_tensor *(ls_context_positions)(const char *axis, int64_t length)
{
    zigzag z = {.name = "context_positions"};
    ls__axes_in_force *axes;
    z.number = ls__axis_find(axis, z.name, &axes);
    z.axis = z.number >= 0 ? &axes->axis[z.number] : NULL;
    if (z.axis == NULL || (z.axis->size > 1 && cut(&z, length, 2 * z.axis->size) < 0)) {
        return ls__call_refused();
    }
    if (z.axis->size == 1) {
        return ls_arange(0.0, (double)length, 1.0, LS_INT64);
    }
    ls_tensor *part[2];
    for (int i = 0; i < 2; i++) {
        const int64_t at = chunk_at(&z, z.axis->coordinate, i);
        part[i] = ls_arange((double)at, (double)(at + z.chunk), 1.0, LS_INT64);
    }
    return marked(&z, ls_concat(part, 2, 0), LS__PLACED_ZIGZAG);
}

ls_tensor *(ls_context_rotary)(ls_tensor *x, const char *axis, double base)
{
    return (ls_context_rotary_scaled)(x, axis, base, NULL);
}

ls_tensor *(ls_context_rotary_scaled)(ls_tensor *x, const char *axis, double base,
                                      const ls_rotary_scaling_options *scaling)
{
    LS__OPTIONS_OR(ls__call_refused(), ls_rotary_scaling_options, o, scaling);
    scaling = scaling != NULL ? &o : NULL;
    zigzag z = {.name = "context_rotary", .dim = 2};
    const ls__record *in = begin(&z, x, axis);
    if (in == NULL || find_dim(&z, in, 2) < 0) {
        return ls__call_refused();
    }
    if (z.axis->size == 1) {
        return ls_rotary_scaled(x, 0, base, scaling);
    }
    if (cut(&z, in->dim[2], 2) < 0 ||
        (!is_part(&z, in) &&
         refuse_placed(&z, in,
                       "give this rank's part of the sequence, from ls_context_shard; a whole one "
                       "takes ls_rotary") < 0)) {
        return ls__call_refused();
    }
    const int place = ls__place_of(in, z.number);
    ls_tensor *part[2];
    for (int i = 0; i < 2; i++) {
        ls_tensor *half = ls_slice(x, 2, i * z.chunk, (i + 1) * z.chunk);
        part[i] = ls_rotary_scaled(half, chunk_at(&z, z.axis->coordinate, i), base, scaling);
    }
    return marked(&z, ls_concat(part, 2, 2), place);
}
