/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions: oneDNN's, or the built-in one, which is a matrix product per group.
 *
 * What output pixel i sees, tap by tap and there channel by channel, is row i of a matrix `col`
 * [R,K], R = pixels of some images, K = taps x channels of the group (Chellapilla, Puri & Simard
 * 2006); w' [O,K] is w with its channels last:
 *
 *     y  [R,O] = col [R,K] w'^T          dcol [R,K] = dy [R,O] w', added back to dx row by row
 *     dw' [O,K] = dy^T col               (images in order, so the sum has one order)
 *
 * Of a 1 x 1 window that moves by one, x itself is col and w itself w'. The built-in one is also
 * the better one where oneDNN would go through large weights once for a few pixels.
 */
#include <string.h>

#include "base/assert.h"
#include "kernel/cpu/halves.h"
#include "kernel/cpu/onednn.h"

#define COL_MAX (1 << 21) /* elements of col at most, unless an image has more */
#define OUT_MAX (1 << 19) /* of y, where something follows in the same pass: they stay near */
#define FEW_PIXELS 64
#define LARGE_WEIGHT (1 << 20)

/* What every step of a part needs; all memory is the caller's or the workspace. */
typedef struct part { /* some images, one group */
    const ls__conv2d *c;
    int64_t in, out;       /* channels of the group */
    int64_t taps, depth;   /* of a window; K */
    int64_t pixels;        /* of one output image */
    int64_t images, group; /* of this part */
    const float *x, *dy;   /* of its first image and channel */
    float *dx, *y;
    float *col, *weight; /* [R,K]; w' of all groups */
} part;

/* Such a convolution is a matrix product of x itself: no column matrix, no weight layout, no
 * workspace. */
static bool is_pointwise(const ls__conv2d *c)
{
    return c->kernel[0] == 1 && c->kernel[1] == 1 && c->stride[0] == 1 && c->stride[1] == 1 &&
           c->padding[0] == 0 && c->padding[1] == 0 && c->groups == 1;
}

/* Bias and ReLU run on a part of y while it still lies in the cache. */
static bool is_fused(ls__conv2d_pass pass, const ls__conv2d_data *d)
{
    return pass == LS__CONV2D_FORWARD && (d->b != NULL || d->relu);
}

/* At least one image, however large it is. */
static int64_t images_within(const ls__conv2d *c, int64_t max, int64_t one)
{
    return one > max ? 1 : ls__min(c->batch, max / one);
}

/* Images of a part, at least one. The shape alone decides, because the order of dw's sums
 * follows from it. */
static int64_t images_of_part(const ls__conv2d *c, bool fused)
{
    int64_t taps = c->kernel[0] * c->kernel[1] * (c->in / c->groups);
    int64_t pixels = c->out_height * c->out_width;
    int64_t images = is_pointwise(c) ? c->batch : images_within(c, COL_MAX, pixels * taps);
    return fused ? ls__min(images, images_within(c, OUT_MAX, pixels * c->out)) : images;
}

/* ---- col ---------------------------------------------------------------------------------- */

typedef struct window { /* rows and columns of taps that lie within the image */
    int64_t row, col;   /* of x: where tap (0,0) stands */
    int64_t from[2], end[2];
} window;

/* The first tap of a window whose position at + tap * step is not left of the image. */
static int64_t first_within(int64_t at, int64_t step)
{
    return at >= 0 ? 0 : (-at + step - 1) / step;
}

/* Taps from `from` up to `end` lie inside the image; the others read padding. */
static window window_of(const ls__conv2d *c, int64_t pixel)
{
    window w = {.row = pixel / c->out_width * c->stride[0] - c->padding[0],
                .col = pixel % c->out_width * c->stride[1] - c->padding[1]};
    const int64_t at[2] = {w.row, w.col}, size[2] = {c->height, c->width};
    for (int i = 0; i < 2; i++) {
        int64_t fit = size[i] > at[i] ? (size[i] - at[i] - 1) / c->dilation[i] + 1 : 0;
        w.end[i] = ls__min(c->kernel[i], fit);
        w.from[i] = ls__min(first_within(at[i], c->dilation[i]), w.end[i]);
    }
    return w;
}

/* Taps of a row whose pixels and channels follow each other in x are one run. */
static void fill_taps(const part *p, float *to, const float *x, int64_t taps)
{
    const ls__conv2d *c = p->c;
    if (c->dilation[1] == 1 && c->groups == 1) {
        memcpy(to, x, (size_t)(taps * p->in) * sizeof *to);
        return;
    }
    for (int64_t q = 0; q < taps; q++) {
        memcpy(to + q * p->in, x + q * c->dilation[1] * c->in, (size_t)p->in * sizeof *to);
    }
}

/* Row i of the column matrix [R,K]: the taps of one output pixel, channels last, zeros where a
 * tap lies in the padding. */
static void fill_row(const part *p, int64_t i)
{
    const ls__conv2d *c = p->c;
    const float *x = p->x + i / p->pixels * c->height * c->width * c->in;
    float *to = p->col + i * p->depth;
    window w = window_of(c, i % p->pixels);
    int64_t width = c->kernel[1] * p->in, before = w.from[1] * p->in, end = w.end[1] * p->in;
    for (int64_t r = 0; r < c->kernel[0]; r++, to += width) {
        if (r < w.from[0] || r >= w.end[0] || before == end) {
            memset(to, 0, (size_t)width * sizeof *to);
            continue;
        }
        int64_t row = w.row + r * c->dilation[0], col = w.col + w.from[1] * c->dilation[1];
        memset(to, 0, (size_t)before * sizeof *to);
        fill_taps(p, to + before, x + (row * c->width + col) * c->in, w.end[1] - w.from[1]);
        memset(to + end, 0, (size_t)(width - end) * sizeof *to);
    }
}

/* The adjoint of fill_row: gradients of the taps are added to the pixels of dx that they were
 * read from, tap by tap. */
static void add_row(const part *p, int64_t i)
{
    const ls__conv2d *c = p->c;
    float *dx = p->dx + i / p->pixels * c->height * c->width * c->in;
    window w = window_of(c, i % p->pixels);
    for (int64_t r = w.from[0]; r < w.end[0]; r++) {
        const float *from = p->col + i * p->depth + r * c->kernel[1] * p->in;
        int64_t row = w.row + r * c->dilation[0];
        for (int64_t q = w.from[1]; q < w.end[1]; q++) {
            float *to = dx + (row * c->width + w.col + q * c->dilation[1]) * c->in;
#pragma omp simd
            for (int64_t k = 0; k < p->in; k++) {
                to[k] += from[q * p->in + k];
            }
        }
    }
}

/* Makes col [R,K] of a part. Each task writes rows of its own. */
static void fill_col(const part *p)
{
    int64_t rows = p->images * p->pixels;
    LS__PARALLEL_FOR(rows * p->depth >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++,
                     { fill_row(p, i); })
}

static void add_col(const part *p) /* windows overlap, so an image is one task */
{
    LS__PARALLEL_FOR(p->images * p->pixels * p->depth >= LS__PARALLEL_MIN, int64_t n = 0,
                     n < p->images, n++, {
                         for (int64_t i = 0; i < p->pixels; i++) {
                             add_row(p, n * p->pixels + i);
                         }
                     })
}

/* ---- w' ----------------------------------------------------------------------------------- */

/* w' [O,taps,I] from w [O,I,taps]: the order of channels in a row of the column matrix. */
static void pack_weight(const ls__conv2d *c, float *to, const float *w)
{
    int64_t in = c->in / c->groups, taps = c->kernel[0] * c->kernel[1];
    LS__PARALLEL_FOR(ls__conv2d_weights(c) >= LS__PARALLEL_MIN, int64_t o = 0, o < c->out, o++, {
        for (int64_t k = 0; k < taps; k++) {
            for (int64_t i = 0; i < in; i++) {
                to[(o * taps + k) * in + i] = w[(o * in + i) * taps + k];
            }
        }
    })
}

/* The inverse of pack_weight; the only step of dw that honours beta. */
static void unpack_weight(const ls__conv2d *c, float *w, const float *from, float beta)
{
    int64_t in = c->in / c->groups, taps = c->kernel[0] * c->kernel[1];
    LS__PARALLEL_FOR(ls__conv2d_weights(c) >= LS__PARALLEL_MIN, int64_t o = 0, o < c->out, o++, {
        for (int64_t i = 0; i < in; i++) {
            for (int64_t k = 0; k < taps; k++) {
                float value = from[(o * taps + k) * in + i], *to = &w[(o * in + i) * taps + k];
                *to = beta == 0.0f ? value : value + beta * *to;
            }
        }
    })
}

/* ---- a part ------------------------------------------------------------------------------- */

/* y = col w'^T for one group. y is overwritten, because the bias comes in finish. */
static void forward(const part *p)
{
    bool direct = is_pointwise(p->c);
    if (!direct) {
        fill_col(p);
    }
    LS__K(gemm)
    (&(ls__gemm){.trans_b = true,
                 .m = p->images * p->pixels,
                 .n = p->out,
                 .k = p->depth,
                 .a = direct ? p->x : p->col,
                 .lda = p->depth,
                 .b = p->weight + p->group * p->out * p->depth,
                 .ldb = p->depth,
                 .c = p->y,
                 .ldc = p->c->out},
     NULL);
}

/* dcol = dy w, then its rows are added to dx. Where the product is direct it honours beta itself;
 * otherwise prepare() cleared dx. */
static void backward_x(const part *p, float beta)
{
    bool direct = is_pointwise(p->c);
    LS__K(gemm)
    (&(ls__gemm){.m = p->images * p->pixels,
                 .n = p->depth,
                 .k = p->out,
                 .a = p->dy,
                 .lda = p->c->out,
                 .b = p->weight + p->group * p->out * p->depth,
                 .ldb = p->depth,
                 .c = direct ? p->dx : p->col,
                 .ldc = p->depth,
                 .beta = direct ? beta : 0.0f},
     NULL);
    if (!direct) {
        add_col(p);
    }
}

/* dw' += dy^T col. beta is 1 from the second part of the images on. */
static void backward_w(const part *p, float beta)
{
    bool direct = is_pointwise(p->c);
    if (!direct) {
        fill_col(p);
    }
    LS__K(gemm)
    (&(ls__gemm){.trans_a = true,
                 .m = p->out,
                 .n = p->depth,
                 .k = p->images * p->pixels,
                 .a = p->dy,
                 .lda = p->c->out,
                 .b = direct ? p->x : p->col,
                 .ldb = p->depth,
                 .c = p->weight + p->group * p->out * p->depth,
                 .ldc = p->depth,
                 .beta = beta},
     NULL);
}

/* Bias and ReLU on rows of y that were just made. */
LS__INLINE void finish_row(float *y, const float *b, int64_t n, const bool relu)
{
#pragma omp simd
    for (int64_t o = 0; o < n; o++) {
        float v = b != NULL ? y[o] + b[o] : y[o];
        y[o] = relu && v < 0.0f ? 0.0f : v; /* keeps NaN */
    }
}

/* The flag is a constant in each instance of finish_row. */
static void finish_rows(const ls__conv2d *c, const ls__conv2d_data *d, float *y, int64_t rows)
{
    int64_t n = c->out;
    LS__PARALLEL_FOR(rows * n >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++, {
        if (d->relu) {
            finish_row(y + i * n, d->b, n, true);
        } else {
            finish_row(y + i * n, d->b, n, false);
        }
    })
}

/* ---- all ---------------------------------------------------------------------------------- */

/* Rounded to 64 bytes, so that the packed weight behind it is aligned. */
static size_t col_bytes(const ls__conv2d *c)
{
    int64_t depth = c->kernel[0] * c->kernel[1] * (c->in / c->groups);
    int64_t count = images_of_part(c, false) * c->out_height * c->out_width * depth;
    return is_pointwise(c) ? 0 : (size_t)((count + 15) / 16 * 16) * sizeof(float);
}

/* Bytes: the column matrix of one part and w' of all groups; nothing where x itself is the
 * matrix. */
static size_t builtin_workspace(const ls__conv2d *c)
{
    return col_bytes(c) + (is_pointwise(c) ? 0 : (size_t)ls__conv2d_weights(c) * sizeof(float));
}

/* The part from `image` on, of one group. Pointers that the pass does not use stay NULL; weight
 * is the caller's to set. */
static part part_of(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                    int64_t image, int64_t group)
{
    part p = {.c = c, .in = c->in / c->groups, .out = c->out / c->groups, .group = group};
    p.taps = c->kernel[0] * c->kernel[1];
    p.depth = p.taps * p.in;
    p.pixels = c->out_height * c->out_width;
    p.images = ls__min(images_of_part(c, is_fused(pass, d)), c->batch - image);
    int64_t at_x = image * c->height * c->width * c->in + group * p.in;
    int64_t at_y = image * p.pixels * c->out + group * p.out;
    p.x = d->x != NULL ? (const float *)d->x + at_x : NULL;
    p.dy = d->dy != NULL ? (const float *)d->dy + at_y : NULL;
    p.dx = pass == LS__CONV2D_BACKWARD_X ? (float *)d->out + at_x : NULL;
    p.y = pass == LS__CONV2D_FORWARD ? (float *)d->out + at_y : NULL;
    p.col = d->workspace;
    return p;
}

/* Once a call, before the parts: parts of one image only add to dx. */
static void prepare(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                    float *weight)
{
    if (pass != LS__CONV2D_BACKWARD_W && !is_pointwise(c)) {
        pack_weight(c, weight, d->w);
    }
    if (pass == LS__CONV2D_BACKWARD_X && d->beta == 0.0f && !is_pointwise(c)) {
        LS__K(fill)(d->out, c->batch * c->in * c->height * c->width, 0.0f, NULL);
    }
}

/* One part, one group; `beta` as in the functions of the passes. */
static void run_part(const part *p, ls__conv2d_pass pass, float beta)
{
    switch (pass) {
    case LS__CONV2D_FORWARD:
        forward(p);
        break;
    case LS__CONV2D_BACKWARD_X:
        backward_x(p, beta);
        break;
    case LS__CONV2D_BACKWARD_W:
        backward_w(p, beta);
        break;
    }
}

/* The workspace holds the column matrix of one part and, behind it, the packed weight. Parts run in
 * order, and threads share the work inside each. */
void LS__K(conv2d_builtin)(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d)
{
    LS_ASSERT(c->batch > 0 && c->groups > 0);
    bool direct = is_pointwise(c), to_w = pass == LS__CONV2D_BACKWARD_W;
    /* only read unless it is the output */
    float *given = to_w ? d->out : (void *)(uintptr_t)d->w;
    float *weight = direct ? given : (float *)d->workspace + col_bytes(c) / sizeof(float);
    const bool fused = is_fused(pass, d);
    int64_t step = images_of_part(c, fused), pixels = c->out_height * c->out_width;
    prepare(c, pass, d, weight);
    for (int64_t image = 0; image < c->batch; image += step) {
        for (int64_t group = 0; group < c->groups; group++) {
            part p = part_of(c, pass, d, image, group);
            p.weight = weight;
            run_part(&p, pass, to_w && image > 0 ? 1.0f : direct ? d->beta : 0.0f);
        }
        if (fused) {
            finish_rows(c, d, (float *)d->out + image * pixels * c->out,
                        ls__min(step, c->batch - image) * pixels);
        }
    }
    if (to_w && !direct) {
        unpack_weight(c, d->out, weight, d->beta);
    }
}

/* The shape alone decides. */
static bool prefers_builtin(const ls__conv2d *c, ls__conv2d_pass pass)
{
    return is_pointwise(c) ||
           (pass == LS__CONV2D_BACKWARD_W && c->groups == 1 &&
            c->out_height * c->out_width <= FEW_PIXELS && ls__conv2d_weights(c) >= LARGE_WEIGHT);
}

/* One part, in the cache, on the calling thread. */
static void relu_part(void *y, int64_t count, bool half)
{
    if (half) {
        LS__K(unary_bf16)(LS__UNARY_RELU, y, y, count, NULL);
    } else {
        LS__K(unary)(LS__UNARY_RELU, y, y, count, NULL);
    }
}

/* A gradient of a 1 x 1 window is a product, which needs no layout of its own. */
static ls__gemm_bf16 product_of(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d)
{
    const bool to_w = pass == LS__CONV2D_BACKWARD_W;
    int64_t pixels = c->batch * c->height * c->width;
    return (ls__gemm_bf16){.trans_a = to_w, /* dw = dy^T x, dx = dy w */
                           .m = to_w ? c->out : pixels,
                           .n = c->in,
                           .k = to_w ? pixels : c->out,
                           .a = d->dy,
                           .lda = c->out,
                           .b = to_w ? d->x : d->w,
                           .ldb = c->in,
                           .c = d->out,
                           .ldc = c->in,
                           .half = d->half_out,
                           .beta = d->beta,
                           .batch = 1,
                           .plans = d->plans,
                           .workspace = d->workspace};
}

/* The forward pass is left to the convolution, which fuses bias and ReLU. */
static bool is_product(const ls__conv2d *c, ls__conv2d_pass pass)
{
    return pass != LS__CONV2D_FORWARD && is_pointwise(c);
}

/* oneDNN may refuse any shape; then the widened float32 convolution computes it. */
static void conv2d_half(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d)
{
    ls__gemm_bf16 g = product_of(c, pass, d);
    bool done =
        is_product(c, pass) ? ls__onednn_gemm_bf16(&g) : ls__onednn_conv2d(c, pass, d, relu_part);
    if (!done) {
        LS__K(conv2d_widened)(c, pass, d, NULL);
    }
}

/* Bytes; 0 from oneDNN means that it refuses this shape. */
static size_t workspace_half(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d)
{
    ls__gemm_bf16 g = product_of(c, pass, d);
    size_t direct = is_product(c, pass) ? ls__onednn_gemm_bf16_workspace(&g)
                                        : ls__onednn_conv2d_workspace(c, pass, d);
    return direct > 0 ? direct : LS__K(conv2d_widened_workspace)(c, pass, d);
}

/* Three implementations, one result within rounding: the shape decides first, then whether oneDNN
 * takes it. The workspace must be of conv2d_workspace's size for the same arguments. */
void LS__K(conv2d)(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                   ls_stream *stream)
{
    (void)stream;
    if (d->half) {
        conv2d_half(c, pass, d);
        return;
    }
    if (prefers_builtin(c, pass) || !ls__onednn_conv2d(c, pass, d, relu_part)) {
        LS__K(conv2d_builtin)(c, pass, d);
    }
}

/* Bytes, the larger of the two implementations' where oneDNN may still refuse to run. */
size_t LS__K(conv2d_workspace)(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d)
{
    if (d->half) {
        return workspace_half(c, pass, d);
    }
    size_t builtin = builtin_workspace(c);
    size_t onednn = prefers_builtin(c, pass) ? 0 : ls__onednn_conv2d_workspace(c, pass, d);
    return onednn > builtin ? onednn : builtin; /* should it refuse to run */
}
