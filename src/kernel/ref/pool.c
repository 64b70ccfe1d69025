/* Pooling: the largest element or the mean of each window of each channel's plane. */
#include <math.h>

#include "kernel/ref/ref.h"

static ls__image strides_of_x(const ls__pool2d *p)
{
    return ls__image_strides(p->layout, p->channels, p->height, p->width);
}

static ls__image strides_of_y(const ls__pool2d *p)
{
    return ls__image_strides(p->layout, p->channels, p->out_height, p->out_width);
}

/* Where the largest of a window stands in its plane: the first of equals, a NaN before all. */
static int64_t largest(const ls__pool2d *p, const float *x, int64_t i, int64_t j)
{
    ls__image s = strides_of_x(p);
    ls__window rows = ls__pool2d_window(p, 0, i), cols = ls__pool2d_window(p, 1, j);
    int64_t best = rows.from * p->width + cols.from;
    float value = x[rows.from * s.h + cols.from * s.w];
    for (int64_t r = rows.from; r < rows.end; r++) {
        for (int64_t c = cols.from; c < cols.end; c++) {
            float v = x[r * s.h + c * s.w];
            if (v > value || (isnan(v) && !isnan(value))) {
                value = v;
                best = r * p->width + c;
            }
        }
    }
    return best;
}

static double mean(const ls__pool2d *p, const float *x, int64_t i, int64_t j)
{
    ls__image s = strides_of_x(p);
    ls__window rows = ls__pool2d_window(p, 0, i), cols = ls__pool2d_window(p, 1, j);
    int64_t inside = (rows.end - rows.from) * (cols.end - cols.from);
    double sum = 0.0;
    for (int64_t r = rows.from; r < rows.end; r++) {
        for (int64_t c = cols.from; c < cols.end; c++) {
            sum += (double)x[r * s.h + c * s.w];
        }
    }
    return sum / (double)(p->count_include_pad ? rows.padded * cols.padded : inside);
}

/* Calls `body` with the plane's offsets in x and y and the output's place; the loops of all four.
 */
#define EACH_OUTPUT(p, ...)                                                                        \
    ls__image sx = strides_of_x(p), sy = strides_of_y(p);                                          \
    for (int64_t plane = 0; plane < p->batch * p->channels; plane++) {                             \
        int64_t n = plane / p->channels, ch = plane % p->channels;                                 \
        int64_t in = n * sx.n + ch * sx.c;                                                         \
        for (int64_t i = 0; i < p->out_height; i++) {                                              \
            for (int64_t j = 0; j < p->out_width; j++) {                                           \
                int64_t out = n * sy.n + ch * sy.c + i * sy.h + j * sy.w;                          \
                __VA_ARGS__                                                                        \
            }                                                                                      \
        }                                                                                          \
    }

void ls__ref_max_pool2d(const ls__pool2d *p, float *y, int32_t *index, const float *x,
                        ls_stream *stream)
{
    (void)stream;
    EACH_OUTPUT(p, {
        int64_t best = largest(p, x + in, i, j);
        y[out] = x[in + best / p->width * sx.h + best % p->width * sx.w];
        if (index != NULL) {
            index[out] = (int32_t)best;
        }
    })
}

static void begin_gradient(const ls__pool2d *p, float *dx, float beta)
{
    int64_t count = p->batch * p->channels * p->height * p->width;
    for (int64_t i = 0; beta == 0.0f && i < count; i++) {
        dx[i] = 0.0f;
    }
}

void ls__ref_max_pool2d_backward(const ls__pool2d *p, float *dx, float beta, const float *dy,
                                 const int32_t *index, ls_stream *stream)
{
    (void)stream;
    begin_gradient(p, dx, beta);
    EACH_OUTPUT(p, {
        int64_t best = index[out];
        dx[in + best / p->width * sx.h + best % p->width * sx.w] += dy[out];
    })
}

void ls__ref_avg_pool2d(const ls__pool2d *p, float *y, const float *x, ls_stream *stream)
{
    (void)stream;
    EACH_OUTPUT(p, { y[out] = (float)mean(p, x + in, i, j); })
}

static void spread(const ls__pool2d *p, float *dx, double dy, int64_t i, int64_t j)
{
    ls__image s = strides_of_x(p);
    ls__window rows = ls__pool2d_window(p, 0, i), cols = ls__pool2d_window(p, 1, j);
    int64_t inside = (rows.end - rows.from) * (cols.end - cols.from);
    double share = dy / (double)(p->count_include_pad ? rows.padded * cols.padded : inside);
    for (int64_t r = rows.from; r < rows.end; r++) {
        for (int64_t c = cols.from; c < cols.end; c++) {
            dx[r * s.h + c * s.w] += (float)share;
        }
    }
}

void ls__ref_avg_pool2d_backward(const ls__pool2d *p, float *dx, float beta, const float *dy,
                                 ls_stream *stream)
{
    (void)stream;
    begin_gradient(p, dx, beta);
    EACH_OUTPUT(p, { spread(p, dx + in, (double)dy[out], i, j); })
}
