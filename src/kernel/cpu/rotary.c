/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding; formulas in ref/rotary.c. Sines and cosines of all positions are
 * made once a call, [T,D/2] each, by turning on from position to position in float64, afresh
 * every RESTART positions so that no error grows. The blocks of RESTART positions are tasks, so
 * the tables' bits do not depend on the threads. */
#include <math.h>

#include "base/assert.h"
#include "kernel/cpu/isa.h"
#include "kernel/rotary.h"

#define RESTART 128

/* Bytes: a cosine and a sine for each position and pair. */
size_t LS__K(rotary_workspace)(const ls__rotary *r)
{
    return (size_t)r->time * (size_t)(r->dim / 2) * 2 * sizeof(float);
}

/* Positions [from,end) of one frequency; the tables' rows are `half` long. */
static void fill_column(float *c, float *s, int64_t half, int64_t from, int64_t end, int64_t first,
                        double frequency)
{
    double x = cos((double)(first + from) * frequency), y = sin((double)(first + from) * frequency);
    double step_x = cos(frequency), step_y = sin(frequency);
    for (int64_t t = from; t < end; t++) {
        c[t * half] = (float)x;
        s[t * half] = (float)y;
        double turned = x * step_x - y * step_y;
        y = x * step_y + y * step_x;
        x = turned;
    }
}

/* One row of D = 2 half elements: pairs (d, d + half) turn. sign is -1 in backward: the inverse
 * of a rotation is the rotation by the opposite angle. */
LS__INLINE void rotate_row(float *restrict y, const float *x, const float *c, const float *s,
                           int64_t half, float sign, float beta)
{
#pragma omp simd
    for (int64_t d = 0; d < half; d++) {
        float sine = sign * s[d];
        float low = x[d] * c[d] - x[d + half] * sine, high = x[d + half] * c[d] + x[d] * sine;
        y[d] = beta == 0.0f ? low : low + beta * y[d];
        y[d + half] = beta == 0.0f ? high : high + beta * y[d + half];
    }
}

/* The table is computed first, in float64 recurrences that restart every RESTART positions, so
 * errors do not grow with the sequence. */
void LS__K(rotary)(const ls__rotary *r, ls_stream *stream)
{
    (void)stream;
    LS_ASSERT(r->dim % 2 == 0);
    int64_t half = r->dim / 2, rows = r->batch * r->heads * r->time;
    float *c = r->workspace, *s = c + r->time * half;
    int64_t blocks = (r->time + RESTART - 1) / RESTART;
    LS__PARALLEL_FOR(r->time * half >= LS__PARALLEL_MIN, int64_t i = 0, i < blocks * half, i++, {
        int64_t from = i / half * RESTART, d = i % half;
        fill_column(c + d, s + d, half, from, ls__min(r->time, from + RESTART), r->first,
                    ls__rotary_frequency(r, d));
    })
    LS__PARALLEL_FOR(rows * r->dim >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++, {
        int64_t t = i % r->time, h = i / r->time % r->heads, b = i / r->time / r->heads;
        const float *x = r->x + b * r->x_b + h * r->x_h + t * r->x_t;
        rotate_row(r->y + i * r->dim, x, c + t * half, s + t * half, half, r->back ? -1.0f : 1.0f,
                   r->beta);
    })
}
