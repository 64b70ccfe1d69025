/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at tensors and moving their numbers in and out.
 *
 * Every function decodes the handle first (record.c); a stale handle or a poisoned tensor sets
 * the thread's error. Functions that return a size, a shape or a type have no value for an
 * error: they return 0, an empty shape or float32, and the caller who must know asks
 * ls_error_status(). Nothing here takes ownership of memory: ls_data lends a pointer that lives
 * as long as the tensor's storage, the copies read or write memory of the caller's. */
#include <string.h>

#include "base/size.h"
#include "device/captured.h"
#include "tensor/convert.h"
#include "tensor/fill.h"
#include "tensor/op.h"

/* The sound record of `t`, or NULL with the error set. */
static ls__record *look(const ls_tensor *t, const char *what, ls__tensors **tensors)
{
    *tensors = ls__tensors_get(what);
    return *tensors != NULL ? ls__record_sound(*tensors, t, what) : NULL;
}

/* 0 for a scalar and, with the error set, for a tensor that cannot be read. */
int ls_ndim(const ls_tensor *t)
{
    ls__tensors *tensors;
    const ls__record *record = look(t, "ndim", &tensors);
    return record != NULL ? record->ndim : 0;
}

/* A negative dim counts from the right. 0 with the error set, because a size has no value for
 * errors. */
int64_t ls_size(const ls_tensor *t, int dim)
{
    ls__tensors *tensors;
    const ls__record *record = look(t, "size", &tensors);
    int at = 0;
    if (record == NULL) {
        return 0;
    }
    if (!ls__shape_dim(record, dim, &at)) {
        (void)ls__fail(LS_ERR_INVALID, "size: dimension %d of %s; give %d to %d", dim,
                       ls__record_print(record).text, -record->ndim, record->ndim - 1);
        return 0;
    }
    return record->dim[at];
}

/* A copy of the sizes; the empty shape of a scalar, with the error set, when `t` cannot be read. */
ls_shape ls_shape_of(const ls_tensor *t)
{
    ls__tensors *tensors;
    const ls__record *record = look(t, "shape_of", &tensors);
    return record != NULL ? ls__record_shape(record) : (ls_shape){0};
}

/* The product of all sizes: 1 for a scalar, 0 for an empty tensor or, with the error set, for
 * one that cannot be read. */
int64_t ls_numel(const ls_tensor *t)
{
    ls__tensors *tensors;
    const ls__record *record = look(t, "numel", &tensors);
    return record != NULL ? record->numel : 0;
}

/* LS_FLOAT32 for a poisoned tensor: its error is reported where a result is read. */
ls_dtype ls_dtype_of(const ls_tensor *t)
{
    ls__tensors *tensors;
    const ls__record *record = look(t, "dtype_of", &tensors);
    return record != NULL ? (ls_dtype)record->dtype : LS_FLOAT32;
}

/* Whether the elements lie row-major, one after the other, so that ls_data may be used. */
bool ls_is_contiguous(const ls_tensor *t)
{
    ls__tensors *tensors;
    const ls__record *record = look(t, "is_contiguous", &tensors);
    return record != NULL && ls__record_contiguous(record);
}

/* Where the elements of a sound tensor lie one after the other; NULL with the error set. */
static void *place(const ls__record *record)
{
    if (!ls__record_contiguous(record)) {
        (void)ls__fail(LS_ERR_INVALID,
                       "data: the tensor %s is a view whose elements do not lie one after the "
                       "other; take ls_data(ls_contiguous(t)), or ls_copy_out",
                       ls__record_print(record).text);
        return NULL;
    }
    ls__fill_drawn(record->storage);
    return ls__record_data(record);
}

/* The same, for whoever reads any of them. */
static void *elements(const ls__record *record)
{
    void *at = place(record);
    if (at != NULL && ls__fill_settle(record->storage) < 0) {
        (void)ls__fail_within(ls__self.status, "data");
        return NULL;
    }
    return at;
}

void *ls__tensor_place(ls_tensor *t, ls__pool **pool)
{
    ls__tensors *tensors;
    const ls__record *record = look(t, "data", &tensors);
    if (record == NULL) {
        return NULL;
    }
    *pool = record->storage->pool;
    return place(record);
}

void *ls__tensor_elements(ls_tensor *t, ls__pool **pool)
{
    ls__tensors *tensors;
    const ls__record *record = look(t, "data", &tensors);
    if (record == NULL) {
        return NULL;
    }
    *pool = record->storage->pool;
    return elements(record);
}

/* Only for tensors whose elements lie one after the other, in memory that the program may read.
 * NULL with the error set. */
void *ls_data(ls_tensor *t)
{
    ls__tensors *tensors;
    const ls__record *record = look(t, "data", &tensors);
    if (record == NULL) {
        return NULL;
    }
    if (!record->storage->pool->device->host) {
        (void)ls__fail(LS_ERR_INVALID,
                       "data: the tensor %s is on device \"%s\", whose memory only kernels read; "
                       "use ls_copy_out and ls_copy_in",
                       ls__record_print(record).text, record->storage->pool->device->name);
        return NULL;
    }
    return elements(record);
}

/* The value of a tensor of one element, of any type, as float64. A poisoned tensor's error
 * becomes a status here. */
ls_status ls_item(ls_tensor *t, double *value)
{
    ls__tensors *tensors;
    const ls__record *record = look(t, "item", &tensors);
    if (record == NULL) {
        return ls__self.status;
    }
    if (value == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "item: the place for the value is NULL; give the address of a double");
    }
    if (record->numel != 1) {
        return ls__fail(LS_ERR_INVALID,
                        "item: the tensor %s has %lld elements; give one of exactly one, or use "
                        "ls_copy_out",
                        ls__record_print(record).text, (long long)record->numel);
    }
    LS_TRY(ls__fill_settle(record->storage));
    uint64_t element = 0; /* of the widest type */
    ls__captured_refuse("ls_item reads on the host");
    ls__device_read(record->storage->pool->device, &element, ls__record_data(record),
                    ls_dtype_size((ls_dtype)record->dtype));
    *value = ls__convert_load(&element, (ls_dtype)record->dtype, 0);
    return ls__device_status(record->storage->pool->device);
}

/* The caller of a copy states how much memory it has, so that a wrong type or shape on its side
 * is seen here. */
static ls_status check_bytes(const ls__record *record, const void *memory, size_t bytes,
                             const char *what)
{
    size_t wanted = (size_t)record->numel * ls_dtype_size((ls_dtype)record->dtype);
    if (bytes != wanted || (memory == NULL && wanted > 0)) {
        return ls__fail(LS_ERR_INVALID, "%s: %s of %s takes %zu bytes of memory; %zu were given%s",
                        what, ls__record_print(record).text, ls_dtype_name((ls_dtype)record->dtype),
                        wanted, bytes, memory == NULL ? " at NULL" : "");
    }
    return LS_OK;
}

/* Kernels of a device `apart` reach no memory of the program: rows are laid out in its own. */
static ls_status copy_apart(const ls__record *record, void *program, size_t bytes, bool out)
{
    ls__pool *on = record->storage->pool;
    const size_t element = ls_dtype_size((ls_dtype)record->dtype);
    ls__storage *rows = ls__storage_new(on, bytes);
    if (rows == NULL) {
        return ls__self.status;
    }
    if (out) {
        on->k->gather(rows->data, ls__record_data(record), ls__record_strided(record), record->ndim,
                      record->dim, element, on->stream);
        ls__device_read(on->device, program, rows->data, bytes);
    } else {
        ls__device_write(on->device, rows->data, program, bytes);
        on->k->scatter(ls__record_data(record), ls__record_strided(record), rows->data,
                       record->ndim, record->dim, element, 0.0f, on->stream);
    }
    ls__storage_unref(rows);
    return ls__device_status(on->device);
}

/* Copies the elements in row-major order to `out`, whatever the strides. */
ls_status ls_copy_out(ls_tensor *t, void *out, size_t bytes)
{
    ls__tensors *tensors;
    const ls__record *record = look(t, "copy_out", &tensors);
    if (record == NULL) {
        return ls__self.status;
    }
    LS_TRY(check_bytes(record, out, bytes, "copy_out"));
    LS_TRY(ls__fill_settle(record->storage));
    ls__captured_refuse("ls_copy_out reads on the host");
    if (bytes > 0 && record->storage->pool->device->apart) {
        return copy_apart(record, out, bytes, true);
    }
    if (bytes > 0) {
        const ls__pool *on = record->storage->pool;
        on->k->gather(out, ls__record_data(record), ls__record_strided(record), record->ndim,
                      record->dim, ls_dtype_size((ls_dtype)record->dtype), on->stream);
        ls__device_wait(on->device);
    }
    return LS_OK;
}

/* Writes through a view into the memory it shares; the counterpart of ls_copy_out. Graphs that
 * saved the elements become invalid. */
ls_status ls_copy_in(ls_tensor *t, const void *in, size_t bytes)
{
    ls__tensors *tensors;
    ls__record *record = look(t, "copy_in", &tensors);
    if (record == NULL) {
        return ls__self.status;
    }
    LS_TRY(check_bytes(record, in, bytes, "copy_in"));
    LS_TRY(ls__fill_cancel(record));
    ls__captured_refuse("ls_copy_in copies from the program's memory");
    if (bytes > 0 && record->storage->pool->device->apart) {
        LS_TRY(copy_apart(record, (void *)(uintptr_t)in, bytes, false));
    } else if (bytes > 0) {
        const ls__pool *on = record->storage->pool;
        on->k->scatter(ls__record_data(record), ls__record_strided(record), in, record->ndim,
                       record->dim, ls_dtype_size((ls_dtype)record->dtype), 0.0f, on->stream);
        ls__device_wait(on->device); /* the caller may change `in` */
    }
    ls__tensor_changed(t);
    return LS_OK;
}

ls_status ls__tensor_zero(ls_tensor *t)
{
    ls__pool *on = NULL;
    void *at = ls__tensor_elements(t, &on);
    if (at == NULL) {
        return ls__self.status;
    }
    on->k->zero(at, (size_t)ls_numel(t) * ls_dtype_size(ls_dtype_of(t)), on->stream);
    ls__tensor_changed(t);
    return LS_OK;
}

ls_status ls__tensor_nonfinite(ls_tensor *t, int64_t *first)
{
    ls__pool *on = NULL;
    void *at = ls__tensor_elements(t, &on);
    ls__storage *found = at != NULL ? ls__storage_new(on, sizeof *first) : NULL;
    if (found == NULL) {
        return ls__self.status;
    }
    on->k->nonfinite(found->data, at, ls_dtype_of(t), 0, ls_numel(t), on->stream);
    ls__device_read(on->device, first, found->data, sizeof *first);
    ls__storage_unref(found);
    return LS_OK;
}

void ls__tensor_wait(const ls_tensor *t)
{
    ls__tensors *tensors;
    const ls__record *record = look(t, "tensor_wait", &tensors);
    if (record != NULL) {
        ls__device_wait(record->storage->pool->device);
    }
}

ls_status ls__host_view_open(ls__pool *on, void *elements, size_t bytes, ls__host_view *out)
{
    *out = (ls__host_view){.data = elements, .on = on, .elements = elements, .bytes = bytes};
    if (on->device->host) {
        return LS_OK;
    }
    out->copy = ls__storage_new(&on->tensors->host, bytes);
    if (out->copy == NULL) {
        return ls__self.status;
    }
    out->data = out->copy->data;
    ls__device_read(on->device, out->data, elements, bytes);
    return ls__device_status(on->device);
}

ls_status ls__host_view_of(ls_tensor *t, ls__host_view *out)
{
    ls__pool *on = NULL;
    void *at = ls__tensor_elements(t, &on);
    return at != NULL ? ls__host_view_open(on, at,
                                           (size_t)ls_numel(t) * ls_dtype_size(ls_dtype_of(t)), out)
                      : ls__self.status;
}

void ls__host_view_close(ls__host_view *view, bool written)
{
    if (view->copy != NULL && written) {
        ls__device_write(view->on->device, view->elements, view->data, view->bytes);
    }
    ls__storage_unref(view->copy);
    view->copy = NULL;
}

/* A graph that saved these elements reports the change when it is walked. */
void ls__tensor_changed(ls_tensor *t)
{
    ls__tensors *tensors;
    ls__record *record = look(t, "tensor_changed", &tensors);
    if (record != NULL) {
        /* Relaxed: ordered by whatever lets this thread write the elements. */
        atomic_fetch_add_explicit(&record->storage->version, 1, memory_order_relaxed);
    }
}
