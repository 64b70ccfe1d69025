/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions of bfloat16 where no library has kernels for it: some images at a time are widened
 * into workspace, float32's convolution runs on them, and the result is narrowed:
 *
 *     x, dy [some images] --widen--> float32 --conv2d--> float32 --narrow--> y, dx
 *     w        --widen, once---------------^          dw: summed over the parts in order,
 *                                                         rounded once
 */
#include "kernel/cpu/halves.h"

#define PART_MAX (1 << 20) /* elements of x and y together, unless an image has more */
#define ALIGN 16           /* elements */

typedef struct shared { /* of the workspace, in floats */
    int64_t images;     /* of a part */
    int64_t x, w, y;    /* elements: of a part, of all, of a part */
    size_t bytes;       /* of all but the inner workspace */
} shared;

/* Rounded up to 64 bytes of float32. */
static int64_t aligned(int64_t count)
{
    return (count + ALIGN - 1) / ALIGN * ALIGN;
}

/* How the workspace is divided: x, w and y of a part in float32, then the inner convolution's
 * own. The number of images depends on the shape alone. */
static shared share(const ls__conv2d *c)
{
    int64_t x = c->in * c->height * c->width, y = c->out * c->out_height * c->out_width;
    shared s = {.images = x + y > PART_MAX ? 1 : ls__min(c->batch, PART_MAX / (x + y))};
    s.x = aligned(s.images * x);
    s.y = aligned(s.images * y);
    s.w = aligned(c->out * (c->in / c->groups) * c->kernel[0] * c->kernel[1]);
    s.bytes = (size_t)(s.x + s.y + s.w) * sizeof(float);
    return s;
}

/* The float32 convolution of a part: sets c->batch and returns its operands in the workspace,
 * the output where the pass has it. */
static ls__conv2d_data inner_of(ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                                const shared *s, int64_t images)
{
    float *x = d->workspace, *w = x + s->x, *y = w + s->w;
    ls__conv2d_data inner = {.b = d->b, .relu = d->relu, .plans = d->plans};
    inner.x = pass == LS__CONV2D_BACKWARD_X ? NULL : x;
    inner.w = pass == LS__CONV2D_BACKWARD_W ? NULL : w;
    inner.dy = pass == LS__CONV2D_FORWARD ? NULL : y;
    inner.out = pass == LS__CONV2D_FORWARD ? y : pass == LS__CONV2D_BACKWARD_X ? x : w;
    inner.workspace = (char *)d->workspace + s->bytes;
    c->batch = images;
    return inner;
}

/* Bytes for the largest of the inner calls: first and later parts differ in beta, the last one
 * perhaps in its number of images. */
size_t LS__K(conv2d_widened_workspace)(const ls__conv2d *c, ls__conv2d_pass pass,
                                       const ls__conv2d_data *d)
{
    shared s = share(c);
    size_t most = 0;
    const int64_t counts[] = {s.images, c->batch % s.images};
    for (int i = 0; i < 2; i++) {
        if (counts[i] > 0) {
            ls__conv2d part = *c;
            ls__conv2d_data inner = inner_of(&part, pass, d, &s, counts[i]);
            inner.beta = pass == LS__CONV2D_BACKWARD_W ? 1.0f : 0.0f;
            size_t adds = LS__K(conv2d_workspace)(&part, pass, &inner);
            inner.beta = 0.0f;
            size_t first = LS__K(conv2d_workspace)(&part, pass, &inner);
            most = adds > most ? adds : most;
            most = first > most ? first : most;
        }
    }
    return s.bytes + most;
}

/* Widens `count` elements from element `at` of `from` on; `to` is NULL for the operand that is
 * the output. */
static void widen_at(const void *to, const void *from, int64_t at, int64_t count)
{
    if (to != NULL) {
        LS__K(bfloat16_widen)
        ((float *)(uintptr_t)to, (const ls__bfloat16 *)from + at, count, 0.0f, NULL);
    }
}

/* Adds or copies a float32 result to the caller's output, from element `at` on; a bfloat16
 * output is rounded here, once. */
static void deliver(const ls__conv2d_data *d, const float *from, int64_t at, int64_t count)
{
    if (d->half_out) {
        LS__K(bfloat16_narrow)((ls__bfloat16 *)d->out + at, from, count, d->beta, NULL);
    } else {
        LS__K(axpby)((float *)d->out + at, from, count, 1.0f, d->beta, NULL);
    }
}

/* Parts run in order. dw is summed over them in float32 and delivered once, at the end. */
void LS__K(conv2d_widened)(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                           ls_stream *stream)
{
    shared s = share(c);
    const bool to_w = pass == LS__CONV2D_BACKWARD_W;
    int64_t x = c->in * c->height * c->width, y = c->out * c->out_height * c->out_width;
    int64_t w = c->out * (c->in / c->groups) * c->kernel[0] * c->kernel[1];
    for (int64_t image = 0; image < c->batch; image += s.images) {
        ls__conv2d part = *c;
        int64_t images = ls__min(s.images, c->batch - image);
        ls__conv2d_data inner = inner_of(&part, pass, d, &s, images);
        inner.beta = to_w && image > 0 ? 1.0f : 0.0f;
        if (image == 0) {
            widen_at(inner.w, d->w, 0, w);
        }
        widen_at(inner.x, d->x, image * x, images * x);
        widen_at(inner.dy, d->dy, image * y, images * y);
        LS__K(conv2d)(&part, pass, &inner, stream);
        if (pass == LS__CONV2D_FORWARD) {
            deliver(d, inner.out, image * y, images * y);
        } else if (pass == LS__CONV2D_BACKWARD_X) {
            deliver(d, inner.out, image * x, images * x);
        }
    }
    if (to_w) {
        deliver(d, (const float *)d->workspace + s.x, 0, w);
    }
}
