/* SPDX-License-Identifier: Apache-2.0 */
/* One of two by a condition; the three broadcast: y = c ? a : b.
 *
 * The gradient of an operand is dy where it was chosen and 0 elsewhere, summed over its
 * repetitions. The condition, of bool, gets no gradient; it is the only operand that backward
 * reads. */
#include <string.h>

#include <lockstep/ops.h>

#include "tensor/op.h"

enum { SAVED_CONDITION };
enum { EDGE_CONDITION, EDGE_A, EDGE_B };

typedef struct where_context {
    ls_shape out;                 /* the shape that all three broadcast to */
    ls__strided condition;        /* of its row-major elements, 0 where it repeats */
    uint8_t keep[3][LS_DIMS_MAX]; /* dims in which an operand does not repeat */
} where_context;

/* Strides of row-major elements of `in`'s shape, whatever its own strides are, seen as `shape`:
 * 0 where they repeat. */
static ls__strided dense_strides(const ls__record *in, ls_shape shape)
{
    ls__record dense = *in;
    int64_t stride = 1;
    for (int d = in->ndim - 1; d >= 0; d--) {
        dense.stride[d] = stride;
        stride *= in->dim[d];
    }
    return ls__shape_expand(&dense, shape);
}

/* For each operand: dy where it was chosen and zeros elsewhere, in memory of the output's shape,
 * then summed down over its repetitions. A single zero with strides of 0 stands for the other
 * operand. */
static ls_status where_backward(ls__tensor_rule *r)
{
    const where_context *c = r->node->context;
    const ls__strided nowhere = {{0}};
    ls__record out = {.ndim = (uint8_t)c->out.ndim};
    memcpy(out.dim, c->out.dim, sizeof out.dim);
    ls__strided dense = dense_strides(&out, c->out);
    ls__storage *masked = ls__storage_new(r->on, (size_t)r->node->numel * sizeof(float));
    ls__storage *zero = masked != NULL ? ls__storage_new(r->on, sizeof(float)) : NULL;
    if (zero == NULL) {
        ls__storage_unref(masked);
        return ls__self.status;
    }
    r->k->zero(zero->data, sizeof(float), r->stream);
    for (int i = EDGE_A; i <= EDGE_B; i++) {
        if (r->in[i].data == NULL) {
            continue;
        }
        r->k->where(masked->data, r->saved[SAVED_CONDITION], c->condition,
                    i == EDGE_A ? r->dy : zero->data, i == EDGE_A ? dense : nowhere,
                    i == EDGE_A ? zero->data : r->dy, i == EDGE_A ? nowhere : dense, c->out.ndim,
                    c->out.dim, r->stream);
        r->k->sum_dims(r->in[i].data, masked->data, c->out.ndim, c->out.dim, c->keep[i],
                       r->in[i].beta, r->stream);
    }
    ls__storage_unref(zero);
    ls__storage_unref(masked);
    return LS_OK;
}

static const ls__op where_op = {.name = "where", .backward = where_backward, .accumulates = true};

/* condition of bool, a and b float32 by now. False with call->failed set. */
static bool where_types(ls__call *call)
{
    const ls__record *c = call->in[EDGE_CONDITION];
    const ls__record *a = call->in[EDGE_A], *b = call->in[EDGE_B];
    if (c->dtype == LS_BOOL && a->dtype == LS_FLOAT32 && b->dtype == LS_FLOAT32) {
        return true;
    }
    (void)ls__call_fail(call, LS_ERR_INVALID,
                        "condition %s of %s, a of %s, b of %s; the condition must be bool, a and b "
                        "float32 or bfloat16: convert with ls_cast",
                        ls__record_print(c).text, ls_dtype_name((ls_dtype)c->dtype),
                        ls_dtype_name((ls_dtype)a->dtype), ls_dtype_name((ls_dtype)b->dtype));
    return false;
}

/* *shape is what all three broadcast to. False with call->failed set. */
static bool where_shape(ls__call *call, ls_shape *shape)
{
    ls_shape both;
    const ls__record *c = call->in[EDGE_CONDITION];
    const ls__record *a = call->in[EDGE_A], *b = call->in[EDGE_B];
    if (ls__shape_broadcast(ls__record_shape(a), ls__record_shape(b), &both) &&
        ls__shape_broadcast(both, ls__record_shape(c), shape)) {
        return true;
    }
    (void)ls__call_fail(call, LS_ERR_INVALID,
                        "condition %s, a %s, b %s: shapes align at the right and all sizes above "
                        "each other must be equal or 1; ls_reshape one of them",
                        ls__record_print(c).text, ls__record_print(a).text,
                        ls__record_print(b).text);
    return false;
}

/* keep says for each operand which dimensions its gradient has; the others are summed. */
static void context_fill(where_context *c, const ls__call *call, ls_shape shape)
{
    c->out = shape;
    c->condition = dense_strides(call->in[EDGE_CONDITION], shape);
    for (int i = EDGE_A; i <= EDGE_B; i++) {
        const ls__record *in = call->in[i];
        for (int d = 0; d < shape.ndim; d++) {
            int from = d - (shape.ndim - in->ndim);
            c->keep[i][d] = from >= 0 && in->dim[from] == shape.dim[d];
        }
    }
}

/* As torch.where. Backward needs only the condition, which must be bool; a and b are of a float
 * type. */
ls_tensor *ls_where(ls_tensor *condition, ls_tensor *a, ls_tensor *b)
{
    ls__call call;
    ls_shape shape;
    if (!ls__call_begin(&call, "where", 3, (ls_tensor *[]){condition, a, b}) ||
        !ls__call_floats(&call, 1u << EDGE_A | 1u << EDGE_B) || !where_types(&call) ||
        !where_shape(&call, &shape)) {
        return call.failed;
    }
    const ls__record *x = call.in[EDGE_A], *y = call.in[EDGE_B];
    ls__dense c = ls__call_dense(&call, EDGE_CONDITION);
    ls__record *out = ls__call_output(&call, shape, LS_FLOAT32);
    if (out != NULL && out->numel > 0) {
        call.k->where(ls__record_floats(out), c.data, dense_strides(call.in[EDGE_CONDITION], shape),
                      ls__record_floats(x), ls__shape_expand(x, shape), ls__record_floats(y),
                      ls__shape_expand(y, shape), shape.ndim, shape.dim, call.stream);
    }
    ls__tensor_node *node = ls__call_record(&call, &where_op, out, sizeof(where_context));
    if (node != NULL) {
        context_fill(node->context, &call, shape);
        ls__node_save(node, SAVED_CONDITION, &c);
    }
    ls__dense_drop(&c);
    call.follows = LS__ELEMENTWISE(NOT);
    return ls__call_finish(&call, out);
}
