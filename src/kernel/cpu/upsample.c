/* SPDX-License-Identifier: Apache-2.0 */
/* Images enlarged, their channels last: pixel by pixel, each a loop over the channels. Forward
 * shares rows of the output among threads. Backward shares images: outputs that meet in an input
 * are of one image, so every sum has one order. */
#include <string.h>

#include "kernel/cpu/isa.h"

typedef struct corner { /* the four inputs of an output, and their shares */
    int64_t at[4];      /* elements from the image's first */
    float share[4];
    int count; /* 1: the others have no share */
} corner;

/* Shares are products of those along the axes; a pixel that is met exactly needs no arithmetic. */
LS__INLINE corner corners_of(const ls__upsample2d *u, const ls__tap *row, const ls__tap *column)
{
    const int64_t top = row->from * u->width, bottom = row->next * u->width;
    const float wy = row->weight, wx = column->weight;
    return (corner){
        .at = {(top + column->from) * u->channels, (top + column->next) * u->channels,
               (bottom + column->from) * u->channels, (bottom + column->next) * u->channels},
        .share = {(1.0f - wy) * (1.0f - wx), (1.0f - wy) * wx, wy * (1.0f - wx), wy * wx},
        .count = wy == 0.0f && wx == 0.0f ? 1 : 4};
}

/* A copy keeps infinities, which 0 times infinity would turn into NaN. */
static void pixel(float *y, const float *x, const corner *c, int64_t channels)
{
    if (c->count == 1) {
        memcpy(y, x + c->at[0], (size_t)channels * sizeof(float));
        return;
    }
    const float *x0 = x + c->at[0], *x1 = x + c->at[1], *x2 = x + c->at[2], *x3 = x + c->at[3];
#pragma omp simd
    for (int64_t i = 0; i < channels; i++) {
        y[i] =
            c->share[0] * x0[i] + c->share[1] * x1[i] + c->share[2] * x2[i] + c->share[3] * x3[i];
    }
}

/* A task is a row of the output; rows only read the input. */
void LS__K(upsample2d)(const ls__upsample2d *u, float *y, const float *x, ls_stream *stream)
{
    (void)stream;
    const int64_t image = u->height * u->width * u->channels, row = u->out_width * u->channels;
    const int64_t rows = u->batch * u->out_height;
    LS__PARALLEL_FOR(rows * row >= LS__PARALLEL_MIN, int64_t i = 0, i < rows, i++, {
        const float *from = x + i / u->out_height * image;
        for (int64_t w = 0; w < u->out_width; w++) {
            const corner c = corners_of(u, &u->rows[i % u->out_height], &u->columns[w]);
            pixel(y + i * row + w * u->channels, from, &c, u->channels);
        }
    })
}

/* Adds an output's gradient to the inputs it was made of, by their shares. */
static void pixel_backward(float *dx, const float *dy, const corner *c, int64_t channels)
{
    for (int k = 0; k < c->count; k++) { /* one after the other: they may be one input */
        float *to = dx + c->at[k];
        const float share = c->share[k];
#pragma omp simd
        for (int64_t i = 0; i < channels; i++) {
            to[i] += share * dy[i];
        }
    }
}

/* A task is an image, because the outputs of an image add to shared inputs. */
void LS__K(upsample2d_backward)(const ls__upsample2d *u, float *dx, float beta, const float *dy,
                                ls_stream *stream)
{
    (void)stream;
    const int64_t image = u->height * u->width * u->channels;
    const int64_t pixels = u->out_height * u->out_width;
    if (beta == 0.0f) {
        LS__K(fill)(dx, u->batch * image, 0.0f, NULL);
    }
    LS__PARALLEL_FOR(
        u->batch * pixels * u->channels >= LS__PARALLEL_MIN, int64_t n = 0, n < u->batch, n++, {
            for (int64_t i = 0; i < pixels; i++) {
                const corner c =
                    corners_of(u, &u->rows[i / u->out_width], &u->columns[i % u->out_width]);
                pixel_backward(dx + n * image, dy + (n * pixels + i) * u->channels, &c,
                               u->channels);
            }
        })
}
