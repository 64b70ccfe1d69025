/* SPDX-License-Identifier: Apache-2.0 */
/* Copies into a larger shape: around the elements a constant (pad), or the elements repeated
 * (expand). Both allocate a result of the full size. The gradient of pad is a slice of dy, that
 * of expand the sum of dy over the repetitions. */
#include <lockstep/ops.h>

#include "tensor/convert.h"
#include "tensor/op.h"

/* ---- pad ---------------------------------------------------------------------------------- */

typedef struct pad_context {
    int ndim;
    int64_t dim[LS_DIMS_MAX]; /* of the input */
    ls__strided stride;       /* of the output */
    int64_t first;            /* where the input's first element stands in the output */
    int64_t numel;            /* of the input */
} pad_context;

/* The gradient is the part of dy inside the padding, copied out; the padding's own is dropped. */
static ls_status pad_backward(ls__tensor_rule *r)
{
    const pad_context *c = r->node->context;
    const size_t bytes = ls_dtype_size((ls_dtype)r->node->dtype);
    if (c->numel > 0) {
        r->k->gather(r->in[0].data, (const char *)r->dy + (size_t)c->first * bytes, c->stride,
                     c->ndim, c->dim, bytes, r->stream);
    }
    return LS_OK;
}

static const ls__op pad_op = {.name = "pad", .backward = pad_backward};

/* max(x, 0): how far a side grows; of -x, how far it shrinks. */
static int64_t above_0(int64_t x)
{
    return x > 0 ? x : 0;
}

/* Pads dimension d by before[d] and after[d] where they are positive; negative ones were cut
 * before. The result is filled with `value`, then the elements are copied into their place. */
static ls_tensor *enlarged(ls_tensor *a, const int64_t *before, const int64_t *after, double value)
{
    ls__call call;
    if (!ls__call_begin(&call, pad_op.name, 1, &a)) {
        return call.failed;
    }
    const ls__record *in = call.in[0];
    const ls_dtype dtype = (ls_dtype)in->dtype;
    ls_shape shape = ls__record_shape(in);
    for (int d = 0; d < shape.ndim; d++) {
        shape.dim[d] += above_0(before[d]) + above_0(after[d]);
    }
    ls__dense x = ls__call_dense(&call, 0);
    ls__record *out = ls__call_output(&call, shape, dtype);
    pad_context c = {.ndim = in->ndim, .numel = in->numel};
    for (int d = 0; out != NULL && d < in->ndim; d++) {
        c.dim[d] = in->dim[d];
        c.stride.stride[d] = out->stride[d];
        c.first += above_0(before[d]) * out->stride[d];
    }
    ls__dense stage = ls__call_stage(&call, out);
    if (stage.data != NULL) {
        ls__convert_fill(stage.data, dtype, out->numel, value);
    }
    ls__call_staged(&call, out, &stage);
    if (out != NULL && in->numel > 0) {
        const size_t bytes = ls_dtype_size(dtype);
        call.k->scatter(ls__record_data(out) + (size_t)c.first * bytes, c.stride, x.data, c.ndim,
                        c.dim, bytes, 0.0f, call.stream);
    }
    ls__tensor_node *node = ls__call_record(&call, &pad_op, out, sizeof c);
    if (node != NULL) {
        *(pad_context *)node->context = c;
    }
    ls__dense_drop(&x);
    call.follows = ls__follows_moves(value == 0.0 ? LS__LINEAR_FIRST : LS__LINEAR_NOT);
    for (int d = 0; d < in->ndim; d++) {
        call.follows.to[d] = out != NULL && out->dim[d] == in->dim[d] ? (int8_t)d : LS__TO_VARYING;
    }
    return ls__call_finish(&call, out);
}

/* One number for each dimension of `in`, 0 for those in front that `padding` leaves out. False when
 * there are too many, or when one is out of range. */
static bool read_padding(const ls__record *in, ls_shape padding, int64_t *out)
{
    const int64_t limit = INT64_MAX / 4; /* sums of some do not overflow */
    const int first = in->ndim - padding.ndim;
    bool fits = padding.ndim >= 0 && first >= 0;
    for (int d = first; fits && d < in->ndim; d++) {
        out[d] = padding.dim[d - first];
        fits = out[d] > -limit && out[d] < limit;
    }
    return fits;
}

static bool cuts_at_most_all(const ls__record *in, const int64_t *before, const int64_t *after)
{
    bool fits = true;
    for (int d = 0; d < in->ndim; d++) {
        fits = fits && above_0(-before[d]) + above_0(-after[d]) <= in->dim[d];
    }
    return fits;
}

/* Negative numbers cut, which a view does. */
ls_tensor *ls_pad(ls_tensor *a, ls_shape before_of, ls_shape after_of, double value)
{
    ls__call call;
    int64_t before[LS_DIMS_MAX] = {0}, after[LS_DIMS_MAX] = {0};
    if (!ls__call_begin(&call, pad_op.name, 1, &a)) {
        return call.failed;
    }
    const ls__record *in = call.in[0];
    if (!read_padding(in, before_of, before) || !read_padding(in, after_of, after) ||
        !cuts_at_most_all(in, before, after)) {
        return ls__call_fail(&call, LS_ERR_INVALID,
                             "%s by %s before and %s after; give a number for each of the last "
                             "dimensions, at most %d; negative ones cut at most all of it",
                             ls__record_print(in).text, ls__shape_print(before_of).text,
                             ls__shape_print(after_of).text, in->ndim);
    }
    for (int d = 0; d < in->ndim; d++) {
        if (before[d] < 0 || after[d] < 0) {
            a = ls_slice(a, d, above_0(-before[d]), in->dim[d] - above_0(-after[d]));
        }
    }
    return enlarged(a, before, after, value);
}

/* ---- expand ------------------------------------------------------------------------------- */

typedef struct expand_context {
    ls_shape out;
    uint8_t keep[LS_DIMS_MAX]; /* 0: the dimension is repeated */
} expand_context;

/* da sums dy over the repetitions, in the order of the sum_dims kernel. */
static ls_status expand_backward(ls__tensor_rule *r)
{
    const expand_context *c = r->node->context;
    r->k->sum_dims(r->in[0].data, r->dy, c->out.ndim, c->out.dim, c->keep, r->in[0].beta,
                   r->stream);
    return LS_OK;
}

static const ls__op expand_op = {
    .name = "expand", .backward = expand_backward, .accumulates = true};

/* Whether `in` repeats to `shape`, aligned at the right: each size is its own, or its own is 1.
 * Fills in sizes of -1, which stay as they are. */
static bool read_expanded(const ls__record *in, ls_shape *shape)
{
    const int added = shape->ndim - in->ndim;
    bool fits = added >= 0 && shape->ndim <= LS_DIMS_MAX;
    for (int d = 0; fits && d < shape->ndim; d++) {
        const int64_t own = d < added ? 1 : in->dim[d - added];
        shape->dim[d] = shape->dim[d] == -1 && d >= added ? own : shape->dim[d];
        fits = shape->dim[d] >= 0 && (own == 1 || own == shape->dim[d]);
    }
    return fits;
}

/* A copy, not a view of stride 0: gradients are written into the memory of views by several
 * threads, and ls_data lets users write elements, so no two elements of a tensor may share memory.
 * Nothing is lost where it matters: operations of two tensors read the small one as it is. */
ls_tensor *ls_expand(ls_tensor *a, ls_shape shape)
{
    ls__call call;
    const ls_shape wanted = shape;
    if (!ls__call_begin(&call, expand_op.name, 1, &a) || !ls__call_floats(&call, 1u)) {
        return call.failed;
    }
    const ls__record *in = call.in[0];
    if (!read_expanded(in, &shape)) {
        return ls__call_fail(&call, LS_ERR_INVALID,
                             "%s to %s; shapes align at the right, only sizes of 1 repeat, and -1 "
                             "leaves a size as it is",
                             ls__record_print(in).text, ls__shape_print(wanted).text);
    }
    ls__record *out = ls__call_output(&call, shape, (ls_dtype)in->dtype);
    if (out != NULL && out->numel > 0) {
        call.k->gather(ls__record_data(out), ls__record_data(in), ls__shape_expand(in, shape),
                       shape.ndim, shape.dim, ls_dtype_size((ls_dtype)in->dtype), call.stream);
    }
    ls__tensor_node *node = ls__call_record(&call, &expand_op, out, sizeof(expand_context));
    if (node != NULL) {
        expand_context *c = node->context;
        c->out = shape;
        for (int d = 0; d < LS_DIMS_MAX; d++) {
            const int from = d - (shape.ndim - in->ndim);
            c->keep[d] = from >= 0 && from < in->ndim && in->dim[from] == shape.dim[d];
        }
    }
    call.follows = LS__ELEMENTWISE(FIRST);
    return ls__call_finish(&call, out);
}
