/* Losses: mean squared error and cross-entropy.
 *
 * The mean over nothing is NaN and its gradients are zero, as in PyTorch: at the end of an epoch a
 * rank may hold no sample, and still takes part in the backward pass (ls_backward_weighted). */
#include "tensor/indices.h"

/* ---- mean squared error ------------------------------------------------------------------- */

enum { SAVED_DIFFERENCE };

typedef struct mse_context {
    int64_t numel;
} mse_context;

static ls_status mse_backward(ls__rule *r)
{
    const mse_context *c = r->node->context;
    float factor = (float)(2.0 * (double)r->dy[0] / (double)c->numel);
    for (int i = 0; i < 2; i++) {
        if (r->in[i].data != NULL) {
            r->k->axpby(r->in[i].data, r->saved[SAVED_DIFFERENCE], c->numel,
                        i == 0 ? factor : -factor, r->in[i].beta, NULL);
        }
    }
    return LS_OK;
}

static const ls__op mse_op = {.name = "mse_loss", .backward = mse_backward, .accumulates = true};

ls_tensor *ls_mse_loss(ls_tensor *x, ls_tensor *y)
{
    ls__call call;
    if (!ls__call_begin(&call, "mse_loss", 2, (ls_tensor *[]){x, y}) || !ls__call_float32(&call)) {
        return call.failed;
    }
    const ls__record *a = call.in[0], *b = call.in[1];
    if (!ls__shape_equal(a, b)) {
        return ls__call_fail(&call, LS_ERR_INVALID, "%s against %s; both must have the same shape",
                             ls__record_print(a).text, ls__record_print(b).text);
    }
    ls__dense difference = ls__call_memory(&call, (size_t)a->numel * sizeof(float));
    ls__record *out = ls__call_output(&call, (ls_shape){0}, LS_FLOAT32);
    if (out != NULL) {
        call.k->binary(LS__BINARY_SUB, difference.data, (const float *)(void *)ls__record_data(a),
                       ls__record_strided(a), (const float *)(void *)ls__record_data(b),
                       ls__record_strided(b), a->ndim, a->dim, NULL);
        *(float *)(void *)ls__record_data(out) =
            (float)(call.k->sum_squares(difference.data, a->numel) / (double)a->numel);
    }
    ls__node *node = ls__call_record(&call, &mse_op, out, sizeof(mse_context));
    if (node != NULL) {
        ((mse_context *)node->context)->numel = a->numel;
        ls__node_save(node, SAVED_DIFFERENCE, &difference);
    }
    ls__dense_drop(&difference);
    return ls__call_finish(&call, out);
}

/* ---- cross-entropy ------------------------------------------------------------------------ */

/* The forward pass has softmax(logits) at hand, so it computes the gradient at once; backward only
 * scales it, or hands it on when dy is 1. */
enum { SAVED_DLOGITS };
enum { EDGE_LOGITS, EDGE_TARGET };

typedef struct cross_entropy_context {
    int64_t numel;
} cross_entropy_context;

static ls_status cross_entropy_backward(ls__rule *r)
{
    const cross_entropy_context *c = r->node->context;
    ls__storage *dlogits = r->node->saved[SAVED_DLOGITS].storage;
    if (r->dy[0] == 1.0f) {
        r->in[0].give = ls__storage_ref(dlogits);
        return LS_OK;
    }
    r->in[0].give = ls__storage_new(r->tensors, (size_t)c->numel * sizeof(float));
    if (r->in[0].give == NULL) {
        return ls__self.status;
    }
    r->k->axpby(r->in[0].give->data, dlogits->data, c->numel, r->dy[0], 0.0f, NULL);
    return LS_OK;
}

static const ls__op cross_entropy_op = {
    .name = "cross_entropy", .backward = cross_entropy_backward, .gives = true};

static bool cross_entropy_shapes(ls__call *call)
{
    const ls__record *x = call->in[EDGE_LOGITS], *y = call->in[EDGE_TARGET];
    bool fits = x->dtype == LS_FLOAT32 && x->ndim == y->ndim + 1;
    for (int d = 0; fits && d < y->ndim; d++) {
        fits = x->dim[d] == y->dim[d];
    }
    if (!fits) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "logits %s of %s with target %s; logits must be float32 [..,C] "
                            "and the target the same without the last dimension",
                            ls__record_print(x).text, ls_dtype_name((ls_dtype)x->dtype),
                            ls__record_print(y).text);
    }
    return fits;
}

ls_tensor *ls_cross_entropy(ls_tensor *logits, ls_tensor *target)
{
    ls__call call;
    if (!ls__call_begin(&call, "cross_entropy", 2, (ls_tensor *[]){logits, target}) ||
        !ls__call_index(&call, EDGE_TARGET) || !cross_entropy_shapes(&call)) {
        return call.failed;
    }
    const ls__record *in = call.in[EDGE_LOGITS], *wanted = call.in[EDGE_TARGET];
    int64_t n = in->dim[in->ndim - 1];
    ls__dense x = ls__call_dense(&call, EDGE_LOGITS), y = ls__call_dense(&call, EDGE_TARGET);
    ls__dense dx = {0};
    ls__record *out = NULL;
    if (ls__call_indices(&call, EDGE_TARGET, &y, n)) {
        if (call.grad) {
            dx = ls__call_memory(&call, (size_t)in->numel * sizeof(float));
        }
        out = ls__call_output(&call, (ls_shape){0}, LS_FLOAT32);
    }
    if (out != NULL) {
        *(float *)(void *)ls__record_data(out) = (float)call.k->cross_entropy(
            dx.data, x.data, y.data, ls_dtype_size((ls_dtype)wanted->dtype), wanted->numel, n,
            NULL);
    }
    ls__node *node = ls__call_record(&call, &cross_entropy_op, out, sizeof(cross_entropy_context));
    if (node != NULL) {
        ((cross_entropy_context *)node->context)->numel = in->numel;
        ls__node_save(node, SAVED_DLOGITS, &dx);
    }
    ls__dense_drop(&x);
    ls__dense_drop(&y);
    ls__dense_drop(&dx);
    return ls__call_finish(&call, out);
}
