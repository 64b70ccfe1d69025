/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling over images: the largest or the mean of each window. x [N,C,H,W] -> y [N,C,H',W'], H'
 * = floor((H + 2 padding - kernel) / stride) + 1; the adaptive form is given H' and W', and
 * output i covers [floor(i H/H'), ceil((i+1) H/H')). Windows are cut to the image
 * (ls__pool2d_window).
 *
 * The gradient of a maximum goes to the first place where it stood, saved as an index into its
 * plane; a mean spreads dy evenly over its window. */
#include <lockstep/vision.h>

#include "base/options.h"
#include "tensor/op.h"

enum { SAVED_INDEX };

#define EXTENT_MAX ((int64_t)1 << 30) /* of sizes along one axis: their products are exact */

/* Elements of x; kernels are not called for an image without any. */
static int64_t numel_of(const ls__pool2d *p)
{
    return p->batch * p->channels * p->height * p->width;
}

/* dy goes to the saved places; overlapping windows add up. */
static ls_status max_backward(ls__tensor_rule *r)
{
    const ls__pool2d *p = r->node->context;
    if (numel_of(p) > 0) {
        r->k->max_pool2d_backward(p, r->in[0].data, r->in[0].beta, r->dy, r->saved[SAVED_INDEX],
                                  r->stream);
    }
    return LS_OK;
}

/* Serves both kinds of average: the context says which windows the outputs have. */
static ls_status avg_backward(ls__tensor_rule *r)
{
    const ls__pool2d *p = r->node->context;
    if (numel_of(p) > 0) {
        r->k->avg_pool2d_backward(p, r->in[0].data, r->in[0].beta, r->dy, r->stream);
    }
    return LS_OK;
}

static const ls__op max_op = {.name = "max_pool2d", .backward = max_backward, .accumulates = true};
static const ls__op avg_op = {.name = "avg_pool2d", .backward = avg_backward, .accumulates = true};
static const ls__op adaptive_op = {
    .name = "adaptive_avg_pool2d", .backward = avg_backward, .accumulates = true};

/* ---- shapes ------------------------------------------------------------------------------- */

/* x [N,C,H,W] with elements in each plane, whose positions are int32 in the kernels. False with
 * call->failed set. */
static bool check_image(ls__call *call)
{
    const ls__record *x = call->in[0];
    if (x->ndim != 4 || x->dim[2] < 1 || x->dim[3] < 1 || x->dim[2] > EXTENT_MAX ||
        x->dim[3] > EXTENT_MAX || x->dim[2] * x->dim[3] > INT32_MAX) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "x %s; it must be [N,C,H,W] with 1 to 2147483647 elements in a plane",
                            ls__record_print(x).text);
        return false;
    }
    return true;
}

static ls__pool2d image_of(const ls__record *x)
{
    return (ls__pool2d){.half = x->dtype == LS_BFLOAT16,
                        .batch = x->dim[0],
                        .channels = x->dim[1],
                        .height = x->dim[2],
                        .width = x->dim[3]};
}

/* Rounds down, as PyTorch's default. False with call->failed set. */
static bool outputs(ls__call *call, const ls__pool2d *p, int axis, int64_t size, int64_t *out)
{
    int64_t kernel = p->kernel[axis], stride = p->stride[axis], padding = p->padding[axis];
    if (kernel < 1 || kernel > EXTENT_MAX || stride < 1 || stride > EXTENT_MAX || padding < 0 ||
        padding > kernel / 2 || size + 2 * padding < kernel) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "x %s with kernel %lld, stride %lld, padding %lld along the %s; the "
                            "kernel must be 1 to the padded size, the stride at least 1 (0: the "
                            "kernel), the padding at most half the kernel",
                            ls__record_print(call->in[0]).text, (long long)kernel,
                            (long long)stride, (long long)padding, axis == 0 ? "height" : "width");
        return false;
    }
    *out = (size + 2 * padding - kernel) / stride + 1;
    return true;
}

/* A stride of 0 means the kernel's size. False with call->failed set. */
static bool describe(ls__call *call, const ls_pool2d_options *o, ls__pool2d *p)
{
    if (!check_image(call)) {
        return false;
    }
    *p = image_of(call->in[0]);
    p->count_include_pad = o->count_include_pad;
    for (int i = 0; i < 2; i++) {
        p->kernel[i] = o->kernel[i];
        p->stride[i] = o->stride[i] == 0 ? o->kernel[i] : o->stride[i];
        p->padding[i] = o->padding[i];
    }
    return outputs(call, p, 0, p->height, &p->out_height) &&
           outputs(call, p, 1, p->width, &p->out_width);
}

/* ---- operations --------------------------------------------------------------------------- */

/* The image in the order of the kernels: op.h, Note [Channels last]. */
static ls__dense input(ls__call *call)
{
    ls__call_see_channels_last(call, 0);
    return ls__call_dense(call, 0);
}

static ls__record *output(ls__call *call, const ls__pool2d *p)
{
    return ls__call_output(call, LS_SHAPE(p->batch, p->out_height, p->out_width, p->channels),
                           p->half ? LS_BFLOAT16 : LS_FLOAT32);
}

/* The index is computed only where backward will read it. */
ls_tensor *ls_max_pool2d(ls_tensor *x, const ls_pool2d_options *options)
{
    LS__OPTIONS_OR(ls__call_refused(), ls_pool2d_options, o, options);
    ls__call call;
    ls__pool2d p;
    if (!ls__call_begin(&call, max_op.name, 1, &x) || !ls__call_float_types(&call) ||
        !describe(&call, &o, &p)) {
        return call.failed;
    }
    ls__dense from = input(&call), index = {0};
    ls__record *out = output(&call, &p);
    if (out != NULL && call.grad) {
        index = ls__call_memory(&call, (size_t)out->numel * sizeof(int32_t));
    }
    if (call.failed == NULL && out->numel > 0) {
        call.k->max_pool2d(&p, (void *)ls__record_data(out), index.data, from.data, call.stream);
    }
    ls__tensor_node *node = ls__call_record(&call, &max_op, out, sizeof p);
    if (node != NULL) {
        *(ls__pool2d *)node->context = p;
        ls__node_save(node, SAVED_INDEX, &index);
    }
    ls__dense_drop(&from);
    ls__dense_drop(&index);
    call.follows = LS__SAMPLES(NOT);
    return ls__call_finish(&call, out);
}

/* Both kinds of average share the kernel and differ in which window an output has. */
static ls_tensor *average(ls__call *call, const ls__op *op, const ls__pool2d *p)
{
    ls__dense from = input(call);
    ls__record *out = output(call, p);
    if (call->failed == NULL && out->numel > 0) {
        call->k->avg_pool2d(p, (void *)ls__record_data(out), from.data, call->stream);
    }
    ls__tensor_node *node = ls__call_record(call, op, out, sizeof *p);
    if (node != NULL) {
        *(ls__pool2d *)node->context = *p;
    }
    ls__dense_drop(&from);
    call->follows = LS__SAMPLES(FIRST);
    return ls__call_finish(call, out);
}

/* As torch.nn.functional.avg_pool2d. */
ls_tensor *ls_avg_pool2d(ls_tensor *x, const ls_pool2d_options *options)
{
    LS__OPTIONS_OR(ls__call_refused(), ls_pool2d_options, o, options);
    ls__call call;
    ls__pool2d p;
    if (!ls__call_begin(&call, avg_op.name, 1, &x) || !ls__call_float_types(&call) ||
        !describe(&call, &o, &p)) {
        return call.failed;
    }
    return average(&call, &avg_op, &p);
}

/* The output's size is given and the windows follow; their sizes may differ by one. */
ls_tensor *ls_adaptive_avg_pool2d(ls_tensor *x, int64_t height, int64_t width)
{
    ls__call call;
    if (!ls__call_begin(&call, adaptive_op.name, 1, &x) || !ls__call_float_types(&call) ||
        !check_image(&call)) {
        return call.failed;
    }
    if (height < 1 || width < 1 || height > EXTENT_MAX || width > EXTENT_MAX) {
        return ls__call_fail(&call, LS_ERR_INVALID, "an output of %lld x %lld; give 1 to %lld",
                             (long long)height, (long long)width, (long long)EXTENT_MAX);
    }
    ls__pool2d p = image_of(call.in[0]);
    p.adaptive = true;
    p.out_height = height;
    p.out_width = width;
    return average(&call, &adaptive_op, &p);
}
