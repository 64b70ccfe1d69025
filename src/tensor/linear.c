/* y = x W^T + b over all leading dimensions at once. dW and db go straight to where the parameters'
 * gradients live (a bucket): no temporary. */
#include "tensor/op.h"

enum { SAVED_X, SAVED_W };
enum { EDGE_X, EDGE_W, EDGE_B };

typedef struct linear_context {
    int64_t rows, in, out;
} linear_context;

static void backward_x(ls__rule *r, const linear_context *c)
{
    ls__gemm g = {.m = c->rows, /* dX = dY W */
                  .n = c->in,
                  .k = c->out,
                  .a = r->dy,
                  .lda = c->out,
                  .b = r->saved[SAVED_W],
                  .ldb = c->in,
                  .c = r->in[EDGE_X].data,
                  .ldc = c->in,
                  .beta = r->in[EDGE_X].beta};
    r->k->gemm(&g, NULL);
}

static void backward_w(ls__rule *r, const linear_context *c)
{
    ls__gemm g = {.trans_a = true, /* dW = dY^T X */
                  .m = c->out,
                  .n = c->in,
                  .k = c->rows,
                  .a = r->dy,
                  .lda = c->out,
                  .b = r->saved[SAVED_X],
                  .ldb = c->in,
                  .c = r->in[EDGE_W].data,
                  .ldc = c->in,
                  .beta = r->in[EDGE_W].beta};
    r->k->gemm(&g, NULL);
}

/* Sums over nothing: kernels need not know. */
static void backward_empty(ls__rule *r, const linear_context *c)
{
    const int64_t numel[] = {c->rows * c->in, c->out * c->in, c->out};
    for (int i = 0; i < 3; i++) {
        if (r->in[i].data != NULL && r->in[i].beta == 0.0f && numel[i] > 0) {
            r->k->fill(r->in[i].data, numel[i], 0.0f, NULL);
        }
    }
}

static ls_status linear_backward(ls__rule *r)
{
    const linear_context *c = r->node->context;
    if (c->rows == 0 || c->out == 0) {
        backward_empty(r, c);
        return LS_OK;
    }
    if (r->in[EDGE_B].data != NULL) {
        r->k->sum_rows(r->in[EDGE_B].data, r->dy, c->rows, c->out, r->in[EDGE_B].beta, NULL);
    }
    if (r->in[EDGE_W].data != NULL && c->in > 0) {
        backward_w(r, c);
    }
    if (r->in[EDGE_X].data != NULL && c->in > 0) {
        backward_x(r, c);
    }
    return LS_OK;
}

static const ls__op linear_op = {
    .name = "linear", .backward = linear_backward, .accumulates = true};

static bool linear_shape(ls__call *call, ls_shape *shape)
{
    const ls__record *x = call->in[EDGE_X], *w = call->in[EDGE_W], *b = call->in[EDGE_B];
    if (x->ndim < 1 || w->ndim != 2 || x->dim[x->ndim - 1] != w->dim[1]) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "x %s with weight %s: the last dimension of x must equal the last of "
                            "the weight [out,in]",
                            ls__record_print(x).text, ls__record_print(w).text);
        return false;
    }
    if (b != NULL && (b->ndim != 1 || b->dim[0] != w->dim[0])) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "bias %s with weight %s: the bias must be [%lld], one for each output",
                            ls__record_print(b).text, ls__record_print(w).text,
                            (long long)w->dim[0]);
        return false;
    }
    *shape = ls__record_shape(x);
    shape->dim[shape->ndim - 1] = w->dim[0];
    return true;
}

static void forward(const ls__call *call, const linear_context *c, const ls__dense *x,
                    const ls__dense *w, const ls__dense *b, ls__record *out)
{
    float *to = (float *)(void *)ls__record_data(out);
    ls__gemm g = {.trans_b = true,
                  .m = c->rows,
                  .n = c->out,
                  .k = c->in,
                  .a = x->data,
                  .lda = c->in,
                  .b = w->data,
                  .ldb = c->in,
                  .c = to,
                  .ldc = c->out};
    if (out->numel == 0) {
        return;
    }
    if (c->in > 0) {
        call->k->gemm(&g, NULL);
    } else {
        call->k->fill(to, out->numel, 0.0f, NULL);
    }
    if (b->data != NULL) {
        call->k->add_rows(to, b->data, c->rows, c->out, NULL);
    }
}

ls_tensor *ls_linear(ls_tensor *x, ls_tensor *weight, ls_tensor *bias)
{
    ls__call call;
    ls_shape shape;
    if (!ls__call_begin_optional(&call, "linear", 3, (ls_tensor *[]){x, weight, bias},
                                 1u << EDGE_B) ||
        !ls__call_float32(&call) || !linear_shape(&call, &shape)) {
        return call.failed;
    }
    const ls__record *w = call.in[EDGE_W];
    linear_context c = {.in = w->dim[1], .out = w->dim[0]};
    c.rows = ls__shape_product(call.in[EDGE_X], 0, call.in[EDGE_X]->ndim - 1);
    ls__dense dx = ls__call_dense(&call, EDGE_X), dw = ls__call_dense(&call, EDGE_W);
    ls__dense db = ls__call_dense(&call, EDGE_B);
    ls__record *out = ls__call_output(&call, shape, LS_FLOAT32);
    if (out != NULL) {
        forward(&call, &c, &dx, &dw, &db, out);
    }
    ls__node *node = ls__call_record(&call, &linear_op, out, sizeof c);
    if (node != NULL) {
        *(linear_context *)node->context = c;
        ls__node_save(node->edge[EDGE_W].to != NULL ? node : NULL, SAVED_X, &dx);
        ls__node_save(node->edge[EDGE_X].to != NULL ? node : NULL, SAVED_W, &dw);
    }
    ls__dense_drop(&dx);
    ls__dense_drop(&dw);
    ls__dense_drop(&db);
    return ls__call_finish(&call, out);
}
