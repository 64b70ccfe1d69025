/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling: the largest element or the mean of each window of each channel's plane.
 *
 *   largest   y = the first largest of the window, a NaN before all; dy goes to its place
 *   mean      y = sum of the window's elements inside the image / divisor; dx sums dy / divisor
 *
 * Sums run in order of rows, then columns; those of a gradient in order of the outputs. */
#include <math.h>

#include "kernel/ref/ref.h"

/* Of x and dx. */
static ls__image strides_of_x(const ls__pool2d *p)
{
    return ls__image_strides(p->channels, p->height, p->width);
}

/* Of y, dy and the index. */
static ls__image strides_of_y(const ls__pool2d *p)
{
    return ls__image_strides(p->channels, p->out_height, p->out_width);
}

typedef struct window { /* of output (i,j) of a plane */
    ls__window rows, cols;
} window;

/* Cut to the image; `padded` counts the padding, too. */
static window window_of(const ls__pool2d *p, int64_t i, int64_t j)
{
    return (window){ls__pool2d_window(p, 0, i), ls__pool2d_window(p, 1, j)};
}

/* For backward, which asks every output whether its window covers the input. */
static bool covers(const window *w, int64_t row, int64_t col)
{
    return row >= w->rows.from && row < w->rows.end && col >= w->cols.from && col < w->cols.end;
}

/* count_include_pad: the padding counts as elements of the window. */
static double divisor(const ls__pool2d *p, const window *w)
{
    int64_t inside = (w->rows.end - w->rows.from) * (w->cols.end - w->cols.from);
    return (double)(p->count_include_pad ? w->rows.padded * w->cols.padded : inside);
}

/* x at row and column of the plane whose first element is `plane`. */
static double at(const ls__pool2d *p, const float *x, int64_t plane, int64_t row, int64_t col)
{
    ls__image s = strides_of_x(p);
    return ls__ref_read(x, p->half, plane + row * s.h + col * s.w);
}

/* Where the largest of a window stands in its plane: the first of equals, a NaN before all. */
static int64_t largest(const ls__pool2d *p, const float *x, int64_t plane, const window *w)
{
    int64_t best = w->rows.from * p->width + w->cols.from;
    double value = at(p, x, plane, w->rows.from, w->cols.from);
    for (int64_t r = w->rows.from; r < w->rows.end; r++) {
        for (int64_t c = w->cols.from; c < w->cols.end; c++) {
            double v = at(p, x, plane, r, c);
            if (v > value || (isnan(v) && !isnan(value))) {
                value = v;
                best = r * p->width + c;
            }
        }
    }
    return best;
}

/* Over the elements inside the image. */
static double mean(const ls__pool2d *p, const float *x, int64_t plane, const window *w)
{
    double sum = 0.0;
    for (int64_t r = w->rows.from; r < w->rows.end; r++) {
        for (int64_t c = w->cols.from; c < w->cols.end; c++) {
            sum += at(p, x, plane, r, c);
        }
    }
    return sum / divisor(p, w);
}

/* Runs the body for each (i,j) of planes of s, at element `to`; `in` and `out` are the plane's
 * first elements in x and y. */
#define EACH(p, s, rows, columns, ...)                                                             \
    ls__image sx = strides_of_x(p), sy = strides_of_y(p);                                          \
    for (int64_t plane = 0; plane < p->batch * p->channels; plane++) {                             \
        int64_t n = plane / p->channels, ch = plane % p->channels;                                 \
        int64_t in = n * sx.n + ch * sx.c, out = n * sy.n + ch * sy.c;                             \
        for (int64_t i = 0; i < (rows); i++) {                                                     \
            for (int64_t j = 0; j < (columns); j++) {                                              \
                int64_t to = n * s.n + ch * s.c + i * s.h + j * s.w;                               \
                __VA_ARGS__                                                                        \
            }                                                                                      \
        }                                                                                          \
    }

/* index is the position within the plane, row * width + column. */
void ls__ref_max_pool2d(const ls__pool2d *p, float *y, int32_t *index, const float *x,
                        ls_stream *stream)
{
    (void)stream;
    EACH(p, sy, p->out_height, p->out_width, {
        window w = window_of(p, i, j);
        int64_t best = largest(p, x, in, &w);
        (void)out;
        ls__ref_write(y, p->half, to, at(p, x, in, best / p->width, best % p->width), 0.0f);
        if (index != NULL) {
            index[to] = (int32_t)best;
        }
    })
}

/* The gradient at position (row,col) of the plane that begins at `plane` of y; index NULL: of
 * means. */
static double gradient(const ls__pool2d *p, const float *dy, const int32_t *index, int64_t plane,
                       int64_t row, int64_t col)
{
    ls__image s = strides_of_y(p);
    double sum = 0.0;
    for (int64_t i = 0; i < p->out_height; i++) {
        for (int64_t j = 0; j < p->out_width; j++) {
            window w = window_of(p, i, j);
            int64_t from = plane + i * s.h + j * s.w;
            if (index == NULL && covers(&w, row, col)) {
                sum += ls__ref_read(dy, p->half, from) / divisor(p, &w);
            } else if (index != NULL && index[from] == row * p->width + col) {
                sum += ls__ref_read(dy, p->half, from);
            }
        }
    }
    return sum;
}

/* Each input sums the gradients of the outputs that name it. */
void ls__ref_max_pool2d_backward(const ls__pool2d *p, float *dx, float beta, const float *dy,
                                 const int32_t *index, ls_stream *stream)
{
    (void)stream;
    EACH(p, sx, p->height, p->width, {
        (void)in;
        ls__ref_write(dx, p->half, to, gradient(p, dy, index, out, i, j), beta);
    })
}

/* y = the mean of each window. */
void ls__ref_avg_pool2d(const ls__pool2d *p, float *y, const float *x, ls_stream *stream)
{
    (void)stream;
    EACH(p, sy, p->out_height, p->out_width, {
        window w = window_of(p, i, j);
        (void)out;
        ls__ref_write(y, p->half, to, mean(p, x, in, &w), 0.0f);
    })
}

/* Each output spreads dy / divisor evenly over its window. */
void ls__ref_avg_pool2d_backward(const ls__pool2d *p, float *dx, float beta, const float *dy,
                                 ls_stream *stream)
{
    (void)stream;
    EACH(p, sx, p->height, p->width, {
        (void)in;
        ls__ref_write(dx, p->half, to, gradient(p, dy, NULL, out, i, j), beta);
    })
}
