/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution over images and sequences: shapes here, the work in the kernel.
 *
 *     x [N,C,H,W] (in memory [N,H,W,C]), w [O,C/groups,kh,kw], b [O] -> y [N,O,H',W']
 *     H' = floor((H + 2 padding - dilation (kh - 1) - 1) / stride) + 1, and W' likewise
 *
 * The formulas of y, dx and dw stand in kernel/ref/conv.c; db is the sum of dy over all but the
 * channels. A ReLU may be part of the operation; then backward first cuts dy where y is 0. Among
 * bfloat16 tensors, and under autocast, products are of bfloat16 as linear.c says. A convolution
 * over sequences [N,C,L] is one over images of height 1. */
#include <lockstep/vision.h>

#include "base/assert.h"
#include "base/options.h"
#include "tensor/conv.h"
#include "tensor/half.h"

enum { SAVED_X, SAVED_W, SAVED_Y };
enum { EDGE_X, EDGE_W, EDGE_B };

/* Runs one pass with workspace for its duration. The workspace depends on the plan that the
 * kernel will choose, so it is asked for with the very arguments of the run. */
ls_status ls__conv2d_run(ls__pool *on, const ls__conv2d *c, ls__conv2d_pass pass,
                         ls__conv2d_data *d)
{
    LS_ASSERT(c->batch > 0); /* kernels do not know empty batches */
    d->plans = on->tensors->plans;
    ls__storage *work = ls__storage_new(on, on->k->conv2d_workspace(c, pass, d) + 64);
    if (work == NULL) {
        return ls__self.status;
    }
    d->workspace = work->data;
    on->k->conv2d(c, pass, d, on->stream);
    ls__storage_unref(work);
    return LS_OK;
}

typedef struct conv_context {
    ls__conv2d shape; /* all sizes, strides and paddings */
    bool relu;        /* y went through ReLU and is saved for backward */
    bool half;        /* x, w, y and dy are bfloat16 to the kernels */
} conv_context;

static int64_t pixels_of(const ls__conv2d *c) /* of y, in all images */
{
    return c->batch * c->out_height * c->out_width;
}

/* Without images all gradients are zeros, unless they accumulate; kernels need not know empty
 * batches. */
static void backward_empty(ls__tensor_rule *r, const ls__conv2d *c)
{
    const int64_t numel[] = {0, c->out * (c->in / c->groups) * c->kernel[0] * c->kernel[1], c->out};
    for (int i = 0; i < 3; i++) {
        if (r->in[i].data != NULL && r->in[i].beta == 0.0f && numel[i] > 0) {
            ls__fill_zero(r->on, r->in[i].data, r->in[i].dtype, numel[i]);
        }
    }
}

/* Runs one pass of backward into a gradient of either type; `d` brings the operands. */
static ls_status run_into(ls__tensor_rule *r, const conv_context *context, ls__conv2d_pass pass,
                          const ls__gradient *to, ls__conv2d_data *d)
{
    d->out = to->data;
    d->beta = to->beta;
    d->half = context->half;
    d->half_out = to->dtype == LS_BFLOAT16;
    return ls__conv2d_run(r->on, &context->shape, pass, d);
}

/* db, dw and dx, each where it is wanted; `dy` [N,H',W',O] is r->dy, or the part of it that the
 * ReLU lets pass. */
static ls_status backward(ls__tensor_rule *r, const conv_context *context, const void *dy)
{
    const ls__gradient *dx = &r->in[EDGE_X], *dw = &r->in[EDGE_W], *db = &r->in[EDGE_B];
    const ls__conv2d *c = &context->shape;
    if (db->data != NULL && context->half) {
        LS_TRY(ls__sum_rows_half(r, db, dy, pixels_of(c), c->out));
    } else if (db->data != NULL) {
        r->k->sum_rows(db->data, dy, pixels_of(c), c->out, db->beta, r->stream);
    }
    if (dw->data != NULL) {
        ls__conv2d_data d = {.x = r->saved[SAVED_X], .dy = dy};
        LS_TRY(run_into(r, context, LS__CONV2D_BACKWARD_W, dw, &d));
    }
    if (dx->data != NULL) {
        ls__conv2d_data d = {.w = r->saved[SAVED_W], .dy = dy};
        LS_TRY(run_into(r, context, LS__CONV2D_BACKWARD_X, dx, &d));
    }
    return LS_OK;
}

/* With a ReLU in the same pass the gradient is first cut where the result is 0, into memory of
 * this call's own. */
static ls_status conv2d_backward(ls__tensor_rule *r)
{
    const conv_context *context = r->node->context;
    const ls__conv2d *c = &context->shape;
    if (c->batch == 0) {
        backward_empty(r, c);
        return LS_OK;
    }
    if (!context->relu) {
        return backward(r, context, r->dy);
    }
    int64_t count = pixels_of(c) * c->out;
    size_t bytes = (size_t)count * (context->half ? sizeof(ls__bfloat16) : sizeof(float));
    ls__storage *cut = ls__storage_new(r->on, bytes);
    if (cut == NULL) {
        return ls__self.status;
    }
    /* y is 0 where its argument was not above 0, so it says as much as that. */
    if (context->half) {
        r->k->unary_backward_bf16(LS__UNARY_RELU, cut->data, (const void *)r->dy, r->saved[SAVED_Y],
                                  NULL, count, 0.0f, r->stream);
    } else {
        r->k->unary_backward(LS__UNARY_RELU, cut->data, r->dy, r->saved[SAVED_Y], NULL, count, 0.0f,
                             r->stream);
    }
    ls_status status = backward(r, context, cut->data);
    ls__storage_unref(cut);
    return status;
}

static const ls__op conv2d_op = {
    .name = "conv2d", .backward = conv2d_backward, .accumulates = true};
static const ls__op conv1d_op = {
    .name = "conv1d", .backward = conv2d_backward, .accumulates = true};

/* ---- shapes ------------------------------------------------------------------------------- */

/* The shape of input i for messages, as its caller gave it: a sequence has no height. */
static ls__shape_text given_shape(const ls__call *call, int i)
{
    ls_shape shape = ls__record_shape(call->in[i]);
    if (call->name == conv1d_op.name) {
        shape.dim[2] = shape.dim[3];
        shape.ndim = 3;
    }
    return ls__shape_print(shape);
}

/* For messages; ls_conv1d runs as an image of height 1, which its user never sees. */
static const char *axis_name(const ls__call *call, int axis)
{
    return call->name == conv1d_op.name ? "length" : axis == 0 ? "height" : "width";
}

/* The upper limits keep later products of sizes within int64. False with call->failed set. */
static bool check_options(ls__call *call, const ls_conv2d_options *o)
{
    for (int i = 0; i < 2; i++) {
        if (o->stride[i] < 1 || o->dilation[i] < 1 || o->padding[i] < 0 ||
            o->stride[i] > LS__CONV_EXTENT_MAX || o->dilation[i] > LS__CONV_EXTENT_MAX ||
            o->padding[i] > LS__CONV_EXTENT_MAX) {
            (void)ls__call_fail(call, LS_ERR_INVALID,
                                "stride %lld, padding %lld, dilation %lld along the %s; give at "
                                "least 1, 0 and 1, and at most %lld",
                                (long long)o->stride[i], (long long)o->padding[i],
                                (long long)o->dilation[i], axis_name(call, i),
                                (long long)LS__CONV_EXTENT_MAX);
            return false;
        }
    }
    return true;
}

/* x [N,C,H,W], weight [O,C/groups,kh,kw], bias [O] or NULL; the groups divide C and O. False
 * with call->failed set. */
static bool check_shapes(ls__call *call, const ls_conv2d_options *o)
{
    const ls__record *x = call->in[EDGE_X], *w = call->in[EDGE_W], *b = call->in[EDGE_B];
    if (x->ndim != 4 || w->ndim != 4) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "x %s with weight %s; x must be [N,C,H,W], the weight "
                            "[O,C/groups,kh,kw]",
                            ls__record_print(x).text, ls__record_print(w).text);
        return false;
    }
    if (o->groups < 1 || w->dim[0] < 1 || w->dim[1] < 1 || w->dim[0] % o->groups != 0 ||
        x->dim[1] % o->groups != 0 || x->dim[1] / o->groups != w->dim[1]) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "x %s with weight %s in %lld groups; the groups must divide the %lld "
                            "channels of x and the %lld outputs, and the weight's second dimension "
                            "must be the channels of a group",
                            given_shape(call, EDGE_X).text, given_shape(call, EDGE_W).text,
                            (long long)o->groups, (long long)x->dim[1], (long long)w->dim[0]);
        return false;
    }
    if (b != NULL && (b->ndim != 1 || b->dim[0] != w->dim[0])) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "bias %s with weight %s: the bias must be [%lld], one for each output",
                            ls__record_print(b).text, given_shape(call, EDGE_W).text,
                            (long long)w->dim[0]);
        return false;
    }
    return true;
}

/* Number of outputs along an axis of `size` inputs, into *out. False with call->failed set when
 * the window does not fit into the padded image. */
static bool outputs(ls__call *call, const ls__conv2d *c, int axis, int64_t size, int64_t *out)
{
    int64_t kernel = c->kernel[axis];
    bool sane =
        kernel >= 1 && kernel <= LS__CONV_EXTENT_MAX && size >= 0 && size <= LS__CONV_EXTENT_MAX;
    int64_t window = sane ? c->dilation[axis] * (kernel - 1) + 1 : 0;
    if (!sane || size + 2 * c->padding[axis] < window) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "x %s with weight %s: a window of %lld elements, %lld apart, does not "
                            "fit into a %s of %lld with padding %lld",
                            given_shape(call, EDGE_X).text, given_shape(call, EDGE_W).text,
                            (long long)kernel, (long long)c->dilation[axis], axis_name(call, axis),
                            (long long)size, (long long)c->padding[axis]);
        return false;
    }
    *out = (size + 2 * c->padding[axis] - window) / c->stride[axis] + 1;
    return true;
}

/* False with call->failed set; otherwise *c is complete, output size included. */
static bool describe(ls__call *call, const ls_conv2d_options *o, ls__conv2d *c)
{
    if (!check_options(call, o) || !check_shapes(call, o)) {
        return false;
    }
    const ls__record *x = call->in[EDGE_X], *w = call->in[EDGE_W];
    *c = (ls__conv2d){.batch = x->dim[0],
                      .in = x->dim[1],
                      .height = x->dim[2],
                      .width = x->dim[3],
                      .groups = o->groups,
                      .out = w->dim[0]};
    for (int i = 0; i < 2; i++) {
        c->kernel[i] = w->dim[2 + i];
        c->stride[i] = o->stride[i];
        c->padding[i] = o->padding[i];
        c->dilation[i] = o->dilation[i];
    }
    return outputs(call, c, 0, c->height, &c->out_height) &&
           outputs(call, c, 1, c->width, &c->out_width);
}

/* The kernel's operands. */
typedef struct operands {
    ls__dense x, w, b;
} operands;

/* References to the kernel's operands, dropped by the caller: x with its channels last; the
 * weight in its own order [O,C/groups,kh,kw]; the bias always float32. */
static operands operands_of(ls__call *call, bool half)
{
    ls__call_see_channels_last(call, EDGE_X);
    return (operands){.x = half ? ls__call_half(call, EDGE_X) : ls__call_dense(call, EDGE_X),
                      .w = half ? ls__call_half(call, EDGE_W) : ls__call_dense(call, EDGE_W),
                      .b = half ? ls__call_full(call, EDGE_B) : ls__call_dense(call, EDGE_B)};
}

/* The output [N,H',W',O]. NULL if there is no memory for it; an empty batch has an output
 * without elements and no work. */
static ls__record *computed(ls__call *call, const conv_context *context, const operands *o)
{
    const ls__conv2d *c = &context->shape;
    ls_shape shape = LS_SHAPE(c->batch, c->out_height, c->out_width, c->out);
    ls__record *out = ls__call_output(call, shape, context->half ? LS_BFLOAT16 : LS_FLOAT32);
    if (out == NULL || c->batch == 0) {
        return out;
    }
    ls__conv2d_data d = {.x = o->x.data,
                         .w = o->w.data,
                         .b = o->b.data,
                         .relu = context->relu,
                         .out = ls__record_data(out),
                         .half = context->half,
                         .half_out = context->half};
    if (ls__conv2d_run(call->on, c, LS__CONV2D_FORWARD, &d) < 0) {
        call->failed = ls__poison(call->tensors);
    }
    return out;
}

/* x is needed for dw alone and w for dx alone, so a frozen layer keeps neither; y only with a
 * ReLU. */
static void save(ls__tensor_node *node, const conv_context *context, const operands *o,
                 const ls__record *out)
{
    if (node == NULL) {
        return;
    }
    *(conv_context *)node->context = *context;
    ls__node_save(node->edge[EDGE_W].to != NULL ? node : NULL, SAVED_X, &o->x);
    ls__node_save(node->edge[EDGE_X].to != NULL ? node : NULL, SAVED_W, &o->w);
    if (context->relu) {
        ls__dense y = ls__dense_of_output(out);
        ls__node_save(node, SAVED_Y, &y);
        ls__dense_drop(&y);
    }
}

/* The common path of both public functions; `op` names the one for messages and backward.
 * Operands are held until the node has its own references, then dropped. */
static ls_tensor *convolved(const ls__op *op, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                            const ls_conv2d_options *o)
{
    ls__call call;
    if (!ls__call_begin_optional(&call, op->name, 3, (ls_tensor *[]){x, weight, bias},
                                 1u << EDGE_B)) {
        return call.failed;
    }
    conv_context context = {.relu = o->relu, .half = ls__call_is_half(&call)};
    if ((!context.half && !ls__call_float32(&call)) || !describe(&call, o, &context.shape)) {
        return call.failed;
    }
    operands in = operands_of(&call, context.half);
    ls__record *out = computed(&call, &context, &in);
    save(ls__call_record(&call, op, out, sizeof context), &context, &in, out);
    ls__dense_drop(&in.x);
    ls__dense_drop(&in.w);
    ls__dense_drop(&in.b);
    call.follows = LS__SAMPLES(EACH);
    return ls__call_finish(&call, out);
}

/* As torch.nn.functional.conv2d, with an optional ReLU. Options are a copy: the caller's struct
 * is not kept. */
ls_tensor *ls_conv2d(ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                     const ls_conv2d_options *options)
{
    LS__OPTIONS_OR(ls__call_refused(), ls_conv2d_options, o, options);
    return convolved(&conv2d_op, x, weight, bias, &o);
}

/* A view [A,B,1,L] of [A,B,L]. */
static ls_tensor *with_height(ls_tensor *t)
{
    const ls_shape s = ls_shape_of(t);
    return ls_reshape(t, LS_SHAPE(s.dim[0], s.dim[1], 1, s.dim[2]));
}

/* A convolution of images of height 1: no second set of kernels. */
ls_tensor *ls_conv1d(ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                     const ls_conv1d_options *options)
{
    LS__OPTIONS_OR(ls__call_refused(), ls_conv1d_options, given, options);
    ls__call call;
    if (!ls__call_begin(&call, conv1d_op.name, 2, (ls_tensor *[]){x, weight})) {
        return call.failed;
    }
    if (call.in[EDGE_X]->ndim != 3 || call.in[EDGE_W]->ndim != 3) {
        return ls__call_fail(&call, LS_ERR_INVALID,
                             "x %s with weight %s; x must be [N,C,L], the weight [O,C/groups,k]",
                             ls__record_print(call.in[EDGE_X]).text,
                             ls__record_print(call.in[EDGE_W]).text);
    }
    const ls_conv2d_options o = {.size = sizeof o,
                                 .stride = {1, given.stride},
                                 .padding = {0, given.padding},
                                 .dilation = {1, given.dilation},
                                 .groups = given.groups};
    ls_tensor *y = convolved(&conv1d_op, with_height(x), with_height(weight), bias, &o);
    const ls_shape s = ls_shape_of(y);
    return ls_tensor_status(y) < 0 ? y : ls_reshape(y, LS_SHAPE(s.dim[0], s.dim[1], s.dim[3]));
}
