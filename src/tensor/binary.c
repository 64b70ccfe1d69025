/* Arithmetic of two tensors that broadcast, and its gradients.
 *
 * The gradient of an operand that was repeated is the sum over its repetitions: dy (times a local
 * derivative) is first computed in the output's shape, then summed down to the operand's. */
#include <math.h>
#include <string.h>

#include "tensor/op.h"

enum { SAVED_A, SAVED_B };

typedef struct binary_context {
    ls__binary op;
    ls_shape out;
    struct {
        ls_shape shape;      /* of the operand, ones put before: as many dims as the output */
        ls__strided strides; /* of its row-major elements, 0 where it repeats */
        int64_t numel;
    } in[2];
} binary_context;

static ls__strided dense_strides(ls_shape shape)
{
    ls__strided out = {{0}};
    int64_t stride = 1;
    for (int d = shape.ndim - 1; d >= 0; d--) {
        out.stride[d] = shape.dim[d] == 1 ? 0 : stride;
        stride *= shape.dim[d];
    }
    return out;
}

/* to = factor * (from summed down to operand i) + beta to. A scratch of the operand's size is
 * needed when factor is not 1. */
static ls_status sum_down(ls__rule *r, int i, const float *from, float factor)
{
    const binary_context *c = r->node->context;
    const ls__gradient *to = &r->in[i];
    uint8_t keep[LS_DIMS_MAX];
    for (int d = 0; d < c->out.ndim; d++) {
        keep[d] = c->in[i].shape.dim[d] == c->out.dim[d];
    }
    if (c->in[i].numel == r->node->numel) {
        r->k->axpby(to->data, from, r->node->numel, factor, to->beta, NULL);
        return LS_OK;
    }
    if (factor == 1.0f) {
        r->k->sum_dims(to->data, from, c->out.ndim, c->out.dim, keep, to->beta, NULL);
        return LS_OK;
    }
    ls__storage *sum = ls__storage_new(r->tensors, (size_t)c->in[i].numel * sizeof(float));
    if (sum == NULL) {
        return ls__self.status;
    }
    r->k->sum_dims(sum->data, from, c->out.ndim, c->out.dim, keep, 0.0f, NULL);
    r->k->axpby(to->data, sum->data, c->in[i].numel, factor, to->beta, NULL);
    ls__storage_unref(sum);
    return LS_OK;
}

static void times(ls__rule *r, ls__binary op, float *out, const float *dense, int i)
{
    const binary_context *c = r->node->context;
    r->k->binary(op, out, dense, dense_strides(c->out), r->saved[i], c->in[i].strides, c->out.ndim,
                 c->out.dim, NULL);
}

/* d(ab)/da = b; d(a/b)/da = 1/b; d(a/b)/db = -(a/b)/b, computed as -dy a / b / b. */
static ls_status product_backward_one(ls__rule *r, int i, float *scratch)
{
    const binary_context *c = r->node->context;
    bool divides = c->op == LS__BINARY_DIV;
    times(r, divides ? LS__BINARY_DIV : LS__BINARY_MUL, scratch, r->dy, divides ? SAVED_B : 1 - i);
    if (divides && i == 1) {
        times(r, LS__BINARY_MUL, scratch, scratch, SAVED_A);
        times(r, LS__BINARY_DIV, scratch, scratch, SAVED_B);
        return sum_down(r, i, scratch, -1.0f);
    }
    return sum_down(r, i, scratch, 1.0f);
}

static ls_status product_backward(ls__rule *r)
{
    ls__storage *scratch = ls__storage_new(r->tensors, (size_t)r->node->numel * sizeof(float));
    if (scratch == NULL) {
        return ls__self.status;
    }
    ls_status status = LS_OK;
    for (int i = 0; i < 2 && status == LS_OK; i++) {
        if (r->in[i].data != NULL) {
            status = product_backward_one(r, i, scratch->data);
        }
    }
    ls__storage_unref(scratch);
    return status;
}

static ls_status sum_backward(ls__rule *r)
{
    const binary_context *c = r->node->context;
    if (r->in[0].data != NULL) {
        LS_TRY(sum_down(r, 0, r->dy, 1.0f));
    }
    return r->in[1].data == NULL ? LS_OK
                                 : sum_down(r, 1, r->dy, c->op == LS__BINARY_SUB ? -1.0f : 1.0f);
}

/* [passes]: bit 0: the first operand does not repeat, so its gradient is dy itself; bit 1: the
 * second (additions only). */
#define SUM(text, mask)                                                                            \
    {                                                                                              \
        .name = (text), .backward = sum_backward, .passes = (mask), .accumulates = true            \
    }
static const ls__op add_ops[4] = {SUM("add", 0), SUM("add", 1), SUM("add", 2), SUM("add", 3)};
static const ls__op sub_ops[2] = {SUM("sub", 0), SUM("sub", 1)};
#undef SUM
static const ls__op mul_op = {.name = "mul", .backward = product_backward, .accumulates = true};
static const ls__op div_op = {.name = "div", .backward = product_backward, .accumulates = true};

static const ls__op *op_for(ls__binary op, unsigned whole)
{
    switch (op) {
    case LS__BINARY_ADD:
        return &add_ops[whole];
    case LS__BINARY_SUB:
        return &sub_ops[whole & 1];
    case LS__BINARY_MUL:
        return &mul_op;
    default:
        return &div_op;
    }
}

static void context_fill(binary_context *c, ls__binary op, const ls__record *out,
                         const ls__call *call)
{
    c->op = op;
    c->out = ls__record_shape(out);
    for (int i = 0; i < 2; i++) {
        const ls__record *in = call->in[i];
        c->in[i].numel = in->numel;
        c->in[i].shape.ndim = c->out.ndim;
        for (int d = 0; d < c->out.ndim; d++) {
            int from = d - (c->out.ndim - in->ndim);
            c->in[i].shape.dim[d] = from < 0 ? 1 : in->dim[from];
        }
        c->in[i].strides = dense_strides(c->in[i].shape);
    }
}

static void save_operands(ls__call *call, ls__node *node, ls__binary op)
{
    for (int i = 0; i < 2; i++) {
        bool needed = op == LS__BINARY_MUL ? node->edge[1 - i].to != NULL
                                           : i == SAVED_B || node->edge[1].to != NULL;
        if (needed) {
            ls__dense dense = ls__call_dense(call, i);
            ls__node_save(node, i, &dense);
            ls__dense_drop(&dense);
        }
    }
}

/* A sum of two whole operands of which one or both are bfloat16: no copies, and its gradient is dy
 * itself, in the type of each (the engine's pass_on). */
static bool adds_halves(const ls__call *call, ls__binary op)
{
    const ls__record *x = call->in[0], *y = call->in[1];
    bool floats = (x->dtype == LS_FLOAT32 || x->dtype == LS_BFLOAT16) &&
                  (y->dtype == LS_FLOAT32 || y->dtype == LS_BFLOAT16);
    return op == LS__BINARY_ADD && floats && x->dtype + y->dtype != 2 * LS_FLOAT32 &&
           ls__shape_equal(x, y) && ls__record_contiguous(x) && ls__record_contiguous(y);
}

static ls__real real_of(const ls__record *record)
{
    return (ls__real){.at = ls__record_data(record), .half = record->dtype == LS_BFLOAT16};
}

static ls_tensor *add_halves(ls__call *call)
{
    const ls__record *x = call->in[0], *y = call->in[1];
    bool narrow = x->dtype == LS_BFLOAT16 && y->dtype == LS_BFLOAT16;
    ls__record *out = ls__call_output(call, ls__record_shape(x), narrow ? LS_BFLOAT16 : LS_FLOAT32);
    if (out != NULL) {
        call->k->binary_bf16(LS__BINARY_ADD, real_of(out), real_of(x), real_of(y), out->numel,
                             NULL);
    }
    (void)ls__call_record(call, &add_ops[3], out, 0);
    return ls__call_finish(call, out);
}

static ls_tensor *binary(const char *name, ls__binary op, ls_tensor *a, ls_tensor *b)
{
    ls__call call;
    if (!ls__call_begin(&call, name, 2, (ls_tensor *[]){a, b})) {
        return call.failed;
    }
    if (adds_halves(&call, op)) {
        return add_halves(&call);
    }
    if (!ls__call_float32(&call)) {
        return call.failed;
    }
    ls__call_as_stored(&call);
    const ls__record *x = call.in[0], *y = call.in[1];
    ls_shape shape;
    if (!ls__shape_broadcast(ls__record_shape(x), ls__record_shape(y), &shape)) {
        return ls__call_fail(&call, LS_ERR_INVALID,
                             "%s with %s: shapes align at the right and every pair of sizes must "
                             "be equal or contain a 1; ls_reshape one of them",
                             ls__record_print(x).text, ls__record_print(y).text);
    }
    ls__record *out = ls__call_output(&call, shape, LS_FLOAT32);
    if (out != NULL && out->numel > 0) {
        call.k->binary(op, (float *)(void *)ls__record_data(out),
                       (const float *)(void *)ls__record_data(x), ls__shape_expand(x, shape),
                       (const float *)(void *)ls__record_data(y), ls__shape_expand(y, shape),
                       shape.ndim, shape.dim, NULL);
    }
    unsigned whole =
        out == NULL ? 0 : (x->numel == out->numel ? 1u : 0u) | (y->numel == out->numel ? 2u : 0u);
    ls__node *node = ls__call_record(&call, op_for(op, whole), out, sizeof(binary_context));
    if (node != NULL) {
        context_fill(node->context, op, out, &call);
        if (op == LS__BINARY_MUL || op == LS__BINARY_DIV) {
            save_operands(&call, node, op);
        }
    }
    return ls__call_finish(&call, out);
}

ls_tensor *ls_add(ls_tensor *a, ls_tensor *b)
{
    return binary("add", LS__BINARY_ADD, a, b);
}

ls_tensor *ls_sub(ls_tensor *a, ls_tensor *b)
{
    return binary("sub", LS__BINARY_SUB, a, b);
}

ls_tensor *ls_mul(ls_tensor *a, ls_tensor *b)
{
    return binary("mul", LS__BINARY_MUL, a, b);
}

ls_tensor *ls_div(ls_tensor *a, ls_tensor *b)
{
    return binary("div", LS__BINARY_DIV, a, b);
}
