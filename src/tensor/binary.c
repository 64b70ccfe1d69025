/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of two tensors that broadcast, and its gradients.
 *
 *     add  y = a + b    da = dy       db = dy
 *     sub  y = a - b    da = dy       db = -dy
 *     mul  y = a b      da = dy b     db = dy a
 *     div  y = a / b    da = dy / b   db = -dy a / b / b
 *     max, min          dy goes to the operand that was taken, half to each of two equal ones
 *
 * The gradient of an operand that was repeated is the sum over its repetitions: dy (times a
 * local derivative) is first computed in the output's shape, then summed down to the operand's.
 * Such sums run in the order of the sum_dims kernel, whatever the number of threads. */
#include <math.h>
#include <string.h>

#include <lockstep/ops.h>

#include "tensor/integers.h"
#include "tensor/op.h"

enum { SAVED_A, SAVED_B };

typedef struct binary_context { /* the geometry of a call; operands themselves are saved apart */
    ls__binary op;
    ls_shape out; /* the shape that both were broadcast to */
    struct {
        ls_shape shape;      /* of the operand, ones put before: as many dims as the output */
        ls__strided strides; /* of its row-major elements, 0 where it repeats */
        int64_t numel;
    } in[2];
} binary_context;

/* Of row-major elements; 0 along dimensions of 1, which repeat. */
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

/* to = factor * (from summed down to operand i) + beta to, with `from` in the output's shape. An
 * operand that was not repeated needs no sum; a scratch of the operand's size is needed where it
 * was and factor is not 1. */
static ls_status sum_down(ls__tensor_rule *r, int i, const float *from, float factor)
{
    const binary_context *c = r->node->context;
    const ls__gradient *to = &r->in[i];
    uint8_t keep[LS_DIMS_MAX];
    for (int d = 0; d < c->out.ndim; d++) {
        keep[d] = c->in[i].shape.dim[d] == c->out.dim[d];
    }
    if (c->in[i].numel == r->node->numel) {
        r->k->axpby(to->data, from, r->node->numel, factor, to->beta, r->stream);
        return LS_OK;
    }
    if (factor == 1.0f) {
        r->k->sum_dims(to->data, from, c->out.ndim, c->out.dim, keep, to->beta, r->stream);
        return LS_OK;
    }
    ls__storage *sum = ls__storage_new(r->on, (size_t)c->in[i].numel * sizeof(float));
    if (sum == NULL) {
        return ls__self.status;
    }
    r->k->sum_dims(sum->data, from, c->out.ndim, c->out.dim, keep, 0.0f, r->stream);
    r->k->axpby(to->data, sum->data, c->in[i].numel, factor, to->beta, r->stream);
    ls__storage_unref(sum);
    return LS_OK;
}

/* out = op(dense, operand i), the operand repeated as it was in the forward pass. `out` and
 * `dense` have the output's shape and may be the same memory. */
static void times(ls__tensor_rule *r, ls__binary op, float *out, const float *dense, int i)
{
    const binary_context *c = r->node->context;
    r->k->binary(op, out, dense, dense_strides(c->out), r->saved[i], c->in[i].strides, c->out.ndim,
                 c->out.dim, r->stream);
}

/* The gradient of operand i: d(ab)/da = b; d(a/b)/da = 1/b; d(a/b)/db = -(a/b)/b, computed as
 * -dy a / b / b. `scratch` has the output's shape. */
static ls_status product_backward_one(ls__tensor_rule *r, int i, float *scratch)
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

/* The gradients of sums and differences that are not dy itself: of repeated and of subtracted
 * operands. dy for a whole operand is handed on by the engine (`passes`). */
static ls_status sum_backward(ls__tensor_rule *r)
{
    const binary_context *c = r->node->context;
    if (r->in[0].data != NULL) {
        LS_TRY(sum_down(r, 0, r->dy, 1.0f));
    }
    return r->in[1].data == NULL ? LS_OK
                                 : sum_down(r, 1, r->dy, c->op == LS__BINARY_SUB ? -1.0f : 1.0f);
}

/* Of the larger or smaller one: dy goes to the operand that was taken, half of it to each where
 * they are equal (as in PyTorch). */
static ls_status extreme_backward_one(ls__tensor_rule *r, int i, float *scratch)
{
    const binary_context *c = r->node->context;
    const int larger = c->op == LS__BINARY_MAX ? i : 1 - i, other = 1 - larger;
    r->k->binary(LS__BINARY_SHARE, scratch, r->saved[larger], c->in[larger].strides,
                 r->saved[other], c->in[other].strides, c->out.ndim, c->out.dim, r->stream);
    const ls__strided dense = dense_strides(c->out);
    r->k->binary(LS__BINARY_MUL, scratch, scratch, dense, r->dy, dense, c->out.ndim, c->out.dim,
                 r->stream);
    return sum_down(r, i, scratch, 1.0f);
}

/* Their gradient goes to one operand or is shared, so backward needs the values. */
static bool is_extreme(ls__binary op)
{
    return op == LS__BINARY_MAX || op == LS__BINARY_MIN;
}

/* The frame of rules that need the output's shape once more: products, quotients, extremes. */
static ls_status scratch_backward(ls__tensor_rule *r)
{
    const binary_context *c = r->node->context;
    ls__storage *scratch = ls__storage_new(r->on, (size_t)r->node->numel * sizeof(float));
    if (scratch == NULL) {
        return ls__self.status;
    }
    ls_status status = LS_OK;
    for (int i = 0; i < 2 && status == LS_OK; i++) {
        if (r->in[i].data != NULL) {
            status = is_extreme(c->op) ? extreme_backward_one(r, i, scratch->data)
                                       : product_backward_one(r, i, scratch->data);
        }
    }
    ls__storage_unref(scratch);
    return status;
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
#define WITH_SCRATCH(text)                                                                         \
    {                                                                                              \
        .name = (text), .backward = scratch_backward, .accumulates = true                          \
    }
static const ls__op mul_op = WITH_SCRATCH("mul"), div_op = WITH_SCRATCH("div");
static const ls__op maximum_op = WITH_SCRATCH("maximum"), minimum_op = WITH_SCRATCH("minimum");
#undef WITH_SCRATCH

/* Additions and subtractions differ by which operands are whole, because the engine hands on
 * the gradients of those. */
static const ls__op *op_for(ls__binary op, unsigned whole)
{
    switch (op) {
    case LS__BINARY_ADD:
        return &add_ops[whole];
    case LS__BINARY_SUB:
        return &sub_ops[whole & 1];
    case LS__BINARY_MUL:
        return &mul_op;
    case LS__BINARY_MAX:
        return &maximum_op;
    case LS__BINARY_MIN:
        return &minimum_op;
    default:
        return &div_op;
    }
}

/* Fills the geometry that backward needs. The operands' shapes are padded with ones at the left,
 * so that all have as many dimensions as the result. */
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

/* Saves only what a rule will read: the other factor of a product, the divisor, the dividend for
 * the divisor's gradient, both operands of an extreme. */
static void save_operands(ls__call *call, ls__tensor_node *node, ls__binary op)
{
    for (int i = 0; i < 2; i++) {
        const bool needed = op == LS__BINARY_MUL ? node->edge[1 - i].to != NULL
                                                 : i == SAVED_B || node->edge[1].to != NULL;
        if (needed || is_extreme(op)) {
            ls__dense dense = ls__call_dense(call, i);
            ls__node_save(node, i, &dense);
            ls__dense_drop(&dense);
        }
    }
}

/* ---- bfloat16 ----------------------------------------------------------------------------- */

/* Sums and products in which one or both operands are bfloat16 make no copies where the operands
 * lie dense and one is whole: the other is that, too, or repeats over leading dimensions. */

#define HALF_PART_MIN 64 /* elements that repeat: below, a call for each costs more than copies */

typedef struct half_context {
    ls__binary op;
    int64_t numel[2]; /* of the operands */
    ls_dtype dtype[2];
} half_context;

/* An operand or the result in the form of the kernel for mixed types; borrowed from the record. */
static ls__real real_of(const ls__record *record)
{
    return (ls__real){.at = ls__record_data(record), .half = record->dtype == LS_BFLOAT16};
}

/* The same operand, `elements` further. */
static ls__real moved(ls__real x, int64_t elements)
{
    return (ls__real){(char *)x.at + elements * (x.half ? 2 : 4), x.half};
}

/* out = op(a, b), each repeating as often as it must. */
static void apply_halves(ls__pool *on, ls__binary op, ls__real out, ls__real a,
                         const int64_t numel[2], ls__real b, int64_t count)
{
    int64_t part = numel[0] < numel[1] ? numel[0] : numel[1];
    for (int64_t at = 0; at < count; at += part) {
        ls__real x = numel[0] == count ? moved(a, at) : a;
        ls__real y = numel[1] == count ? moved(b, at) : b;
        on->k->binary_bf16(op, moved(out, at), x, y, part, on->stream);
    }
}

/* The gradient of operand i, which repeats along leading dimensions: the sum of `from` over its
 * repetitions, in float32, rounded once where the operand is bfloat16. */
static ls_status sum_repeats(ls__tensor_rule *r, int i, ls__real from)
{
    const half_context *c = r->node->context;
    const ls__gradient *to = &r->in[i];
    int64_t n = c->numel[i], rows = r->node->numel / n;
    ls__storage *sum = ls__storage_new(r->on, (size_t)n * sizeof(float));
    if (sum == NULL) {
        return ls__self.status;
    }
    float *out = to->dtype == LS_FLOAT32 ? to->data : sum->data;
    if (from.half) {
        r->k->sum_rows_bf16(out, from.at, rows, n, 0.0f, r->stream);
    } else {
        r->k->sum_rows(out, from.at, rows, n, 0.0f, r->stream);
    }
    if (to->dtype == LS_BFLOAT16) {
        ls__cast_gradient(r->on, to->data, LS_BFLOAT16, sum->data, n, 0.0f);
    }
    ls__storage_unref(sum);
    return LS_OK;
}

/* The gradient of a repeated factor is summed in float32, so its product with dy is made in
 * float32, too. */
static ls_status half_product_backward(ls__tensor_rule *r, int i, ls__real dy)
{
    const half_context *c = r->node->context;
    const int64_t count = r->node->numel, numel[2] = {count, c->numel[1 - i]};
    ls__real other = {(void *)(uintptr_t)r->saved[1 - i], c->dtype[1 - i] == LS_BFLOAT16};
    if (c->numel[i] == count) {
        ls__real to = {r->in[i].data, r->in[i].dtype == LS_BFLOAT16};
        apply_halves(r->on, LS__BINARY_MUL, to, dy, numel, other, count);
        return LS_OK;
    }
    ls__storage *all = ls__storage_new(r->on, (size_t)count * sizeof(float));
    if (all == NULL) {
        return ls__self.status;
    }
    ls__real to = {all->data, false};
    apply_halves(r->on, LS__BINARY_MUL, to, dy, numel, other, count);
    ls_status status = sum_repeats(r, i, to);
    ls__storage_unref(all);
    return status;
}

/* The frame of sums and products of mixed types. The type of each gradient is that of its
 * operand, not that of the output. */
static ls_status half_backward(ls__tensor_rule *r)
{
    const half_context *c = r->node->context;
    ls__real dy = {(void *)(uintptr_t)r->dy, r->node->dtype == LS_BFLOAT16};
    for (int i = 0; i < 2; i++) {
        if (r->in[i].data != NULL) {
            LS_TRY(c->op == LS__BINARY_MUL ? half_product_backward(r, i, dy)
                                           : sum_repeats(r, i, dy));
        }
    }
    return LS_OK;
}

static const ls__op half_adds[4] = {{.name = "add", .backward = half_backward},
                                    {.name = "add", .backward = half_backward, .passes = 1},
                                    {.name = "add", .backward = half_backward, .passes = 2},
                                    {.name = "add", .backward = half_backward, .passes = 3}};
static const ls__op half_mul = {.name = "mul", .backward = half_backward};

/* Whether x has the last dimensions of `whole`, all but leading ones of 1, so that it repeats as
 * a block. */
static bool is_end_of(const ls__record *x, const ls__record *whole)
{
    int skip = 0;
    while (skip < x->ndim && x->dim[skip] == 1) {
        skip++;
    }
    bool fits = x->ndim <= whole->ndim;
    for (int d = skip; fits && d < x->ndim; d++) {
        fits = x->dim[d] == whole->dim[d + whole->ndim - x->ndim];
    }
    return fits;
}

/* Whether the kernel for mixed types takes this call: a sum or product of which at least one
 * operand is bfloat16, both contiguous, and either alike or one the repeated end of the other.
 * Everything else goes the path of float32 copies. */
static bool takes_halves(const ls__call *call, ls__binary op)
{
    const ls__record *x = call->in[0], *y = call->in[1];
    bool known = op == LS__BINARY_ADD || op == LS__BINARY_MUL;
    if (!known || !ls__carries_gradients((ls_dtype)x->dtype) ||
        !ls__carries_gradients((ls_dtype)y->dtype) || x->dtype + y->dtype == 2 * LS_FLOAT32 ||
        x->numel == 0 || y->numel == 0 || !ls__record_contiguous(x) || !ls__record_contiguous(y)) {
        return false;
    }
    const ls__record *whole = x->numel >= y->numel ? x : y, *part = whole == x ? y : x;
    return ls__shape_equal(x, y) || (part->numel >= HALF_PART_MIN && is_end_of(part, whole));
}

/* The path without copies. The result is bfloat16 only if both operands are; a float32 operand
 * keeps its precision. */
static ls_tensor *binary_halves(ls__call *call, ls__binary op)
{
    const ls__record *x = call->in[0], *y = call->in[1];
    bool narrow = x->dtype == LS_BFLOAT16 && y->dtype == LS_BFLOAT16;
    half_context c = {op, {x->numel, y->numel}, {(ls_dtype)x->dtype, (ls_dtype)y->dtype}};
    ls__record *out = ls__call_output(call, ls__record_shape(x->numel >= y->numel ? x : y),
                                      narrow ? LS_BFLOAT16 : LS_FLOAT32);
    if (out == NULL) {
        return ls__call_finish(call, out);
    }
    apply_halves(call->on, op, real_of(out), real_of(x), c.numel, real_of(y), out->numel);
    unsigned whole = (x->numel == out->numel ? 1u : 0u) | (y->numel == out->numel ? 2u : 0u);
    ls__tensor_node *node =
        ls__call_record(call, op == LS__BINARY_MUL ? &half_mul : &half_adds[whole], out, sizeof c);
    if (node != NULL) {
        *(half_context *)node->context = c;
        if (op == LS__BINARY_MUL) {
            save_operands(call, node, op);
        }
    }
    return ls__call_finish(call, out);
}

static ls__follows follows_of(ls__binary op)
{
    switch (op) {
    case LS__BINARY_ADD:
    case LS__BINARY_SUB:
        return LS__ELEMENTWISE(ALL);
    case LS__BINARY_MUL:
        return LS__ELEMENTWISE(EACH);
    case LS__BINARY_DIV:
        return LS__ELEMENTWISE(FIRST);
    default:
        return LS__ELEMENTWISE(NOT);
    }
}

/* For integers, or -1: their quotient is no integer. */
static int integer_op(ls__binary op)
{
    switch (op) {
    case LS__BINARY_ADD:
        return LS__INTEGER_ADD;
    case LS__BINARY_SUB:
        return LS__INTEGER_SUB;
    case LS__BINARY_MUL:
        return LS__INTEGER_MUL;
    case LS__BINARY_MAX:
        return LS__INTEGER_MAX;
    case LS__BINARY_MIN:
        return LS__INTEGER_MIN;
    default:
        return -1;
    }
}

/* bfloat16 operands that lie well take a shorter path; all others are combined in float32, which
 * the frame narrows again where both were bfloat16. */
static ls_tensor *binary(const char *name, ls__binary op, ls_tensor *a, ls_tensor *b)
{
    ls__call call;
    if (!ls__call_begin(&call, name, 2, (ls_tensor *[]){a, b})) {
        return call.failed;
    }
    call.follows = follows_of(op);
    if (integer_op(op) >= 0 && ls__call_integers(&call)) {
        return ls__integers_combine(&call, (ls__integer_op)integer_op(op));
    }
    if (takes_halves(&call, op)) {
        return binary_halves(&call, op);
    }
    if (!ls__call_float32(&call)) {
        return call.failed;
    }
    ls__call_as_stored(&call);
    const ls__record *x = call.in[0], *y = call.in[1];
    ls_shape shape;
    if (!ls__call_broadcast(&call, &shape)) {
        return call.failed;
    }
    ls__record *out = ls__call_output(&call, shape, LS_FLOAT32);
    if (out != NULL && out->numel > 0) {
        call.k->binary(op, ls__record_floats(out), ls__record_floats(x), ls__shape_expand(x, shape),
                       ls__record_floats(y), ls__shape_expand(y, shape), shape.ndim, shape.dim,
                       call.stream);
    }
    unsigned whole =
        out == NULL ? 0 : (x->numel == out->numel ? 1u : 0u) | (y->numel == out->numel ? 2u : 0u);
    ls__tensor_node *node = ls__call_record(&call, op_for(op, whole), out, sizeof(binary_context));
    if (node != NULL) {
        context_fill(node->context, op, out, &call);
        if (op != LS__BINARY_ADD && op != LS__BINARY_SUB) {
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

ls_tensor *ls_maximum(ls_tensor *a, ls_tensor *b)
{
    return binary("maximum", LS__BINARY_MAX, a, b);
}

ls_tensor *ls_minimum(ls_tensor *a, ls_tensor *b)
{
    return binary("minimum", LS__BINARY_MIN, a, b);
}
