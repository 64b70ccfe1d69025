/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax and its logarithm: y_j = exp(x_j - max) / sum exp(x - max) along one dimension;
 * gradients in kernel/ref/norm.c, written in y alone. The kernel works along the last dimension,
 * on [rows,n]; another one is brought there by a view and back by another, which costs one copy. */
#include "base/assert.h"
#include "tensor/op.h"

enum { SAVED_Y };

typedef struct softmax_context {
    int64_t rows, n; /* x is [rows,n] */
    bool log;        /* the logarithm of softmax */
} softmax_context;

/* dx = y (dy - sum dy y), or dy - exp(y) sum dy of the logarithm. Reads y alone, so x need not
 * be kept. */
static ls_status softmax_backward(ls__tensor_rule *r)
{
    const softmax_context *c = r->node->context;
    if (r->node->numel > 0 && r->node->dtype == LS_BFLOAT16) {
        r->k->softmax_backward_bf16((void *)r->in[0].data, (const void *)r->dy, r->saved[SAVED_Y],
                                    c->rows, c->n, c->log, r->in[0].beta, r->stream);
    } else if (r->node->numel > 0) {
        r->k->softmax_backward(r->in[0].data, r->dy, r->saved[SAVED_Y], c->rows, c->n, c->log,
                               r->in[0].beta, r->stream);
    }
    return LS_OK;
}

static const ls__op softmax_op = {
    .name = "softmax", .backward = softmax_backward, .accumulates = true};
static const ls__op log_softmax_op = {
    .name = "log_softmax", .backward = softmax_backward, .accumulates = true};

/* Whether bfloat16 goes to a kernel of its own: a row fits its buffer, and autocast, which wants
 * float32 out of it, is off. */
static bool reads_half(const ls__record *in)
{
    return in->dtype == LS_BFLOAT16 && !ls__self.autocast && in->ndim > 0 &&
           in->dim[in->ndim - 1] <= LS__HALF_ROW_MAX;
}

/* Over the last dimension, which the kernels need. Under autocast the result is float32, as
 * PyTorch's is. */
static ls_tensor *along_last(const ls__op *op, ls_tensor *a, bool log)
{
    ls__call call;
    if (!ls__call_begin(&call, op->name, 1, &a)) {
        return call.failed;
    }
    const bool half = reads_half(call.in[0]);
    if (!half && !ls__call_float32(&call)) {
        return call.failed;
    }
    call.narrow = call.narrow && !ls__self.autocast; /* which gives float32 here */
    const ls__record *in = call.in[0];
    softmax_context c = {.n = in->dim[in->ndim - 1], .log = log};
    LS_ASSERT(!half || c.n <= LS__HALF_ROW_MAX);
    c.rows = ls__shape_product(in, 0, in->ndim - 1);
    ls__dense x = ls__call_dense(&call, 0);
    ls__record *out = ls__call_output(&call, ls__record_shape(in), (ls_dtype)in->dtype);
    if (out != NULL && out->numel > 0 && half) {
        call.k->softmax_bf16((void *)ls__record_data(out), x.data, c.rows, c.n, log, call.stream);
    } else if (out != NULL && out->numel > 0) {
        call.k->softmax(ls__record_floats(out), x.data, c.rows, c.n, log, call.stream);
    }
    ls__tensor_node *node = ls__call_record(&call, op, out, sizeof c);
    if (node != NULL) {
        *(softmax_context *)node->context = c;
        ls__dense y = ls__dense_of_output(out);
        ls__node_save(node, SAVED_Y, &y);
        ls__dense_drop(&y);
    }
    ls__dense_drop(&x);
    call.follows = LS__ROWS(LS__LAST_DIMS(in->ndim, 1), NOT);
    return ls__call_finish(&call, out);
}

/* Along dimension `dim`: another one than the last is exchanged with it by a view, before and
 * after. */
static ls_tensor *softmax(const ls__op *op, ls_tensor *a, int dim, bool log)
{
    ls__call call;
    int at;
    if (!ls__call_begin(&call, op->name, 1, &a) || !ls__call_dim(&call, dim, &at)) {
        return call.failed;
    }
    if (at == call.in[0]->ndim - 1) {
        return along_last(op, a, log);
    }
    return ls_transpose(along_last(op, ls_transpose(a, at, -1), log), at, -1);
}

ls_tensor *ls_softmax(ls_tensor *a, int dim)
{
    return softmax(&softmax_op, a, dim, false);
}

ls_tensor *ls_log_softmax(ls_tensor *a, int dim)
{
    return softmax(&log_softmax_op, a, dim, true);
}
