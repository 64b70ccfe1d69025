/* SPDX-License-Identifier: Apache-2.0 */
/* Normalisations over the last dimension: layer norm (Ba, Kiros & Hinton 2016) and root mean
 * square norm (Zhang & Sennrich 2019). x [..,n] is seen as [rows,n]; weight and bias are [n] or
 * NULL.
 *
 *     layer norm  y = (x - mean) rstd w + b      rms norm  y = x rstd w
 *
 * Gradients in kernel/ref/norm.c and rms_norm.c; mean and rstd [rows] are saved as float32 for
 * either type of x. bfloat16 rows up to LS__HALF_ROW_MAX go to kernels of their own, longer ones
 * through float32 copies. */
#include <lockstep/ops.h>

#include "base/assert.h"
#include "tensor/op.h"

enum { SAVED_X, SAVED_W, SAVED_MEAN, SAVED_RSTD };
enum { EDGE_X, EDGE_W, EDGE_B };

typedef struct norm_context {
    int64_t rows, n; /* x is [rows,n] */
} norm_context;

/* dx, dw and db, each where wanted, with workspace for the sums over rows. dw and db share one
 * beta in the kernel. Where they differ (a weight that is used twice with another bias each
 * time) db is summed aside. */
static ls_status layer_norm_backward(ls__tensor_rule *r)
{
    const norm_context *c = r->node->context;
    ls__gradient *dx = &r->in[EDGE_X], *dw = &r->in[EDGE_W], *db = &r->in[EDGE_B];
    bool split = dw->data != NULL && db->data != NULL && dw->beta != db->beta;
    float beta_w = dw->data != NULL ? dw->beta : db->beta;
    ls__storage *work = ls__storage_new(r->on, r->k->layer_norm_workspace(c->rows, c->n) + 64);
    if (work == NULL) {
        return ls__self.status;
    }
    if (r->node->dtype == LS_BFLOAT16) {
        r->k->layer_norm_backward_bf16(
            (void *)dx->data, dx->beta, dw->data, split ? NULL : db->data, beta_w,
            (const void *)r->dy, r->saved[SAVED_X], r->saved[SAVED_MEAN], r->saved[SAVED_RSTD],
            r->saved[SAVED_W], c->rows, c->n, work->data, r->stream);
        if (split) {
            r->k->sum_rows_bf16(db->data, (const void *)r->dy, c->rows, c->n, db->beta, r->stream);
        }
        ls__storage_unref(work);
        return LS_OK;
    }
    r->k->layer_norm_backward(dx->data, dx->beta, dw->data, split ? NULL : db->data, beta_w, r->dy,
                              r->saved[SAVED_X], r->saved[SAVED_MEAN], r->saved[SAVED_RSTD],
                              r->saved[SAVED_W], c->rows, c->n, work->data, r->stream);
    if (split) {
        r->k->sum_rows(db->data, r->dy, c->rows, c->n, db->beta, r->stream);
    }
    ls__storage_unref(work);
    return LS_OK;
}

static const ls__op layer_norm_op = {
    .name = "layer_norm", .backward = layer_norm_backward, .accumulates = true};

/* An empty row has no mean, so n must be at least 1; weight and bias must be [n]. False with
 * call->failed set. */
static bool norm_shapes(ls__call *call)
{
    const ls__record *x = call->in[EDGE_X];
    if (x->ndim < 1 || x->dim[x->ndim - 1] == 0) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "x %s: the last dimension is empty; give it elements to normalise",
                            ls__record_print(x).text);
        return false;
    }
    for (int i = EDGE_W; i < call->count; i++) {
        const ls__record *p = call->in[i];
        if (p != NULL && (p->ndim != 1 || p->dim[0] != x->dim[x->ndim - 1])) {
            (void)ls__call_fail(call, LS_ERR_INVALID,
                                "x %s with %s %s: it must be [%lld], the last dimension of x",
                                ls__record_print(x).text, i == EDGE_W ? "weight" : "bias",
                                ls__record_print(p).text, (long long)x->dim[x->ndim - 1]);
            return false;
        }
    }
    return true;
}

/* Whether the bfloat16 kernels take x as it is: a row fits their buffer and the parameters are
 * float32. */
static bool reads_half(const ls__call *call)
{
    const ls__record *x = call->in[EDGE_X];
    bool fits = x->dtype == LS_BFLOAT16 && x->ndim > 0 && x->dim[x->ndim - 1] <= LS__HALF_ROW_MAX;
    for (int i = EDGE_W; i < call->count; i++) {
        fits = fits && (call->in[i] == NULL || call->in[i]->dtype == LS_FLOAT32);
    }
    return fits;
}

/* Over the last dimension. A bfloat16 input gives a bfloat16 output with float32 statistics;
 * weight and bias may be NULL. */
ls_tensor *ls_layer_norm(ls_tensor *x, ls_tensor *weight, ls_tensor *bias, double eps)
{
    ls__call call;
    unsigned optional = 1u << EDGE_W | 1u << EDGE_B;
    if (!ls__call_begin_optional(&call, "layer_norm", 3, (ls_tensor *[]){x, weight, bias},
                                 optional) ||
        !(reads_half(&call) || ls__call_float32(&call)) || !norm_shapes(&call)) {
        return call.failed;
    }
    const ls__record *in = call.in[EDGE_X];
    const bool half = in->dtype == LS_BFLOAT16;
    call.narrow = call.halves >> EDGE_X & 1u; /* the type of x */
    norm_context c = {.n = in->dim[in->ndim - 1]};
    LS_ASSERT(c.n > 0 && (!half || c.n <= LS__HALF_ROW_MAX));
    c.rows = in->numel / c.n;
    ls__dense dx = ls__call_dense(&call, EDGE_X), dw = ls__call_dense(&call, EDGE_W);
    ls__dense db = ls__call_dense(&call, EDGE_B);
    ls__dense mean = ls__call_memory(&call, (size_t)c.rows * sizeof(float));
    ls__dense rstd = ls__call_memory(&call, (size_t)c.rows * sizeof(float));
    ls__record *out = ls__call_output(&call, ls__record_shape(in), (ls_dtype)in->dtype);
    if (out != NULL && half) {
        call.k->layer_norm_bf16((void *)ls__record_data(out), mean.data, rstd.data, dx.data,
                                dw.data, db.data, c.rows, c.n, (float)eps, call.stream);
    } else if (out != NULL) {
        call.k->layer_norm(ls__record_floats(out), mean.data, rstd.data, dx.data, dw.data, db.data,
                           c.rows, c.n, (float)eps, call.stream);
    }
    ls__tensor_node *node = ls__call_record(&call, &layer_norm_op, out, sizeof c);
    if (node != NULL) {
        *(norm_context *)node->context = c;
        ls__node_save(node, SAVED_X, &dx);
        ls__node_save(node, SAVED_W, &dw);
        ls__node_save(node, SAVED_MEAN, &mean);
        ls__node_save(node, SAVED_RSTD, &rstd);
    }
    ls__dense_drop(&dx);
    ls__dense_drop(&dw);
    ls__dense_drop(&db);
    ls__dense_drop(&mean);
    ls__dense_drop(&rstd);
    call.follows = LS__ROWS(LS__LAST_DIMS(in->ndim, 1), NOT);
    return ls__call_finish(&call, out);
}

/* ---- root mean square --------------------------------------------------------------------- */

/* dx and dw, each where wanted. layer_norm's workspace is enough: there is one sum less. */
static ls_status rms_norm_backward(ls__tensor_rule *r)
{
    const norm_context *c = r->node->context;
    ls__storage *work = ls__storage_new(r->on, r->k->layer_norm_workspace(c->rows, c->n) + 64);
    if (work == NULL) {
        return ls__self.status;
    }
    if (r->node->dtype == LS_BFLOAT16) {
        r->k->rms_norm_backward_bf16((void *)r->in[EDGE_X].data, r->in[EDGE_X].beta,
                                     r->in[EDGE_W].data, r->in[EDGE_W].beta, (const void *)r->dy,
                                     r->saved[SAVED_X], r->saved[SAVED_RSTD], r->saved[SAVED_W],
                                     c->rows, c->n, work->data, r->stream);
        ls__storage_unref(work);
        return LS_OK;
    }
    r->k->rms_norm_backward(r->in[EDGE_X].data, r->in[EDGE_X].beta, r->in[EDGE_W].data,
                            r->in[EDGE_W].beta, r->dy, r->saved[SAVED_X], r->saved[SAVED_RSTD],
                            r->saved[SAVED_W], c->rows, c->n, work->data, r->stream);
    ls__storage_unref(work);
    return LS_OK;
}

static const ls__op rms_norm_op = {
    .name = "rms_norm", .backward = rms_norm_backward, .accumulates = true};

/* Over the last dimension: a layer norm without the mean and the bias. weight [n] or NULL; the
 * result has the type of x. */
ls_tensor *ls_rms_norm(ls_tensor *x, ls_tensor *weight, double eps)
{
    ls__call call;
    if (!ls__call_begin_optional(&call, "rms_norm", 2, (ls_tensor *[]){x, weight}, 1u << EDGE_W) ||
        !(reads_half(&call) || ls__call_float32(&call)) || !norm_shapes(&call)) {
        return call.failed;
    }
    const ls__record *in = call.in[EDGE_X];
    call.narrow = call.halves >> EDGE_X & 1u; /* the type of x */
    norm_context c = {.n = in->dim[in->ndim - 1]};
    c.rows = in->numel / c.n;
    ls__dense dx = ls__call_dense(&call, EDGE_X), dw = ls__call_dense(&call, EDGE_W);
    ls__dense rstd = ls__call_memory(&call, (size_t)c.rows * sizeof(float));
    ls__record *out = ls__call_output(&call, ls__record_shape(in), (ls_dtype)in->dtype);
    if (out != NULL && in->dtype == LS_BFLOAT16) {
        call.k->rms_norm_bf16((void *)ls__record_data(out), rstd.data, dx.data, dw.data, c.rows,
                              c.n, (float)eps, call.stream);
    } else if (out != NULL) {
        call.k->rms_norm(ls__record_floats(out), rstd.data, dx.data, dw.data, c.rows, c.n,
                         (float)eps, call.stream);
    }
    ls__tensor_node *node = ls__call_record(&call, &rms_norm_op, out, sizeof c);
    if (node != NULL) {
        *(norm_context *)node->context = c;
        ls__node_save(node, SAVED_X, &dx);
        ls__node_save(node, SAVED_W, &dw);
        ls__node_save(node, SAVED_RSTD, &rstd);
    }
    ls__dense_drop(&dx);
    ls__dense_drop(&dw);
    ls__dense_drop(&rstd);
    call.follows = LS__ROWS(LS__LAST_DIMS(in->ndim, 1), NOT);
    return ls__call_finish(&call, out);
}
