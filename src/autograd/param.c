/* SPDX-License-Identifier: Apache-2.0 */
/* Leaves: which tensors require gradients, and where those live. */
#include "autograd/param.h"
#include "base/assert.h"
#include "tensor/fill.h"
#include "tensor/gradients.h"
#include "tensor/op.h"

/* ---- public ------------------------------------------------------------------------------- */

/* A mode of the calling thread; returns the former one. */
bool ls_set_grad_mode(bool enabled)
{
    bool before = !ls__self.no_grad;
    ls__self.no_grad = !enabled;
    return before;
}

/* Graphs that used the leaf keep their own references, so their backward passes still work. */
static void forget_leaf(ls__record *record)
{
    record->notes = ls__leaf_of(record->node)->notes;
    ls__node_unref(record->node);
    record->node = NULL;
    record->flags &= (uint8_t)~LS__RECORD_LEAF;
}

/* A leaf needs an address of its own for its elements, hence contiguous; a tensor whose mode does
 * not change is returned as it is. */
ls_tensor *ls_set_requires_grad(ls_tensor *t, bool requires_grad)
{
    ls__call call;
    if (!ls__call_begin_unread(&call, "set_requires_grad", t)) {
        return call.failed;
    }
    ls__record *record = call.in[0];
    bool is_leaf = (record->flags & LS__RECORD_LEAF) != 0;
    if (record->node != NULL && !is_leaf) {
        return ls__call_fail(&call, LS_ERR_STATE,
                             "%s is the result of an operation; only leaves can be asked to "
                             "require gradients (ls_detach makes one)",
                             ls__record_print(record).text);
    }
    if (requires_grad == is_leaf) {
        return t;
    }
    if (record->storage->initial != NULL && record->storage->initial->owner != NULL) {
        ls__storages_moved(call.tensors); /* the gradient of a parameter comes or goes */
    }
    if (!requires_grad) {
        forget_leaf(record);
        return t;
    }
    bool carries = record->dtype == LS_FLOAT32 || record->dtype == LS_BFLOAT16;
    if (!carries || !ls__record_contiguous(record)) {
        return ls__call_fail(&call, LS_ERR_INVALID,
                             "%s of %s%s; only contiguous float32 and bfloat16 tensors carry "
                             "gradients (ls_cast, ls_contiguous)",
                             ls__record_print(record).text, ls_dtype_name((ls_dtype)record->dtype),
                             ls__record_contiguous(record) ? "" : ", not contiguous");
    }
    if (ls__leaf_new(call.tensors, record) != LS_OK) {
        return ls__poison(call.tensors);
    }
    return t;
}

/* True of results as well as of leaves: any record with a node. */
bool ls_requires_grad(const ls_tensor *t)
{
    ls__tensors *tensors = ls__tensors_get("requires_grad");
    const ls__record *record =
        tensors != NULL ? ls__record_sound(tensors, t, "requires_grad") : NULL;
    return record != NULL && record->node != NULL;
}

/* The leaf of `t`, or NULL with the error set. */
static ls__leaf *leaf_at(const ls_tensor *t, const char *what, ls__tensors **tensors)
{
    *tensors = ls__tensors_get(what);
    ls__record *record = *tensors != NULL ? ls__record_sound(*tensors, t, what) : NULL;
    if (record == NULL) {
        return NULL;
    }
    if (!(record->flags & LS__RECORD_LEAF)) {
        (void)ls__fail(
            LS_ERR_STATE,
            "%s: %s is not a leaf that requires gradients; ls_set_requires_grad makes it "
            "one",
            what, ls__record_print(record).text);
        return NULL;
    }
    return ls__leaf_of(record->node);
}

/* The tensor that ls_grad returns. It is owned by the leaf, not by a scope, so its handle stays
 * valid from step to step. */
static bool make_grad_record(ls__tensors *tensors, ls__leaf *leaf)
{
    ls__record *record = ls__record_new(tensors);
    if (record == NULL) {
        return false;
    }
    LS__UNUSED bool is_shape =
        ls__record_set_shape(record, leaf->shape, (ls_dtype)leaf->node.dtype, "grad");
    record->storage = ls__storage_ref(leaf->grad);
    record->flags |= LS__RECORD_OWNED;
    ls__record_keep(tensors, record);
    leaf->grad_record = record;
    return true;
}

/* NULL also means that no gradient is present, which is not an error. */
ls_tensor *ls_grad(ls_tensor *t)
{
    ls__tensors *tensors;
    ls__leaf *leaf = leaf_at(t, "grad", &tensors);
    if (leaf == NULL) {
        return NULL;
    }
    ls__captured_meet(leaf, LS__GRADIENT_USED);
    if (!*leaf->present) {
        return NULL;
    }
    if (leaf->grad_record == NULL && !make_grad_record(tensors, leaf)) {
        return ls__poison_fixed(LS_ERR_MEMORY);
    }
    return ls__handle(leaf->grad_record);
}

/* ---- for the layers above ----------------------------------------------------------------- */

/* One observer a leaf: a gradient cannot lie in two buckets. ddp checks that before it asks. */
ls_status ls__param_observe(ls_tensor *param, ls__observer *observer, int index)
{
    ls__tensors *tensors;
    ls__leaf *leaf = leaf_at(param, "param_observe", &tensors);
    if (leaf == NULL) {
        return ls__self.status;
    }
    leaf->observer = observer;
    leaf->observer_index = index;
    return LS_OK;
}

/* NULL for a poisoned parameter. */
static ls__param_notes *notes_of(const ls_tensor *param, const char *what)
{
    ls__tensors *tensors = ls__tensors_get(what);
    ls__record *record = tensors != NULL ? ls__record_sound(tensors, param, what) : NULL;
    if (record == NULL) {
        return NULL;
    }
    const bool is_leaf = (record->flags & LS__RECORD_LEAF) != 0;
    return is_leaf ? &ls__leaf_of(record->node)->notes : &record->notes;
}

void ls__param_set_table(ls_tensor *param)
{
    ls__param_notes *notes = notes_of(param, "param_set_table");
    if (notes != NULL) {
        notes->is_table = true;
    }
}

bool ls__param_is_table(const ls_tensor *param)
{
    const ls__param_notes *notes = notes_of(param, "param_is_table");
    return notes != NULL && notes->is_table;
}

void ls__param_set_staged(ls_tensor *param, unsigned axes)
{
    ls__param_notes *notes = notes_of(param, "param_set_staged");
    if (notes != NULL) {
        notes->is_staged = true;
        notes->staged = (uint8_t)axes;
    }
}

unsigned ls__param_staged_along(const ls_tensor *param)
{
    const ls__param_notes *notes = notes_of(param, "param_staged_along");
    return notes != NULL ? notes->staged : 0;
}

bool ls__param_is_staged(const ls_tensor *param)
{
    const ls__param_notes *notes = notes_of(param, "param_is_staged");
    return notes != NULL && notes->is_staged;
}

ls__observer *ls__param_observer(const ls_tensor *param)
{
    ls__tensors *tensors;
    ls__leaf *leaf = leaf_at(param, "param_observer", &tensors);
    return leaf != NULL ? leaf->observer : NULL;
}

void ls__param_owned(const ls_tensor *param, int64_t *from, int64_t *count)
{
    ls__observer *observer = ls_requires_grad(param) ? ls__param_observer(param) : NULL;
    *from = 0;
    *count = ls_numel(param);
    if (observer != NULL && observer->owners != NULL) {
        ls__tensors *tensors;
        observer->owned(observer, leaf_at(param, "param_owned", &tensors)->observer_index, from,
                        count);
    }
}

bool ls__param_divided_with(const ls_tensor *param, int world_rank)
{
    ls__tensors *tensors;
    const ls__leaf *leaf = leaf_at(param, "param_divided_with", &tensors);
    ls__observer *observer = leaf != NULL ? leaf->observer : NULL;
    return observer == NULL || observer->divides == NULL ||
           observer->divides(observer, leaf->observer_index, world_rank);
}

void ls__param_updated(const ls_tensor *param)
{
    ls__observer *observer = ls__param_observer(param);
    if (observer != NULL && observer->owners != NULL) {
        ls__tensors *tensors;
        observer->updated(observer, leaf_at(param, "param_updated", &tensors)->observer_index);
    }
}

ls_status ls__param_set_summed(ls_tensor *param, unsigned axes)
{
    ls__param_notes *notes = notes_of(param, "param_set_summed");
    if (notes == NULL) {
        return ls__self.status;
    }
    notes->summed = (uint8_t)axes;
    return LS_OK;
}

ls_status ls__param_set_complete(ls_tensor *param, unsigned axes)
{
    ls__param_notes *notes = notes_of(param, "param_set_complete");
    if (notes == NULL) {
        return ls__self.status;
    }
    notes->complete = (uint8_t)axes;
    return LS_OK;
}

unsigned ls__param_complete(const ls_tensor *param)
{
    const ls__param_notes *notes = notes_of(param, "param_complete");
    return notes != NULL ? notes->complete : 0;
}

uint32_t ls__param_placed(const ls_tensor *param)
{
    const ls__tensors *tensors = ls__tensors_get("param_placed");
    const ls__record *record =
        tensors != NULL ? ls__record_sound((ls__tensors *)(uintptr_t)tensors, param, "param_placed")
                        : NULL;
    return record != NULL ? record->place : 0;
}

uint8_t ls__param_layout(const ls_tensor *param)
{
    const ls__param_notes *notes = notes_of(param, "param_layout");
    return notes != NULL ? notes->layout : 0;
}

ls_status ls__param_set_name(ls_tensor *param, const char *name)
{
    ls__tensors *tensors;
    ls__leaf *leaf = leaf_at(param, "param_set_name", &tensors);
    if (leaf == NULL) {
        return ls__self.status;
    }
    leaf->name = name;
    return LS_OK;
}

/* The tensor that ls_grad returned follows to the new memory, so its handle stays valid. */
ls_status ls__param_bind_grad(ls_tensor *param, void *memory, bool *present)
{
    ls__tensors *tensors;
    ls__leaf *leaf = leaf_at(param, "param_bind_grad", &tensors);
    if (leaf == NULL) {
        return ls__self.status;
    }
    size_t bytes = (size_t)leaf->node.numel * ls_dtype_size((ls_dtype)leaf->node.dtype);
    ls__pool *on = leaf->value->pool;
    ls__storage *bound =
        memory != NULL ? ls__storage_borrow(on, memory, bytes) : ls__storage_new(on, bytes);
    if (bound == NULL) {
        return ls__self.status;
    }
    if (*leaf->present && bytes > 0 && bound->data != leaf->grad->data) {
        on->k->copy(bound->data, leaf->grad->data, bytes, on->stream);
        ls__device_wait(on->device); /* one of the two is the program's */
    }
    ls__storage_unref(leaf->grad);
    leaf->grad = bound;
    present = present != NULL ? present : &leaf->own_present;
    *present = *leaf->present;
    leaf->present = present;
    if (leaf->grad_record != NULL) {
        ls__storage_unref(leaf->grad_record->storage);
        leaf->grad_record->storage = ls__storage_ref(bound);
    }
    return LS_OK;
}

/* Moves the storage in place, so that every tensor that shares it sees the new address. */
ls_status ls__param_bind_value(ls_tensor *param, void *memory)
{
    ls__tensors *tensors = ls__tensors_get("param_bind_value");
    ls__record *record =
        tensors != NULL ? ls__record_sound(tensors, param, "param_bind_value") : NULL;
    if (record == NULL) {
        return ls__self.status;
    }
    size_t bytes = (size_t)ls_numel(param) * ls_dtype_size((ls_dtype)record->dtype);
    if (!ls__record_contiguous(record) || record->offset != 0 || record->storage->bytes != bytes) {
        return LS_ERR_UNSUPPORTED; /* a view stays where it is, without words: callers expect it */
    }
    ls__fill_drawn(record->storage);
    return ls__storage_move(record->storage, memory);
}

void ls__param_place_grad(ls_tensor *param, void *memory)
{
    ls__tensors *tensors;
    ls__leaf *leaf = ls_requires_grad(param) ? leaf_at(param, "param_place_grad", &tensors) : NULL;
    if (leaf != NULL && leaf->grad != NULL && leaf->grad->size_class == LS__STORAGE_BORROWED) {
        leaf->grad->data = memory;
    }
}

void ls__param_place_value(ls_tensor *param, void *memory)
{
    ls__tensors *tensors = ls__tensors_get("param_place_value");
    ls__record *record =
        tensors != NULL ? ls__record_sound(tensors, param, "param_place_value") : NULL;
    if (record != NULL) {
        LS_ASSERT(record->storage->size_class == LS__STORAGE_BORROWED);
        record->storage->data = memory;
    }
}

/* A gradient made present without memory is zero: peers reduced a bucket in which this rank had
 * nothing. A frozen parameter has no gradient to clear. */
ls_status ls__param_set_grad_present(ls_tensor *param, bool present)
{
    ls__tensors *tensors;
    if (!present && !ls_requires_grad(param)) {
        return LS_OK;
    }
    ls__leaf *leaf = leaf_at(param, "param_set_grad_present", &tensors);
    if (leaf == NULL) {
        return ls__self.status;
    }
    ls__captured_meet(leaf, present ? LS__GRADIENT_USED : LS__GRADIENT_ZEROED);
    if (present && leaf->grad == NULL) {
        ls__pool *on = leaf->value->pool;
        leaf->grad = ls__storage_new(on, (size_t)leaf->node.numel *
                                             ls_dtype_size((ls_dtype)leaf->node.dtype));
        if (leaf->grad == NULL) {
            return ls__self.status;
        }
        on->k->zero(leaf->grad->data, leaf->grad->bytes, on->stream);
    }
    *leaf->present = present;
    if (!present) {
        ls__leaf_release_grad(leaf);
    }
    return LS_OK;
}

void ls__param_meet_grad(const ls_tensor *param)
{
    ls__tensors *tensors;
    ls__leaf *leaf = ls_requires_grad(param) ? leaf_at(param, "param_meet_grad", &tensors) : NULL;
    if (leaf != NULL) {
        ls__captured_meet(leaf, LS__GRADIENT_USED);
    }
}

bool ls__param_grad_present(const ls_tensor *param)
{
    ls__tensors *tensors;
    const ls__leaf *leaf = leaf_at(param, "param_grad_present", &tensors);
    return leaf != NULL && *leaf->present;
}

/* Both are whole, and the caller has made the copy: nothing here can fail. */
static ls__storage *storage_of(ls_tensor *t)
{
    ls__record *record = ls__record_sound(ls__tensors_get("param_swap"), t, "param_swap");
    LS_ASSERT(record != NULL);
    ls__fill_drawn(record->storage);
    return record->storage;
}

void ls__param_swap(ls_tensor *param, ls_tensor *copy)
{
    ls__storage *a = storage_of(param), *b = storage_of(copy);
    LS_ASSERT(a->bytes == b->bytes);
    ls__storage_swap(a, b);
}

void ls__param_copy(ls_tensor *param, ls_tensor *copy)
{
    ls__storage *from = storage_of(param), *to = storage_of(copy);
    to->pool->k->copy(to->data, from->data, from->bytes, to->pool->stream);
    atomic_store_explicit(&to->version, ls__storage_version(from), memory_order_relaxed);
}
