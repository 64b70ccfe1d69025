/* SPDX-License-Identifier: Apache-2.0 */
/* Along one dimension: running sums, extremes and where they are, log sum exp. A tensor is seen as
 * [outer,n,inner], n being the dimension; the kernels walk it in steps of `inner`, so no
 * transposition is needed. Formulas in kernel/ref/cumulative.c; sums are float64 inside. */
#include <float.h>

#include <lockstep/ops.h>

#include "tensor/integers.h"
#include "tensor/op.h"

typedef struct along_context { /* x is [outer,n,inner] */
    int64_t outer, n, inner;
} along_context;

/* Everything before the dimension is one, everything behind it another. */
static along_context along_of(const ls__record *in, int at)
{
    return (along_context){.outer = ls__shape_product(in, 0, at),
                           .n = in->dim[at],
                           .inner = ls__shape_product(in, at + 1, in->ndim)};
}

/* The shape of a result without dimension `dim`, or with 1 in its place. */
static ls_shape without_dim(const ls__record *in, int dim, bool keepdim)
{
    ls_shape shape = {0};
    for (int d = 0; d < in->ndim; d++) {
        if (d != dim || keepdim) {
            shape.dim[shape.ndim++] = d == dim ? 1 : in->dim[d];
        }
    }
    return shape;
}

/* ---- running sums ------------------------------------------------------------------------- */

/* dx_i = dy_i + … + dy_{n-1}: element i is in all sums from i on, so its gradient is the running
 * sum from the end. */
static ls_status cumsum_backward(ls__tensor_rule *r)
{
    const along_context *c = r->node->context;
    r->k->cumsum(r->in[0].data, r->dy, c->outer, c->n, c->inner, true, r->in[0].beta, r->stream);
    return LS_OK;
}

static const ls__op cumsum_op = {
    .name = "cumsum", .backward = cumsum_backward, .accumulates = true};

/* y_i = x_0 + … + x_i along `dim`, of the shape of a. */
ls_tensor *ls_cumsum(ls_tensor *a, int dim)
{
    ls__call call;
    int at;
    if (!ls__call_begin(&call, cumsum_op.name, 1, &a) || !ls__call_dim(&call, dim, &at)) {
        return call.failed;
    }
    call.follows = LS__ROWS(1u << at, FIRST);
    if (ls__call_counts(&call)) {
        return ls__integers_cumsum(&call, at);
    }
    if (!ls__call_float32(&call)) {
        return call.failed;
    }
    along_context c = along_of(call.in[0], at);
    ls__dense x = ls__call_dense(&call, 0);
    ls__record *out = ls__call_output(&call, ls__record_shape(call.in[0]), LS_FLOAT32);
    if (out != NULL) {
        call.k->cumsum(ls__record_floats(out), x.data, c.outer, c.n, c.inner, false, 0.0f,
                       call.stream);
    }
    ls__tensor_node *node = ls__call_record(&call, &cumsum_op, out, sizeof c);
    if (node != NULL) {
        *(along_context *)node->context = c;
    }
    ls__dense_drop(&x);
    return ls__call_finish(&call, out);
}

/* ---- extremes ----------------------------------------------------------------------------- */

enum { SAVED_INDEX };

/* dy goes to the places found in the forward pass; everywhere else the gradient is 0. */
static ls_status extreme_backward(ls__tensor_rule *r)
{
    const along_context *c = r->node->context;
    const int64_t shape[3] = {c->outer, 1, c->inner};
    if (r->in[0].beta == 0.0f) {
        r->k->fill(r->in[0].data, c->outer * c->n * c->inner, 0.0f, r->stream);
    }
    ls__pick args = {.ndim = 3, .dim = 1, .shape = shape, .bytes = sizeof(float)};
    args.index = r->saved[SAVED_INDEX];
    args.index_bytes = sizeof(int64_t);
    args.from = r->dy;
    args.from_strides = (ls__strided){{c->inner, c->inner, 1}};
    args.to = r->in[0].data;
    args.to_strides = (ls__strided){{c->n * c->inner, c->inner, 1}};
    r->k->put_add(&args, r->stream);
    return LS_OK;
}

static const ls__op max_op = {.name = "max_dim", .backward = extreme_backward, .accumulates = true};
static const ls__op min_op = {.name = "min_dim", .backward = extreme_backward, .accumulates = true};

/* The frame of both extremes. The places are kept for backward even if only the values are asked
 * for. */
static ls_tensor *extreme(const ls__op *op, ls_tensor *a, int dim, bool keepdim, bool least)
{
    ls__call call;
    int at;
    if (!ls__call_begin(&call, op->name, 1, &a) || !ls__call_float32(&call) ||
        !ls__call_dim(&call, dim, &at)) {
        return call.failed;
    }
    const ls__record *in = call.in[0];
    if (in->dim[at] == 0) {
        return ls__call_fail(&call, LS_ERR_INVALID,
                             "dimension %d of %s is empty, so it has no %s element; give it "
                             "elements",
                             dim, ls__record_print(in).text, least ? "least" : "largest");
    }
    along_context c = along_of(in, at);
    ls__dense x = ls__call_dense(&call, 0);
    ls__record *out = ls__call_output(&call, without_dim(in, at, keepdim), LS_FLOAT32);
    ls__dense index = ls__call_memory(&call, (size_t)(c.outer * c.inner) * sizeof(int64_t));
    if (call.failed == NULL) {
        call.k->extreme(ls__record_floats(out), index.data, x.data, c.outer, c.n, c.inner, least,
                        call.stream);
    }
    ls__tensor_node *node = ls__call_record(&call, op, out, sizeof c);
    if (node != NULL) {
        *(along_context *)node->context = c;
        ls__node_save(node, SAVED_INDEX, &index);
    }
    ls__dense_drop(&x);
    ls__dense_drop(&index);
    call.follows = LS__REDUCES(1u << at, keepdim, WHOLE);
    return ls__call_finish(&call, out);
}

/* The largest along `dim`; a NaN counts as the largest. Its gradient goes to the first place
 * where it stands. */
ls_tensor *ls_max_dim(ls_tensor *a, int dim, bool keepdim)
{
    return extreme(&max_op, a, dim, keepdim, false);
}

/* The least along `dim`; a NaN counts as the least. Its gradient goes to the first place where
 * it stands. */
ls_tensor *ls_min_dim(ls_tensor *a, int dim, bool keepdim)
{
    return extreme(&min_op, a, dim, keepdim, true);
}

/* ---- argmax ------------------------------------------------------------------------------- */

/* The index of the largest along `dim`, int64; it carries no gradient. */
ls_tensor *ls_argmax(ls_tensor *a, int dim)
{
    ls__call call;
    int at;
    if (!ls__call_begin(&call, "argmax", 1, &a) || !ls__call_float32(&call) ||
        !ls__call_dim(&call, dim, &at)) {
        return call.failed;
    }
    const ls__record *in = call.in[0];
    if (in->dim[at] == 0) {
        return ls__call_fail(&call, LS_ERR_INVALID,
                             "dimension %d of %s is empty, so it has no largest element; give it "
                             "elements",
                             dim, ls__record_print(in).text);
    }
    along_context c = along_of(in, at);
    ls__dense x = ls__call_dense(&call, 0);
    ls__record *out = ls__call_output(&call, without_dim(in, at, false), LS_INT64);
    if (out != NULL) {
        call.k->extreme(NULL, (int64_t *)(void *)ls__record_data(out), x.data, c.outer, c.n,
                        c.inner, false, call.stream);
    }
    ls__dense_drop(&x);
    call.follows = LS__REDUCES(1u << at, false, WHOLE);
    return ls__call_finish(&call, out);
}

/* ---- log sum exp -------------------------------------------------------------------------- */

enum { SAVED_X, SAVED_Y };

static const int64_t *shape_of(const along_context *c, int64_t shape[3])
{
    shape[0] = c->outer, shape[1] = c->n, shape[2] = c->inner;
    return shape;
}

/* out = exp(x - y), y repeating along the dimension; out may be x. */
static void exp_less(const ls__kernels *k, ls_stream *stream, const along_context *c, float *out,
                     const float *x, const float *y)
{
    const ls__strided whole = {{c->n * c->inner, c->inner, 1}}, repeats = {{c->inner, 0, 1}};
    int64_t shape[3];
    k->binary(LS__BINARY_SUB, out, x, whole, y, repeats, 3, shape_of(c, shape), stream);
    k->unary(LS__UNARY_EXP, out, out, c->outer * c->n * c->inner, stream);
}

/* dx = dy exp(x - y), the softmax. */
static ls_status logsumexp_backward(ls__tensor_rule *r)
{
    const along_context *c = r->node->context;
    const ls__strided whole = {{c->n * c->inner, c->inner, 1}}, repeats = {{c->inner, 0, 1}};
    float *dx = r->in[0].data;
    int64_t shape[3];
    if (r->node->numel == 0) {
        return LS_OK;
    }
    exp_less(r->k, r->stream, c, dx, r->saved[SAVED_X], r->saved[SAVED_Y]);
    r->k->binary(LS__BINARY_MUL, dx, dx, whole, r->dy, repeats, 3, shape_of(c, shape), r->stream);
    return LS_OK;
}

static const ls__op logsumexp_op = {.name = "logsumexp", .backward = logsumexp_backward};

/* out = m + log sum exp(x - m), m being the largest element, so that no exponential overflows. Of
 * an infinite one the largest float stands in, as inf - inf would be NaN. */
static bool logsumexp(ls__call *call, const along_context *c, float *out, const float *x)
{
    static const double finite[2] = {-FLT_MAX, FLT_MAX};
    static const uint8_t keep[3] = {1, 0, 1};
    const int64_t count = c->outer * c->inner;
    const ls__strided one = {{1}};
    int64_t shape[3];
    ls__dense shifted = ls__call_memory(call, (size_t)(count * c->n) * sizeof(float));
    ls__dense most = ls__call_memory(call, (size_t)count * sizeof(float));
    ls__dense index = ls__call_memory(call, (size_t)count * sizeof(int64_t));
    if (call->failed == NULL && count > 0) {
        call->k->extreme(most.data, index.data, x, c->outer, c->n, c->inner, false, call->stream);
        call->k->map(LS__MAP_CLAMP, finite, most.data, most.data, count, call->stream);
        exp_less(call->k, call->stream, c, shifted.data, x, most.data);
        call->k->sum_dims(out, shifted.data, 3, shape_of(c, shape), keep, 0.0f, call->stream);
        call->k->unary(LS__UNARY_LOG, out, out, count, call->stream);
        call->k->binary(LS__BINARY_ADD, out, out, one, most.data, one, 1, &count, call->stream);
    }
    ls__dense_drop(&shifted);
    ls__dense_drop(&most);
    ls__dense_drop(&index);
    return call->failed == NULL;
}

ls_tensor *ls_logsumexp(ls_tensor *a, int dim, bool keepdim)
{
    ls__call call;
    int at;
    if (!ls__call_begin(&call, logsumexp_op.name, 1, &a) || !ls__call_float32(&call) ||
        !ls__call_dim(&call, dim, &at)) {
        return call.failed;
    }
    const along_context c = along_of(call.in[0], at);
    if (c.n == 0) {
        return ls__call_fail(&call, LS_ERR_INVALID, "dimension %d of %s is empty; give it elements",
                             dim, ls__record_print(call.in[0]).text);
    }
    ls__dense x = ls__call_dense(&call, 0);
    ls__record *out = ls__call_output(&call, without_dim(call.in[0], at, keepdim), LS_FLOAT32);
    ls__tensor_node *node = NULL;
    if (out != NULL && logsumexp(&call, &c, ls__record_floats(out), x.data)) {
        node = ls__call_record(&call, &logsumexp_op, out, sizeof c);
    }
    if (node != NULL) {
        ls__dense y = ls__dense_of_output(out);
        *(along_context *)node->context = c;
        ls__node_save(node, SAVED_X, &x);
        ls__node_save(node, SAVED_Y, &y);
        ls__dense_drop(&y);
    }
    ls__dense_drop(&x);
    call.follows = LS__REDUCES(1u << at, keepdim, WHOLE);
    return ls__call_finish(&call, out);
}
