/* SPDX-License-Identifier: Apache-2.0 */
/* Transposed convolution: the gradient of a convolution as an operation of its own.
 *
 * Where a convolution takes images [N,O,H',W'] to [N,C,H,W], its gradient for the images takes
 * [N,C,H,W] back to [N,O,H',W'], with the same weight. So the three passes of the convolution's
 * kernel serve with their parts exchanged:
 *
 *     y  = the convolution's gradient for its images, from x in the place of its dy
 *     dx = the convolution of dy
 *     dw = the convolution's gradient for its weight, from dy in the place of its images,
 *          x in that of its dy
 */
#include <lockstep/vision.h>

#include "base/options.h"
#include "tensor/conv.h"
#include "tensor/half.h"

enum { SAVED_X, SAVED_W };
enum { EDGE_X, EDGE_W, EDGE_B };

typedef struct transpose_context {
    ls__conv2d conv; /* the convolution, from y to x */
    bool half;       /* x, w, y and dy are bfloat16 to the kernels */
} transpose_context;

static int64_t pixels_of(const ls__conv2d *c) /* of y, in all images */
{
    return c->batch * c->height * c->width;
}

/* Elements of the weight, of the convolution from y to x: [x channels, y channels / groups, kh,
 * kw]. */
static int64_t weights_of(const ls__conv2d *c)
{
    return c->out * (c->in / c->groups) * c->kernel[0] * c->kernel[1];
}

/* ---- gradients ---------------------------------------------------------------------------- */

/* Writes one gradient with the pass of the ordinary convolution; `to` says in which type. */
static ls_status run_into(ls__tensor_rule *r, ls__conv2d_pass pass, const ls__gradient *to,
                          ls__conv2d_data *d)
{
    const transpose_context *c = r->node->context;
    d->out = to->data;
    d->half = c->half;
    d->half_out = to->dtype == LS_BFLOAT16;
    return ls__conv2d_run(r->on, &c->conv, pass, d);
}

/* db is the sum of dy over all pixels and images. */
static ls_status backward_bias(ls__tensor_rule *r, const ls__conv2d *c, bool half)
{
    const ls__gradient *db = &r->in[EDGE_B];
    if (half) {
        return ls__sum_rows_half(r, db, r->dy, pixels_of(c), c->in);
    }
    r->k->sum_rows(db->data, r->dy, pixels_of(c), c->in, 0.0f, r->stream);
    return LS_OK;
}

/* dx, dw and db, each overwritten. A transposed convolution is the backward_x of an ordinary
 * one, so its own gradients are the forward pass (for x) and backward_w with x and dy exchanged. */
static ls_status conv_transpose_backward(ls__tensor_rule *r)
{
    const transpose_context *context = r->node->context;
    const ls__conv2d *c = &context->conv;
    const ls__gradient *dx = &r->in[EDGE_X], *dw = &r->in[EDGE_W], *db = &r->in[EDGE_B];
    if (db->data != NULL) {
        LS_TRY(backward_bias(r, c, context->half));
    }
    if (dw->data != NULL && c->batch == 0) {
        ls__fill_zero(r->on, dw->data, dw->dtype, weights_of(c));
    } else if (dw->data != NULL) {
        ls__conv2d_data d = {.x = r->dy, .dy = r->saved[SAVED_X]};
        LS_TRY(run_into(r, LS__CONV2D_BACKWARD_W, dw, &d));
    }
    if (dx->data != NULL && c->batch > 0) {
        ls__conv2d_data d = {.x = r->dy, .w = r->saved[SAVED_W]};
        LS_TRY(run_into(r, LS__CONV2D_FORWARD, dx, &d));
    }
    return LS_OK;
}

static const ls__op conv_transpose_op = {.name = "conv_transpose2d",
                                         .backward = conv_transpose_backward};

/* ---- shapes ------------------------------------------------------------------------------- */

/* An output_padding of the stride or more would name an output that no input reaches. False with
 * call->failed set. */
static bool check_axis(ls__call *call, const ls_conv_transpose2d_options *o, int axis)
{
    const int64_t largest = LS__CONV_EXTENT_MAX;
    const int64_t stride = o->stride[axis], padding = o->padding[axis];
    const int64_t dilation = o->dilation[axis], more = o->output_padding[axis];
    if (stride >= 1 && stride <= largest && dilation >= 1 && dilation <= largest && padding >= 0 &&
        padding <= largest && more >= 0 && more < stride) {
        return true;
    }
    (void)ls__call_fail(call, LS_ERR_INVALID,
                        "stride %lld, padding %lld, output_padding %lld, dilation %lld along the "
                        "%s; give at least 1, 0, 0 and 1, at most %lld, and an output_padding "
                        "below the stride",
                        (long long)stride, (long long)padding, (long long)more, (long long)dilation,
                        axis == 0 ? "height" : "width", (long long)largest);
    return false;
}

/* x [N,C,H,W], weight [C,O/groups,kh,kw], bias [O] or NULL. False with call->failed set. */
static bool check_shapes(ls__call *call, int64_t groups)
{
    const ls__record *x = call->in[EDGE_X], *w = call->in[EDGE_W], *b = call->in[EDGE_B];
    if (x->ndim != 4 || w->ndim != 4) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "x %s with weight %s; x must be [N,C,H,W], the weight "
                            "[C,O/groups,kh,kw]",
                            ls__record_print(x).text, ls__record_print(w).text);
        return false;
    }
    if (groups < 1 || w->dim[0] < 1 || w->dim[1] < 1 || w->dim[0] != x->dim[1] ||
        w->dim[0] % groups != 0) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "x %s with weight %s in %lld groups; the weight's first dimension must "
                            "be the %lld channels of x, and the groups divide them",
                            ls__record_print(x).text, ls__record_print(w).text, (long long)groups,
                            (long long)x->dim[1]);
        return false;
    }
    const int64_t outputs = w->dim[1] * groups;
    if (b != NULL && (b->ndim != 1 || b->dim[0] != outputs)) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "bias %s with weight %s: the bias must be [%lld], one for each output",
                            ls__record_print(b).text, ls__record_print(w).text, (long long)outputs);
        return false;
    }
    return true;
}

/* Size of y along an axis: (in - 1) stride - 2 padding + dilation (kernel - 1) + output_padding
 * + 1. False with call->failed set where it is below 1 or beyond the limit. */
static bool size_of(ls__call *call, const ls_conv_transpose2d_options *o, int axis, int64_t *out)
{
    const int64_t in = call->in[EDGE_X]->dim[2 + axis], kernel = call->in[EDGE_W]->dim[2 + axis];
    const bool sane =
        in >= 1 && in <= LS__CONV_EXTENT_MAX && kernel >= 1 && kernel <= LS__CONV_EXTENT_MAX;
    *out = sane ? (in - 1) * o->stride[axis] - 2 * o->padding[axis] +
                      o->dilation[axis] * (kernel - 1) + o->output_padding[axis] + 1
                : 0;
    if (*out >= 1 && *out <= LS__CONV_EXTENT_MAX) {
        return true;
    }
    (void)ls__call_fail(call, LS_ERR_INVALID,
                        "x %s with weight %s, stride %lld and padding %lld would have a %s of "
                        "%lld; it must be 1 to %lld",
                        ls__record_print(call->in[EDGE_X]).text,
                        ls__record_print(call->in[EDGE_W]).text, (long long)o->stride[axis],
                        (long long)o->padding[axis], axis == 0 ? "height" : "width",
                        (long long)*out, (long long)LS__CONV_EXTENT_MAX);
    return false;
}

/* Fills *c, the ordinary convolution whose gradient this is: its input is our output. False with
 * call->failed set. */
static bool describe(ls__call *call, const ls_conv_transpose2d_options *o, ls__conv2d *c)
{
    if (!check_axis(call, o, 0) || !check_axis(call, o, 1) || !check_shapes(call, o->groups)) {
        return false;
    }
    const ls__record *x = call->in[EDGE_X], *w = call->in[EDGE_W];
    *c = (ls__conv2d){.batch = x->dim[0],
                      .in = w->dim[1] * o->groups,
                      .groups = o->groups,
                      .out = x->dim[1],
                      .out_height = x->dim[2],
                      .out_width = x->dim[3]};
    for (int i = 0; i < 2; i++) {
        c->kernel[i] = w->dim[2 + i];
        c->stride[i] = o->stride[i];
        c->padding[i] = o->padding[i];
        c->dilation[i] = o->dilation[i];
    }
    return size_of(call, o, 0, &c->height) && size_of(call, o, 1, &c->width);
}

/* ---- the operation ------------------------------------------------------------------------ */

/* y + b in float32, rounded to bfloat16 where `narrow` is not NULL. */
static void add_bias(ls__call *call, const ls__conv2d *c, float *y, const float *b,
                     ls__bfloat16 *narrow)
{
    call->k->add_rows(y, b, pixels_of(c), c->in, call->stream);
    if (narrow != NULL) {
        call->k->bfloat16_narrow(narrow, y, pixels_of(c) * c->in, 0.0f, call->stream);
    }
}

/* out = the transposed convolution, plus the bias. With a bias, bfloat16 results pass through
 * float32, so that they are rounded once. */
static void compute(ls__call *call, const transpose_context *t, ls__record *out, const void *x,
                    const void *w, const float *b)
{
    const bool wide = t->half && b != NULL;
    ls__dense sums = {0};
    ls__conv2d_data d = {.w = w,
                         .dy = x,
                         .out = ls__record_data(out),
                         .half = t->half,
                         .half_out = t->half && !wide};
    if (wide) {
        sums = ls__call_memory(call, (size_t)out->numel * sizeof(float));
        d.out = sums.data;
    }
    if (call->failed == NULL && ls__conv2d_run(call->on, &t->conv, LS__CONV2D_BACKWARD_X, &d) < 0) {
        call->failed = ls__poison(call->tensors);
    }
    if (call->failed == NULL && b != NULL) {
        add_bias(call, &t->conv, d.out, b, wide ? (void *)ls__record_data(out) : NULL);
    }
    ls__dense_drop(&sums);
}

/* As torch.nn.functional.conv_transpose2d: x [N,C,H,W], weight [C,O/groups,kh,kw], bias [O] or
 * NULL. */
ls_tensor *ls_conv_transpose2d(ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                               const ls_conv_transpose2d_options *options)
{
    LS__OPTIONS_OR(ls__call_refused(), ls_conv_transpose2d_options, o, options);
    ls__call call;
    if (!ls__call_begin_optional(&call, conv_transpose_op.name, 3, (ls_tensor *[]){x, weight, bias},
                                 1u << EDGE_B)) {
        return call.failed;
    }
    transpose_context c = {.half = ls__call_is_half(&call)};
    if ((!c.half && !ls__call_float32(&call)) || !describe(&call, &o, &c.conv)) {
        return call.failed;
    }
    ls__call_see_channels_last(&call, EDGE_X);
    ls__dense in = c.half ? ls__call_half(&call, EDGE_X) : ls__call_dense(&call, EDGE_X);
    ls__dense w = c.half ? ls__call_half(&call, EDGE_W) : ls__call_dense(&call, EDGE_W);
    ls__dense b = c.half ? ls__call_full(&call, EDGE_B) : ls__call_dense(&call, EDGE_B);
    ls__record *out =
        ls__call_output(&call, LS_SHAPE(c.conv.batch, c.conv.height, c.conv.width, c.conv.in),
                        c.half ? LS_BFLOAT16 : LS_FLOAT32);
    if (out != NULL && c.conv.batch > 0) {
        compute(&call, &c, out, in.data, w.data, b.data);
    }
    ls__tensor_node *node = ls__call_record(&call, &conv_transpose_op, out, sizeof c);
    if (node != NULL) {
        *(transpose_context *)node->context = c;
        ls__node_save(node->edge[EDGE_W].to != NULL ? node : NULL, SAVED_X, &in);
        ls__node_save(node->edge[EDGE_X].to != NULL ? node : NULL, SAVED_W, &w);
    }
    ls__dense_drop(&in);
    ls__dense_drop(&w);
    ls__dense_drop(&b);
    call.follows = LS__SAMPLES(EACH);
    return ls__call_finish(&call, out);
}
