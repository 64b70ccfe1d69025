/* SPDX-License-Identifier: Apache-2.0 */
/* Records and their handles. See Note [Handles] in tensor.h.
 *
 * Slab k holds RECORDS_FIRST << k records, so that a handful of ranges covers any number of
 * tensors and checking that an address is a record at all stays a short loop. */
#include "tensor/graph.h"

#include <string.h>

#include "base/assert.h"
#include "device/captured.h"

#define RECORDS_FIRST 1024
#define GENERATION_MASK ((uintptr_t)LS__RECORD_BYTES - 1)

_Static_assert(sizeof(ls__record) <= LS__RECORD_BYTES, "a record fits its slot");
_Static_assert(LS_DIMS_MAX == LS__KERNEL_DIMS_MAX, "kernels take every shape");

/* Poisoned results of operations that cannot make a record, one for each reason. They lie in
 * constant memory, at multiples of a slot as handles need, and their generation is 0. */
typedef union fixed_record {
    ls__record record;
    char slot[LS__RECORD_BYTES];
} fixed_record;

enum { FIXED_STATE, FIXED_FORKED, FIXED_MEMORY, FIXED_COUNT };

static const LS__ALIGNED(LS__RECORD_BYTES) fixed_record fixed[FIXED_COUNT] = {
    [FIXED_STATE] = {{.status = LS_ERR_STATE}},
    [FIXED_FORKED] = {{.status = LS_ERR_FORKED}},
    [FIXED_MEMORY] = {{.status = LS_ERR_MEMORY}},
};

static const char *const fixed_texts[FIXED_COUNT] = {
    [FIXED_STATE] = ("a tensor operation was called without a runtime; call ls_init first (in a "
                     "thread of your own: ls_runtime_attach)"),
    [FIXED_FORKED] =
        "a tensor operation was called in a child made by fork() without exec(), which shares "
        "nothing with the job; call it in the parent, or start the child with exec",
    [FIXED_MEMORY] = "out of memory for a tensor; free tensors, or end a scope earlier",
};

/* These records lie in constant memory and are never written. */
ls_tensor *ls__poison_fixed(ls_status status)
{
    int i = status == LS_ERR_STATE    ? FIXED_STATE
            : status == LS_ERR_FORKED ? FIXED_FORKED
                                      : FIXED_MEMORY;
    return (ls_tensor *)(uintptr_t)&fixed[i].record;
}

/* The text of a fixed poison; NULL when `address` is not one. */
static const char *fixed_at(const void *address)
{
    for (int i = 0; i < FIXED_COUNT; i++) {
        if (address == &fixed[i].record) {
            return fixed_texts[i];
        }
    }
    return NULL;
}

/* ---- slabs -------------------------------------------------------------------------------- */

/* Adds the next slab, twice as large as the one before, and its records to the free ones. False
 * when memory or the table of slabs is exhausted. Under lock. */
static bool slab_add(ls__tensors *tensors)
{
    int k = atomic_load_explicit(&tensors->slab_count, memory_order_relaxed);
    if (k == LS__SLABS_MAX) {
        return false;
    }
    ls__slab *slab = &tensors->slab[k];
    slab->count = (int64_t)RECORDS_FIRST << k;
    slab->bytes = (size_t)(slab->count + 1) * LS__RECORD_BYTES;
    slab->memory = tensors->env.table.allocate(&tensors->env.table, slab->bytes);
    if (slab->memory == NULL) {
        return false;
    }
    uintptr_t first = ((uintptr_t)slab->memory + GENERATION_MASK) & ~GENERATION_MASK;
    slab->first = (char *)slab->memory + (first - (uintptr_t)slab->memory);
    memset(slab->first, 0, (size_t)slab->count * LS__RECORD_BYTES);
    for (int64_t i = 0; i < slab->count; i++) {
        ls__record *record = (ls__record *)(void *)(slab->first + i * LS__RECORD_BYTES);
        ls__list_push_back(&tensors->free_records, &record->link);
    }
    /* Release pairs with the acquire in is_record: the slab's fields are there. */
    atomic_store_explicit(&tensors->slab_count, k + 1, memory_order_release);
    return true;
}

/* Whether `address` lies in a slab. Takes no lock: slabs are only added, and the count is
 * published after a slab's fields. Newest slabs first: they are the largest, so most handles are
 * found in the first comparison. */
static bool is_record(ls__tensors *tensors, uintptr_t address)
{
    int count = atomic_load_explicit(&tensors->slab_count, memory_order_acquire);
    for (int k = count - 1; k >= 0; k--) {
        const ls__slab *slab = &tensors->slab[k];
        uintptr_t first = (uintptr_t)slab->first;
        if (address >= first && address - first < (uintptr_t)slab->count * LS__RECORD_BYTES) {
            return true;
        }
    }
    return false;
}

/* ---- decoding ----------------------------------------------------------------------------- */

/* Messages count arguments from 1; 0 stands for a function's only one. */
static const char *argument_text(int argument)
{
    static const char *const texts[] = {"its argument", "argument 1", "argument 2", "argument 3",
                                        "argument 4"};
    return texts[argument >= 0 && argument <= 4 ? argument : 0];
}

/* Sets LS_ERR_STALE. Names the place where the tensor was made as long as its record was not
 * used again; `record` is NULL for an address that is not a record's. */
static void fail_stale(const ls__record *record, uintptr_t handle, const char *what, int argument)
{
    /* The record keeps file and line of its last tensor until it is used again. */
    bool remembers = record != NULL && !(record->flags & LS__RECORD_LIVE) && record->file != NULL &&
                     (uint8_t)(record->generation - 1) == (uint8_t)(handle & GENERATION_MASK);
    if (remembers) {
        (void)ls__fail(LS_ERR_STALE,
                       "%s: %s is the tensor made at %s:%d, whose scope has ended or which was "
                       "freed; ls_keep tensors that outlive their scope",
                       what, argument_text(argument), record->file, record->line);
    } else {
        (void)ls__fail(
            LS_ERR_STALE,
            "%s: %s is not a live tensor: its scope has ended, it was freed, or it never "
            "was one; ls_keep tensors that outlive their scope",
            what, argument_text(argument));
    }
}

/* Decodes a handle, in three steps: is its address a record's, is the record alive, is its
 * generation the handle's? It is trusted only after the first, because a handle may be any
 * number. */
ls__record *ls__record_of(ls__tensors *tensors, const ls_tensor *handle, const char *what,
                          int argument)
{
    uintptr_t bits = (uintptr_t)handle;
    if (LS__UNLIKELY(bits == 0)) {
        (void)ls__fail(LS_ERR_INVALID, "%s: %s is NULL; give a tensor", what,
                       argument_text(argument));
        return NULL;
    }
    uintptr_t address = bits & ~GENERATION_MASK;
    /* The slabs are this library's own memory, and the low bits were added by ls__handle. */
    ls__record *record = (ls__record *)address;
    if (LS__UNLIKELY(!is_record(tensors, address))) {
        if (fixed_at(record) != NULL) {
            return record;
        }
        fail_stale(NULL, bits, what, argument);
        return NULL;
    }
    if (LS__UNLIKELY(!(record->flags & LS__RECORD_LIVE) ||
                     record->generation != (bits & GENERATION_MASK))) {
        fail_stale(record, bits, what, argument);
        return NULL;
    }
    return record;
}

/* Sets this thread's error to the poison `record` carries. */
static ls_status fail_with_poison(const ls__record *record)
{
    const char *text = fixed_at(record);
    return ls__fail_again((ls_status)record->status,
                          text != NULL ? text : (const char *)record->storage->data);
}

/* NULL with the status set, also for a poisoned tensor, whose first error is reported again. */
ls__record *ls__record_sound(ls__tensors *tensors, const ls_tensor *handle, const char *what)
{
    ls__record *record = ls__record_of(tensors, handle, what, 0);
    if (record != NULL && record->status < 0) {
        (void)fail_with_poison(record);
        return NULL;
    }
    return record;
}

/* The error that poisoned the tensor, or LS_OK. Fixed tensors answer without a runtime. */
ls_status ls_tensor_status(const ls_tensor *t)
{
    const ls__record *record = (const ls__record *)((uintptr_t)t & ~GENERATION_MASK);
    if (fixed_at(record) != NULL) {
        return fail_with_poison(record);
    }
    ls__tensors *tensors = ls__tensors_get("tensor_status");
    if (tensors == NULL || (record = ls__record_of(tensors, t, "tensor_status", 0)) == NULL) {
        return ls__self.status;
    }
    return record->status < 0 ? fail_with_poison(record) : LS_OK;
}

/* ---- making and freeing ------------------------------------------------------------------- */

/* A live record without storage, in this thread's innermost scope; NULL with the error set.
 * Taken from the front of the FIFO and given back at its end, so that a generation returns as
 * late as possible (Note [Handles]). */
ls__record *ls__record_new(ls__tensors *tensors)
{
    ls_scope *scope = ls__scope_current(tensors);
    if (scope == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&tensors->lock);
    ls__list *link = ls__list_pop_front(&tensors->free_records);
    if (link == NULL && slab_add(tensors)) {
        link = ls__list_pop_front(&tensors->free_records);
    }
    pthread_mutex_unlock(&tensors->lock);
    if (link == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "a new tensor: out of memory for its record");
        return NULL;
    }
    ls__record *record = LS__LIST_ITEM(link, ls__record, link);
    uint8_t generation = record->generation;
    memset(record, 0, sizeof *record);
    record->generation = generation;
    record->flags = LS__RECORD_LIVE | (ls__self.modules > 0 ? LS__RECORD_WITHIN : 0);
    record->file = ls__self.file != NULL && ls__self.file[0] != '\0' ? ls__self.file : NULL;
    record->line = ls__self.line;
    record->scope = scope;
    ls__list_push_back(&scope->records, &record->link);
    scope->count++;
    return record;
}

/* Storage and leaf are counted; the copy does not inherit flags, for it is not a leaf itself. */
ls__record *ls__record_alias(ls__tensors *tensors, const ls__record *of)
{
    ls__record *record = ls__record_new(tensors);
    if (record == NULL) {
        return NULL;
    }
    memcpy(record->dim, of->dim, sizeof record->dim);
    memcpy(record->stride, of->stride, sizeof record->stride);
    record->offset = of->offset;
    record->numel = of->numel;
    record->ndim = of->ndim;
    record->dtype = of->dtype;
    record->place = of->place;
    record->storage = ls__storage_ref(of->storage);
    record->node = ls__node_ref(of->node);
    return record;
}

/* A module's result leaves the module: backward must no longer free it on its way. */
void ls__tensor_give_out(ls_tensor *t)
{
    ls__tensors *tensors = t != NULL ? ls__tensors_get("forward") : NULL;
    ls__record *record = tensors != NULL ? ls__record_of(tensors, t, "forward", 0) : NULL;
    if (record != NULL && (record->flags & LS__RECORD_WITHIN)) { /* a fixed one is not written */
        record->flags &= (uint8_t)~LS__RECORD_WITHIN;
    }
}

/* Recomputation takes the elements away and leaves the handle, whose use is then explained by
 * `text`. */
void ls__record_hollow(ls__record *record, ls__storage *text)
{
    LS_ASSERT(record->flags & LS__RECORD_LIVE && record->scope != NULL);
    ls__storage_unref(record->storage);
    record->storage = ls__storage_ref(text);
    record->status = LS_ERR_STATE;
    record->node = NULL; /* of its scope: not counted */
}

/* A scope's list belongs to its thread, the list of kept tensors to all. */
static void unlink_record(ls__tensors *tensors, ls__record *record)
{
    if (record->scope != NULL) {
        LS_ASSERT(record->scope->count > 0);
        record->scope->count--;
        ls__list_remove(&record->link);
    } else {
        pthread_mutex_lock(&tensors->lock);
        ls__list_remove(&record->link);
        pthread_mutex_unlock(&tensors->lock);
    }
}

/* Ends a live record: out of its scope, references given back, appended to the free ones. The
 * generation changes before the record can be handed out again, so old handles are seen. */
void ls__record_free(ls__tensors *tensors, ls__record *record)
{
    LS_ASSERT(record->flags & LS__RECORD_LIVE);
    unlink_record(tensors, record);
    record->flags = 0;
    record->generation++;
    ls__node_unref(record->node);
    record->node = NULL;
    ls__storage_unref(record->storage);
    record->storage = NULL;
    pthread_mutex_lock(&tensors->lock);
    ls__list_push_back(&tensors->free_records, &record->link);
    pthread_mutex_unlock(&tensors->lock);
}

/* Out of its scope and into the hands of the caller, who frees it. A record that has left its scope
 * before stays as it is. */
void ls__record_keep(ls__tensors *tensors, ls__record *record)
{
    LS_ASSERT(record->flags & LS__RECORD_LIVE);
    if (record->scope == NULL) {
        return;
    }
    record->scope->count--;
    ls__list_remove(&record->link);
    record->scope = NULL;
    pthread_mutex_lock(&tensors->lock);
    ls__list_push_back(&tensors->kept, &record->link);
    pthread_mutex_unlock(&tensors->lock);
}

/* A new poisoned tensor with this thread's error. The text is kept in the record's storage: an
 * error has its message even if a later one replaced the thread's. */
ls_tensor *ls__poison(ls__tensors *tensors)
{
    ls_status status = ls__self.status;
    LS_ASSERT(status < 0); /* a poison without an error would explain nothing */
    size_t length = strlen(ls__self.message);
    ls__record *record = ls__record_new(tensors);
    if (record == NULL) {
        return ls__poison_fixed(LS_ERR_MEMORY);
    }
    record->storage = ls__storage_new(&tensors->host, length + 1);
    if (record->storage == NULL) {
        ls__record_free(tensors, record);
        return ls__poison_fixed(LS_ERR_MEMORY);
    }
    memcpy(record->storage->data, ls__self.message, length + 1);
    record->status = (int16_t)status;
    return ls__handle(record);
}

/* Returns its argument, so calls nest; a poisoned tensor if the argument is not a tensor of this
 * runtime. */
ls_tensor *ls_keep(ls_tensor *t)
{
    ls__tensors *tensors = ls__tensors_get("keep");
    if (tensors == NULL) {
        return ls__poison_fixed(ls__self.status);
    }
    ls__record *record = ls__record_of(tensors, t, "keep", 0);
    if (record == NULL) {
        return ls__poison(tensors);
    }
    if (fixed_at(record) != NULL || record->scope == NULL) {
        return t;
    }
    ls__captured_refuse("ls_keep of a tensor, which would be that of the recorded run for ever");
    if (!(record->flags & LS__RECORD_LEAF)) { /* its graph dies with the scope */
        ls__node_unref(record->node);
        record->node = NULL;
    }
    ls__record_keep(tensors, record);
    return t;
}

/* NULL, poisoned and owned tensors are left alone: a module frees its parameters itself. */
void ls_free(ls_tensor *t)
{
    ls__tensors *tensors = t != NULL ? ls__tensors_get("free") : NULL;
    ls__record *record = tensors != NULL ? ls__record_of(tensors, t, "free", 0) : NULL;
    if (record != NULL && fixed_at(record) == NULL && !(record->flags & LS__RECORD_OWNED)) {
        ls__record_free(tensors, record);
    }
}

/* Looks at every record there ever was; for tests and reports only. */
int64_t ls__tensor_alive(void)
{
    ls__tensors *tensors = ls__tensors_get("tensor_alive");
    int64_t alive = 0;
    for (int k = 0; tensors != NULL && k < tensors->slab_count; k++) {
        for (int64_t i = 0; i < tensors->slab[k].count; i++) {
            const char *at = tensors->slab[k].first + i * LS__RECORD_BYTES;
            alive += (((const ls__record *)(const void *)at)->flags & LS__RECORD_LIVE) != 0;
        }
    }
    return alive;
}

/* No other thread uses the runtime any more. */
void ls__records_fini(ls__tensors *tensors)
{
    int count = atomic_load_explicit(&tensors->slab_count, memory_order_relaxed);
    for (int k = 0; k < count; k++) {
        tensors->env.table.release(&tensors->env.table, tensors->slab[k].memory,
                                   tensors->slab[k].bytes);
    }
}
