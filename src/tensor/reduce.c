/* SPDX-License-Identifier: Apache-2.0 */
/* Sums, means and variances, over everything or some dimensions.
 *
 *     sum, mean            to a scalar; dx = dy, or dy / numel, in every place
 *     sum_dims, mean_dims  over chosen dimensions; dx repeats dy (over the number of terms)
 *     var_dims             sum (x - mean)^2 / (n or n - 1); dx = dy 2 (x - mean) / divisor
 *
 * Sums run in the fixed order of the kernels (kernel/cpu/reduce.c), so a result does not depend
 * on the number of threads. bfloat16 inputs are summed as float32 and the result is rounded
 * once. The sum of integers and of bool is int64 (integers.c). */
#include <string.h>

#include <lockstep/ops.h>

#include "base/assert.h"
#include "tensor/integers.h"
#include "tensor/op.h"

/* ---- over everything ---------------------------------------------------------------------- */

typedef struct total_context {
    float factor;  /* 1, or 1/numel */
    int64_t numel; /* of the input */
} total_context;

/* Every element has the same gradient, dy times 1 or 1/numel; the memory is overwritten. */
static ls_status total_backward(ls__tensor_rule *r)
{
    const total_context *c = r->node->context;
    r->k->fill_by(r->in[0].data, c->numel, (ls__factor){r->dy, (double)c->factor, 1.0}, r->stream);
    return LS_OK;
}

static const ls__op sum_op = {.name = "sum", .backward = total_backward};
static const ls__op mean_op = {.name = "mean", .backward = total_backward};

/* The frame of both: the sum is taken in float64 by the kernel and rounded once, after the
 * division of a mean. */
static ls_tensor *total(const ls__op *op, ls_tensor *a, bool mean)
{
    ls__call call;
    const uint8_t none[LS_DIMS_MAX] = {0};
    if (!ls__call_begin(&call, op->name, 1, &a)) {
        return call.failed;
    }
    call.follows = mean ? LS__REDUCES(~0u, false, MEAN) : LS__REDUCES(~0u, false, SUM);
    if (!mean && ls__call_counts(&call)) {
        return ls__integers_sum(&call, none, (ls_shape){0});
    }
    if (!ls__call_float32(&call)) {
        return call.failed;
    }
    int64_t numel = call.in[0]->numel; /* 0: the mean is NaN, as in PyTorch; see loss.c */
    ls__dense x = ls__call_dense(&call, 0);
    ls__record *out = ls__call_output(&call, (ls_shape){0}, LS_FLOAT32);
    if (out != NULL) {
        call.k->sum(ls__record_floats(out), x.data, numel, mean ? (double)numel : 1.0, call.stream);
    }
    ls__tensor_node *node = ls__call_record(&call, op, out, sizeof(total_context));
    if (node != NULL) {
        float factor = mean ? (float)(1.0 / (double)numel) : 1.0f;
        *(total_context *)node->context = (total_context){factor, numel};
    }
    ls__dense_drop(&x);
    return ls__call_finish(&call, out);
}

/* The sum of all elements, a scalar; 0 of an empty tensor. */
ls_tensor *ls_sum(ls_tensor *a)
{
    return total(&sum_op, a, false);
}

/* The mean of all elements, a scalar; NaN of an empty tensor. */
ls_tensor *ls_mean(ls_tensor *a)
{
    return total(&mean_op, a, true);
}

/* ---- over some dimensions ----------------------------------------------------------------- */

typedef struct dims_context {
    ls_shape in;               /* the input's */
    uint8_t keep[LS_DIMS_MAX]; /* 0: summed over */
    float factor;              /* 1, or 1 / terms of a mean */
} dims_context;

/* dx repeats dy, scaled for a mean, along the dimensions summed over: a gather with stride 0
 * there. */
static ls_status dims_backward(ls__tensor_rule *r)
{
    const dims_context *c = r->node->context;
    ls__strided strides = {{0}};
    int64_t stride = 1;
    for (int d = c->in.ndim - 1; d >= 0; d--) {
        strides.stride[d] = c->keep[d] ? stride : 0;
        stride *= c->keep[d] ? c->in.dim[d] : 1;
    }
    const float *dy = r->dy;
    ls__storage *scaled = NULL;
    if (c->factor != 1.0f) {
        scaled = ls__storage_new(r->on, (size_t)r->node->numel * sizeof(float));
        if (scaled == NULL) {
            return ls__self.status;
        }
        r->k->axpby(scaled->data, dy, r->node->numel, c->factor, 0.0f, r->stream);
        dy = scaled->data;
    }
    r->k->gather(r->in[0].data, dy, strides, c->in.ndim, c->in.dim, sizeof(float), r->stream);
    ls__storage_unref(scaled);
    return LS_OK;
}

static const ls__op sum_dim_op = {.name = "sum_dim", .backward = dims_backward};
static const ls__op mean_dim_op = {.name = "mean_dim", .backward = dims_backward};
static const ls__op sum_dims_op = {.name = "sum_dims", .backward = dims_backward};
static const ls__op mean_dims_op = {.name = "mean_dims", .backward = dims_backward};

/* The result's shape: dimensions summed over are gone or, with keepdim, 1. */
static ls_shape without_dims(const ls__record *in, const uint8_t *keep, bool keepdim)
{
    ls_shape shape = {0};
    for (int d = 0; d < in->ndim; d++) {
        if (keep[d] || keepdim) {
            shape.dim[shape.ndim++] = keep[d] ? in->dim[d] : 1;
        }
    }
    return shape;
}

/* The kernel's form of a single dimension: 1 for every other one, which is kept. */
static void keep_but(uint8_t *keep, int dim)
{
    for (int d = 0; d < LS_DIMS_MAX; d++) {
        keep[d] = d != dim;
    }
}

/* Elements that one result is made of. */
static int64_t terms_of(const ls__record *in, const uint8_t *keep)
{
    int64_t terms = 1;
    for (int d = 0; d < in->ndim; d++) {
        terms *= keep[d] ? 1 : in->dim[d];
    }
    return terms;
}

/* Sets keep[d] to 0 for the dimensions in `dims`, or for all when it names none. Negative ones
 * count from the right. False with call->failed set when one is outside or named twice. */
static bool read_dims(ls__call *call, ls_shape dims, uint8_t *keep)
{
    const ls__record *in = call->in[0];
    bool valid = dims.ndim >= 0 && dims.ndim <= in->ndim;
    for (int d = 0; d < LS_DIMS_MAX; d++) {
        keep[d] = dims.ndim != 0;
    }
    for (int i = 0; valid && i < dims.ndim; i++) {
        int64_t d = dims.dim[i] < 0 ? dims.dim[i] + in->ndim : dims.dim[i];
        valid = d >= 0 && d < in->ndim && keep[d];
        if (valid) {
            keep[d] = 0;
        }
    }
    if (!valid) {
        (void)ls__call_fail(
            call, LS_ERR_INVALID, "dimensions %s of %s; give each at most once, from %d to %d",
            ls__shape_print(dims).text, ls__record_print(in).text, -in->ndim, in->ndim - 1);
    }
    return valid;
}

/* Bit d: dimension d is not kept. */
static unsigned dims_but(const uint8_t *keep, int ndim)
{
    unsigned dims = 0;
    for (int d = 0; d < ndim; d++) {
        dims |= keep[d] ? 0u : 1u << d;
    }
    return dims;
}

/* The rest of sums and means over dimensions, once `keep` is known; a mean has at least one
 * term. Means multiply each sum by 1/terms in float32. */
static ls_tensor *over(ls__call *call, const ls__op *op, const uint8_t *keep, bool keepdim,
                       bool mean)
{
    const ls__record *in = call->in[0];
    const unsigned dims = dims_but(keep, in->ndim);
    call->follows = mean ? LS__REDUCES(dims, keepdim, MEAN) : LS__REDUCES(dims, keepdim, SUM);
    if (!mean && ls__call_counts(call)) {
        return ls__integers_sum(call, keep, without_dims(in, keep, keepdim));
    }
    if (!ls__call_float32(call)) {
        return call->failed;
    }
    in = call->in[0];
    float factor = mean ? (float)(1.0 / (double)terms_of(in, keep)) : 1.0f;
    ls__dense x = ls__call_dense(call, 0);
    ls__record *out = ls__call_output(call, without_dims(in, keep, keepdim), LS_FLOAT32);
    if (out != NULL && out->numel > 0) {
        float *to = ls__record_floats(out);
        call->k->sum_dims(to, x.data, in->ndim, in->dim, keep, 0.0f, call->stream);
        if (mean) {
            call->k->axpby(to, to, out->numel, factor, 0.0f, call->stream);
        }
    }
    ls__tensor_node *node = ls__call_record(call, op, out, sizeof(dims_context));
    if (node != NULL) {
        dims_context *c = node->context;
        *c = (dims_context){.in = ls__record_shape(in), .factor = factor};
        memcpy(c->keep, keep, sizeof c->keep);
    }
    ls__dense_drop(&x);
    return ls__call_finish(call, out);
}

/* One dimension. A mean over no elements would be NaN in every place and is refused. */
static ls_tensor *over_dim(const ls__op *op, ls_tensor *a, int dim, bool keepdim, bool mean)
{
    ls__call call;
    int at;
    uint8_t keep[LS_DIMS_MAX];
    if (!ls__call_begin(&call, op->name, 1, &a) || !ls__call_dim(&call, dim, &at)) {
        return call.failed;
    }
    if (mean && call.in[0]->dim[at] == 0) {
        return ls__call_fail(&call, LS_ERR_INVALID,
                             "dimension %d of %s is empty, so it has no mean; give it elements",
                             dim, ls__record_print(call.in[0]).text);
    }
    keep_but(keep, at);
    return over(&call, op, keep, keepdim, mean);
}

/* One dimension; see ls_sum_dims for several. */
ls_tensor *ls_sum_dim(ls_tensor *a, int dim, bool keepdim)
{
    return over_dim(&sum_dim_op, a, dim, keepdim, false);
}

/* One dimension, which must not be empty. */
ls_tensor *ls_mean_dim(ls_tensor *a, int dim, bool keepdim)
{
    return over_dim(&mean_dim_op, a, dim, keepdim, true);
}

/* The first steps of operations over several dimensions: decodes a and fills `keep`. `least`:
 * terms a result must have. False with call->failed set. */
static bool begin_dims(ls__call *call, const char *name, ls_tensor *a, ls_shape dims, int64_t least,
                       uint8_t *keep)
{
    if (!ls__call_begin(call, name, 1, &a) || !read_dims(call, dims, keep)) {
        return false;
    }
    if (terms_of(call->in[0], keep) < least) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "dimensions %s of %s have no elements; give them at least one",
                            ls__shape_print(dims).text, ls__record_print(call->in[0]).text);
        return false;
    }
    return true;
}

/* No dimensions at all means all of them. */
ls_tensor *ls_sum_dims(ls_tensor *a, ls_shape dims, bool keepdim)
{
    ls__call call;
    uint8_t keep[LS_DIMS_MAX];
    return begin_dims(&call, sum_dims_op.name, a, dims, 0, keep)
               ? over(&call, &sum_dims_op, keep, keepdim, false)
               : call.failed;
}

/* As ls_sum_dims; dimensions without elements are refused. */
ls_tensor *ls_mean_dims(ls_tensor *a, ls_shape dims, bool keepdim)
{
    ls__call call;
    uint8_t keep[LS_DIMS_MAX];
    return begin_dims(&call, mean_dims_op.name, a, dims, 1, keep)
               ? over(&call, &mean_dims_op, keep, keepdim, true)
               : call.failed;
}

/* ---- variance ----------------------------------------------------------------------------- */

enum { SAVED_X, SAVED_MEAN };

typedef struct var_context {
    int64_t rows, n; /* the input, its dimensions brought to the end, is [rows,n] */
    double divisor;  /* n, or n - 1 of the unbiased form */
} var_context;

/* dx = dy 2 (x - mean) / divisor; the part that passes through the mean is 0, see
 * kernel/ref/cumulative.c. */
static ls_status var_backward(ls__tensor_rule *r)
{
    const var_context *c = r->node->context;
    r->k->variance_backward(r->in[0].data, r->dy, r->saved[SAVED_X], r->saved[SAVED_MEAN], c->rows,
                            c->n, c->divisor, r->in[0].beta, r->stream);
    return LS_OK;
}

static const ls__op var_op = {.name = "var_dims", .backward = var_backward, .accumulates = true};

/* Variances of rows: x [..,n] -> `shape`, which has as many elements as x has rows. */
static ls_tensor *var_last(ls_tensor *x, bool unbiased, ls_shape shape)
{
    ls__call call;
    if (!ls__call_begin(&call, var_op.name, 1, &x) || !ls__call_float32(&call)) {
        return call.failed;
    }
    const ls__record *in = call.in[0];
    var_context c = {.n = in->dim[in->ndim - 1]};
    c.rows = ls__shape_product(in, 0, in->ndim - 1);
    c.divisor = (double)(unbiased ? c.n - 1 : c.n);
    ls__dense dense = ls__call_dense(&call, 0);
    ls__dense mean = ls__call_memory(&call, (size_t)c.rows * sizeof(float));
    ls__record *out = ls__call_output(&call, shape, LS_FLOAT32);
    if (out != NULL) {
        call.k->variance(ls__record_floats(out), mean.data, dense.data, c.rows, c.n, c.divisor,
                         call.stream);
    }
    ls__tensor_node *node = ls__call_record(&call, &var_op, out, sizeof c);
    if (node != NULL) {
        *(var_context *)node->context = c;
        ls__node_save(node, SAVED_X, &dense);
        ls__node_save(node, SAVED_MEAN, &mean);
    }
    ls__dense_drop(&dense);
    ls__dense_drop(&mean);
    call.follows = ls__follows_moves(LS__LINEAR_NOT);
    memset(call.follows.to, LS__TO_VARYING, sizeof call.follows.to); /* `shape` is the caller's */
    call.follows.to[in->ndim - 1] = LS__TO_WHOLE;
    return ls__call_finish(&call, out);
}

/* The dimensions are brought to the end by a view, which costs a copy when they are not there. */
ls_tensor *ls_var_dims(ls_tensor *a, ls_shape dims, bool unbiased, bool keepdim)
{
    ls__call call;
    uint8_t keep[LS_DIMS_MAX];
    if (!begin_dims(&call, var_op.name, a, dims, 1, keep)) {
        return call.failed;
    }
    const ls__record *in = call.in[0];
    ls_shape order = {.ndim = in->ndim}, rows = {.ndim = 0};
    for (int d = 0; d < in->ndim; d++) {
        if (keep[d]) {
            order.dim[rows.ndim] = d;
            rows.dim[rows.ndim++] = in->dim[d];
        }
    }
    for (int d = 0, to = rows.ndim; d < in->ndim; d++) {
        if (!keep[d]) {
            order.dim[to++] = d;
        }
    }
    ls_shape shape = without_dims(in, keep, keepdim), flat = rows;
    LS_ASSERT(flat.ndim < LS_DIMS_MAX); /* at least one is not kept */
    flat.dim[flat.ndim++] = terms_of(in, keep);
    return var_last(ls_reshape(ls_permute(a, order), flat), unbiased, shape);
}
