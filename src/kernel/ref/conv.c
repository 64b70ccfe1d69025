/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution over images, as PyTorch defines it (a cross-correlation). With r = i sh - ph + p dh
 * and s = j sw - pw + q dw, over the channels c of output o's group:
 *
 *     y[n,o,i,j]  = b[o] + sum over c, p, q of x[n,c,r,s] w[o,c,p,q]         x is 0 outside
 *     dx[n,c,r,s] = sum over o, p, q and the (i,j) that meet (r,s) of dy[n,o,i,j] w[o,c,p,q]
 *     dw[o,c,p,q] = sum over n, i, j of dy[n,o,i,j] x[n,c,r,s]
 */
#include "kernel/ref/ref.h"

typedef struct place { /* an image, a channel and a pixel */
    int64_t n, c, h, w;
} place;

/* Of x or dy. */
static double image_at(const ls__conv2d_data *d, const void *x, ls__image s, place at)
{
    return ls__ref_read(x, d->half, at.n * s.n + at.c * s.c + at.h * s.h + at.w * s.w);
}

/* The weight is [out, in / groups, kernel height, kernel width]. */
static double weight_at(const ls__conv2d *c, const ls__conv2d_data *d, int64_t out, int64_t in,
                        int64_t p, int64_t q)
{
    int64_t at = ((out * (c->in / c->groups) + in) * c->kernel[0] + p) * c->kernel[1] + q;
    return ls__ref_read(d->w, d->half, at);
}

/* x at the pixel that tap (p,q) of output (i,j) meets; 0 outside. `out.c` is the channel of x. */
static double x_under(const ls__conv2d *c, const ls__conv2d_data *d, place out, int64_t p,
                      int64_t q)
{
    ls__image s = ls__image_strides(c->in, c->height, c->width);
    place at = {out.n, out.c, out.h * c->stride[0] - c->padding[0] + p * c->dilation[0],
                out.w * c->stride[1] - c->padding[1] + q * c->dilation[1]};
    bool inside = at.h >= 0 && at.h < c->height && at.w >= 0 && at.w < c->width;
    return inside ? image_at(d, d->x, s, at) : 0.0;
}

/* y = b + sum over the group's input channels and the taps of w x; taps in the padding read
 * zero. */
static double forward_at(const ls__conv2d *c, const ls__conv2d_data *d, place out)
{
    int64_t per_group = c->in / c->groups, first = out.c / (c->out / c->groups) * per_group;
    double sum = d->b != NULL ? (double)d->b[out.c] : 0.0;
    for (int64_t in = 0; in < per_group; in++) {
        for (int64_t p = 0; p < c->kernel[0]; p++) {
            for (int64_t q = 0; q < c->kernel[1]; q++) {
                place at = {out.n, first + in, out.h, out.w};
                sum += x_under(c, d, at, p, q) * weight_at(c, d, out.c, in, p, q);
            }
        }
    }
    return d->relu && sum < 0.0 ? 0.0 : sum;
}

/* The output along `axis` whose tap `tap` meets position `at`, or -1. */
static int64_t output_of(const ls__conv2d *c, int axis, int64_t at, int64_t tap)
{
    int64_t from = at + c->padding[axis] - tap * c->dilation[axis];
    int64_t outs = axis == 0 ? c->out_height : c->out_width;
    bool meets = from >= 0 && from % c->stride[axis] == 0 && from / c->stride[axis] < outs;
    return meets ? from / c->stride[axis] : -1;
}

/* dx: the sum over all outputs whose window covers this input. */
static double backward_x_at(const ls__conv2d *c, const ls__conv2d_data *d, place in)
{
    int64_t per_group = c->out / c->groups, group = in.c / (c->in / c->groups);
    ls__image s = ls__image_strides(c->out, c->out_height, c->out_width);
    double sum = 0.0;
    for (int64_t out = group * per_group; out < (group + 1) * per_group; out++) {
        for (int64_t p = 0; p < c->kernel[0]; p++) {
            for (int64_t q = 0; q < c->kernel[1]; q++) {
                int64_t i = output_of(c, 0, in.h, p), j = output_of(c, 1, in.w, q);
                if (i >= 0 && j >= 0) {
                    sum += image_at(d, d->dy, s, (place){in.n, out, i, j}) *
                           weight_at(c, d, out, in.c % (c->in / c->groups), p, q);
                }
            }
        }
    }
    return sum;
}

/* dw: the sum over all images and outputs of dy times the input under this tap. */
static double backward_w_at(const ls__conv2d *c, const ls__conv2d_data *d, int64_t out, int64_t in,
                            int64_t p, int64_t q)
{
    ls__image s = ls__image_strides(c->out, c->out_height, c->out_width);
    int64_t channel = out / (c->out / c->groups) * (c->in / c->groups) + in;
    double sum = 0.0;
    for (int64_t n = 0; n < c->batch; n++) {
        for (int64_t i = 0; i < c->out_height; i++) {
            for (int64_t j = 0; j < c->out_width; j++) {
                sum += image_at(d, d->dy, s, (place){n, out, i, j}) *
                       x_under(c, d, (place){n, channel, i, j}, p, q);
            }
        }
    }
    return sum;
}

/* One output of a pass, at pixel `at`, in float64. */
typedef double (*pixel_fn)(const ls__conv2d *c, const ls__conv2d_data *d, place at);

/* `value` computes one output from the formula; each is stored once, plus beta times the value that
 * was there. */
static void each_pixel(const ls__conv2d *c, const ls__conv2d_data *d, place shape, pixel_fn value)
{
    ls__image s = ls__image_strides(shape.c, shape.h, shape.w);
    for (int64_t n = 0; n < shape.n; n++) {
        for (int64_t ch = 0; ch < shape.c; ch++) {
            for (int64_t i = 0; i < shape.h; i++) {
                for (int64_t j = 0; j < shape.w; j++) {
                    ls__ref_write(d->out, d->half_out, n * s.n + ch * s.c + i * s.h + j * s.w,
                                  value(c, d, (place){n, ch, i, j}), d->beta);
                }
            }
        }
    }
}

/* The gradient of every weight, in the order of memory. */
static void each_weight(const ls__conv2d *c, const ls__conv2d_data *d)
{
    int64_t at = 0;
    for (int64_t out = 0; out < c->out; out++) {
        for (int64_t in = 0; in < c->in / c->groups; in++) {
            for (int64_t p = 0; p < c->kernel[0]; p++) {
                for (int64_t q = 0; q < c->kernel[1]; q++) {
                    ls__ref_write(d->out, d->half_out, at++, backward_w_at(c, d, out, in, p, q),
                                  d->beta);
                }
            }
        }
    }
}

/* One loop a pass, straight from the formula; images are channels last. */
void ls__ref_conv2d(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                    ls_stream *stream)
{
    (void)stream;
    switch (pass) {
    case LS__CONV2D_FORWARD:
        each_pixel(c, d, (place){c->batch, c->out, c->out_height, c->out_width}, forward_at);
        break;
    case LS__CONV2D_BACKWARD_X:
        each_pixel(c, d, (place){c->batch, c->in, c->height, c->width}, backward_x_at);
        break;
    case LS__CONV2D_BACKWARD_W:
        each_weight(c, d);
        break;
    }
}

/* Nothing: each output is one sum. */
size_t ls__ref_conv2d_workspace(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d)
{
    (void)c, (void)pass, (void)d;
    return 0;
}
