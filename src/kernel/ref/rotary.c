/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding (Su et al. 2021, section 3.2.2), with the pairs half a row apart as
 * GPT-NeoX and Llama have them. For d < D/2, a = (first + t) base^(-2d/D), or scaled as in
 * kernel/rotary.h:
 *
 *   y_d = x_d cos a - x_{d+D/2} sin a,   y_{d+D/2} = x_{d+D/2} cos a + x_d sin a
 *
 * A rotation's gradient is the rotation back.
 */
#include <math.h>

#include "kernel/ref/ref.h"
#include "kernel/rotary.h"

/* The pair (d, d + half) turns by position * base^(-2 d / dim); backward turns it back. */
static void rotate_row(float *y, const float *x, const ls__rotary *r, int64_t t)
{
    int64_t half = r->dim / 2;
    for (int64_t d = 0; d < half; d++) {
        double angle = (double)(r->first + t) * ls__rotary_frequency(r, d);
        double c = cos(angle), s = r->back ? -sin(angle) : sin(angle);
        double low = (double)x[d], high = (double)x[d + half];
        ls__ref_store(&y[d], low * c - high * s, r->beta);
        ls__ref_store(&y[d + half], high * c + low * s, r->beta);
    }
}

/* y is dense, x may be a view whose rows are dense. */
void ls__ref_rotary(const ls__rotary *r, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < r->batch * r->heads * r->time; i++) {
        int64_t t = i % r->time, h = i / r->time % r->heads, b = i / r->time / r->heads;
        rotate_row(r->y + i * r->dim, r->x + b * r->x_b + h * r->x_h + t * r->x_t, r, t);
    }
}

/* Nothing: angles are computed where they are used. */
size_t ls__ref_rotary_workspace(const ls__rotary *r)
{
    (void)r;
    return 0;
}
