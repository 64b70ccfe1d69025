/* Pooling of [N,C,H,W], plane by plane; formulas in ref/pool.c. Images with their channels last
 * are pool_last.c's. The largest of each window is found a tap at a time for a whole row of
 * outputs, so that the lanes of a vector are outputs:
 *
 *     y[j] = max(y[j], x[row, j*stride + tap])    for all taps of the window, in its order
 *
 * A plane is one task. Means are summed in float32, each row of a window by lanes, the rows in
 * order; gradients are added in order of the outputs. */
#include <math.h>
#include <string.h>

#include "kernel/cpu/pool_last.h"
#include "kernel/cpu/taps.h"

typedef struct planes {
    const ls__pool2d *p;
    ls__image x, y; /* strides */
    int64_t count;  /* of planes */
    bool parallel;
} planes;

/* A plane is one channel of one image, and the unit of work. */
static planes planes_of(const ls__pool2d *p)
{
    planes all = {.p = p, .count = p->batch * p->channels};
    all.x = ls__image_strides(p->layout, p->channels, p->height, p->width);
    all.y = ls__image_strides(p->layout, p->channels, p->out_height, p->out_width);
    all.parallel = all.count * p->height * p->width >= LS__PARALLEL_MIN;
    return all;
}

/* The first element of plane i in x or y. */
static int64_t plane_at(const ls__pool2d *p, ls__image s, int64_t i)
{
    return i / p->channels * s.n + i % p->channels * s.c;
}

/* ---- largest ------------------------------------------------------------------------------ */

#define ROW 64 /* outputs at a time */

typedef struct best_row { /* of outputs [first, first+count) */
    float value[ROW];
    int32_t index[ROW];
} best_row;

/* Takes x[j*step], which stands at index + j*stride in its plane, where it is larger, or the first
 * NaN. */
LS__INLINE void take_tap(best_row *best, int64_t from, int64_t end, const float *x, int64_t step,
                         int32_t index, int32_t stride)
{
#pragma omp simd
    for (int64_t j = from; j < end; j++) {
        float v = x[j * step], old = best->value[j];
        bool larger = v > old || (v != v && old == old);
        best->value[j] = larger ? v : old;
        best->index[j] = larger ? index + (int32_t)j * stride : best->index[j];
    }
}

/* The index starts at the window's first element, so a window of NaN or -inf has one. */
static void begin_row(best_row *best, const ls__pool2d *p, int64_t row, int64_t first,
                      int64_t count)
{
    for (int64_t j = 0; j < count; j++) {
        int64_t col = (first + j) * p->stride[1] - p->padding[1];
        best->value[j] = -INFINITY; /* a window of these alone has its first element */
        best->index[j] = (int32_t)(row * p->width + (col > 0 ? col : 0));
    }
}

/* Taps in the outer loop, outputs in the inner one: neighbouring outputs are compared together. */
static void find_row(best_row *best, const planes *all, const float *x, ls__window rows,
                     int64_t first, int64_t count)
{
    const ls__pool2d *p = all->p;
    int64_t stride = p->stride[1], step = stride * all->x.w;
    begin_row(best, p, rows.from, first, count);
    for (int64_t r = rows.from; r < rows.end; r++) {
        for (int64_t q = 0; q < p->kernel[1]; q++) {
            int64_t col = first * stride - p->padding[1] + q, from, end;
            ls__outputs_within(p->width, count, stride, col, &from, &end);
            const float *at = x + r * all->x.h + col * all->x.w;
            int32_t index = (int32_t)(r * p->width + col);
            if (step == 1) {
                take_tap(best, from, end, at, 1, index, 1);
            } else if (step == 2 && stride == 2) {
                take_tap(best, from, end, at, 2, index, 2);
            } else {
                take_tap(best, from, end, at, step, index, (int32_t)stride);
            }
        }
    }
}

/* `index` is the element's position within the plane, row * width + column. */
static void max_plane(const planes *all, float *y, int32_t *index, const float *x)
{
    const ls__pool2d *p = all->p;
    best_row best;
    for (int64_t i = 0; i < p->out_height; i++) {
        ls__window rows = ls__pool2d_window(p, 0, i);
        for (int64_t first = 0; first < p->out_width; first += ROW) {
            int64_t count = ls__min(ROW, p->out_width - first);
            find_row(&best, all, x, rows, first, count);
            for (int64_t j = 0; j < count; j++) {
                int64_t at = i * all->y.h + (first + j) * all->y.w;
                y[at] = best.value[j];
                if (index != NULL) {
                    index[at] = best.index[j];
                }
            }
        }
    }
}

/* index receives the position of each maximum, which backward needs, or is NULL. */
void LS__K(max_pool2d)(const ls__pool2d *p, float *y, int32_t *index, const float *x,
                       ls_stream *stream)
{
    (void)stream;
    if (p->layout == LS__NHWC) {
        LS__K(max_last)(p, y, index, x);
        return;
    }
    planes all = planes_of(p);
    LS__PARALLEL_FOR(all.parallel, int64_t i = 0, i < all.count, i++, {
        int64_t at = plane_at(p, all.y, i);
        max_plane(&all, y + at, index != NULL ? index + at : NULL, x + plane_at(p, all.x, i));
    })
}

/* Windows overlap, so gradients are added; a beta of 0 starts them from zero. */
static void begin_gradient(const planes *all, float *dx, float beta)
{
    const ls__pool2d *p = all->p;
    for (int64_t r = 0; beta == 0.0f && r < p->height; r++) {
        for (int64_t c = 0; c < p->width; c++) {
            dx[r * all->x.h + c * all->x.w] = 0.0f;
        }
    }
}

/* In order of the outputs, since several may have one input as their maximum. */
static void max_plane_backward(const planes *all, float *dx, const float *dy, const int32_t *index)
{
    const ls__pool2d *p = all->p;
    for (int64_t i = 0; i < p->out_height; i++) {
        for (int64_t j = 0; j < p->out_width; j++) {
            int64_t at = i * all->y.h + j * all->y.w;
            dx[index[at]] += dy[at];
        }
    }
}

/* index is max_pool2d's; x is not needed. */
void LS__K(max_pool2d_backward)(const ls__pool2d *p, float *dx, float beta, const float *dy,
                                const int32_t *index, ls_stream *stream)
{
    (void)stream;
    if (p->layout == LS__NHWC) {
        LS__K(max_last_backward)(p, dx, beta, dy, index);
        return;
    }
    planes all = planes_of(p);
    LS__PARALLEL_FOR(all.parallel, int64_t i = 0, i < all.count, i++, {
        int64_t at = plane_at(p, all.y, i);
        float *to = dx + plane_at(p, all.x, i);
        begin_gradient(&all, to, beta);
        max_plane_backward(&all, to, dy + at, index + at);
    })
}

/* ---- mean --------------------------------------------------------------------------------- */

/* count_include_pad: the padding counts as elements of the window, as in PyTorch. */
static float divisor(const ls__pool2d *p, ls__window rows, ls__window cols)
{
    return (float)(p->count_include_pad ? rows.padded * cols.padded
                                        : (rows.end - rows.from) * (cols.end - cols.from));
}

/* Row by row, each summed for itself; callers pass a constant step where elements are
 * neighbours. */
LS__INLINE float sum_window(const float *x, ls__window rows, ls__window cols, int64_t row,
                            int64_t step)
{
    float sum = 0.0f;
    for (int64_t r = rows.from; r < rows.end; r++) {
        float line = 0.0f;
#pragma omp simd reduction(+ : line)
        for (int64_t c = cols.from; c < cols.end; c++) {
            line += x[r * row + c * step];
        }
        sum += line;
    }
    return sum;
}

/* Means of all windows of a plane. */
static void avg_plane(const planes *all, float *y, const float *x)
{
    const ls__pool2d *p = all->p;
    for (int64_t i = 0; i < p->out_height; i++) {
        ls__window rows = ls__pool2d_window(p, 0, i);
        for (int64_t j = 0; j < p->out_width; j++) {
            ls__window cols = ls__pool2d_window(p, 1, j);
            float sum = all->x.w == 1 ? sum_window(x, rows, cols, all->x.h, 1)
                                      : sum_window(x, rows, cols, all->x.h, all->x.w);
            y[i * all->y.h + j * all->y.w] = sum / divisor(p, rows, cols);
        }
    }
}

/* A task is a plane. */
void LS__K(avg_pool2d)(const ls__pool2d *p, float *y, const float *x, ls_stream *stream)
{
    (void)stream;
    if (p->layout == LS__NHWC) {
        LS__K(avg_last)(p, y, x);
        return;
    }
    planes all = planes_of(p);
    LS__PARALLEL_FOR(all.parallel, int64_t i = 0, i < all.count, i++,
                     { avg_plane(&all, y + plane_at(p, all.y, i), x + plane_at(p, all.x, i)); })
}

/* dx += share over a window cut to the image. */
LS__INLINE void add_window(float *dx, float share, ls__window rows, ls__window cols, int64_t row,
                           int64_t step)
{
    for (int64_t r = rows.from; r < rows.end; r++) {
#pragma omp simd
        for (int64_t c = cols.from; c < cols.end; c++) {
            dx[r * row + c * step] += share;
        }
    }
}

/* Each output spreads dy / divisor over its window, in order of the outputs. */
static void avg_plane_backward(const planes *all, float *dx, const float *dy)
{
    const ls__pool2d *p = all->p;
    for (int64_t i = 0; i < p->out_height; i++) {
        ls__window rows = ls__pool2d_window(p, 0, i);
        for (int64_t j = 0; j < p->out_width; j++) {
            ls__window cols = ls__pool2d_window(p, 1, j);
            float share = dy[i * all->y.h + j * all->y.w] / divisor(p, rows, cols);
            if (all->x.w == 1) {
                add_window(dx, share, rows, cols, all->x.h, 1);
            } else {
                add_window(dx, share, rows, cols, all->x.h, all->x.w);
            }
        }
    }
}

/* A task is a plane, because windows of a plane overlap. */
void LS__K(avg_pool2d_backward)(const ls__pool2d *p, float *dx, float beta, const float *dy,
                                ls_stream *stream)
{
    (void)stream;
    if (p->layout == LS__NHWC) {
        LS__K(avg_last_backward)(p, dx, beta, dy);
        return;
    }
    planes all = planes_of(p);
    LS__PARALLEL_FOR(all.parallel, int64_t i = 0, i < all.count, i++, {
        float *to = dx + plane_at(p, all.x, i);
        begin_gradient(&all, to, beta);
        avg_plane_backward(&all, to, dy + plane_at(p, all.y, i));
    })
}
