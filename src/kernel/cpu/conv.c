/* Convolutions: oneDNN's, or the built-in one, which is a matrix product per image and group.
 *
 * The pixels that meet tap (p,q) of channel c are one row of a matrix `col` [K,P], K = channels of
 * the group x taps, P = output pixels (Chellapilla, Puri & Simard 2006):
 *
 *     y  [O,P] = w [O,K] col [K,P]       dcol [K,P] = w^T dy, added back to dx row by row
 *     dw [O,K] = dy [O,P] col^T          (images in order, so the sum has one order)
 *
 * In NHWC y and dy are [P,O], so the products stand the other way round.
 */
#include <string.h>

#include "kernel/cpu/onednn.h"
#include "kernel/cpu/taps.h"

typedef struct part { /* one image, one group */
    const ls__conv2d *c;
    int64_t in, out;      /* channels of the group */
    int64_t taps, pixels; /* K, P */
    ls__image x, y;       /* strides */
    int64_t from_x, from_y, from_w, group;
    float *col; /* [K,P] */
} part;

static part part_of(const ls__conv2d *c, int64_t image, int64_t group, void *workspace)
{
    part p = {.c = c, .in = c->in / c->groups, .out = c->out / c->groups, .group = group};
    p.taps = p.in * c->kernel[0] * c->kernel[1];
    p.pixels = c->out_height * c->out_width;
    p.x = ls__image_strides(c->layout, c->in, c->height, c->width);
    p.y = ls__image_strides(c->layout, c->out, c->out_height, c->out_width);
    p.from_x = image * p.x.n + group * p.in * p.x.c;
    p.from_y = image * p.y.n + group * p.out * p.y.c;
    p.from_w = group * p.out * p.taps;
    p.col = workspace;
    return p;
}

/* The image itself is `col` where each output pixel sees just its own. */
static bool is_pointwise(const ls__conv2d *c)
{
    return c->layout == LS__NCHW && c->kernel[0] == 1 && c->kernel[1] == 1 && c->stride[0] == 1 &&
           c->stride[1] == 1 && c->padding[0] == 0 && c->padding[1] == 0;
}

typedef struct tap {           /* row k of col */
    int64_t channel, row, col; /* of x: channel of the group; offsets of output (0,0)'s pixel */
    int64_t from, end;         /* outputs of a row that lie within the image */
} tap;

static tap tap_of(const part *p, int64_t k)
{
    const ls__conv2d *c = p->c;
    tap t = {.channel = k / (c->kernel[0] * c->kernel[1])};
    t.row = k / c->kernel[1] % c->kernel[0] * c->dilation[0] - c->padding[0];
    t.col = k % c->kernel[1] * c->dilation[1] - c->padding[1];
    ls__outputs_within(c->width, c->out_width, c->stride[1], t.col, &t.from, &t.end);
    return t;
}

static void fill_row(const part *p, const float *x, int64_t k)
{
    const ls__conv2d *c = p->c;
    tap t = tap_of(p, k);
    int64_t step = c->stride[1] * p->x.w;
    for (int64_t i = 0; i < c->out_height; i++) {
        float *to = p->col + k * p->pixels + i * c->out_width;
        int64_t row = i * c->stride[0] + t.row;
        bool inside = row >= 0 && row < c->height;
        int64_t from = inside ? t.from : c->out_width, end = inside ? t.end : c->out_width;
        const float *at = x + t.channel * p->x.c + row * p->x.h + t.col * p->x.w;
        memset(to, 0, (size_t)from * sizeof *to);
        for (int64_t j = from; j < end; j++) {
            to[j] = at[j * step];
        }
        memset(to + end, 0, (size_t)(c->out_width - end) * sizeof *to);
    }
}

static void add_row(const part *p, float *dx, int64_t k)
{
    const ls__conv2d *c = p->c;
    tap t = tap_of(p, k);
    int64_t step = c->stride[1] * p->x.w;
    for (int64_t i = 0; i < c->out_height; i++) {
        const float *from = p->col + k * p->pixels + i * c->out_width;
        int64_t row = i * c->stride[0] + t.row;
        if (row < 0 || row >= c->height) {
            continue;
        }
        float *at = dx + t.channel * p->x.c + row * p->x.h + t.col * p->x.w;
        for (int64_t j = t.from; j < t.end; j++) {
            at[j * step] += from[j];
        }
    }
}

static void fill_col(const part *p, const float *x)
{
    LS__PARALLEL_FOR(p->taps * p->pixels >= LS__PARALLEL_MIN, int64_t k = 0, k < p->taps, k++,
                     { fill_row(p, x, k); })
}

/* Rows of one channel meet the same pixels, so a channel is one task. */
static void add_col(const part *p, float *dx)
{
    int64_t taps = p->c->kernel[0] * p->c->kernel[1];
    LS__PARALLEL_FOR(p->taps * p->pixels >= LS__PARALLEL_MIN, int64_t ch = 0, ch < p->in, ch++, {
        for (int64_t k = ch * taps; k < (ch + 1) * taps; k++) {
            add_row(p, dx, k);
        }
    })
}

static void forward(const part *p, const ls__conv2d_data *d)
{
    const float *x = d->x + p->from_x;
    bool direct = is_pointwise(p->c), nchw = p->c->layout == LS__NCHW;
    ls__gemm g = {.m = p->out, .n = p->pixels, .k = p->taps, .c = d->out + p->from_y};
    if (!direct) {
        fill_col(p, x);
    }
    g.a = d->w + p->from_w, g.lda = p->taps;
    g.b = direct ? x : p->col, g.ldb = p->pixels;
    g.ldc = p->pixels;
    if (!nchw) { /* y^T = col^T w^T */
        g = (ls__gemm){true,      true, p->pixels, p->out, p->taps, p->col,
                       p->pixels, g.a,  p->taps,   g.c,    p->y.w,  0.0f};
    }
    LS__K(gemm)(&g, NULL);
}

static void backward_x(const part *p, const ls__conv2d_data *d)
{
    bool direct = is_pointwise(p->c), nchw = p->c->layout == LS__NCHW;
    float *dx = d->out + p->from_x;
    ls__gemm g = {.trans_a = true,
                  .trans_b = !nchw,
                  .m = p->taps,
                  .n = p->pixels,
                  .k = p->out,
                  .a = d->w + p->from_w,
                  .lda = p->taps,
                  .b = d->dy + p->from_y,
                  .ldb = nchw ? p->pixels : p->y.w,
                  .c = direct ? dx : p->col,
                  .ldc = p->pixels,
                  .beta = direct ? d->beta : 0.0f};
    LS__K(gemm)(&g, NULL);
    if (!direct) {
        add_col(p, dx);
    }
}

static void backward_w(const part *p, const ls__conv2d_data *d, bool first)
{
    const float *x = d->x + p->from_x;
    bool direct = is_pointwise(p->c), nchw = p->c->layout == LS__NCHW;
    if (!direct) {
        fill_col(p, x);
    }
    ls__gemm g = {.trans_a = !nchw,
                  .trans_b = true,
                  .m = p->out,
                  .n = p->taps,
                  .k = p->pixels,
                  .a = d->dy + p->from_y,
                  .lda = nchw ? p->pixels : p->y.w,
                  .b = direct ? x : p->col,
                  .ldb = p->pixels,
                  .c = d->out + p->from_w,
                  .ldc = p->taps,
                  .beta = first ? d->beta : 1.0f};
    LS__K(gemm)(&g, NULL);
}

static void add_bias(const ls__conv2d *c, float *y, const float *b)
{
    int64_t pixels = c->out_height * c->out_width;
    if (c->layout == LS__NHWC) {
        LS__K(add_rows)(y, b, c->batch * pixels, c->out, NULL);
        return;
    }
    for (int64_t i = 0; i < c->batch * c->out; i++) {
        for (int64_t j = 0; j < pixels; j++) {
            y[i * pixels + j] += b[i % c->out];
        }
    }
}

void LS__K(conv2d_builtin)(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d)
{
    if (pass == LS__CONV2D_BACKWARD_X && d->beta == 0.0f && !is_pointwise(c)) {
        LS__K(fill)(d->out, c->batch * c->in * c->height * c->width, 0.0f, NULL);
    }
    for (int64_t i = 0; i < c->batch * c->groups; i++) {
        part p = part_of(c, i / c->groups, i % c->groups, d->workspace);
        switch (pass) {
        case LS__CONV2D_FORWARD:
            forward(&p, d);
            break;
        case LS__CONV2D_BACKWARD_X:
            backward_x(&p, d);
            break;
        case LS__CONV2D_BACKWARD_W:
            backward_w(&p, d, i < c->groups);
            break;
        }
    }
    if (pass == LS__CONV2D_FORWARD && d->b != NULL) {
        add_bias(c, d->out, d->b);
    }
}

void LS__K(conv2d)(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                   ls_stream *stream)
{
    (void)stream;
    if (!ls__onednn_conv2d(c, pass, d)) {
        LS__K(conv2d_builtin)(c, pass, d);
    }
}

size_t LS__K(conv2d_workspace)(const ls__conv2d *c, ls__conv2d_pass pass)
{
    part p = part_of(c, 0, 0, NULL);
    size_t builtin = is_pointwise(c) ? 0 : (size_t)(p.taps * p.pixels) * sizeof(float);
    size_t onednn = ls__onednn_conv2d_workspace(c, pass);
    return onednn > builtin ? onednn : builtin;
}
