/* y = x W^T + b over all leading dimensions at once. dW and db go straight to where the parameters'
 * gradients live (a bucket): no temporary.
 *
 * Among bfloat16 tensors, and under autocast, the products are of bfloat16 matrices. Autocast's
 * casts are no nodes of the graph: this rule reads the rounded x and W and writes the gradients in
 * the types of the tensors themselves, so that of a float32 weight is not rounded on the way. */
#include "tensor/half.h"

enum { SAVED_X, SAVED_W };
enum { EDGE_X, EDGE_W, EDGE_B };

typedef struct linear_context {
    int64_t rows, in, out;
    bool half; /* x, W and dY are bfloat16 to the products */
} linear_context;

static const ls__bfloat16 *dy_half(const ls__rule *r)
{
    return (const ls__bfloat16 *)(const void *)r->dy;
}

/* Into a gradient of either type. */
static ls_status product(ls__rule *r, const ls__gradient *to, ls__gemm_bf16 *g)
{
    g->c = to->data;
    g->half = to->dtype == LS_BFLOAT16;
    g->beta = to->beta;
    g->batch = 1;
    return ls__gemm_half(r->tensors, r->k, g);
}

static ls_status backward_x(ls__rule *r, const linear_context *c)
{
    const ls__gradient *dx = &r->in[EDGE_X];
    if (c->half) {
        return product(r, dx,
                       &(ls__gemm_bf16){.m = c->rows, /* dX = dY W */
                                        .n = c->in,
                                        .k = c->out,
                                        .a = dy_half(r),
                                        .lda = c->out,
                                        .b = r->saved[SAVED_W],
                                        .ldb = c->in,
                                        .ldc = c->in});
    }
    ls__gemm g = {.m = c->rows,
                  .n = c->in,
                  .k = c->out,
                  .a = r->dy,
                  .lda = c->out,
                  .b = r->saved[SAVED_W],
                  .ldb = c->in,
                  .c = dx->data,
                  .ldc = c->in,
                  .beta = dx->beta};
    r->k->gemm(&g, NULL);
    return LS_OK;
}

static ls_status backward_w(ls__rule *r, const linear_context *c)
{
    const ls__gradient *dw = &r->in[EDGE_W];
    if (c->half) {
        return product(r, dw,
                       &(ls__gemm_bf16){.trans_a = true, /* dW = dY^T X */
                                        .m = c->out,
                                        .n = c->in,
                                        .k = c->rows,
                                        .a = dy_half(r),
                                        .lda = c->out,
                                        .b = r->saved[SAVED_X],
                                        .ldb = c->in,
                                        .ldc = c->in});
    }
    ls__gemm g = {.trans_a = true,
                  .m = c->out,
                  .n = c->in,
                  .k = c->rows,
                  .a = r->dy,
                  .lda = c->out,
                  .b = r->saved[SAVED_X],
                  .ldb = c->in,
                  .c = dw->data,
                  .ldc = c->in,
                  .beta = dw->beta};
    r->k->gemm(&g, NULL);
    return LS_OK;
}

/* db of bfloat16 rows, summed in float32. */
static ls_status backward_b_half(ls__rule *r, const linear_context *c)
{
    const ls__gradient *db = &r->in[EDGE_B];
    if (db->dtype == LS_FLOAT32) {
        r->k->sum_rows_bf16(db->data, dy_half(r), c->rows, c->out, db->beta, NULL);
        return LS_OK;
    }
    ls__storage *sum = ls__storage_new(r->tensors, (size_t)c->out * sizeof(float));
    if (sum == NULL) {
        return ls__self.status;
    }
    r->k->sum_rows_bf16(sum->data, dy_half(r), c->rows, c->out, 0.0f, NULL);
    ls__cast_gradient(r->k, db->data, LS_BFLOAT16, sum->data, c->out, db->beta);
    ls__storage_unref(sum);
    return LS_OK;
}

static ls_status backward_b(ls__rule *r, const linear_context *c)
{
    if (c->half) {
        return backward_b_half(r, c);
    }
    r->k->sum_rows(r->in[EDGE_B].data, r->dy, c->rows, c->out, r->in[EDGE_B].beta, NULL);
    return LS_OK;
}

/* Sums over nothing: kernels need not know. */
static void backward_empty(ls__rule *r, const linear_context *c)
{
    const int64_t numel[] = {c->rows * c->in, c->out * c->in, c->out};
    for (int i = 0; i < 3; i++) {
        if (r->in[i].data != NULL && r->in[i].beta == 0.0f && numel[i] > 0) {
            ls__fill_zero(r->k, r->in[i].data, r->in[i].dtype, numel[i]);
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
        LS_TRY(backward_b(r, c));
    }
    if (r->in[EDGE_W].data != NULL && c->in > 0) {
        LS_TRY(backward_w(r, c));
    }
    if (r->in[EDGE_X].data != NULL && c->in > 0) {
        LS_TRY(backward_x(r, c));
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

static void forward_half(ls__call *call, const linear_context *c, const ls__dense *x,
                         const ls__dense *w, const ls__dense *b, ls__record *out)
{
    ls__gemm_bf16 g = {.trans_b = true,
                       .m = c->rows,
                       .n = c->out,
                       .k = c->in,
                       .a = x->data,
                       .lda = c->in,
                       .b = w->data,
                       .ldb = c->in,
                       .c = ls__record_data(out),
                       .ldc = c->out,
                       .half = true,
                       .bias = b->data,
                       .batch = 1};
    if (ls__gemm_half(call->tensors, call->k, &g) != LS_OK) {
        call->failed = ls__poison(call->tensors);
    }
}

/* The operands as the products read them. */
typedef struct operands {
    ls__dense x, w, b;
} operands;

static ls__record *computed(ls__call *call, const linear_context *c, ls_shape shape,
                            const operands *o)
{
    ls__record *out = ls__call_output(call, shape, c->half ? LS_BFLOAT16 : LS_FLOAT32);
    if (out != NULL && c->half) {
        forward_half(call, c, &o->x, &o->w, &o->b, out);
    } else if (out != NULL) {
        forward(call, c, &o->x, &o->w, &o->b, out);
    }
    return out;
}

ls_tensor *ls_linear(ls_tensor *x, ls_tensor *weight, ls_tensor *bias)
{
    ls__call call;
    ls_shape shape;
    if (!ls__call_begin_optional(&call, "linear", 3, (ls_tensor *[]){x, weight, bias},
                                 1u << EDGE_B)) {
        return call.failed;
    }
    linear_context c = {.half = ls__call_is_half(&call)};
    if ((!c.half && !ls__call_float32(&call)) || !linear_shape(&call, &shape)) {
        return call.failed;
    }
    c.in = call.in[EDGE_W]->dim[1];
    c.out = call.in[EDGE_W]->dim[0];
    c.rows = ls__shape_product(call.in[EDGE_X], 0, call.in[EDGE_X]->ndim - 1);
    operands o = {.x = c.half ? ls__call_half(&call, EDGE_X) : ls__call_dense(&call, EDGE_X),
                  .w = c.half ? ls__call_half(&call, EDGE_W) : ls__call_dense(&call, EDGE_W),
                  .b = ls__call_full(&call, EDGE_B)};
    ls__record *out = computed(&call, &c, shape, &o);
    ls__node *node = ls__call_record(&call, &linear_op, out, sizeof c);
    if (node != NULL) {
        *(linear_context *)node->context = c;
        ls__node_save(node->edge[EDGE_W].to != NULL ? node : NULL, SAVED_X, &o.x);
        ls__node_save(node->edge[EDGE_X].to != NULL ? node : NULL, SAVED_W, &o.w);
    }
    ls__dense_drop(&o.x);
    ls__dense_drop(&o.w);
    ls__dense_drop(&o.b);
    return ls__call_finish(&call, out);
}
