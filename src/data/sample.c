/* SPDX-License-Identifier: Apache-2.0 */
/* See sample.h; and padding, which makes a batch of samples whose arrays differ in size. */
#include "data/sample.h"

#include <stdlib.h>
#include <string.h>

#include "base/runtime.h"
#include "base/size.h"
#include "tensor/convert.h"
#include "tensor/shape.h"

typedef struct held_array {
    ls_array array;
    size_t room; /* bytes of its memory */
} held_array;

struct ls_sample {
    int count;
    held_array held[LS_SAMPLE_ARRAYS_MAX];
};

ls_sample *ls__sample_new(void)
{
    ls_sample *s = calloc(1, sizeof *s);
    if (s == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "loader: no memory for a sample");
    }
    return s;
}

void ls__sample_free(ls_sample *s)
{
    for (int i = 0; s != NULL && i < LS_SAMPLE_ARRAYS_MAX; i++) {
        free(s->held[i].array.data);
    }
    free(s);
}

void ls__sample_clear(ls_sample *s)
{
    s->count = 0;
}

/* Bytes of an array, at least 1; false: no array can have them. */
static bool bytes_of(ls_dtype dtype, ls_shape shape, size_t *bytes)
{
    int64_t count;
    if (!ls__shape_numel(shape, &count) || !ls__bytes_of(count, ls_dtype_size(dtype), bytes)) {
        return false;
    }
    *bytes += *bytes == 0;
    return true;
}

/* Memory of an array grows by halves, so that batches of many sizes soon allocate nothing. */
void *ls_sample_add(ls_sample *s, ls_dtype dtype, ls_shape shape)
{
    size_t bytes = 0;
    if (s == NULL || s->count == LS_SAMPLE_ARRAYS_MAX || ls_dtype_size(dtype) == 0 ||
        !bytes_of(dtype, shape, &bytes)) {
        (void)ls__fail(LS_ERR_INVALID,
                       "ls_sample_add: array %d, %s %s; give a sample, at most %d arrays, and a "
                       "type and a shape that a tensor can have",
                       s != NULL ? s->count : 0, ls_dtype_name(dtype), ls__shape_print(shape).text,
                       LS_SAMPLE_ARRAYS_MAX);
        return NULL;
    }
    held_array *h = &s->held[s->count];
    if (bytes > h->room) {
        const size_t room = bytes + bytes / 2;
        void *grown = realloc(h->array.data, room);
        if (grown == NULL) {
            (void)ls__fail(LS_ERR_MEMORY, "ls_sample_add: no memory for %zu bytes", room);
            return NULL;
        }
        h->array.data = grown;
        h->room = room;
    }
    h->array.dtype = dtype;
    h->array.shape = shape;
    s->count++;
    return h->array.data;
}

int ls_sample_arrays(const ls_sample *s)
{
    return s != NULL ? s->count : 0;
}

const ls_array *ls_sample_array(const ls_sample *s, int i)
{
    return s != NULL && i >= 0 && i < s->count ? &s->held[i].array : NULL;
}

/* ---- padding ------------------------------------------------------------------------------ */

static ls_status refuse_sample(const ls_sample *first, const ls_sample *other, int64_t at, int i)
{
    const ls_array *a = ls_sample_array(first, i), *b = ls_sample_array(other, i);
    if (a == NULL || b == NULL || first->count != other->count) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_sample_pad: sample %lld of the batch has %d arrays, the first has %d; "
                        "give all samples the same arrays",
                        (long long)at, other->count, first->count);
    }
    return ls__fail(LS_ERR_INVALID,
                    "ls_sample_pad: array %d of sample %lld of the batch is %s %s, of the first %s "
                    "%s; give all samples arrays of one type and number of dimensions",
                    i, (long long)at, ls_dtype_name(b->dtype), ls__shape_print(b->shape).text,
                    ls_dtype_name(a->dtype), ls__shape_print(a->shape).text);
}

/* The largest size of array i in each dimension. */
static ls_status largest(const ls_sample *const *samples, int64_t count, int i, ls_shape *out)
{
    const ls_array *first = ls_sample_array(samples[0], i);
    *out = first->shape;
    for (int64_t n = 1; n < count; n++) {
        const ls_array *a = ls_sample_array(samples[n], i);
        if (samples[n]->count != samples[0]->count || a->dtype != first->dtype ||
            a->shape.ndim != first->shape.ndim) {
            return refuse_sample(samples[0], samples[n], n, i);
        }
        for (int d = 0; d < out->ndim; d++) {
            out->dim[d] = a->shape.dim[d] > out->dim[d] ? a->shape.dim[d] : out->dim[d];
        }
    }
    return LS_OK;
}

/* Where row `row` of an array of shape `small` begins in one of shape `large`, in elements. A row
 * is a run along the last dimension. */
static int64_t place_of(ls_shape small, ls_shape large, int64_t row)
{
    int64_t at = 0, stride = small.ndim > 0 ? large.dim[small.ndim - 1] : 1;
    for (int d = small.ndim - 2; d >= 0; d--) {
        at += row % small.dim[d] * stride;
        row /= small.dim[d];
        stride *= large.dim[d];
    }
    return at;
}

static void copy_padded(char *to, const ls_array *from, ls_shape large, double pad)
{
    const size_t bytes = ls_dtype_size(from->dtype);
    const int last = from->shape.ndim - 1;
    int64_t elements = 1, room = 1;
    for (int d = 0; d <= last; d++) {
        elements *= from->shape.dim[d];
        room *= large.dim[d];
    }
    if (elements < room) {
        ls__convert_fill(to, from->dtype, room, pad);
    }
    const int64_t run = last >= 0 ? from->shape.dim[last] : 1;
    for (int64_t row = 0; elements > 0 && row < elements / run; row++) {
        memcpy(to + (size_t)place_of(from->shape, large, row) * bytes,
               (const char *)from->data + (size_t)(row * run) * bytes, (size_t)run * bytes);
    }
}

static ls_status pad_array(ls_sample *batch, const ls_sample *const *samples, int64_t count, int i,
                           double pad)
{
    ls_shape each, all = {.dim = {count}};
    LS_TRY(largest(samples, count, i, &each));
    const ls_dtype dtype = ls_sample_array(samples[0], i)->dtype;
    if (each.ndim >= LS_DIMS_MAX) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_sample_pad: array %d has %d dimensions and a batch has one more; give "
                        "arrays of 0 to %d",
                        i, each.ndim, LS_DIMS_MAX - 1);
    }
    all.ndim = each.ndim + 1;
    size_t bytes = ls_dtype_size(dtype);
    for (int d = 0; d < each.ndim; d++) {
        all.dim[d + 1] = each.dim[d];
        bytes *= (size_t)each.dim[d];
    }
    char *to = ls_sample_add(batch, dtype, all);
    if (to == NULL) {
        return ls__self.status;
    }
    for (int64_t n = 0; n < count; n++) {
        copy_padded(to + (size_t)n * bytes, ls_sample_array(samples[n], i), each, pad);
    }
    return LS_OK;
}

ls_status ls_sample_pad(ls_sample *batch, const ls_sample *const *samples, int64_t count,
                        const double *pad)
{
    if (batch == NULL || samples == NULL || samples[0] == NULL || count < 0) {
        return ls__fail(LS_ERR_INVALID, "ls_sample_pad: a batch and samples are needed; give those "
                                        "that `collate` was given");
    }
    for (int i = 0; i < samples[0]->count; i++) {
        LS_TRY(pad_array(batch, samples, count, i, pad != NULL ? pad[i] : 0.0));
    }
    return LS_OK;
}

/* ---- the data set's ------------------------------------------------------------------------- */

ls_status ls__dataset_get_sample(ls_dataset *d, int64_t epoch, int64_t index, ls_sample *out)
{
    ls__sample_clear(out);
    const ls__user_call user = ls__user_call_begin();
    const ls_status status = d->get_sample(d, epoch, index, out);
    LS_TRY(ls__user_call_check(&user, status, "the data set's get_sample of sample %lld",
                               (long long)index));
    return out->count > 0 ? LS_OK
                          : ls__fail(LS_ERR_INVALID,
                                     "the data set's get_sample of sample %lld added no array; add "
                                     "them with ls_sample_add",
                                     (long long)index);
}

/* What a program's `collate` has made has `count` samples. */
static ls_status check_batch(const ls_sample *batch, int64_t count)
{
    for (int i = 0; i < batch->count; i++) {
        const ls_shape shape = batch->held[i].array.shape;
        if (shape.ndim < 1 || shape.dim[0] != count) {
            return ls__fail(LS_ERR_INVALID,
                            "the data set's collate made array %d %s of %lld samples; its first "
                            "dimension is their number",
                            i, ls__shape_print(shape).text, (long long)count);
        }
    }
    return batch->count > 0 ? LS_OK
                            : ls__fail(LS_ERR_INVALID, "the data set's collate added no array; add "
                                                       "them with ls_sample_add");
}

ls_status ls__dataset_collate(ls_dataset *d, const ls_sample *const *samples, int64_t count,
                              ls_sample *batch)
{
    ls__sample_clear(batch);
    if (d->collate == NULL) {
        return ls_sample_pad(batch, samples, count, d->pad);
    }
    const ls__user_call user = ls__user_call_begin();
    const ls_status status = d->collate(d, samples, count, batch);
    LS_TRY(ls__user_call_check(&user, status, "the data set's collate of %lld samples",
                               (long long)count));
    return check_batch(batch, count);
}
