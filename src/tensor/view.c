/* SPDX-License-Identifier: Apache-2.0 */
/* Views: other shapes and strides over the same storage. They make no graph nodes; see Note
 * [Views make no nodes] in graph.h. A view holds a reference to the storage, so the elements
 * live as long as any tensor over them; writing through one changes them all. Only ls_reshape
 * may copy, where no strides show the elements in the asked order. */
#include <string.h>

#include "tensor/op.h"

/* ---- reshape ------------------------------------------------------------------------------ */

/* Fills in the one size that is -1 so that the elements fit. False when two are -1 or the
 * element counts cannot agree. */
static bool resolve_shape(const ls__record *in, ls_shape *shape)
{
    int open = -1;
    ls_shape rest = *shape;
    int64_t known = 0;
    for (int d = 0; d < shape->ndim && d < LS_DIMS_MAX; d++) {
        if (shape->dim[d] == -1) {
            if (open >= 0) {
                return false;
            }
            open = d;
            rest.dim[d] = 1;
        }
    }
    if (!ls__shape_numel(rest, &known)) {
        return false;
    }
    if (open >= 0) {
        if (known == 0 || in->numel % known != 0) {
            return false;
        }
        shape->dim[open] = in->numel / known;
        known = in->numel;
    }
    return known == in->numel;
}

static ls_tensor *clone_named(const char *name, ls_tensor *t, bool always);

/* A view where the strides allow it, otherwise a view of a row-major copy, which is a node of
 * the graph. */
ls_tensor *ls_reshape(ls_tensor *t, ls_shape shape)
{
    ls__call call;
    if (!ls__call_begin(&call, "reshape", 1, &t)) {
        return call.failed;
    }
    const ls__record *in = call.in[0];
    ls_shape wanted = shape;
    if (!resolve_shape(in, &shape)) {
        return ls__call_fail(&call, LS_ERR_INVALID,
                             "%s to %s: %lld elements do not fill that shape; the sizes must have "
                             "the same product (one of them may be -1)",
                             ls__record_print(in).text, ls__shape_print(wanted).text,
                             (long long)in->numel);
    }
    int64_t stride[LS_DIMS_MAX] = {0};
    if (in->numel > 0 && !ls__shape_view(in, shape, stride)) {
        return ls_reshape(clone_named("reshape", t, true), shape); /* contiguous: once */
    }
    ls__record *out = ls__call_view(&call, in);
    if (out != NULL && !ls__record_set_shape(out, shape, (ls_dtype)in->dtype, call.name)) {
        call.failed = ls__poison(call.tensors);
    } else if (out != NULL && in->numel > 0) {
        memcpy(out->stride, stride, sizeof stride);
    }
    call.follows = LS__RESHAPES;
    return ls__call_finish(&call, out);
}

/* ---- order of dimensions ------------------------------------------------------------------ */

/* The result's dimension d is dimension order[d] of the input; sizes and strides move together,
 * no element does. */
static ls_tensor *permuted(ls__call *call, const int *order)
{
    const ls__record *in = call->in[0];
    ls__record *out = ls__call_view(call, in);
    for (int d = 0; out != NULL && d < in->ndim; d++) {
        out->dim[d] = in->dim[order[d]];
        out->stride[d] = in->stride[order[d]];
    }
    call->follows = ls__follows_moves(LS__LINEAR_FIRST);
    for (int d = 0; d < in->ndim; d++) {
        call->follows.to[order[d]] = (int8_t)d;
    }
    return ls__call_finish(call, out);
}

/* Exchanges two dimensions; no element moves. */
ls_tensor *ls_transpose(ls_tensor *t, int dim0, int dim1)
{
    ls__call call;
    int a, b, order[LS_DIMS_MAX];
    if (!ls__call_begin(&call, "transpose", 1, &t) || !ls__call_dim(&call, dim0, &a) ||
        !ls__call_dim(&call, dim1, &b)) {
        return call.failed;
    }
    for (int d = 0; d < LS_DIMS_MAX; d++) {
        order[d] = d == a ? b : d == b ? a : d;
    }
    return permuted(&call, order);
}

/* As torch.permute; checks that each dimension occurs once. Negative ones count from the right. */
ls_tensor *ls_permute(ls_tensor *t, ls_shape order)
{
    ls__call call;
    int to[LS_DIMS_MAX] = {0};
    unsigned seen = 0;
    if (!ls__call_begin(&call, "permute", 1, &t)) {
        return call.failed;
    }
    const ls__record *in = call.in[0];
    bool valid = order.ndim == in->ndim;
    for (int d = 0; valid && d < order.ndim; d++) {
        int64_t from = order.dim[d] < 0 ? order.dim[d] + in->ndim : order.dim[d];
        valid = from >= 0 && from < in->ndim && !(seen >> from & 1u);
        to[d] = valid ? (int)from : 0;
        seen |= 1u << to[d];
    }
    if (!valid) {
        return ls__call_fail(&call, LS_ERR_INVALID,
                             "%s by %s: give each dimension 0 to %d exactly once",
                             ls__record_print(in).text, ls__shape_print(order).text, in->ndim - 1);
    }
    return permuted(&call, to);
}

/* A view of [start,end) along one dimension; an empty range is allowed. Only offset and size
 * change. */
ls_tensor *ls_slice(ls_tensor *t, int dim, int64_t start, int64_t end)
{
    ls__call call;
    int d;
    if (!ls__call_begin(&call, "slice", 1, &t) || !ls__call_dim(&call, dim, &d)) {
        return call.failed;
    }
    const ls__record *in = call.in[0];
    if (start < 0 || end < start || end > in->dim[d]) {
        return ls__call_fail(&call, LS_ERR_INVALID,
                             "[%lld,%lld) of dimension %d of %s; give 0 <= start <= end <= %lld",
                             (long long)start, (long long)end, d, ls__record_print(in).text,
                             (long long)in->dim[d]);
    }
    ls__record *out = ls__call_view(&call, in);
    if (out != NULL) {
        out->offset += end > start ? start * in->stride[d] : 0;
        out->dim[d] = end - start;
        out->numel = ls__shape_product(out, 0, out->ndim);
    }
    call.follows = ls__follows_moves(LS__LINEAR_FIRST);
    call.follows.to[d] = end - start == in->dim[d] ? (int8_t)d : LS__TO_VARYING;
    return ls__call_finish(&call, out);
}

/* A view of the same memory that has no graph: gradients do not flow through it, writes are
 * shared. */
ls_tensor *ls_detach(ls_tensor *t)
{
    ls__call call;
    if (!ls__call_begin(&call, "detach", 1, &t)) {
        return call.failed;
    }
    call.grad = false;
    call.follows = LS__ELEMENTWISE(FIRST);
    return ls__call_finish(&call, ls__call_view(&call, call.in[0]));
}

/* ---- copies ------------------------------------------------------------------------------- */

static const ls__op clone_op = {.name = "clone", .passes = 1};

/* A row-major copy under the caller's name. With `always` false a contiguous tensor is returned
 * as it is. */
static ls_tensor *clone_named(const char *name, ls_tensor *t, bool always)
{
    ls__call call;
    if (!ls__call_begin(&call, name, 1, &t)) {
        return call.failed;
    }
    const ls__record *in = call.in[0];
    if (!always && ls__record_contiguous(in)) {
        return t;
    }
    ls__record *out = ls__call_output(&call, ls__record_shape(in), (ls_dtype)in->dtype);
    if (out != NULL && out->numel > 0) {
        call.k->gather(ls__record_data(out), ls__record_data(in), ls__record_strided(in), in->ndim,
                       in->dim, ls_dtype_size((ls_dtype)in->dtype), call.stream);
    }
    (void)ls__call_record(&call, &clone_op, out, 0);
    call.follows = LS__ELEMENTWISE(FIRST);
    return ls__call_finish(&call, out);
}

/* The tensor itself where its elements already lie one after the other. */
ls_tensor *ls_contiguous(ls_tensor *t)
{
    return clone_named("contiguous", t, false);
}

/* Always a copy; the graph goes through it. */
ls_tensor *ls_clone(ls_tensor *t)
{
    return clone_named("clone", t, true);
}
