/* SPDX-License-Identifier: Apache-2.0 */
/* Images enlarged, or made smaller: x [N,C,H,W] -> y [N,C,H',W'], by the nearest pixel or
 * linearly between pixels, as torch.nn.functional.interpolate. Output i of an axis stands at
 * input position (i + 1/2) H/H' - 1/2, or i (H - 1)/(H' - 1) with aligned corners. The two
 * inputs of each output row and column and their shares (taps) are worked out here, once; the
 * kernel follows them. */
#include <lockstep/vision.h>

#include <math.h>

#include "base/assert.h"
#include "base/options.h"
#include "device/captured.h"
#include "tensor/op.h"

typedef struct upsample_context {
    ls__upsample2d shape; /* its taps stand in the node's scope */
} upsample_context;

/* Each input sums dy of the outputs that read it, with the same taps. */
static ls_status upsample_backward(ls__tensor_rule *r)
{
    const upsample_context *c = r->node->context;
    r->k->upsample2d_backward(&c->shape, r->in[0].data, r->in[0].beta, r->dy, r->stream);
    return LS_OK;
}

static const ls__op upsample_op = {
    .name = "upsample", .backward = upsample_backward, .accumulates = true};

/* ---- sizes and taps ----------------------------------------------------------------------- */

#define EXTENT_MAX ((int64_t)1 << 30) /* as those of convolutions */

/* The size of y along an axis, into *out: given by itself, or floor(in scale). Exactly one of
 * output and scale must be given for each axis. False with call->failed set. */
static bool size_of(ls__call *call, const ls_upsample_options *o, int axis, int64_t *out)
{
    const int64_t in = call->in[0]->dim[2 + axis];
    const bool sized = o->output[axis] != 0, scaled = o->scale[axis] != 0.0;
    const double wanted = sized ? (double)o->output[axis] : floor((double)in * o->scale[axis]);
    if (sized != scaled && in >= 1 && wanted >= 1.0 && wanted <= (double)EXTENT_MAX) {
        *out = (int64_t)wanted;
        return true;
    }
    (void)ls__call_fail(call, LS_ERR_INVALID,
                        "x %s to a %s of %lld, or %g times as large; give either an output of at "
                        "least 1 or a scale, the other 0",
                        ls__record_print(call->in[0]).text, axis == 0 ? "height" : "width",
                        (long long)o->output[axis], o->scale[axis]);
    return false;
}

/* Where output i of `outs` stands among `in` inputs, in units of inputs, never below 0; `scale`
 * 0: outs / in. */
static double position(const ls_upsample_options *o, int64_t i, int64_t in, int64_t outs,
                       double scale)
{
    if (o->align_corners) {
        return outs > 1 ? (double)i * (double)(in - 1) / (double)(outs - 1) : 0.0;
    }
    const double step = scale > 0.0 ? 1.0 / scale : (double)in / (double)outs;
    const double at = ((double)i + 0.5) * step - 0.5;
    return at > 0.0 ? at : 0.0;
}

/* The two inputs of output i and the share of the second. Nearest is computed in whole numbers
 * where no scale is given, so it is exact; then both inputs are one. */
static ls__tap tap_of(const ls_upsample_options *o, int64_t i, int64_t in, int64_t outs,
                      double scale)
{
    const int64_t last = in - 1;
    if (o->mode == LS_UPSAMPLE_NEAREST) { /* in whole numbers, or by division: exact */
        const int64_t at = scale > 0.0 ? (int64_t)floor((double)i / scale) : i * in / outs;
        const int64_t from = at < last ? at : last;
        return (ls__tap){from, from, 0.0f};
    }
    const double at = position(o, i, in, outs, scale);
    const int64_t from = (int64_t)at < last ? (int64_t)at : last;
    const float weight = from < last ? (float)(at - (double)from) : 0.0f;
    LS_ASSERT(from >= 0 && weight >= 0.0f && weight <= 1.0f);
    return (ls__tap){from, weight > 0.0f ? from + 1 : from, weight};
}

/* All taps of an axis; they live as long as the innermost scope. NULL after a failure. */
static const ls__tap *taps_of(ls__call *call, const ls_upsample_options *o, int axis, int64_t outs)
{
    ls__tap *taps = ls__scope_alloc(call->tensors, (size_t)outs * sizeof *taps);
    if (taps == NULL) {
        call->failed = ls__poison(call->tensors);
        return NULL;
    }
    for (int64_t i = 0; i < outs; i++) {
        taps[i] = tap_of(o, i, call->in[0]->dim[2 + axis], outs, o->scale[axis]);
    }
    return taps;
}

/* Checks x and the options and completes *u. The taps live as long as the scope, hence as long
 * as the node that saves them. False with call->failed set. */
static bool describe(ls__call *call, const ls_upsample_options *o, ls__upsample2d *u)
{
    const ls__record *x = call->in[0];
    if (x->ndim != 4) {
        (void)ls__call_fail(call, LS_ERR_INVALID, "x %s; it must be [N,C,H,W]",
                            ls__record_print(x).text);
        return false;
    }
    const bool bilinear = o->mode == LS_UPSAMPLE_BILINEAR;
    if ((o->mode != LS_UPSAMPLE_NEAREST && !bilinear) || (o->align_corners && !bilinear)) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "mode %d%s; give LS_UPSAMPLE_NEAREST, or LS_UPSAMPLE_BILINEAR, which "
                            "alone may align corners",
                            (int)o->mode, o->align_corners ? " with align_corners" : "");
        return false;
    }
    *u = (ls__upsample2d){
        .batch = x->dim[0], .channels = x->dim[1], .height = x->dim[2], .width = x->dim[3]};
    if (!size_of(call, o, 0, &u->out_height) || !size_of(call, o, 1, &u->out_width)) {
        return false;
    }
    ls__captured_refuse("ls_upsample copies from the program's memory");
    u->rows = taps_of(call, o, 0, u->out_height);
    u->columns = u->rows != NULL ? taps_of(call, o, 1, u->out_width) : NULL;
    return u->columns != NULL;
}

/* Rows and columns are independent, so taps are computed once an axis, not once a pixel. */
ls_tensor *ls_upsample(ls_tensor *x, const ls_upsample_options *options)
{
    LS__OPTIONS_OR(ls__call_refused(), ls_upsample_options, o, options);
    ls__call call;
    upsample_context c;
    if (!ls__call_begin(&call, upsample_op.name, 1, &x) || !ls__call_float32(&call) ||
        !describe(&call, &o, &c.shape)) {
        return call.failed;
    }
    ls__call_see_channels_last(&call, 0);
    const ls__upsample2d *u = &c.shape;
    ls__dense in = ls__call_dense(&call, 0);
    ls__record *out = ls__call_output(
        &call, LS_SHAPE(u->batch, u->out_height, u->out_width, u->channels), LS_FLOAT32);
    if (out != NULL && out->numel > 0) {
        call.k->upsample2d(u, ls__record_floats(out), in.data, call.stream);
    }
    ls__tensor_node *node = ls__call_record(&call, &upsample_op, out, sizeof c);
    if (node != NULL) {
        *(upsample_context *)node->context = c;
    }
    ls__dense_drop(&in);
    call.follows = LS__SAMPLES(FIRST);
    return ls__call_finish(&call, out);
}
