/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of parts; the picture is in part.h. */
#include "tensor/part.h"

#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/options.h"
#include "tensor/shape.h"

static const ls__part_run *runs_of(const ls__tensor_part *part, int dim)
{
    const ls__part_run *at = part->run;
    for (int d = 0; d < dim; d++) {
        at += part->runs[d];
    }
    return at;
}

/* The part's own size along `dim`. */
static int64_t size_of(const ls__tensor_part *part, int dim)
{
    const ls__part_run *run = runs_of(part, dim);
    int64_t size = 0;
    for (int i = 0; i < part->runs[dim]; i++) {
        size += run[i].count;
    }
    return size;
}

ls__tensor_part ls__tensor_part_box(ls_shape whole, ls_shape first, ls_shape shape)
{
    ls__tensor_part part = {.whole = whole};
    for (int d = 0; d < whole.ndim; d++) {
        part.runs[d] = 1;
        part.run[d] = (ls__part_run){first.dim[d], shape.dim[d]};
    }
    return part;
}

ls_shape ls__tensor_part_shape(const ls__tensor_part *part)
{
    ls_shape shape = {.ndim = part->whole.ndim};
    for (int d = 0; d < shape.ndim; d++) {
        shape.dim[d] = size_of(part, d);
    }
    return shape;
}

/* ---- cutting ------------------------------------------------------------------------------ */

typedef struct run_list {
    ls__part_run run[LS__TENSOR_PART_RUNS_MAX];
    int count;
} run_list;

/* A run that goes on where the last one ended is the same run. */
static bool add_run(run_list *to, int64_t first, int64_t count)
{
    ls__part_run *last = to->count > 0 ? &to->run[to->count - 1] : NULL;
    if (last != NULL && last->first + last->count == first) {
        last->count += count;
        return true;
    }
    if (to->count == LS__TENSOR_PART_RUNS_MAX) {
        return false;
    }
    to->run[to->count++] = (ls__part_run){first, count};
    return true;
}

/* The indices in the whole of [keep.first, keep.first + keep.count) of the part. */
static bool add_kept(run_list *to, const ls__part_run *runs, int count, ls__part_run keep)
{
    int64_t begin = 0; /* of runs[i], in the part */
    bool fits = keep.count > 0 || add_run(to, runs->first, 0);
    for (int i = 0; fits && i < count; begin += runs[i++].count) {
        const int64_t keep_end = keep.first + keep.count, end = begin + runs[i].count;
        const int64_t from = keep.first > begin ? keep.first : begin;
        const int64_t until = keep_end < end ? keep_end : end;
        fits = from >= until || add_run(to, runs[i].first + from - begin, until - from);
    }
    return fits;
}

bool ls__tensor_part_cut(ls__tensor_part *part, int dim, const ls__part_run *keep, int count)
{
    run_list all = {.count = 0};
    ls__tensor_part made = {.whole = part->whole};
    bool fits = true;
    for (int d = 0; fits && d < part->whole.ndim; d++) {
        const ls__part_run *runs = runs_of(part, d), own = {0, size_of(part, d)};
        const int from = all.count, kept = d == dim ? count : 1;
        run_list here = {.count = 0};
        for (int i = 0; fits && i < kept; i++) {
            fits = add_kept(&here, runs, part->runs[d], d == dim ? keep[i] : own);
        }
        fits = fits && from + here.count <= LS__TENSOR_PART_RUNS_MAX;
        if (fits) {
            memcpy(&all.run[from], here.run, (size_t)here.count * sizeof here.run[0]);
            all.count += here.count;
            made.runs[d] = (uint8_t)here.count;
        }
    }
    if (fits) {
        memcpy(made.run, all.run, sizeof all.run);
        *part = made;
    }
    return fits;
}

/* ---- whether parts make up the whole ------------------------------------------------------- */

/* Runs of dimension `dim` of two parts have an index in common. */
static bool share_index(const ls__tensor_part *a, const ls__tensor_part *b, int dim)
{
    const ls__part_run *in_a = runs_of(a, dim), *in_b = runs_of(b, dim);
    for (int i = 0; i < a->runs[dim]; i++) {
        for (int k = 0; k < b->runs[dim]; k++) {
            const int64_t end_a = in_a[i].first + in_a[i].count;
            const int64_t end_b = in_b[k].first + in_b[k].count;
            const int64_t first = in_a[i].first > in_b[k].first ? in_a[i].first : in_b[k].first;
            if (first < (end_a < end_b ? end_a : end_b)) {
                return true;
            }
        }
    }
    return false;
}

static bool overlap(const ls__tensor_part *a, const ls__tensor_part *b)
{
    bool common = true;
    for (int d = 0; common && d < a->whole.ndim; d++) {
        common = share_index(a, b, d);
    }
    return common;
}

static bool same_shape(ls_shape a, ls_shape b)
{
    return a.ndim == b.ndim && memcmp(a.dim, b.dim, (size_t)a.ndim * sizeof a.dim[0]) == 0;
}

bool ls__tensor_part_tile(const ls__tensor_part *part, int count)
{
    int64_t sum = 0, whole = 0;
    for (int i = 0; i < count; i++) {
        int64_t numel = 0;
        if (!same_shape(part[i].whole, part[0].whole) ||
            !ls__shape_numel(ls__tensor_part_shape(&part[i]), &numel)) {
            return false;
        }
        for (int k = 0; k < i; k++) {
            if (overlap(&part[i], &part[k])) {
                return false;
            }
        }
        sum += numel;
    }
    return count > 0 && ls__shape_numel(part[0].whole, &whole) && sum == whole;
}

/* ---- places ------------------------------------------------------------------------------- */

/* The index in the whole of index `at` of a dimension; *rest: how many of its run are left. */
static int64_t index_of(const ls__part_run *run, int64_t at, int64_t *rest)
{
    while (at >= run->count) {
        at -= run->count;
        run++;
    }
    *rest = run->count - at;
    return run->first + at;
}

/* Elements follow each other up to the end of a run in the innermost dimension that is not whole,
 * in which `inner` elements make one index. */
int64_t ls__tensor_part_place(const ls__tensor_part *part, int64_t at, int64_t *left)
{
    int64_t place = 0, stride = 1, inner = 1, before = 0;
    bool whole = true;
    *left = 1;
    for (int d = part->whole.ndim - 1; d >= 0; d--) {
        const int64_t size = size_of(part, d), index = at % size;
        int64_t rest;
        place += index_of(runs_of(part, d), index, &rest) * stride;
        if (whole) {
            *left = rest * inner - before;
            before += index * inner;
            inner *= size;
            whole = size == part->whole.dim[d];
        }
        stride *= part->whole.dim[d];
        at /= size;
    }
    return place;
}

/* ---- boxes -------------------------------------------------------------------------------- */

typedef struct box {
    ls_shape own;               /* the part's */
    int64_t first[LS_DIMS_MAX]; /* of the box, in the part */
    ls_state_tensor shown;
} box;

/* Box number `at`, the last dimension's runs first. */
static box box_at(const ls__tensor_part *part, int at)
{
    box b = {.own = ls__tensor_part_shape(part), .shown = {.ndim = part->whole.ndim}};
    for (int d = part->whole.ndim - 1; d >= 0; d--) {
        const ls__part_run *run = runs_of(part, d);
        for (int i = 0; i < at % part->runs[d]; i++) {
            b.first[d] += run++->count;
        }
        at /= part->runs[d];
        b.shown.global[d] = part->whole.dim[d];
        b.shown.start[d] = run->first;
        b.shown.local[d] = run->count;
    }
    return b;
}

/* The elements of a box that lie one after the other in the part, at least. */
static int64_t stretch_of(const box *b)
{
    int64_t elements = 1;
    for (int d = b->own.ndim - 1; d >= 0; d--) {
        elements *= b->shown.local[d];
        if (b->shown.local[d] != b->own.dim[d]) {
            break;
        }
    }
    return elements;
}

/* Where element `at` of the box is in the part. */
static int64_t place_in_part(const box *b, int64_t at)
{
    int64_t place = 0, stride = 1;
    for (int d = b->own.ndim - 1; d >= 0; d--) {
        place += (b->first[d] + at % b->shown.local[d]) * stride;
        stride *= b->own.dim[d];
        at /= b->shown.local[d];
    }
    return place;
}

/* Between the part and a copy of the box. */
static void copy_box(const box *b, size_t size, int64_t numel, char *part, char *copy, bool back)
{
    const int64_t stretch = stretch_of(b);
    for (int64_t i = 0; i < numel; i += stretch) {
        char *in_part = part + (size_t)place_in_part(b, i) * size,
             *in_copy = copy + (size_t)i * size;
        memcpy(back ? in_part : in_copy, back ? in_copy : in_part, (size_t)stretch * size);
    }
}

static ls_status visit_copy(box *b, int64_t numel, void *data, const char *name,
                            const ls_state_visitor *visitor, ls__pool *host)
{
    const size_t size = ls_dtype_size(b->shown.dtype), bytes = (size_t)numel * size;
    ls__storage *copy = ls__storage_new(host, bytes);
    if (copy == NULL) {
        return ls__self.status;
    }
    b->shown.data = copy->data;
    copy_box(b, size, numel, data, b->shown.data, false);
    const ls_status status = ls__visit_tensor(visitor, name, &b->shown);
    copy_box(b, size, numel, data, b->shown.data, true);
    ls__storage_unref(copy);
    return status;
}

ls_status ls__tensor_part_visit(const ls__tensor_part *part, ls_dtype dtype, void *data,
                                const char *name, const ls_state_visitor *visitor, ls__pool *host)
{
    int count = 1;
    for (int d = 0; d < part->whole.ndim; d++) {
        count *= part->runs[d];
    }
    for (int i = 0; i < count; i++) {
        box b = box_at(part, i);
        int64_t numel = 1;
        for (int d = 0; d < b.own.ndim; d++) {
            numel *= b.shown.local[d];
        }
        b.shown.dtype = dtype;
        if (numel == 0 || stretch_of(&b) == numel) {
            const int64_t at = numel > 0 ? place_in_part(&b, 0) : 0;
            b.shown.data = (char *)data + (size_t)at * ls_dtype_size(dtype);
            LS_TRY(ls__visit_tensor(visitor, name, &b.shown));
        } else {
            LS_TRY(visit_copy(&b, numel, data, name, visitor, host));
        }
    }
    return LS_OK;
}

/* The box of most elements that begins at element `at` of the part and has `left` at most: indices
 * of one dimension, one index of those before it, all of those after it. Returns its size. */
static int64_t cut_box(ls__tensor_part *part, int64_t at, int64_t left)
{
    const ls_shape own = ls__tensor_part_shape(part);
    int64_t stride = 1; /* of the elements of one index of `cut` */
    int cut = own.ndim;
    while (cut > 0 && (cut == own.ndim ||
                       (at % (stride * own.dim[cut]) == 0 && stride * own.dim[cut] <= left))) {
        stride *= cut == own.ndim ? 1 : own.dim[cut];
        cut--;
    }
    int64_t rest = at / stride, size = stride;
    for (int d = cut; d >= 0 && own.ndim > 0; d--) {
        const int64_t first = rest % own.dim[d], after = own.dim[d] - first;
        const int64_t count = d < cut ? 1 : after < left / stride ? after : left / stride;
        const bool fits = ls__tensor_part_cut(part, d, &(ls__part_run){first, count}, 1);
        LS_ASSERT(fits);
        size *= count;
        rest /= own.dim[d];
    }
    return size;
}

ls_status ls__tensor_part_visit_range(const ls__tensor_part *part, ls_dtype dtype, void *data,
                                      int64_t from, int64_t count, const char *name,
                                      const ls_state_visitor *visitor, ls__pool *host)
{
    const ls_shape own = ls__tensor_part_shape(part);
    int64_t numel = 1;
    for (int d = 0; d < own.ndim; d++) {
        numel *= own.dim[d];
    }
    if (count == numel) {
        return ls__tensor_part_visit(part, dtype, data, name, visitor, host);
    }
    for (int64_t at = from, size; at < from + count; at += size) {
        ls__tensor_part one = *part;
        size = cut_box(&one, at, from + count - at);
        char *elements = (char *)data + (size_t)(at - from) * ls_dtype_size(dtype);
        LS_TRY(ls__tensor_part_visit(&one, dtype, elements, name, visitor, host));
    }
    return LS_OK;
}
