/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling of images [N,H,W,C] of float32 or bfloat16: the lanes of a vector are channels. Sums of a
 * window and of a gradient are float32, in order of rows, then columns. Backward goes from place to
 * place and asks the windows over it, so each element of dx is written once; gradients are added in
 * order of the outputs. */
#include <math.h>

#include "kernel/cpu/halves.h"

#define TILE 64 /* channels of a task */

typedef struct task { /* some channels of an image; the sums of a task are its own */
    const ls__pool2d *p;
    int64_t x, y, width; /* first elements; channels */
} task;

/* Up to TILE channels of an image are a task. */
static int64_t tasks_of(const ls__pool2d *p)
{
    return p->batch * ((p->channels + TILE - 1) / TILE);
}

/* Task number i, images first. */
static task task_of(const ls__pool2d *p, int64_t i)
{
    int64_t tiles = (p->channels + TILE - 1) / TILE, image = i / tiles, first = i % tiles * TILE;
    return (task){.p = p,
                  .x = image * p->height * p->width * p->channels + first,
                  .y = image * p->out_height * p->out_width * p->channels + first,
                  .width = ls__min(TILE, p->channels - first)};
}

/* Starting the threads pays only above this many elements. */
static bool is_parallel(const ls__pool2d *p)
{
    return p->batch * p->channels * p->height * p->width >= LS__PARALLEL_MIN;
}

/* Outputs [from,end) along axis 0 (height) or 1 whose windows cover position `at`. */
typedef struct outputs {
    int64_t from, end;
} outputs;

/* The inverse of ls__pool2d_window: which outputs' windows cover position `at`. */
static outputs outputs_over(const ls__pool2d *p, int axis, int64_t at)
{
    int64_t size = axis == 0 ? p->height : p->width;
    int64_t outs = axis == 0 ? p->out_height : p->out_width;
    if (p->adaptive) {
        return (outputs){at * outs / size, ((at + 1) * outs + size - 1) / size};
    }
    int64_t stride = p->stride[axis], before = at + p->padding[axis] - p->kernel[axis];
    return (outputs){before < 0 ? 0 : before / stride + 1,
                     ls__min(outs, (at + p->padding[axis]) / stride + 1)};
}

/* Elements of a window, with the padding where that counts. */
static float divisor(const ls__pool2d *p, ls__window rows, ls__window cols)
{
    return (float)(p->count_include_pad ? rows.padded * cols.padded
                                        : (rows.end - rows.from) * (cols.end - cols.from));
}

/* ---- largest ------------------------------------------------------------------------------ */

/* Larger, or the first NaN. */
LS__INLINE void take_larger(float *value, int32_t *index, const float *x, int64_t at, int32_t place,
                            int64_t width, const bool half)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) {
        float v = ls__get(x, at + c, half), old = value[c];
        bool larger = v > old || (v != v && old == old);
        value[c] = larger ? v : old;
        index[c] = larger ? place : index[c];
    }
}

/* The largest of every window, and its place unless index is NULL. */
LS__INLINE void max_task(const task *t, float *y, int32_t *index, const float *x, const bool half)
{
    const ls__pool2d *p = t->p;
    float value[TILE];
    int32_t best[TILE];
    for (int64_t o = 0; o < p->out_height * p->out_width; o++) {
        ls__window rows = ls__pool2d_window(p, 0, o / p->out_width);
        ls__window cols = ls__pool2d_window(p, 1, o % p->out_width);
        for (int64_t c = 0; c < t->width; c++) { /* a window of these alone has its first */
            value[c] = -INFINITY;
            best[c] = (int32_t)(rows.from * p->width + cols.from);
        }
        for (int64_t r = rows.from; r < rows.end; r++) {
            for (int64_t q = cols.from; q < cols.end; q++) {
                int64_t place = r * p->width + q;
                take_larger(value, best, x, t->x + place * p->channels, (int32_t)place, t->width,
                            half);
            }
        }
        int64_t at = t->y + o * p->channels;
        for (int64_t c = 0; c < t->width; c++) {
            ls__put(y, at + c, value[c], half);
        }
        for (int64_t c = 0; index != NULL && c < t->width; c++) {
            index[at + c] = best[c];
        }
    }
}

/* index receives the position of each maximum, which backward needs, or is NULL. */
void LS__K(max_pool2d)(const ls__pool2d *p, float *y, int32_t *index, const float *x,
                       ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(is_parallel(p), int64_t i = 0, i < tasks_of(p), i++, {
        task t = task_of(p, i);
        if (p->half) {
            max_task(&t, y, index, x, true);
        } else {
            max_task(&t, y, index, x, false);
        }
    })
}

/* ---- gradients ---------------------------------------------------------------------------- */

/* Adds dy of one output to the channels whose maximum stands at `place`. */
LS__INLINE void give(float *sum, const float *dy, const int32_t *index, int64_t at, int32_t place,
                     int64_t width, const bool half)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) {
        sum[c] += index[at + c] == place ? ls__get(dy, at + c, half) : 0.0f;
    }
}

/* Adds x / by, one position of all channels. */
LS__INLINE void spread(float *sum, const float *dy, int64_t at, float by, int64_t width,
                       const bool half)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) {
        sum[c] += ls__get(dy, at + c, half) / by;
    }
}

/* The share of output (i,j) at position (r,q); index NULL: it is a mean. */
LS__INLINE void give_from(const task *t, float *sum, const float *dy, const int32_t *index,
                          int64_t i, int64_t j, int64_t place, const bool half)
{
    const ls__pool2d *p = t->p;
    int64_t at = t->y + (i * p->out_width + j) * p->channels;
    if (index != NULL) {
        give(sum, dy, index, at, (int32_t)place, t->width, half);
    } else {
        float by = divisor(p, ls__pool2d_window(p, 0, i), ls__pool2d_window(p, 1, j));
        spread(sum, dy, at, by, t->width, half);
    }
}

/* dx of some channels, place by place; rounded once where it is bfloat16. */
LS__INLINE void backward_task(const task *t, float *dx, float beta, const float *dy,
                              const int32_t *index, const bool half)
{
    const ls__pool2d *p = t->p;
    float sum[TILE];
    for (int64_t place = 0; place < p->height * p->width; place++) {
        outputs rows = outputs_over(p, 0, place / p->width);
        outputs cols = outputs_over(p, 1, place % p->width);
        for (int64_t c = 0; c < t->width; c++) {
            sum[c] = 0.0f;
        }
        for (int64_t i = rows.from; i < rows.end; i++) {
            for (int64_t j = cols.from; j < cols.end; j++) {
                give_from(t, sum, dy, index, i, j, place, half);
            }
        }
        int64_t at = t->x + place * p->channels;
        for (int64_t c = 0; c < t->width; c++) {
            ls__put(dx, at + c, beta == 0.0f ? sum[c] : sum[c] + ls__get(dx, at + c, half), half);
        }
    }
}

/* Of both kinds; index NULL: of a mean. */
static void backward(const ls__pool2d *p, float *dx, float beta, const float *dy,
                     const int32_t *index)
{
    LS__PARALLEL_FOR(is_parallel(p), int64_t i = 0, i < tasks_of(p), i++, {
        task t = task_of(p, i);
        if (p->half) {
            backward_task(&t, dx, beta, dy, index, true);
        } else {
            backward_task(&t, dx, beta, dy, index, false);
        }
    })
}

void LS__K(max_pool2d_backward)(const ls__pool2d *p, float *dx, float beta, const float *dy,
                                const int32_t *index, ls_stream *stream)
{
    (void)stream;
    backward(p, dx, beta, dy, index);
}

void LS__K(avg_pool2d_backward)(const ls__pool2d *p, float *dx, float beta, const float *dy,
                                ls_stream *stream)
{
    (void)stream;
    backward(p, dx, beta, dy, NULL);
}

/* ---- mean --------------------------------------------------------------------------------- */

/* Sums of each window in order of rows, then columns, divided once. */
LS__INLINE void avg_task(const task *t, float *y, const float *x, const bool half)
{
    const ls__pool2d *p = t->p;
    float sum[TILE];
    for (int64_t o = 0; o < p->out_height * p->out_width; o++) {
        ls__window rows = ls__pool2d_window(p, 0, o / p->out_width);
        ls__window cols = ls__pool2d_window(p, 1, o % p->out_width);
        float by = divisor(p, rows, cols);
        for (int64_t c = 0; c < t->width; c++) {
            sum[c] = 0.0f;
        }
        for (int64_t r = rows.from; r < rows.end; r++) {
            for (int64_t q = cols.from; q < cols.end; q++) {
                spread(sum, x, t->x + (r * p->width + q) * p->channels, 1.0f, t->width, half);
            }
        }
        for (int64_t c = 0; c < t->width; c++) {
            ls__put(y, t->y + o * p->channels + c, sum[c] / by, half);
        }
    }
}

void LS__K(avg_pool2d)(const ls__pool2d *p, float *y, const float *x, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(is_parallel(p), int64_t i = 0, i < tasks_of(p), i++, {
        task t = task_of(p, i);
        if (p->half) {
            avg_task(&t, y, x, true);
        } else {
            avg_task(&t, y, x, false);
        }
    })
}
