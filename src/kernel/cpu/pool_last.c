/* The largest of each window in images with their channels last: the lanes of a vector are
 * channels. Backward asks of each place of a window whether it was the largest, so it writes
 * vectors, too; a place's gradients are added in order of the outputs. */
#include <math.h>

#include "kernel/cpu/pool_last.h"

#define TILE 64 /* channels of a task */

typedef struct task { /* some channels of an image */
    const ls__pool2d *p;
    int64_t image, first, width;
} task;

static int64_t tiles_of(const ls__pool2d *p)
{
    return (p->channels + TILE - 1) / TILE;
}

static task task_of(const ls__pool2d *p, int64_t i)
{
    int64_t tiles = tiles_of(p), first = i % tiles * TILE;
    return (task){p, i / tiles, first, ls__min(TILE, p->channels - first)};
}

static bool is_parallel(const ls__pool2d *p)
{
    return p->batch * p->channels * p->height * p->width >= LS__PARALLEL_MIN;
}

/* Larger, or the first NaN. */
LS__INLINE void take(float *value, int32_t *index, const float *x, int32_t place, int64_t width)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) {
        float v = x[c], old = value[c];
        bool larger = v > old || (v != v && old == old);
        value[c] = larger ? v : old;
        index[c] = larger ? place : index[c];
    }
}

static void max_task(const task *t, float *y, int32_t *index, const float *x)
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
                take(value, best, x + place * p->channels, (int32_t)place, t->width);
            }
        }
        for (int64_t c = 0; c < t->width; c++) {
            y[o * p->channels + c] = value[c];
        }
        for (int64_t c = 0; index != NULL && c < t->width; c++) {
            index[o * p->channels + c] = best[c];
        }
    }
}

void LS__K(max_last)(const ls__pool2d *p, float *y, int32_t *index, const float *x)
{
    int64_t outs = p->out_height * p->out_width;
    LS__PARALLEL_FOR(is_parallel(p), int64_t i = 0, i < p->batch * tiles_of(p), i++, {
        task t = task_of(p, i);
        int64_t at = t.image * outs * p->channels + t.first;
        max_task(&t, y + at, index != NULL ? index + at : NULL,
                 x + t.image * p->height * p->width * p->channels + t.first);
    })
}

LS__INLINE void give(float *dx, const float *dy, const int32_t *index, int32_t place, int64_t width)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) {
        dx[c] += index[c] == place ? dy[c] : 0.0f;
    }
}

static void backward_task(const task *t, float *dx, float beta, const float *dy,
                          const int32_t *index)
{
    const ls__pool2d *p = t->p;
    for (int64_t i = 0; beta == 0.0f && i < p->height * p->width; i++) {
        for (int64_t c = 0; c < t->width; c++) {
            dx[i * p->channels + c] = 0.0f;
        }
    }
    for (int64_t o = 0; o < p->out_height * p->out_width; o++) {
        ls__window rows = ls__pool2d_window(p, 0, o / p->out_width);
        ls__window cols = ls__pool2d_window(p, 1, o % p->out_width);
        for (int64_t r = rows.from; r < rows.end; r++) {
            for (int64_t q = cols.from; q < cols.end; q++) {
                int64_t place = r * p->width + q, at = o * p->channels;
                give(dx + place * p->channels, dy + at, index + at, (int32_t)place, t->width);
            }
        }
    }
}

void LS__K(max_last_backward)(const ls__pool2d *p, float *dx, float beta, const float *dy,
                              const int32_t *index)
{
    int64_t outs = p->out_height * p->out_width;
    LS__PARALLEL_FOR(is_parallel(p), int64_t i = 0, i < p->batch * tiles_of(p), i++, {
        task t = task_of(p, i);
        int64_t at = t.image * outs * p->channels + t.first;
        backward_task(&t, dx + t.image * p->height * p->width * p->channels + t.first, beta,
                      dy + at, index + at);
    })
}
