/* SPDX-License-Identifier: Apache-2.0 */
/* Changing the element type. float32 and bfloat16 carry gradients, so a cast between them is an
 * operation like others, whose gradient is the cast back; a cast to or from another type leaves
 * the graph.
 *
 * ls__call_cast serves other operations, too: the frame widens bfloat16 operands and narrows
 * results with it (op.h, Note [bfloat16]). float32 to bfloat16 rounds to nearest even; the rules
 * of all other pairs stand in convert.h. */
#include "base/assert.h"
#include "tensor/convert.h"
#include "tensor/op.h"

typedef struct cast_context {
    int64_t numel;
} cast_context;

/* to = from + beta to between float32 and bfloat16. The types differ: a gradient of the same
 * type needs no conversion. */
void ls__cast_gradient(ls__pool *on, void *to, ls_dtype to_dtype, const void *from, int64_t numel,
                       float beta)
{
    LS_ASSERT(ls__carries_gradients(to_dtype));
    if (to_dtype == LS_FLOAT32) {
        on->k->bfloat16_widen(to, from, numel, beta, on->stream);
    } else {
        on->k->bfloat16_narrow(to, from, numel, beta, on->stream);
    }
}

/* dx is dy cast back to x's type; where it accumulates the sum is formed in float32 and rounded
 * once. */
static ls_status cast_backward(ls__tensor_rule *r)
{
    const cast_context *c = r->node->context;
    ls__cast_gradient(r->on, r->in[0].data, r->in[0].dtype, r->dy, c->numel, r->in[0].beta);
    return LS_OK;
}

static const ls__op cast_op = {.name = "cast", .backward = cast_backward, .accumulates = true};

/* Any pair of types, one element at a time, by the program. */
static void convert_here(ls__call *call, ls__record *out, const ls__dense *from, ls_dtype dtype)
{
    ls__dense to = ls__call_stage(call, out);
    ls__host_view view;
    if (ls__host_view_open(call->on, from->data, (size_t)out->numel * ls_dtype_size(dtype), &view) <
        0) {
        call->failed = ls__poison(call->tensors);
    } else if (to.data != NULL) {
        ls__convert(to.data, (ls_dtype)out->dtype, view.data, dtype, out->numel);
    }
    ls__host_view_close(&view, false);
    ls__call_staged(call, out, &to);
}

static void convert(ls__call *call, ls__record *out, const ls__dense *from, ls_dtype dtype)
{
    ls_dtype to = (ls_dtype)out->dtype;
    if (ls__carries_gradients(to) && ls__carries_gradients(dtype)) {
        ls__cast_gradient(call->on, ls__record_data(out), to, from->data, out->numel, 0.0f);
    } else {
        convert_here(call, out, from, dtype);
    }
}

/* A call within a call: it has one input and its own failure, which the outer call takes over.
 * An image of channels last is converted as it lies. NULL after a failure. */
ls__record *ls__call_cast(ls__call *call, ls__record *in, ls_dtype dtype)
{
    ls__call one = {.name = call->name,
                    .tensors = call->tensors,
                    .on = call->on,
                    .k = call->k,
                    .stream = call->stream,
                    .in = {in},
                    .count = 1,
                    .grad = in->node != NULL && !ls__self.no_grad};
    ls__call_as_stored(&one);
    ls__dense from = ls__call_dense(&one, 0);
    ls__record *out = ls__call_output(&one, ls__record_shape(one.in[0]), dtype);
    if (out != NULL) {
        convert(&one, out, &from, (ls_dtype)in->dtype);
        if (LS__UNLIKELY(ls__axes_of(call->tensors) != NULL)) {
            out->place = ls__place_word(ls__axes_of(call->tensors), in);
        }
    }
    if (ls__carries_gradients(dtype) && ls__carries_gradients((ls_dtype)in->dtype)) {
        ls__tensor_node *node = ls__call_record(&one, &cast_op, out, sizeof(cast_context));
        if (node != NULL) {
            ((cast_context *)node->context)->numel = out->numel;
        }
    }
    ls__dense_drop(&from);
    if (one.failed != NULL && out != NULL) {
        ls__record_free(one.tensors, out);
        out = NULL;
    }
    if (out != NULL && one.channels_last) {
        ls__record_see_channels_first(out);
    }
    call->failed = one.failed;
    return out;
}

/* A cast to the own type is a view and copies nothing. */
ls_tensor *ls_cast(ls_tensor *t, ls_dtype dtype)
{
    ls__call call;
    if (!ls__call_begin(&call, "cast", 1, &t)) {
        return call.failed;
    }
    ls__record *in = call.in[0];
    if (in->dtype == dtype) {
        call.follows = LS__ELEMENTWISE(FIRST);
        return ls__call_finish(&call, ls__call_view(&call, in));
    }
    call.follows = LS__ELEMENTWISE(FIRST);
    return ls__call_finish(&call, ls__call_cast(&call, in, dtype));
}
