/* SPDX-License-Identifier: Apache-2.0 */
/* From an opened checkpoint into the items. First everything is compared, both ways; only then is
 * anything written. A box of a tensor is put together from the pieces that overlap it, so boxes
 * that N ranks saved can be loaded by M ranks in other boxes.
 */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/internal.h"
#include "checkpoint/shape.h"

/* ---- scalars ------------------------------------------------------------------------------ */

/* JSON integers are 64 bits wide in jansson, so no value is rounded. */
static bool read_int64(const json_t *value, int64_t *out)
{
    if (!json_is_integer(value)) {
        return false;
    }
    *out = json_integer_value(value);
    return true;
}

/* A number, or the bits of one that JSON cannot express; the inverse of number_json in image.c.
 * Returns false for a malformed file. */
static bool read_float64(const json_t *value, double *out)
{
    const char *text = json_string_value(value);
    if (json_is_real(value)) {
        *out = json_real_value(value);
        return true;
    }
    if (text == NULL || strlen(text) != 18 || strncmp(text, "0x", 2) != 0 ||
        strspn(text + 2, "0123456789abcdef") != 16) {
        return false;
    }
    uint64_t bits = strtoull(text, NULL, 16);
    memcpy(out, &bits, sizeof *out);
    return true;
}

/* ---- comparing ---------------------------------------------------------------------------- */

#define REMEDY "build the same model and optimizer as the run that saved it, or give another folder"

/* Compares the global shape only: the slices may differ from those saved, apply_tensor puts them
 * together. */
static ls_status check_tensor(const ls__reading *from, const ls__saved_entry *e, const char *what)
{
    char there[LS__SHAPE_TEXT], here[LS__SHAPE_TEXT];
    const ls_state_tensor *t = &e->tensor;
    const ls__manifest_tensor *saved = ls__manifest_find(&from->manifest, e->name);
    if (saved == NULL) {
        return ls__fail(
            LS_ERR_MISMATCH,
            "%s: this program has the tensor \"%.200s\", but the checkpoint does not; " REMEDY,
            what, e->name);
    }
    if (saved->dtype != t->dtype || saved->ndim != t->ndim ||
        memcmp(saved->dim, t->global, (size_t)t->ndim * sizeof t->global[0]) != 0) {
        return ls__fail(LS_ERR_MISMATCH,
                        "%s: \"%.200s\" is %s %s in the checkpoint and %s %s here; " REMEDY, what,
                        e->name, ls_dtype_name(saved->dtype),
                        ls__shape_text(saved->dim, saved->ndim, there), ls_dtype_name(t->dtype),
                        ls__shape_text(t->global, t->ndim, here));
    }
    return LS_OK;
}

/* Reads the value as apply_* will and drops it, so that a scalar cannot fail after tensors were
 * written. */
static ls_status check_scalar(const ls__reading *from, const ls__saved_entry *e, const char *what)
{
    const json_t *saved = json_object_get(from->scalars, e->name);
    int64_t integer;
    double number;
    if (saved == NULL && e->optional) {
        return LS_OK;
    }
    if (saved == NULL) {
        return ls__fail(
            LS_ERR_MISMATCH,
            "%s: this program has the scalar \"%.200s\", but the checkpoint does not; " REMEDY,
            what, e->name);
    }
    if (e->type == LS__ENTRY_INT64 ? !read_int64(saved, &integer) : !read_float64(saved, &number)) {
        return ls__fail(LS_ERR_MISMATCH, "%s: \"%.200s\" is not a %s in the checkpoint; " REMEDY,
                        what, e->name, e->type == LS__ENTRY_INT64 ? "int64" : "float64");
    }
    return LS_OK;
}

/* Binary search by name; an entry of the other kind counts as absent. */
static bool table_has(const ls__table *table, const char *name, bool tensor)
{
    int low = 0, high = table->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        int order = strcmp(table->sorted[middle]->name, name);
        if (order == 0) {
            return (table->sorted[middle]->type == LS__ENTRY_TENSOR) == tensor;
        }
        low = order < 0 ? middle + 1 : low;
        high = order < 0 ? high : middle;
    }
    return false;
}

size_t ls__restore_names(const ls__reading *from)
{
    return (size_t)from->manifest.tensor_count + json_object_size(from->scalars);
}

/* One byte for each name of the checkpoint, in an order that is the same on all ranks. */
static void mark_shown(const ls__reading *from, const ls__table *table, uint8_t *shown)
{
    const char *name;
    json_t *value;
    for (int i = 0; i < from->manifest.tensor_count; i++) {
        *shown++ = table_has(table, from->manifest.tensors[i].name, true);
    }
    json_object_foreach(from->scalars, name, value)
    {
        *shown++ = table_has(table, name, false);
    }
}

/* Whether the name begins with one of the texts in `ignore`, which may be NULL. */
static bool is_ignored(const char *name, const char *ignore)
{
    bool found = false;
    for (const char *at = ignore; at != NULL && *at != '\0' && !found;) {
        const size_t length = strcspn(at, " ");
        found = length > 0 && strncmp(name, at, length) == 0;
        at += length + (at[length] == ' ' ? 1 : 0);
    }
    return found;
}

/* Finds state in the checkpoint for which no rank has a place: a strict load must not drop it
 * silently. */
ls_status ls__restore_check_rest(const ls__reading *from, const uint8_t *shown, const char *ignore,
                                 const char *what)
{
    const char *name;
    json_t *value;
    for (int i = 0; i < from->manifest.tensor_count; i++) {
        if (!*shown++ && !is_ignored(from->manifest.tensors[i].name, ignore)) {
            return ls__fail(LS_ERR_MISMATCH,
                            "%s: the checkpoint has the tensor \"%.200s\", but this program does "
                            "not; " REMEDY,
                            what, from->manifest.tensors[i].name);
        }
    }
    json_object_foreach(from->scalars, name, value)
    {
        if (!*shown++ && !is_ignored(name, ignore)) {
            return ls__fail(LS_ERR_MISMATCH,
                            "%s: the checkpoint has the scalar \"%.200s\", but this program does "
                            "not; " REMEDY,
                            what, name);
        }
    }
    return LS_OK;
}

/* Changes nothing, calls every state function once. `what` is the folder, for messages. */
ls_status ls__restore_check(const ls__reading *from, const ls_checkpoint_item *items, int count,
                            uint8_t *shown, const char *what)
{
    ls__table table;
    ls__table_init(&table, from->arena.env);
    ls_status status = ls__table_collect(&table, items, count);
    for (int i = 0; status == LS_OK && i < table.count; i++) {
        const ls__saved_entry *e = &table.list[i];
        status =
            e->type == LS__ENTRY_TENSOR ? check_tensor(from, e, what) : check_scalar(from, e, what);
    }
    if (status == LS_OK) {
        mark_shown(from, &table, shown);
    }
    ls__table_fini(&table);
    return status;
}

/* ---- copying ------------------------------------------------------------------------------ */

typedef struct box { /* the intersection of two boxes, in global coordinates */
    int64_t from[LS_DIMS_MAX], dim[LS_DIMS_MAX];
} box;

/* The intersection of a saved piece and the slice this rank shows; false if it is empty. For
 * ndim 0 both are the one element. */
static bool intersect(const ls__manifest_piece *p, const ls_state_tensor *t, box *out)
{
    for (int i = 0; i < t->ndim; i++) {
        int64_t from = p->start[i] > t->start[i] ? p->start[i] : t->start[i];
        int64_t a = p->start[i] + p->dim[i], b = t->start[i] + t->local[i];
        out->from[i] = from;
        out->dim[i] = (a < b ? a : b) - from;
        if (out->dim[i] <= 0) {
            return false;
        }
    }
    return true;
}

/* Row-major index, within a box's memory, of the element at global coordinates `at`. */
static size_t place(int ndim, const int64_t *start, const int64_t *dim, const int64_t *at)
{
    int64_t index = 0;
    for (int i = 0; i < ndim; i++) {
        index = index * dim[i] + (at[i] - start[i]);
    }
    return (size_t)index;
}

/* Copies the common box row by row, a row being its last dimension. The counter `at` runs like
 * an odometer over the dimensions before it. */
static void copy_box(const ls__manifest_piece *p, const uint8_t *source, const ls_state_tensor *t,
                     const box *b)
{
    const int n = t->ndim;
    const size_t element = ls_dtype_size(t->dtype);
    const size_t row = (n > 0 ? (size_t)b->dim[n - 1] : 1) * element;
    int64_t at[LS_DIMS_MAX];
    memcpy(at, b->from, sizeof at);
    for (;;) {
        memcpy((uint8_t *)t->data + place(n, t->start, t->local, at) * element,
               source + place(n, p->start, p->dim, at) * element, row);
        int i = n - 2;
        while (i >= 0 && ++at[i] == b->from[i] + b->dim[i]) {
            at[i] = b->from[i];
            i--;
        }
        if (i < 0) {
            return;
        }
    }
}

/* ls__restore_check has seen this name with the same type, so only a state function that changed
 * its answer leads here. */
static ls_status changed(const char *name)
{
    return ls__fail(LS_ERR_INVALID,
                    "checkpoint: a state function passed \"%.200s\" only in its second call; it "
                    "must visit the same state each time",
                    name);
}

/* The common case of an unchanged layout: one memcpy instead of rows. */
static bool is_the_slice(const ls__manifest_piece *p, const ls_state_tensor *t)
{
    const size_t bytes = (size_t)t->ndim * sizeof t->local[0];
    return memcmp(p->start, t->start, bytes) == 0 && memcmp(p->dim, t->local, bytes) == 0;
}

/* Pieces that do not meet the slice are skipped. The manifest's pieces cover the tensor, so
 * every element is written. */
static ls_status apply_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    const ls__reading *from = self;
    const ls__manifest_tensor *saved = ls__manifest_find(&from->manifest, name);
    if (saved == NULL || saved->dtype != tensor->dtype || saved->ndim != tensor->ndim) {
        return changed(name);
    }
    for (int i = 0; i < saved->piece_count; i++) {
        const ls__manifest_piece *p = &saved->pieces[i];
        box common = {0};
        if (!intersect(p, tensor, &common)) {
            continue;
        }
        const ls__safetensor *s = ls__piece_find(from, saved, p);
        const uint8_t *source = (const uint8_t *)from->mapped[p->file] + s->begin;
        if (is_the_slice(p, tensor)) {
            memcpy(tensor->data, source, s->end - s->begin);
        } else {
            copy_box(p, source, tensor, &common);
        }
    }
    return LS_OK;
}

static ls_status apply_int64(void *self, const char *name, int64_t *value)
{
    const ls__reading *from = self;
    return read_int64(json_object_get(from->scalars, name), value) ? LS_OK : changed(name);
}

static ls_status apply_float64(void *self, const char *name, double *value)
{
    const ls__reading *from = self;
    return read_float64(json_object_get(from->scalars, name), value) ? LS_OK : changed(name);
}

/* A checkpoint of an older version does not contain the value, which stays as it is. */
static ls_status apply_optional(void *self, const char *name, double *value)
{
    const ls__reading *from = self;
    const bool there = json_object_get(from->scalars, name) != NULL;
    return there ? apply_float64(self, name, value) : LS_OK;
}

/* Run it only after ls__restore_check succeeded on all ranks. An error here leaves the items
 * partly overwritten. */
ls_status ls__restore_apply(const ls__reading *from, const ls_checkpoint_item *items, int count)
{
    const ls_state_visitor visitor = {.size = sizeof(ls_state_visitor),
                                      .self = (void *)(uintptr_t)from,
                                      .tensor = apply_tensor,
                                      .int64 = apply_int64,
                                      .float64 = apply_float64,
                                      .optional_float64 = apply_optional};
    return ls__items_visit(items, count, &visitor);
}
