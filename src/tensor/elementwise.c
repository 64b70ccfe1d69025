/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of one tensor, element by element, and their derivatives: y = f(x), dx = dy f'(x).
 * Formulas in kernel/ref/elementwise.c.
 *
 * Four families share a frame each: plain functions (unary), those with a number that is part of
 * the graph's constants (scale, add_scalar), those with two numbers (map), and dropout. Each
 * saves the one operand that its derivative is written in, x or y, and nothing where the
 * derivative needs neither. An image of channels last is read and written in its order of
 * storage, without a copy. */
#include <math.h>

#include <lockstep/ops.h>

#include "tensor/elementwise.h"
#include "tensor/integers.h"
#include "tensor/op.h"
#include "tensor/rng_stream.h"

/* ---- y = f(x) ----------------------------------------------------------------------------- */

/* What is saved: one of the two, see derivative_of_y. */
enum { UNARY_X, UNARY_Y };

typedef struct unary_context {
    ls__unary op;
} unary_context;

/* dx = dy f'(x or y) + beta dx. In bfloat16 where the operation was: both kernels compute in
 * float32 inside. */
static ls_status unary_backward(ls__tensor_rule *r)
{
    const unary_context *context = r->node->context;
    if (r->node->dtype == LS_BFLOAT16) {
        r->k->unary_backward_bf16(context->op, (void *)r->in[0].data, (const void *)r->dy,
                                  r->saved[UNARY_X], r->saved[UNARY_Y], r->node->numel,
                                  r->in[0].beta, r->stream);
        return LS_OK;
    }
    r->k->unary_backward(context->op, r->in[0].data, r->dy, r->saved[UNARY_X], r->saved[UNARY_Y],
                         r->node->numel, r->in[0].beta, r->stream);
    return LS_OK;
}

static const ls__op unary_ops[LS__UNARY_COUNT] = {
#define UNARY(kind, text) [kind] = {.name = (text), .backward = unary_backward, .accumulates = true}
    UNARY(LS__UNARY_NEG, "neg"),        UNARY(LS__UNARY_EXP, "exp"),
    UNARY(LS__UNARY_LOG, "log"),        UNARY(LS__UNARY_SQRT, "sqrt"),
    UNARY(LS__UNARY_TANH, "tanh"),      UNARY(LS__UNARY_SIGMOID, "sigmoid"),
    UNARY(LS__UNARY_RELU, "relu"),      UNARY(LS__UNARY_GELU_ERF, "gelu"),
    UNARY(LS__UNARY_GELU_TANH, "gelu"), UNARY(LS__UNARY_ABS, "abs"),
    UNARY(LS__UNARY_SILU, "silu"),      UNARY(LS__UNARY_SIN, "sin"),
    UNARY(LS__UNARY_COS, "cos"),        UNARY(LS__UNARY_XLOGX, "xlogx"),
#undef UNARY
};

/* Whether f' is written in y = f(x), as exp' = y, or in x: only that one is saved. */
static bool derivative_of_y(ls__unary op)
{
    return op == LS__UNARY_EXP || op == LS__UNARY_SQRT || op == LS__UNARY_TANH ||
           op == LS__UNARY_SIGMOID;
}

/* The frame of all plain functions; bfloat16 goes to a kernel of its own. Saves x or y,
 * whichever the derivative is written in; the negation needs neither. */
static ls_tensor *unary(ls__unary op, ls_tensor *a)
{
    ls__call call;
    if (!ls__call_begin(&call, unary_ops[op].name, 1, &a)) {
        return call.failed;
    }
    const bool half = call.in[0]->dtype == LS_BFLOAT16;
    if (!half && !ls__call_float32(&call)) {
        return call.failed;
    }
    ls__call_as_stored(&call);
    ls__dense x = ls__call_dense(&call, 0);
    ls__record *out =
        ls__call_output(&call, ls__record_shape(call.in[0]), half ? LS_BFLOAT16 : LS_FLOAT32);
    if (out != NULL && half) {
        call.k->unary_bf16(op, (void *)ls__record_data(out), x.data, out->numel, call.stream);
    } else if (out != NULL) {
        call.k->unary(op, ls__record_floats(out), x.data, out->numel, call.stream);
    }
    ls__tensor_node *node = ls__call_record(&call, &unary_ops[op], out, sizeof(unary_context));
    if (node != NULL) {
        ((unary_context *)node->context)->op = op;
        if (derivative_of_y(op)) {
            ls__dense y = ls__dense_of_output(out);
            ls__node_save(node, UNARY_Y, &y);
            ls__dense_drop(&y);
        } else if (op != LS__UNARY_NEG) {
            ls__node_save(node, UNARY_X, &x);
        }
    }
    ls__dense_drop(&x);
    call.follows = op == LS__UNARY_NEG ? LS__ELEMENTWISE(FIRST) : LS__ELEMENTWISE(NOT);
    return ls__call_finish(&call, out);
}

ls_tensor *ls_neg(ls_tensor *a)
{
    return unary(LS__UNARY_NEG, a);
}

ls_tensor *ls_exp(ls_tensor *a)
{
    return unary(LS__UNARY_EXP, a);
}

ls_tensor *ls_log(ls_tensor *a)
{
    return unary(LS__UNARY_LOG, a);
}

ls_tensor *ls_sqrt(ls_tensor *a)
{
    return unary(LS__UNARY_SQRT, a);
}

ls_tensor *ls_tanh(ls_tensor *a)
{
    return unary(LS__UNARY_TANH, a);
}

ls_tensor *ls_sigmoid(ls_tensor *a)
{
    return unary(LS__UNARY_SIGMOID, a);
}

ls_tensor *ls_relu(ls_tensor *a)
{
    return unary(LS__UNARY_RELU, a);
}

/* x Phi(x), or its approximation by tanh. The kind is a user's number, so it is checked before
 * it chooses an operator. */
ls_tensor *ls_gelu(ls_tensor *a, ls_gelu_kind kind)
{
    ls__call call;
    if (kind != LS_GELU_ERF && kind != LS_GELU_TANH) {
        return ls__call_begin(&call, "gelu", 1, &a)
                   ? ls__call_fail(&call, LS_ERR_INVALID,
                                   "kind %d; give LS_GELU_ERF or LS_GELU_TANH", (int)kind)
                   : call.failed;
    }
    return unary(kind == LS_GELU_TANH ? LS__UNARY_GELU_TANH : LS__UNARY_GELU_ERF, a);
}

ls_tensor *ls_abs(ls_tensor *a)
{
    return unary(LS__UNARY_ABS, a);
}

ls_tensor *ls_silu(ls_tensor *a)
{
    return unary(LS__UNARY_SILU, a);
}

ls_tensor *ls_sin(ls_tensor *a)
{
    return unary(LS__UNARY_SIN, a);
}

ls_tensor *ls_cos(ls_tensor *a)
{
    return unary(LS__UNARY_COS, a);
}

/* 0 log 0 is 0 here, the limit: the entropy term of a divergence. */
ls_tensor *ls__xlogx(ls_tensor *a)
{
    return unary(LS__UNARY_XLOGX, a);
}

/* ---- with a number ------------------------------------------------------------------------ */

typedef struct scale_context {
    float factor;
} scale_context;

/* dx = factor dy + beta dx. The factor is a constant of the graph; nothing is saved. */
static ls_status scale_backward(ls__tensor_rule *r)
{
    const scale_context *context = r->node->context;
    r->k->axpby(r->in[0].data, r->dy, r->node->numel, context->factor, r->in[0].beta, r->stream);
    return LS_OK;
}

static const ls__op scale_op = {.name = "scale", .backward = scale_backward, .accumulates = true};

/* y = factor a. Runs in the order of storage, so an image of channels last needs no copy. */
ls_tensor *ls_scale(ls_tensor *a, double factor)
{
    ls__call call;
    if (!ls__call_begin(&call, "scale", 1, &a)) {
        return call.failed;
    }
    call.follows = LS__ELEMENTWISE(FIRST);
    if (ls__call_integers(&call)) {
        return ls__integers_with(&call, LS__INTEGER_MUL, factor);
    }
    if (!ls__call_float32(&call)) {
        return call.failed;
    }
    ls__call_as_stored(&call);
    ls__dense x = ls__call_dense(&call, 0);
    ls__record *out = ls__call_output(&call, ls__record_shape(call.in[0]), LS_FLOAT32);
    if (out != NULL) {
        call.k->axpby(ls__record_floats(out), x.data, out->numel, (float)factor, 0.0f, call.stream);
    }
    ls__tensor_node *node = ls__call_record(&call, &scale_op, out, sizeof(scale_context));
    if (node != NULL) {
        ((scale_context *)node->context)->factor = (float)factor;
    }
    ls__dense_drop(&x);
    return ls__call_finish(&call, out);
}

/* Without a rule: dy is the gradient, and the engine hands it on. */
static const ls__op add_scalar_op = {.name = "add_scalar", .passes = 1};

/* y = a + value; its gradient is that of the output itself. */
ls_tensor *ls_add_scalar(ls_tensor *a, double value)
{
    ls__call call;
    if (!ls__call_begin(&call, "add_scalar", 1, &a)) {
        return call.failed;
    }
    call.follows = LS__ELEMENTWISE(NOT);
    if (ls__call_integers(&call)) {
        return ls__integers_with(&call, LS__INTEGER_ADD, value);
    }
    if (!ls__call_float32(&call)) {
        return call.failed;
    }
    ls__call_as_stored(&call);
    ls__dense x = ls__call_dense(&call, 0);
    ls__record *out = ls__call_output(&call, ls__record_shape(call.in[0]), LS_FLOAT32);
    if (out != NULL) {
        call.k->add_scalar(ls__record_floats(out), x.data, out->numel, (float)value, call.stream);
    }
    (void)ls__call_record(&call, &add_scalar_op, out, 0);
    ls__dense_drop(&x);
    return ls__call_finish(&call, out);
}

/* ---- with two numbers --------------------------------------------------------------------- */

typedef struct map_context {
    ls__map op;
    double arg[2]; /* p and q of ls__map; q is 0 where it has none */
} map_context;

/* dx = dy f'(x; p, q) + beta dx; the derivative is written in x for all of these functions. */
static ls_status map_backward(ls__tensor_rule *r)
{
    const map_context *c = r->node->context;
    r->k->map_backward(c->op, c->arg, r->in[0].data, r->dy, r->saved[UNARY_X], r->node->numel,
                       r->in[0].beta, r->stream);
    return LS_OK;
}

static const ls__op map_ops[LS__MAP_COUNT] = {
    [LS__MAP_POW] = {.name = "pow_scalar", .backward = map_backward, .accumulates = true},
    [LS__MAP_CLAMP] = {.name = "clamp", .backward = map_backward, .accumulates = true},
    [LS__MAP_HUBER] = {.name = "huber_loss", .backward = map_backward, .accumulates = true},
    [LS__MAP_LEAKY] = {.name = "leaky_relu", .backward = map_backward, .accumulates = true},
};

/* The frame of functions with two numbers. A NaN among the numbers is refused: it would make
 * every element NaN without a sign of its cause. */
static ls_tensor *map(ls_tensor *a, map_context c)
{
    ls__call call;
    if (!ls__call_begin(&call, map_ops[c.op].name, 1, &a) || !ls__call_float32(&call)) {
        return call.failed;
    }
    if (isnan(c.arg[0]) || isnan(c.arg[1])) {
        return ls__call_fail(&call, LS_ERR_INVALID,
                             "the argument is not a number; give one (INFINITY: no limit)");
    }
    ls__call_as_stored(&call);
    ls__dense x = ls__call_dense(&call, 0);
    ls__record *out = ls__call_output(&call, ls__record_shape(call.in[0]), LS_FLOAT32);
    if (out != NULL) {
        call.k->map(c.op, c.arg, ls__record_floats(out), x.data, out->numel, call.stream);
    }
    ls__tensor_node *node = ls__call_record(&call, &map_ops[c.op], out, sizeof c);
    if (node != NULL) {
        *(map_context *)node->context = c;
        ls__node_save(node, UNARY_X, &x);
    }
    ls__dense_drop(&x);
    call.follows = LS__ELEMENTWISE(NOT);
    return ls__call_finish(&call, out);
}

/* x^exponent; an exponent of 0 has a gradient of zeros. */
ls_tensor *ls_pow_scalar(ls_tensor *a, double exponent)
{
    return map(a, (map_context){LS__MAP_POW, {exponent, 0.0}});
}

/* min(max(x, low), high); the gradient passes where x lies within the limits, both included. */
ls_tensor *ls_clamp(ls_tensor *a, double low, double high)
{
    return map(a, (map_context){LS__MAP_CLAMP, {low, high}});
}

/* Above 0 the element itself; the gradient at 0 is `slope`, as PyTorch's. */
ls_tensor *ls_leaky_relu(ls_tensor *a, double slope)
{
    return map(a, (map_context){LS__MAP_LEAKY, {slope, 0.0}});
}

/* The terms of the loss, not their mean. */
ls_tensor *ls__huber(ls_tensor *a, double delta)
{
    return map(a, (map_context){LS__MAP_HUBER, {delta, 0.0}});
}

/* ---- dropout ------------------------------------------------------------------------------ */

/* Nothing is saved: backward draws the same numbers again. */
typedef struct dropout_context {
    ls__rng_stream stream; /* element i takes word first + i of it */
    double p;
} dropout_context;

/* out = (kept ? a / (1 - p) : 0) + beta out of `count` elements from `at` on. */
static void drop_from(ls__pool *on, bool half, char *out, const char *a, int64_t at, int64_t count,
                      const ls__drop *d, float beta)
{
    const int64_t byte = at * (int64_t)(half ? sizeof(ls__bfloat16) : sizeof(float));
    if (half) {
        on->k->dropout_bf16((void *)(out + byte), (const void *)(a + byte), count, d, beta,
                            on->stream);
    } else {
        on->k->dropout((void *)(out + byte), (const void *)(a + byte), count, d, beta, on->stream);
    }
}

/* The same of all elements. Forward and backward call it with one stream, so they drop the same
 * elements. A kernel knows two levels of a part; those outside of them are a loop here. */
static void drop(ls__pool *on, bool half, void *out, const void *a, int64_t count,
                 const dropout_context *c, float beta)
{
    const ls__rng_stream *s = &c->stream;
    ls__drop d = {
        .p = c->p, .seed = s->seed, .stream_id = s->id, .first = s->first, .varies = s->varies};
    int64_t block = count;
    if (s->levels > 1) {
        d.run = s->level[0].count;
        d.stride = s->level[1].stride;
        block = d.run * s->level[1].count;
    }
    for (int64_t i = 0; i * block < count; i++) {
        int64_t rest = i;
        d.first = s->first;
        for (int l = 2; l < s->levels; l++) {
            d.first += (uint64_t)(rest % s->level[l].count) * s->level[l].stride;
            rest /= s->level[l].count;
        }
        drop_from(on, half, out, a, i * block, block, &d, beta);
    }
}

/* The same mask as in the forward pass: it depends on the stream and the element, not on later
 * draws. */
static ls_status dropout_backward(ls__tensor_rule *r)
{
    drop(r->on, r->node->dtype == LS_BFLOAT16, r->in[0].data, r->dy, r->node->numel,
         r->node->context, r->in[0].beta);
    return LS_OK;
}

static const ls__op dropout_op = {
    .name = "dropout", .backward = dropout_backward, .accumulates = true};

/* Each element is 0 with probability p, else a / (1 - p). Draws from the runtime's stream for
 * dropout; a recomputed forward replays the same draw. */
ls_tensor *ls_dropout(ls_tensor *a, double p)
{
    ls__call call;
    if (!ls__call_begin(&call, "dropout", 1, &a)) {
        return call.failed;
    }
    const bool half = call.in[0]->dtype == LS_BFLOAT16;
    if (!half && !ls__call_float32(&call)) {
        return call.failed;
    }
    if (!(p >= 0.0 && p <= 1.0)) {
        return ls__call_fail(&call, LS_ERR_INVALID, "p is %g; give a probability from 0 to 1", p);
    }
    const dropout_context c = {
        ls__rng_stream_next(call.tensors->runtime, LS__RNG_DROPOUT, call.in[0], NULL), p};
    ls__dense x = ls__call_dense(&call, 0);
    ls__record *out =
        ls__call_output(&call, ls__record_shape(call.in[0]), half ? LS_BFLOAT16 : LS_FLOAT32);
    if (out != NULL) {
        drop(call.on, half, ls__record_data(out), x.data, out->numel, &c, 0.0f);
    }
    ls__tensor_node *node = ls__call_record(&call, &dropout_op, out, sizeof c);
    if (node != NULL) {
        *(dropout_context *)node->context = c;
    }
    ls__dense_drop(&x);
    call.follows = LS__ELEMENTWISE(NOT);
    return ls__call_finish(&call, out);
}
