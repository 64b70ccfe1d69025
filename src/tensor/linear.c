/* SPDX-License-Identifier: Apache-2.0 */
/* y = f(x W^T + b) over all leading dimensions at once: x [..,in] is a matrix [rows,in], W
 * [out,in], b [out] or NULL, y [..,out], f an activation or none.
 *
 *     z = x W^T + b, y = f(z);  dz = dy f'(z);  dx = dz W;  dW = dz^T x;  db = sum of dz over rows
 *
 * Bias and activation are applied by the product's kernel while its result lies in the cache. z
 * is kept only where f' is written in it (GELU, SiLU); ReLU and tanh are differentiated from y.
 * dW and db go straight to where the parameters' gradients live (a bucket): no temporary.
 *
 * A weight that is the transpose of a matrix [in,out] is read as it lies, and dW written so.
 *
 * Among bfloat16 tensors, and under autocast, the products are of bfloat16 matrices. Autocast's
 * casts are no nodes of the graph: this rule reads the rounded x and W and writes the gradients
 * in the types of the tensors themselves, so that of a float32 weight is not rounded on the way.
 *
 * A weight that ls_module_quantize marked is read in fewer bits; x, sums and y are float32 then. */
#include "tensor/half.h"
#include "tensor/quantize.h"

enum { SAVED_X, SAVED_W, SAVED_Z };
enum { EDGE_X, EDGE_W, EDGE_B };

typedef struct linear_context {
    int64_t rows, in, out; /* the product is [rows,in] x [in,out] */
    bool half;             /* x, W and dY are bfloat16 to the products */
    bool transposed;       /* W lies as [in,out] */
    ls_activation activation;
} linear_context;

/* Each activation: function, name, and whether its derivative is written in the result. */
typedef struct kind {
    ls__unary op;
    ls__op node;
    bool of_result;
} kind;

static const kind kinds[LS_ACTIVATION_TANH + 1];

/* dy has the output's type, which the node knows and the pointer does not. */
static const ls__bfloat16 *dy_half(const ls__tensor_rule *r)
{
    return (const ls__bfloat16 *)(const void *)r->dy;
}

/* Runs a bfloat16 product into a gradient of either type: sums are float32, and one rounding at
 * the end where the gradient is bfloat16. */
static ls_status product(ls__tensor_rule *r, const ls__gradient *to, ls__gemm_bf16 *g)
{
    g->c = to->data;
    g->half = to->dtype == LS_BFLOAT16;
    g->beta = to->beta;
    g->batch = 1;
    return ls__gemm_half(r->on, g);
}

/* dX [rows,in] = dZ W, where r->dy is dZ by now. A transposed weight lies [in,out], so the product
 * transposes the other way. */
static ls_status backward_x(ls__tensor_rule *r, const linear_context *c)
{
    const ls__gradient *dx = &r->in[EDGE_X];
    if (c->half) {
        return product(r, dx,
                       &(ls__gemm_bf16){.trans_b = c->transposed, /* dX = dY W */
                                        .m = c->rows,
                                        .n = c->in,
                                        .k = c->out,
                                        .a = dy_half(r),
                                        .lda = c->out,
                                        .b = r->saved[SAVED_W],
                                        .ldb = c->transposed ? c->out : c->in,
                                        .ldc = c->in});
    }
    ls__gemm g = {.trans_b = c->transposed,
                  .m = c->rows,
                  .n = c->in,
                  .k = c->out,
                  .a = r->dy,
                  .lda = c->out,
                  .b = r->saved[SAVED_W],
                  .ldb = c->transposed ? c->out : c->in,
                  .c = dx->data,
                  .ldc = c->in,
                  .beta = dx->beta};
    r->k->gemm(&g, r->stream);
    return LS_OK;
}

/* dW [out,in] = dZ^T X, or of a transposed weight dW^T [in,out] = X^T dZ; sums run over the
 * rows. */
static ls_status backward_w(ls__tensor_rule *r, const linear_context *c)
{
    const ls__gradient *dw = &r->in[EDGE_W];
    const void *x = r->saved[SAVED_X];
    int64_t m = c->transposed ? c->in : c->out, n = c->transposed ? c->out : c->in;
    if (c->half) {
        return product(r, dw,
                       &(ls__gemm_bf16){.trans_a = true,
                                        .m = m,
                                        .n = n,
                                        .k = c->rows,
                                        .a = c->transposed ? x : dy_half(r),
                                        .lda = m,
                                        .b = c->transposed ? dy_half(r) : x,
                                        .ldb = n,
                                        .ldc = n});
    }
    ls__gemm g = {.trans_a = true,
                  .m = m,
                  .n = n,
                  .k = c->rows,
                  .a = c->transposed ? x : r->dy,
                  .lda = m,
                  .b = c->transposed ? r->dy : x,
                  .ldb = n,
                  .c = dw->data,
                  .ldc = n,
                  .beta = dw->beta};
    r->k->gemm(&g, r->stream);
    return LS_OK;
}

/* ---- bias and activation ------------------------------------------------------------------ */

/* dZ = dY f'(Z), and its column sums db in float32 where wanted, in one pass of the kernel. dz
 * may be dY's memory. */
static ls_status bend(const ls__tensor_rule *r, const linear_context *c, void *dz, float *db,
                      float beta)
{
    const void *z = r->saved[SAVED_Z];
    ls__activation_grad g = {.op = kinds[c->activation].op,
                             .half = c->half,
                             .dz = dz,
                             .dy = r->dy,
                             .x = z,
                             .y = z,
                             .rows = c->rows,
                             .n = c->out,
                             .db = db,
                             .beta = beta};
    ls__storage *work = ls__storage_new(r->on, r->k->activation_backward_workspace(&g));
    if (work == NULL) {
        return ls__self.status;
    }
    g.workspace = work->data;
    r->k->activation_backward(&g, r->stream);
    ls__storage_unref(work);
    return LS_OK;
}

/* db in float32, from dY; and dZ before it, where there is an activation. */
static ls_status sum_dy(const ls__tensor_rule *r, const linear_context *c, void *dz, float *db,
                        float beta)
{
    if (dz != NULL) {
        return bend(r, c, dz, db, beta);
    }
    if (db != NULL && c->half) {
        r->k->sum_rows_bf16(db, dy_half(r), c->rows, c->out, beta, r->stream);
    } else if (db != NULL) {
        r->k->sum_rows(db, r->dy, c->rows, c->out, beta, r->stream);
    }
    return LS_OK;
}

/* db [out], and dZ before it, where there is an activation. A bfloat16 bias has its gradient
 * summed in float32 first. */
static ls_status backward_b(ls__tensor_rule *r, const linear_context *c, void *dz)
{
    const ls__gradient *db = &r->in[EDGE_B];
    if (db->data == NULL || db->dtype == LS_FLOAT32) {
        return sum_dy(r, c, dz, db->data, db->beta);
    }
    ls__storage *sum = ls__storage_new(r->on, (size_t)c->out * sizeof(float));
    if (sum == NULL) {
        return ls__self.status;
    }
    ls_status status = sum_dy(r, c, dz, sum->data, 0.0f);
    if (status == LS_OK) {
        ls__cast_gradient(r->on, db->data, LS_BFLOAT16, sum->data, c->out, db->beta);
    }
    ls__storage_unref(sum);
    return status;
}

/* Without rows or outputs every sum is over nothing: gradients that are not accumulated become
 * zeros. Kernels need not know empty operands. */
static void backward_empty(ls__tensor_rule *r, const linear_context *c)
{
    const int64_t numel[] = {c->rows * c->in, c->out * c->in, c->out};
    for (int i = 0; i < 3; i++) {
        if (r->in[i].data != NULL && r->in[i].beta == 0.0f && numel[i] > 0) {
            ls__fill_zero(r->on, r->in[i].data, r->in[i].dtype, numel[i]);
        }
    }
}

/* Nothing to multiply if there are no inputs: the gradients are then empty. */
static ls_status backward_products(ls__tensor_rule *r, const linear_context *c)
{
    if (r->in[EDGE_W].data != NULL && c->in > 0) {
        LS_TRY(backward_w(r, c));
    }
    if (r->in[EDGE_X].data != NULL && c->in > 0) {
        LS_TRY(backward_x(r, c));
    }
    return LS_OK;
}

/* dZ first, then the three gradients from it. dZ is written over dy where no other rule reads
 * dy, else into memory of this call's own. In two parts, the second reads the dZ of the first. */
static ls_status linear_backward(ls__tensor_rule *r)
{
    const linear_context *c = r->node->context;
    if (c->rows == 0 || c->out == 0) {
        backward_empty(r, c);
        return LS_OK;
    }
    if (c->activation == LS_ACTIVATION_NONE || r->part == LS__PART_WEIGHT) {
        LS_TRY(backward_b(r, c, NULL));
        return backward_products(r, c);
    }
    size_t element = c->half ? sizeof(ls__bfloat16) : sizeof(float);
    ls__storage *own =
        r->dy_is_free ? NULL : ls__storage_new(r->on, (size_t)(c->rows * c->out) * element);
    if (own == NULL && !r->dy_is_free) {
        return ls__self.status;
    }
    void *dz = own != NULL ? own->data : (void *)(uintptr_t)r->dy;
    ls_status status = backward_b(r, c, dz);
    if (status == LS_OK) {
        r->dy = dz;
        status = backward_products(r, c);
    }
    if (r->part == LS__PART_INPUT) {
        r->kept = own; /* NULL: dZ lies over dy */
    } else {
        ls__storage_unref(own);
    }
    return status;
}

#define KIND(number, function, text, result)                                                       \
    [number] = {                                                                                   \
        .op = (function),                                                                          \
        .node = {.name = (text),                                                                   \
                 .backward = linear_backward,                                                      \
                 .accumulates = true,                                                              \
                 .keeps = true,                                                                    \
                 .reads = {LS__READS(1u << SAVED_W), LS__READS(1u << SAVED_X), LS__READS(0)}},     \
        .of_result = (result)}
static const kind kinds[LS_ACTIVATION_TANH + 1] = {
    KIND(LS_ACTIVATION_NONE, LS__UNARY_COUNT, "linear", false),
    KIND(LS_ACTIVATION_RELU, LS__UNARY_RELU, "linear_relu", true),
    KIND(LS_ACTIVATION_GELU, LS__UNARY_GELU_ERF, "linear_gelu", false),
    KIND(LS_ACTIVATION_GELU_TANH, LS__UNARY_GELU_TANH, "linear_gelu", false),
    KIND(LS_ACTIVATION_SILU, LS__UNARY_SILU, "linear_silu", false),
    KIND(LS_ACTIVATION_TANH, LS__UNARY_TANH, "linear_tanh", true),
};
#undef KIND

/* ---- forward ------------------------------------------------------------------------------ */

/* *shape is the output's. False with call->failed set. */
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

/* The operands as the products read them, and their results. */
typedef struct operands {
    ls__dense x, w, b;
    ls__dense z; /* before the activation, where backward will read it; else nothing */
    void *out;
} operands;

/* The activation as the product's kernel takes it: in place, or from z into the result where z
 * is kept. */
static ls__activation then_of(const linear_context *c, const operands *o)
{
    return (ls__activation){.on = c->activation != LS_ACTIVATION_NONE,
                            .op = kinds[c->activation].op,
                            .out = o->z.data != NULL ? o->out : NULL};
}

/* z or y [rows,out] in one product. Bias and activation are part of it; the kernel applies them
 * while C lies in the cache. */
static void forward(const ls__call *call, const linear_context *c, const operands *o)
{
    const ls__gemm g = {.trans_b = !c->transposed,
                        .m = c->rows,
                        .n = c->out,
                        .k = c->in,
                        .a = o->x.data,
                        .lda = c->in,
                        .b = o->w.data,
                        .ldb = c->transposed ? c->out : c->in,
                        .c = o->z.data != NULL ? o->z.data : o->out,
                        .ldc = c->out,
                        .bias = o->b.data,
                        .then = then_of(c, o)};
    call->k->gemm(&g, call->stream);
}

/* As forward, with products of bfloat16 and sums of float32. */
static void forward_half(ls__call *call, const linear_context *c, const operands *o)
{
    ls__gemm_bf16 g = {.trans_b = !c->transposed,
                       .m = c->rows,
                       .n = c->out,
                       .k = c->in,
                       .a = o->x.data,
                       .lda = c->in,
                       .b = o->w.data,
                       .ldb = c->transposed ? c->out : c->in,
                       .c = o->z.data != NULL ? o->z.data : o->out,
                       .ldc = c->out,
                       .half = true,
                       .bias = o->b.data,
                       .then = then_of(c, o),
                       .batch = 1};
    if (ls__gemm_half(call->on, &g) != LS_OK) {
        call->failed = ls__poison(call->tensors);
    }
}

/* The output, computed; NULL or call->failed after a failure. z is kept in o->z only where
 * backward reads it. */
static ls__record *computed(ls__call *call, const linear_context *c, ls_shape shape, operands *o)
{
    ls__record *out = ls__call_output(call, shape, c->half ? LS_BFLOAT16 : LS_FLOAT32);
    if (out == NULL || out->numel == 0) {
        return out;
    }
    o->out = ls__record_data(out);
    if (call->grad && c->activation != LS_ACTIVATION_NONE && !kinds[c->activation].of_result) {
        o->z = ls__call_memory(call, (size_t)out->numel * ls_dtype_size((ls_dtype)out->dtype));
    }
    if (call->failed == NULL && c->half) {
        forward_half(call, c, o);
    } else if (call->failed == NULL) {
        forward(call, c, o);
    }
    return out;
}

/* Makes the node and saves operands. x is kept only for the weight's gradient and w only for
 * x's, since each costs memory until backward. */
static void record(ls__call *call, const linear_context *c, ls__record *out, operands *o)
{
    ls__tensor_node *node = ls__call_record(call, &kinds[c->activation].node, out, sizeof *c);
    if (node == NULL) {
        return;
    }
    *(linear_context *)node->context = *c;
    ls__node_save(node->edge[EDGE_W].to != NULL ? node : NULL, SAVED_X, &o->x);
    ls__node_save(node->edge[EDGE_X].to != NULL ? node : NULL, SAVED_W, &o->w);
    if (kinds[c->activation].of_result) {
        o->z = ls__dense_of_output(out);
    }
    ls__node_save(node, SAVED_Z, &o->z);
}

/* Sees a weight that is a transposed matrix [in,out] as that matrix, in the call only; returns
 * whether it did. A single row or column needs no transposing. */
static bool see_transposed(ls__call *call)
{
    ls__record *w = call->in[EDGE_W];
    if (w->ndim != 2 || w->stride[0] != 1 || w->stride[1] != w->dim[0] || w->dim[0] == 1 ||
        w->dim[1] == 1) {
        return false;
    }
    ls__record *seen = &call->seen[EDGE_W];
    *seen = *w;
    seen->dim[0] = w->dim[1], seen->dim[1] = w->dim[0];
    seen->stride[0] = w->stride[1], seen->stride[1] = w->stride[0];
    call->in[EDGE_W] = seen;
    return true;
}

/* Checks all operands and completes *c; *shape is the output's. The shape is checked before the
 * weight is seen transposed: messages show it as the user gave it. False with call->failed set. */
static bool begin_linear(ls__call *call, linear_context *c, ls_shape *shape)
{
    if ((unsigned)c->activation >= sizeof kinds / sizeof *kinds) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "activation %d; give one of ls_activation, LS_ACTIVATION_NONE to "
                            "LS_ACTIVATION_TANH",
                            (int)c->activation);
        return false;
    }
    c->half = ls__call_is_half(call);
    if ((!c->half && !ls__call_float32(call)) || !linear_shape(call, shape)) {
        return false;
    }
    c->in = call->in[EDGE_W]->dim[1];
    c->out = call->in[EDGE_W]->dim[0];
    c->rows = ls__shape_product(call->in[EDGE_X], 0, call->in[EDGE_X]->ndim - 1);
    c->transposed = see_transposed(call);
    return true;
}

/* The weight is read in fewer bits (quantize.h), so that there is no rule for gradients. */
static ls_tensor *linear_rounded(ls__call *call, const linear_context *c, ls_shape shape)
{
    if (call->grad) {
        return ls__call_fail(call, LS_ERR_STATE,
                             "the weight %s is rounded to %s for inference, and gradients are "
                             "recorded; compute under LS_NO_GRAD, or take the weights as they are: "
                             "ls_module_quantize(module, LS_FLOAT32)",
                             ls__record_print(call->in[EDGE_W]).text,
                             ls_dtype_name(ls__call_rounding(call, EDGE_W)));
    }
    ls__dense x = ls__call_full(call, EDGE_X), b = ls__call_full(call, EDGE_B);
    const ls__rounded w = ls__call_rounded(call, EDGE_W, c->transposed);
    ls__record *out = ls__call_output(call, shape, LS_FLOAT32);
    if (out != NULL && out->numel > 0) {
        const ls__linear_rounded l = {.m = c->rows,
                                      .n = c->out,
                                      .k = c->in,
                                      .x = x.data,
                                      .w = w.w,
                                      .scale = w.scale,
                                      .bias = b.data,
                                      .activates = c->activation != LS_ACTIVATION_NONE,
                                      .op = kinds[c->activation].op,
                                      .y = ls__record_floats(out)};
        call->k->linear_rounded(&l, call->stream);
    }
    ls__dense_drop(&x);
    ls__dense_drop(&b);
    ls__storage_unref(w.storage);
    call->follows = LS__CONTRACTS(LINEAR);
    return ls__call_finish(call, out);
}

/* An unknown activation is reported under the plain name: kinds[] has none for it. */
ls_tensor *ls_linear_activation(ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                                ls_activation activation)
{
    ls__call call;
    ls_shape shape;
    linear_context c = {.activation = activation};
    bool known = (unsigned)activation < sizeof kinds / sizeof *kinds;
    const char *name = known ? kinds[activation].node.name : "linear";
    if (!ls__call_begin_optional(&call, name, 3, (ls_tensor *[]){x, weight, bias}, 1u << EDGE_B) ||
        !begin_linear(&call, &c, &shape)) {
        return call.failed;
    }
    if (ls__call_rounding(&call, EDGE_W) != LS_FLOAT32) {
        return linear_rounded(&call, &c, shape);
    }
    operands o = {.x = c.half ? ls__call_half(&call, EDGE_X) : ls__call_dense(&call, EDGE_X),
                  .w = c.half ? ls__call_half(&call, EDGE_W) : ls__call_dense(&call, EDGE_W),
                  .b = ls__call_full(&call, EDGE_B)};
    ls__record *out = computed(&call, &c, shape, &o);
    record(&call, &c, out, &o);
    ls__dense_drop(&o.x);
    ls__dense_drop(&o.w);
    ls__dense_drop(&o.b);
    ls__dense_drop(&o.z);
    call.follows = LS__CONTRACTS(LINEAR);
    return ls__call_finish(&call, out);
}

/* The form without an activation, as torch.nn.functional.linear. */
ls_tensor *ls_linear(ls_tensor *x, ls_tensor *weight, ls_tensor *bias)
{
    return ls_linear_activation(x, weight, bias, LS_ACTIVATION_NONE);
}
