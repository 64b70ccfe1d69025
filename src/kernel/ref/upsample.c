/* SPDX-License-Identifier: Apache-2.0 */
/* Images enlarged, [N,H,W,C] -> [N,H',W',C]: each output is the sum of up to four inputs, those
 * that the taps of its row and column name, times the product of both shares:
 *
 *   y[i,j] = sum over h in {from, next} of row i, w in {from, next} of column j of
 *            share(h) share(w) x[h,w]
 *
 * The gradient of an input sums share times dy over the outputs that read it, in order of the
 * outputs. */
#include "kernel/ref/ref.h"

/* The share of input (row, column) in an output. */
static double share(const ls__tap *y, const ls__tap *x, int64_t row, int64_t column)
{
    const double wy = (double)y->weight, wx = (double)x->weight;
    const double in_row = (row == y->from ? 1.0 - wy : 0.0) + (row == y->next ? wy : 0.0);
    const double in_column = (column == x->from ? 1.0 - wx : 0.0) + (column == x->next ? wx : 0.0);
    return in_row * in_column;
}

/* Element (n,h,w,c) of an image. */
static int64_t at(int64_t height, int64_t width, int64_t channels, const int64_t *i)
{
    return ((i[0] * height + i[1]) * width + i[2]) * channels + i[3];
}

/* A share of 0 leaves an infinite input out of the sum, as the fast kernel's copy does. */
void ls__ref_upsample2d(const ls__upsample2d *u, float *y, const float *x, ls_stream *stream)
{
    (void)stream;
    const int64_t shape[] = {u->batch, u->out_height, u->out_width, u->channels};
    int64_t o[LS__KERNEL_DIMS_MAX] = {0};
    for (int64_t i = 0; i < ls__ref_count(4, shape); i++, ls__ref_next(o, 4, shape)) {
        const ls__tap *row = &u->rows[o[1]], *column = &u->columns[o[2]];
        double sum = 0.0;
        for (int64_t h = row->from; h <= row->next; h++) {
            for (int64_t w = column->from; w <= column->next; w++) {
                const int64_t in[] = {o[0], h, w, o[3]};
                const double part = share(row, column, h, w);
                sum +=
                    part == 0.0 ? 0.0 : part * (double)x[at(u->height, u->width, u->channels, in)];
            }
        }
        y[i] = (float)sum;
    }
}

/* By input, so that each sum stands alone: slow, and plain. */
void ls__ref_upsample2d_backward(const ls__upsample2d *u, float *dx, float beta, const float *dy,
                                 ls_stream *stream)
{
    (void)stream;
    const int64_t shape[] = {u->batch, u->height, u->width, u->channels};
    int64_t p[LS__KERNEL_DIMS_MAX] = {0};
    for (int64_t i = 0; i < ls__ref_count(4, shape); i++, ls__ref_next(p, 4, shape)) {
        double sum = 0.0;
        for (int64_t h = 0; h < u->out_height; h++) {
            for (int64_t w = 0; w < u->out_width; w++) {
                const int64_t out[] = {p[0], h, w, p[3]};
                sum += share(&u->rows[h], &u->columns[w], p[1], p[2]) *
                       (double)dy[at(u->out_height, u->out_width, u->channels, out)];
            }
        }
        ls__ref_store(&dx[i], sum, beta);
    }
}
