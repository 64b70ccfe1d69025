/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes: text, counting, broadcasting, and which reshapes need no copy. */
#include "tensor/shape.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"

/* A shape with a wrong number of dimensions is printed as far as it can be: it may be the user's
 * mistake that is reported. */
ls__shape_text ls__shape_print(ls_shape shape)
{
    ls__shape_text out = {"["};
    size_t used = 1;
    int ndim = shape.ndim < 0 ? 0 : shape.ndim > LS_DIMS_MAX ? LS_DIMS_MAX : shape.ndim;
    for (int d = 0; d < ndim; d++) {
        int n = snprintf(out.text + used, sizeof out.text - used, "%s%lld", d > 0 ? "," : "",
                         (long long)shape.dim[d]);
        used += n > 0 ? (size_t)n : 0;
    }
    out.text[used] = ']';
    out.text[used + 1] = '\0';
    return out;
}

/* A copy: the sizes without strides and offset. */
ls_shape ls__record_shape(const ls__record *record)
{
    ls_shape shape = {.ndim = record->ndim};
    memcpy(shape.dim, record->dim, sizeof shape.dim);
    return shape;
}

/* By value: several may stand in one message. */
ls__shape_text ls__record_print(const ls__record *record)
{
    return ls__shape_print(ls__record_shape(record));
}

/* A dimension of 0 makes the product 0 however large the others are, and only then may they
 * overflow. */
bool ls__shape_numel(ls_shape shape, int64_t *out)
{
    int64_t numel = 1;
    bool empty = false;
    if (shape.ndim < 0 || shape.ndim > LS_DIMS_MAX) {
        return false;
    }
    for (int d = 0; d < shape.ndim; d++) {
        empty = empty || shape.dim[d] == 0;
        if (shape.dim[d] < 0 || (shape.dim[d] > 0 && !ls__mul_int64(numel, shape.dim[d], &numel))) {
            return false;
        }
    }
    *out = empty ? 0 : numel;
    return true;
}

/* Sets sizes, dtype, count and row-major strides; no memory is taken. A dimension of 0 counts as
 * 1 in the strides, so that they stay distinct. False with the error set after `what`. */
bool ls__record_set_shape(ls__record *record, ls_shape shape, ls_dtype dtype, const char *what)
{
    int64_t numel = 0;
    size_t bytes = 0;
    if (shape.ndim < 0 || shape.ndim > LS_DIMS_MAX) {
        (void)ls__fail(LS_ERR_INVALID, "%s: a shape of %d dimensions; give 0 to %d", what,
                       shape.ndim, LS_DIMS_MAX);
        return false;
    }
    if (ls_dtype_size(dtype) == 0) {
        (void)ls__fail(LS_ERR_INVALID,
                       "%s: %d is not a dtype; give LS_FLOAT32 or another of its enum", what,
                       (int)dtype);
        return false;
    }
    if (!ls__shape_numel(shape, &numel) || !ls__bytes_of(numel, ls_dtype_size(dtype), &bytes) ||
        bytes > (size_t)PTRDIFF_MAX) {
        (void)ls__fail(LS_ERR_INVALID,
                       "%s: shape %s: a size is negative, or the elements take more bytes than "
                       "memory can address; give sizes of at least 0",
                       what, ls__shape_print(shape).text);
        return false;
    }
    record->ndim = (uint8_t)shape.ndim;
    record->dtype = (uint8_t)dtype;
    record->numel = numel;
    int64_t stride = 1;
    for (int d = shape.ndim - 1; d >= 0; d--) {
        record->dim[d] = shape.dim[d];
        record->stride[d] = stride;
        stride *= shape.dim[d] > 0 ? shape.dim[d] : 1;
    }
    return true;
}

/* Whether the elements lie row-major without gaps. Dimensions of 1 have no neighbours, so their
 * strides mean nothing. */
bool ls__record_contiguous(const ls__record *record)
{
    int64_t expected = 1;
    for (int d = record->ndim - 1; d >= 0 && record->numel > 1; d--) {
        if (record->dim[d] != 1 && record->stride[d] != expected) {
            return false;
        }
        expected *= record->dim[d];
    }
    return true;
}

/* The kernels' form of the strides, which does not know records. */
ls__strided ls__record_strided(const ls__record *record)
{
    ls__strided out;
    memcpy(out.stride, record->stride, sizeof out.stride);
    return out;
}

/* The same sizes in the same order; types and strides may differ. */
bool ls__shape_equal(const ls__record *a, const ls__record *b)
{
    bool equal = a->ndim == b->ndim;
    for (int d = 0; equal && d < a->ndim; d++) {
        equal = a->dim[d] == b->dim[d];
    }
    return equal;
}

/* NumPy's rule: shapes are aligned at the right, a dimension of 1 repeats. False when two sizes
 * differ and neither is 1; *out is then undefined. */
bool ls__shape_broadcast(ls_shape a, ls_shape b, ls_shape *out)
{
    out->ndim = a.ndim > b.ndim ? a.ndim : b.ndim;
    for (int d = 1; d <= out->ndim; d++) { /* from the right */
        int64_t of_a = d <= a.ndim ? a.dim[a.ndim - d] : 1;
        int64_t of_b = d <= b.ndim ? b.dim[b.ndim - d] : 1;
        if (of_a != of_b && of_a != 1 && of_b != 1) {
            return false;
        }
        out->dim[out->ndim - d] = of_a == 1 ? of_b : of_a;
    }
    return true;
}

/* Strides with which `record` is walked as `shape`: a repeated dimension has stride 0. The
 * shapes must broadcast. */
ls__strided ls__shape_expand(const ls__record *record, ls_shape shape)
{
    ls__strided out = {{0}};
    int shift = shape.ndim - record->ndim;
    LS_ASSERT(shift >= 0);
    for (int d = 0; d < record->ndim; d++) {
        out.stride[d + shift] = record->dim[d] == 1 ? 0 : record->stride[d];
    }
    return out;
}

/* As in PyTorch's computeStride: runs of dims that lie contiguous among themselves may be cut anew
 * as long as no new dim crosses from one run into the next. Both shapes have the same numel > 0. */
bool ls__shape_view(const ls__record *record, ls_shape shape, int64_t stride[LS_DIMS_MAX])
{
    int to = shape.ndim - 1;
    int64_t run = 1, cut = 1; /* elements of the current run, and of the new dims laid over it */
    int64_t base = record->ndim > 0 ? record->stride[record->ndim - 1] : 1;
    for (int d = record->ndim - 1; d >= 0; d--) {
        run *= record->dim[d];
        bool ends = d == 0 || (record->dim[d - 1] != 1 && record->stride[d - 1] != run * base);
        if (!ends) {
            continue;
        }
        while (to >= 0 && (cut < run || shape.dim[to] == 1)) {
            stride[to] = cut * base;
            cut *= shape.dim[to];
            to--;
        }
        if (cut != run) {
            return false;
        }
        if (d > 0) {
            base = record->stride[d - 1];
            run = cut = 1;
        }
    }
    for (; to >= 0; to--) { /* ones on the left, or a scalar seen as [1,…,1] */
        if (shape.dim[to] != 1) {
            return false;
        }
        stride[to] = 1;
    }
    return true;
}

/* A negative dim counts from the right. False, without a message, if the record has no such
 * dimension. */
bool ls__shape_dim(const ls__record *record, int dim, int *out)
{
    int from_left = dim < 0 ? dim + record->ndim : dim;
    if (from_left < 0 || from_left >= record->ndim) {
        return false;
    }
    *out = from_left;
    return true;
}

/* Elements of dimensions [from,to), 1 when there are none between; the product of all was
 * checked when the record was made. */
int64_t ls__shape_product(const ls__record *record, int from, int to)
{
    LS_ASSERT(from >= 0 && to <= LS_DIMS_MAX);
    int64_t product = 1;
    for (int d = from; d < to; d++) {
        product *= record->dim[d];
    }
    return product;
}

/* ---- images ------------------------------------------------------------------------------- */

/* Dim `from` becomes dim `to`, those between move up or down by one; sizes and strides together. */
static void move_dim(ls__record *record, int from, int to)
{
    const int64_t dim = record->dim[from], stride = record->stride[from];
    const int by = from < to ? 1 : -1;
    for (int d = from; d != to; d += by) {
        record->dim[d] = record->dim[d + by];
        record->stride[d] = record->stride[d + by];
    }
    record->dim[to] = dim;
    record->stride[to] = stride;
}

/* [N,C,..] seen as [N,..,C]: strides change, memory does not. */
void ls__record_see_channels_last(ls__record *record)
{
    LS_ASSERT(record->ndim >= 2);
    move_dim(record, 1, record->ndim - 1);
}

/* The inverse of ls__record_see_channels_last. */
void ls__record_see_channels_first(ls__record *record)
{
    LS_ASSERT(record->ndim >= 2);
    move_dim(record, record->ndim - 1, 1);
}

/* False for a tensor that is contiguous as it stands: where both hold, row-major is the simpler
 * one. */
bool ls__record_channels_last(const ls__record *record)
{
    if (record->ndim != 4 || ls__record_contiguous(record)) {
        return false;
    }
    ls__record seen = *record;
    ls__record_see_channels_last(&seen);
    return ls__record_contiguous(&seen);
}
