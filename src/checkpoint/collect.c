/* SPDX-License-Identifier: Apache-2.0 */
/* Walking the items: their names, shapes and scalars into a table, later their bytes into the
 * image. A tensor that a state function passes to the visitor is borrowed for that call, hence two
 * walks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/options.h"
#include "base/size.h"
#include "base/text.h"
#include "checkpoint/internal.h"
#include "checkpoint/shape.h"

#define NAME_MAX_BYTES 4096
#define ENTRIES_MAX (1 << 24)

/* ---- the table ---------------------------------------------------------------------------- */

void ls__table_init(ls__table *table, const ls__env *env)
{
    *table = (ls__table){0};
    ls__arena_init(&table->arena, env, LS__CHECKPOINT_ARENA_CHUNK);
}

void ls__table_fini(ls__table *table)
{
    free(table->list);
    free(table->sorted);
    ls__arena_fini(&table->arena);
    *table = (ls__table){0};
}

/* Doubling keeps a walk over n names linear. Pointers into the list become invalid, so `sorted`
 * is built only after the walk. */
static ls_status make_room(ls__table *t)
{
    if (t->count < t->room) {
        return LS_OK;
    }
    int room = t->room ? 2 * t->room : 64;
    ls__saved_entry *list =
        room <= ENTRIES_MAX ? realloc(t->list, (size_t)room * sizeof *list) : NULL;
    if (list == NULL) {
        return ls__fail(LS_ERR_MEMORY, "checkpoint: no memory for a table of %d names", room);
    }
    t->list = list;
    t->room = room;
    return LS_OK;
}

/* The name is copied, since a state function may build it on its stack. "__metadata__" is
 * reserved by the safetensors header. */
ls_status ls__table_add(ls__table *t, const ls__saved_entry *entry)
{
    size_t bytes = strlen(entry->name) + 1;
    if (bytes > NAME_MAX_BYTES || bytes == 1 || strcmp(entry->name, "__metadata__") == 0) {
        return ls__fail(LS_ERR_INVALID,
                        "checkpoint: the name \"%.80s\" of a tensor or scalar cannot be used; give "
                        "one of 1 to %d bytes other than \"__metadata__\"",
                        entry->name, NAME_MAX_BYTES - 1);
    }
    if (!ls__utf8_valid(entry->name)) {
        return ls__fail(LS_ERR_INVALID,
                        "checkpoint: the name \"%.80s\" is not valid UTF-8, which safetensors "
                        "files need; give another name",
                        entry->name);
    }
    LS_TRY(make_room(t));
    char *name = ls__arena_alloc(&t->arena, bytes);
    if (name == NULL) {
        return ls__fail(LS_ERR_MEMORY, "checkpoint: no memory for a name");
    }
    ls__saved_entry *made = &t->list[t->count++];
    *made = *entry;
    made->name = memcpy(name, entry->name, bytes);
    return LS_OK;
}

static int compare_dims(const int64_t *a, const int64_t *b)
{
    for (int i = 0; i < LS_DIMS_MAX; i++) {
        if (a[i] != b[i]) {
            return a[i] < b[i] ? -1 : 1;
        }
    }
    return 0;
}

/* Names by bytes, as a binary search expects. */
int ls__entry_compare(const ls__saved_entry *a, const ls__saved_entry *b)
{
    int order = strcmp(a->name, b->name);
    order = order != 0 ? order : (int)a->type - (int)b->type;
    order = order != 0 ? order : compare_dims(a->tensor.start, b->tensor.start);
    order = order != 0 ? order : compare_dims(a->tensor.local, b->tensor.local);
    return order != 0 ? order : a->rank - b->rank;
}

bool ls__entry_same_box(const ls__saved_entry *a, const ls__saved_entry *b)
{
    return compare_dims(a->tensor.start, b->tensor.start) == 0 &&
           compare_dims(a->tensor.local, b->tensor.local) == 0;
}

bool ls__entry_same_tensor(const ls__saved_entry *a, const ls__saved_entry *b)
{
    return a->type == LS__ENTRY_TENSOR && b->type == LS__ENTRY_TENSOR &&
           a->tensor.dtype == b->tensor.dtype && a->tensor.ndim == b->tensor.ndim &&
           compare_dims(a->tensor.global, b->tensor.global) == 0;
}

static int by_name(const void *a, const void *b)
{
    return ls__entry_compare(*(const ls__saved_entry *const *)a,
                             *(const ls__saved_entry *const *)b);
}

/* Replaces no earlier list: it is called once a table. Duplicates are found here, because only
 * sorted names make the search linear. */
static ls_status sort_names(ls__table *t)
{
    t->sorted = malloc(((size_t)t->count + 1) * sizeof(ls__saved_entry *));
    if (t->sorted == NULL) {
        return ls__fail(LS_ERR_MEMORY, "checkpoint: no memory to sort %d names", t->count);
    }
    for (int i = 0; i < t->count; i++) {
        t->sorted[i] = &t->list[i];
    }
    qsort(t->sorted, (size_t)t->count, sizeof(ls__saved_entry *), by_name);
    for (int i = 1; i < t->count; i++) {
        const ls__saved_entry *a = t->sorted[i - 1], *b = t->sorted[i];
        const bool boxes = ls__entry_same_tensor(a, b) && !ls__entry_same_box(a, b);
        if (!boxes && strcmp(a->name, b->name) == 0) {
            return ls__fail(LS_ERR_INVALID,
                            "checkpoint: two items have state named \"%.200s\"; give them "
                            "different prefixes",
                            b->name);
        }
    }
    return LS_OK;
}

/* ---- walks -------------------------------------------------------------------------------- */

/* The first failing item ends the walk; its error is returned unchanged. The order of items and
 * of names within them is part of the contract: a second walk must repeat it. */
ls_status ls__items_visit(const ls_checkpoint_item *items, int count,
                          const ls_state_visitor *visitor)
{
    const unsigned char *at =
        (const unsigned char *)items; /* of the caller's header, by its size */
    for (int i = 0; i < count; i++) {
        ls_checkpoint_item item = {.size = ls__struct_size(at)};
        if (!ls__struct_size_fits(item.size)) {
            return ls__fail(LS_ERR_INVALID,
                            "checkpoint: items[%d].size is %zu; fill items with LS_ITEM, or set it "
                            "to sizeof(ls_checkpoint_item)",
                            i, item.size);
        }
        memcpy(&item, at, item.size < sizeof item ? item.size : sizeof item);
        if (item.state == NULL) {
            return ls__fail(LS_ERR_INVALID, "checkpoint: item %d (\"%s\") has no state function", i,
                            item.prefix != NULL ? item.prefix : "");
        }
        const ls__user_call user = ls__user_call_begin();
        const ls_status status = item.state(item.object, item.prefix, visitor);
        LS_TRY(ls__user_call_check(&user, status, "the state function of \"%s\"",
                                   item.prefix != NULL ? item.prefix : ""));
        at += item.size;
    }
    return LS_OK;
}

bool ls__tensor_is_whole(const ls_state_tensor *t)
{
    for (int i = 0; i < t->ndim; i++) {
        if (t->local[i] != t->global[i]) {
            return false;
        }
    }
    return true;
}

/* Written with a subtraction, so that start + local cannot overflow. */
static bool slice_is_inside(const ls_state_tensor *t)
{
    for (int i = 0; i < t->ndim; i++) {
        if (t->start[i] < 0 || t->local[i] < 0 || t->start[i] > t->global[i] ||
            t->local[i] > t->global[i] - t->start[i]) {
            return false;
        }
    }
    return true;
}

bool ls__tensor_is_valid(const ls_state_tensor *t, size_t *bytes)
{
    size_t whole;
    return t->ndim >= 0 && t->ndim <= LS_DIMS_MAX && ls_dtype_size(t->dtype) > 0 &&
           slice_is_inside(t) && ls__shape_bytes(t->global, t->ndim, t->dtype, &whole) &&
           ls__shape_bytes(t->local, t->ndim, t->dtype, bytes);
}

/* The pointer to the data is dropped: it is valid only during this call. A state function is the
 * user's code, so everything it shows is checked before use. */
static ls_status collect_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    ls__saved_entry entry = {.name = name, .type = LS__ENTRY_TENSOR};
    ls_state_tensor *t = &entry.tensor;
    if (!ls__tensor_is_valid(tensor, &entry.bytes)) {
        return ls__fail(LS_ERR_INVALID,
                        "checkpoint: \"%.200s\" is not a valid tensor: its dtype, dims or slice "
                        "are out of range",
                        name);
    }
    t->dtype = tensor->dtype;
    t->ndim = tensor->ndim;
    const size_t dims = (size_t)t->ndim * sizeof t->local[0];
    memcpy(t->global, tensor->global, dims);
    memcpy(t->start, tensor->start, dims);
    memcpy(t->local, tensor->local, dims);
    if (((const ls__table *)self)->sums) {
        entry.sum = ls__crc32c(0, tensor->data, entry.bytes);
    }
    return ls__table_add(self, &entry);
}

static ls_status collect_int64(void *self, const char *name, int64_t *value)
{
    return ls__table_add(
        self, &(ls__saved_entry){.name = name, .type = LS__ENTRY_INT64, .int64 = *value});
}

static ls_status collect_float64(void *self, const char *name, double *value)
{
    return ls__table_add(
        self, &(ls__saved_entry){.name = name, .type = LS__ENTRY_FLOAT64, .float64 = *value});
}

static ls_status collect_optional(void *self, const char *name, double *value)
{
    const ls__saved_entry entry = {
        .name = name, .type = LS__ENTRY_FLOAT64, .float64 = *value, .optional = true};
    return ls__table_add(self, &entry);
}

/* The first walk. Afterwards the table owns all names and the items are no longer referenced. */
ls_status ls__table_collect(ls__table *table, const ls_checkpoint_item *items, int count)
{
    const ls_state_visitor visitor = {.size = sizeof(ls_state_visitor),
                                      .self = table,
                                      .tensor = collect_tensor,
                                      .int64 = collect_int64,
                                      .float64 = collect_float64,
                                      .optional_float64 = collect_optional};
    LS_TRY(ls__items_visit(items, count, &visitor));
    return sort_names(table);
}

const ls__saved_entry *ls__table_next(const ls__table *table, int *at, const char *name,
                                      ls__entry_type type)
{
    const ls__saved_entry *e = *at < table->count ? &table->list[*at] : NULL;
    ++*at;
    return e != NULL && e->type == type && strcmp(e->name, name) == 0 ? e : NULL;
}

/* ---- the copy ----------------------------------------------------------------------------- */

/* State of the second walk; `at` is the next expected entry. */
typedef struct copier {
    ls__table *table;
    int at;
    uint8_t *image;
} copier;

/* The walks must agree: an entry that appeared, vanished or changed its size would write outside
 * its place in the image. */
static ls_status changed(const char *name)
{
    return ls__fail(LS_ERR_INVALID,
                    "checkpoint: at \"%.200s\" the state changed while it was saved; do not change "
                    "the items during a save",
                    name);
}

/* Copies only the part that this rank writes. The box is compared again, since the image was laid
 * out for the first walk's, and one name may have several. */
static ls_status copy_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    copier *c = self;
    const ls__saved_entry *e = ls__table_next(c->table, &c->at, name, LS__ENTRY_TENSOR);
    const size_t dims = e != NULL ? (size_t)e->tensor.ndim * sizeof e->tensor.local[0] : 0;
    if (e == NULL || e->tensor.ndim != tensor->ndim || e->tensor.dtype != tensor->dtype ||
        memcmp(e->tensor.start, tensor->start, dims) != 0 ||
        memcmp(e->tensor.local, tensor->local, dims) != 0) {
        return changed(name);
    }
    if (e->mine != NULL && e->mine->part.bytes > 0) {
        memcpy(c->image + e->mine->offset, (const uint8_t *)tensor->data + e->mine->part.skip,
               e->mine->part.bytes);
    }
    return LS_OK;
}

/* Scalars were taken by the first walk; the second one only keeps the position in step. */
static ls_status skip_int64(void *self, const char *name, int64_t *value)
{
    copier *c = self;
    (void)value;
    return ls__table_next(c->table, &c->at, name, LS__ENTRY_INT64) ? LS_OK : changed(name);
}

static ls_status skip_float64(void *self, const char *name, double *value)
{
    copier *c = self;
    (void)value;
    return ls__table_next(c->table, &c->at, name, LS__ENTRY_FLOAT64) ? LS_OK : changed(name);
}

ls_status ls__table_copy(ls__table *table, const ls_checkpoint_item *items, int count,
                         uint8_t *image)
{
    copier c = {.table = table, .image = image};
    const ls_state_visitor visitor = {.size = sizeof(ls_state_visitor),
                                      .self = &c,
                                      .tensor = copy_tensor,
                                      .int64 = skip_int64,
                                      .float64 = skip_float64};
    return ls__items_visit(items, count, &visitor);
}
