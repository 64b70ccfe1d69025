/* SPDX-License-Identifier: Apache-2.0 */
/* First values of parameters; the idea is in fill.h. */
#include "tensor/fill.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "tensor/rng_stream.h"
#include "tensor/shape.h"

/* Serves all runtimes: values are drawn once in the life of a parameter. */
static pthread_mutex_t fill_lock = PTHREAD_MUTEX_INITIALIZER;

ls__initial *ls__initial_of(ls__storage *storage)
{
    if (storage->initial == NULL) {
        storage->initial = calloc(1, sizeof *storage->initial);
    }
    if (storage->initial == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "a parameter: out of memory for its name");
    }
    return storage->initial;
}

bool ls__record_covers_storage(const ls__record *record)
{
    const size_t bytes = (size_t)record->numel * ls_dtype_size((ls_dtype)record->dtype);
    return record->offset == 0 && bytes == record->storage->bytes && ls__record_contiguous(record);
}

/* ---- drawing ------------------------------------------------------------------------------ */

typedef struct source {
    const ls__pool *on;
    const ls__fill *fill;
    uint64_t id;
} source;

/* The stream of a parameter is the hash of its dotted name. */
static uint64_t id_of(const ls__initial *initial, const ls__fill *fill)
{
    return initial == NULL || initial->owner == NULL
               ? fill->unowned_id
               : ls__rng_id(LS__RNG_INITIAL,
                            ls__path_add(ls__place_path(initial->owner), initial->name));
}

static void draw_run(const source *s, float *out, int64_t count, uint64_t index)
{
    (s->fill->normal ? s->on->k->random_normal : s->on->k->random_uniform)(
        out, count, index, s->fill->from, s->fill->to, s->fill->seed, s->id, s->on->stream);
}

/* Elements [begin, begin + count) of the storage. */
static void draw(const ls__storage *storage, const ls__fill *fill, int64_t begin, int64_t count)
{
    const ls__initial *initial = storage->initial;
    const source s = {storage->pool, fill, id_of(initial, fill)};
    float *out = (float *)storage->data;
    if (initial == NULL || !initial->is_part) {
        draw_run(&s, out + begin, count, (uint64_t)begin);
        return;
    }
    for (int64_t at = begin, take; at < begin + count; at += take) {
        const int64_t place = ls__tensor_part_place(&initial->part, at, &take);
        take = take < begin + count - at ? take : begin + count - at;
        draw_run(&s, out + at, take, (uint64_t)place);
    }
}

/* Two threads may read a new model at once: the first draws, the other waits. */
void ls__fill_draw(ls__storage *storage)
{
    ls__initial *initial = storage->initial;
    (void)pthread_mutex_lock(&fill_lock);
    LS_ASSERT(initial != NULL);
    if (initial->noted) {
        draw(storage, &initial->fill, 0, (int64_t)(storage->bytes / sizeof(float)));
        initial->drawn = true;
        initial->noted = false;
        atomic_store_explicit(&storage->due, initial->keeper != NULL, memory_order_release);
    }
    (void)pthread_mutex_unlock(&fill_lock);
}

ls_status ls__fill_ask(ls__storage *storage)
{
    ls__fill_draw(storage);
    ls__keeper *keeper = storage->initial->keeper;
    return keeper != NULL ? keeper->read(keeper) : LS_OK;
}

/* ---- noting ------------------------------------------------------------------------------- */

ls_status ls__fill_note(ls__tensors *tensors, const ls__record *record, const ls__fill *fill)
{
    ls__storage *storage = record->storage;
    const bool owned = storage->initial != NULL && storage->initial->owner != NULL;
    const uint64_t stream = tensors->runtime->param_streams;
    tensors->runtime->param_streams += owned ? 0 : 1;
    if (fill == NULL) {
        return LS_OK;
    }
    ls__fill given = *fill;
    given.unowned_id = ls__rng_id(LS__RNG_INITIAL, stream);
    const bool kept = storage->initial != NULL && storage->initial->keeper != NULL;
    if (kept || !ls__record_covers_storage(record)) {
        LS_TRY(ls__fill_settle(storage));
        draw(storage, &given, record->offset, record->numel);
        return LS_OK;
    }
    ls__initial *initial = ls__initial_of(storage);
    if (initial == NULL) {
        return ls__self.status;
    }
    if (owned) { /* no replay draws it */
        ls__storages_moved(tensors);
    }
    initial->fill = given;
    initial->drawn = false;
    initial->noted = true;
    atomic_store_explicit(&storage->due, true, memory_order_release);
    return LS_OK;
}

/* Of a part of the elements the others are still due. */
ls_status ls__fill_cancel(const ls__record *record)
{
    ls__storage *storage = record->storage;
    if (storage->initial == NULL || storage->initial->keeper != NULL ||
        !ls__record_covers_storage(record)) {
        return ls__fill_settle(storage);
    }
    storage->initial->noted = false;
    atomic_store_explicit(&storage->due, false, memory_order_release);
    return LS_OK;
}

/* ---- whose it is -------------------------------------------------------------------------- */

static ls__record *sound(const ls_tensor *t, const char *what)
{
    ls__tensors *tensors = ls__tensors_get(what);
    return tensors != NULL ? ls__record_sound(tensors, t, what) : NULL;
}

/* A shared parameter has the name that it got first. */
ls_status ls__fill_own(ls_tensor *t, const ls__draw_place *owner, const char *name)
{
    const ls__record *record = sound(t, "module_add_param");
    ls__initial *initial = record != NULL ? ls__initial_of(record->storage) : NULL;
    if (initial == NULL) {
        return ls__self.status;
    }
    if (initial->owner == NULL) {
        (void)snprintf(initial->name, sizeof initial->name, "%s", name);
        initial->owner = owner;
    }
    return LS_OK;
}

/* Values that are still due would get the name of a module that no longer exists, so they are drawn
 * now, if anything but the module can read them. */
void ls__fill_disown(ls_tensor *t)
{
    const ls__record *record = sound(t, "module_free");
    if (record != NULL && record->storage->initial != NULL) {
        if (!ls__storage_sole(record->storage)) {
            ls__fill_drawn(record->storage);
        }
        record->storage->initial->owner = NULL;
    }
}

/* ---- elements on other ranks --------------------------------------------------------------- */

ls_status ls__fill_keep(ls_tensor *t, ls__keeper *keeper)
{
    const ls__record *record = sound(t, "parameter");
    if (record == NULL) {
        return ls__self.status;
    }
    if (!ls__record_covers_storage(record)) {
        return LS_ERR_UNSUPPORTED;
    }
    ls__fill_drawn(record->storage);
    ls__initial *initial = ls__initial_of(record->storage);
    if (initial == NULL) {
        return ls__self.status;
    }
    initial->keeper = keeper;
    atomic_store_explicit(&record->storage->due, keeper != NULL, memory_order_release);
    return LS_OK;
}

void ls__fill_here(const ls_tensor *t, int64_t *from, int64_t *count)
{
    const ls__record *record = sound(t, "parameter");
    const ls__initial *initial = record != NULL ? record->storage->initial : NULL;
    const ls__keeper *keeper = initial != NULL ? initial->keeper : NULL;
    const bool hollow = keeper != NULL && keeper->hollow;
    *from = hollow ? keeper->from : 0;
    *count = hollow ? keeper->count : ls_numel(t);
}

/* ---- parts -------------------------------------------------------------------------------- */

ls__tensor_part ls__fill_part(const ls__record *record)
{
    const ls__initial *initial = record->storage->initial;
    const ls_shape own = ls__record_shape(record);
    return initial != NULL && initial->is_part && ls__record_covers_storage(record)
               ? initial->part
               : ls__tensor_part_box(own, (ls_shape){.ndim = own.ndim}, own);
}

ls_shape ls__fill_whole(const ls__record *record)
{
    return ls__fill_part(record).whole;
}

ls_status ls__fill_visit_range(const ls_tensor *t, ls_dtype dtype, void *data, int64_t from,
                               int64_t count, const char *name, const ls_state_visitor *visitor)
{
    const ls__record *record = sound(t, "state");
    if (record == NULL) {
        return ls__self.status;
    }
    const ls__tensor_part part = ls__fill_part(record);
    return ls__tensor_part_visit_range(&part, dtype, data, from, count, name, visitor,
                                       &record->storage->pool->tensors->host);
}

void ls__fill_set_optimized(ls_tensor *t)
{
    const ls__record *record = sound(t, "optim_new");
    if (record != NULL && record->storage->initial != NULL) {
        record->storage->initial->optimized = true;
    }
}

/* Whether the part lies in the whole. */
static ls_status check_part(const ls__record *record, ls_shape whole, ls_shape first)
{
    bool fits = whole.ndim == record->ndim && first.ndim == record->ndim;
    for (int d = 0; fits && d < record->ndim; d++) {
        fits = first.dim[d] >= 0 && whole.dim[d] >= record->dim[d] &&
               first.dim[d] <= whole.dim[d] - record->dim[d];
    }
    if (!fits) {
        return ls__fail(LS_ERR_INVALID,
                        "tensor_set_part: a tensor of %s does not lie in one of %s from %s on; "
                        "give the shape of the whole and the indices of the part's first element",
                        ls__record_print(record).text, ls__shape_print(whole).text,
                        ls__shape_print(first).text);
    }
    return LS_OK;
}

/* Values that are noted but not drawn yet become those of the part. */
ls_status ls_tensor_set_part(ls_tensor *t, ls_shape whole, ls_shape first)
{
    const ls__record *record = sound(t, "tensor_set_part");
    if (record == NULL) {
        return ls__self.status;
    }
    LS_TRY(check_part(record, whole, first));
    if (!ls__record_covers_storage(record)) {
        return ls__fail(LS_ERR_INVALID, "tensor_set_part: the tensor is a view of another; give a "
                                        "tensor with elements of its own");
    }
    ls__initial *initial = ls__initial_of(record->storage);
    if (initial == NULL) {
        return ls__self.status;
    }
    if (initial->drawn) {
        return ls__fail(LS_ERR_STATE, "tensor_set_part: the tensor's values were drawn and read "
                                      "already; call it before they are used");
    }
    initial->is_part = true;
    initial->part = ls__tensor_part_box(whole, first, ls__record_shape(record));
    return LS_OK;
}
