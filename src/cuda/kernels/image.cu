/* SPDX-License-Identifier: Apache-2.0 */
/* Images, [N,H,W,C]: convolutions straight from the formula of kernel/ref/conv.c, pooling,
 * enlarging, batch norm. cuDNN, where it is there, does the first better (cuda/dnn.c). */
#include "common.cuh"

/* ---- convolution ------------------------------------------------------------------------------ */

static __device__ __inline__ int64_t weight_place(const ls__conv2d &c, int64_t out, int64_t in,
                                                  int64_t p, int64_t q)
{
    return ((out * (c.in / c.groups) + in) * c.kernel[0] + p) * c.kernel[1] + q;
}

/* Where tap (p,q) of output (i,j) meets x; false: in the padding. */
static __device__ __inline__ bool meets(const ls__conv2d &c, int64_t i, int64_t j, int64_t p,
                                        int64_t q, int64_t *row, int64_t *column)
{
    *row = i * c.stride[0] - c.padding[0] + p * c.dilation[0];
    *column = j * c.stride[1] - c.padding[1] + q * c.dilation[1];
    return *row >= 0 && *row < c.height && *column >= 0 && *column < c.width;
}

KERNEL(conv_forward)
{
    const ls__conv2d &c = k.of;
    const ls__conv2d_data &d = k.data;
    const ls__real x = real_of(d.x, d.half), w = real_of(d.w, d.half);
    const int64_t per_group = c.in / c.groups;
    EACH(at, c.batch * c.out_height * c.out_width * c.out)
    {
        const int64_t o = at % c.out, pixel = at / c.out;
        const int64_t j = pixel % c.out_width, i = pixel / c.out_width % c.out_height;
        const int64_t n = pixel / c.out_width / c.out_height;
        const int64_t first = o / (c.out / c.groups) * per_group;
        float sum = d.b != NULL ? d.b[o] : 0.0f;
        for (int64_t p = 0; p < c.kernel[0]; p++) {
            for (int64_t q = 0; q < c.kernel[1]; q++) {
                int64_t row, column;
                if (meets(c, i, j, p, q, &row, &column)) {
                    const int64_t from = ((n * c.height + row) * c.width + column) * c.in + first;
                    for (int64_t in = 0; in < per_group; in++) {
                        sum += get(x, from + in) * get(w, weight_place(c, o, in, p, q));
                    }
                }
            }
        }
        store(real_of(d.out, d.half_out), at, d.relu && sum < 0.0f ? 0.0f : sum, d.beta);
    }
}

/* The output along `axis` whose tap meets position `at`; -1: none. */
static __device__ __inline__ int64_t output_of(const ls__conv2d &c, int axis, int64_t at,
                                               int64_t tap)
{
    const int64_t from = at + c.padding[axis] - tap * c.dilation[axis];
    const int64_t outs = axis == 0 ? c.out_height : c.out_width;
    const bool is_one = from >= 0 && from % c.stride[axis] == 0 && from / c.stride[axis] < outs;
    return is_one ? from / c.stride[axis] : -1;
}

KERNEL(conv_backward_x)
{
    const ls__conv2d &c = k.of;
    const ls__conv2d_data &d = k.data;
    const ls__real dy = real_of(d.dy, d.half), w = real_of(d.w, d.half);
    const int64_t per_group = c.out / c.groups;
    EACH(at, c.batch * c.height * c.width * c.in)
    {
        const int64_t in = at % c.in, pixel = at / c.in, group = in / (c.in / c.groups);
        const int64_t column = pixel % c.width, row = pixel / c.width % c.height;
        const int64_t n = pixel / c.width / c.height;
        float sum = 0.0f;
        for (int64_t p = 0; p < c.kernel[0]; p++) {
            for (int64_t q = 0; q < c.kernel[1]; q++) {
                const int64_t i = output_of(c, 0, row, p), j = output_of(c, 1, column, q);
                for (int64_t o = group * per_group; i >= 0 && j >= 0 && o < (group + 1) * per_group;
                     o++) {
                    sum += get(dy, ((n * c.out_height + i) * c.out_width + j) * c.out + o) *
                           get(w, weight_place(c, o, in % (c.in / c.groups), p, q));
                }
            }
        }
        store(real_of(d.out, d.half_out), at, sum, d.beta);
    }
}

/* A block for each weight. */
KERNEL(conv_backward_w)
{
    const ls__conv2d &c = k.of;
    const ls__conv2d_data &d = k.data;
    const ls__real dy = real_of(d.dy, d.half), x = real_of(d.x, d.half);
    const int64_t per_group = c.in / c.groups;
    ROWS(at, c.out * per_group * c.kernel[0] * c.kernel[1])
    {
        const int64_t q = at % c.kernel[1], p = at / c.kernel[1] % c.kernel[0];
        const int64_t in = at / c.kernel[1] / c.kernel[0] % per_group;
        const int64_t o = at / c.kernel[1] / c.kernel[0] / per_group;
        const int64_t channel = o / (c.out / c.groups) * per_group + in;
        float sum = 0.0f;
        WITHIN(pixel, c.batch * c.out_height * c.out_width)
        {
            const int64_t j = pixel % c.out_width, i = pixel / c.out_width % c.out_height;
            const int64_t n = pixel / c.out_width / c.out_height;
            int64_t row, column;
            if (meets(c, i, j, p, q, &row, &column)) {
                sum += get(dy, pixel * c.out + o) *
                       get(x, ((n * c.height + row) * c.width + column) * c.in + channel);
            }
        }
        sum = sum_of(sum);
        if (threadIdx.x == 0) {
            store(real_of(d.out, d.half_out), at, sum, d.beta);
        }
    }
}

/* Weights in the order of cuDNN, and back. */
KERNEL(conv_reorder)
{
    const ls__real in = real_of(k.in, k.half_in), out = real_of(k.out, k.half_out);
    EACH(at, k.count * k.rows * k.columns)
    {
        const int64_t row = at % k.rows, column = at / k.rows % k.columns;
        const int64_t from = (at / k.rows / k.columns * k.rows + row) * k.columns + column;
        store(out, at, get(in, from), k.beta);
    }
}

/* ---- pooling ---------------------------------------------------------------------------------- */

typedef struct spot { /* of an element of an image */
    int64_t n, row, column, channel;
} spot;

static __device__ __inline__ spot spot_of(int64_t at, int64_t height, int64_t width,
                                          int64_t channels)
{
    spot s;
    s.channel = at % channels;
    s.column = at / channels % width;
    s.row = at / channels / width % height;
    s.n = at / channels / width / height;
    return s;
}

static __device__ __inline__ int64_t divisor_of(const ls__pool2d &p, const ls__window &rows,
                                                const ls__window &columns)
{
    return p.count_include_pad ? rows.padded * columns.padded
                               : (rows.end - rows.from) * (columns.end - columns.from);
}

KERNEL(max_pool2d)
{
    const ls__pool2d &p = k.p;
    const ls__real x = real_of(k.x, p.half);
    EACH(at, p.batch * p.out_height * p.out_width * p.channels)
    {
        const spot s = spot_of(at, p.out_height, p.out_width, p.channels);
        const ls__window rows = ls__pool2d_window(&p, 0, s.row);
        const ls__window columns = ls__pool2d_window(&p, 1, s.column);
        float best = -INFINITY;
        int32_t place = -1;
        for (int64_t r = rows.from; r < rows.end; r++) {
            for (int64_t c = columns.from; c < columns.end; c++) {
                const float value =
                    get(x, ((s.n * p.height + r) * p.width + c) * p.channels + s.channel);
                if (place < 0 || (best == best && (value != value || value > best))) {
                    best = value;
                    place = (int32_t)(r * p.width + c);
                }
            }
        }
        put(real_of(k.y, p.half), at, best);
        if (k.index != NULL) {
            k.index[at] = place;
        }
    }
}

KERNEL(avg_pool2d)
{
    const ls__pool2d &p = k.p;
    const ls__real x = real_of(k.x, p.half);
    EACH(at, p.batch * p.out_height * p.out_width * p.channels)
    {
        const spot s = spot_of(at, p.out_height, p.out_width, p.channels);
        const ls__window rows = ls__pool2d_window(&p, 0, s.row);
        const ls__window columns = ls__pool2d_window(&p, 1, s.column);
        float sum = 0.0f;
        for (int64_t r = rows.from; r < rows.end; r++) {
            for (int64_t c = columns.from; c < columns.end; c++) {
                sum += get(x, ((s.n * p.height + r) * p.width + c) * p.channels + s.channel);
            }
        }
        put(real_of(k.y, p.half), at, sum / (float)divisor_of(p, rows, columns));
    }
}

/* The outputs [from,end) along an axis whose windows cover a position. */
static __device__ __inline__ ls__window outputs_over(const ls__pool2d &p, int axis, int64_t at)
{
    const int64_t size = axis == 0 ? p.height : p.width;
    const int64_t outs = axis == 0 ? p.out_height : p.out_width;
    const int64_t place = at + p.padding[axis], before = place - p.kernel[axis];
    ls__window w;
    if (p.adaptive) {
        w.from = at * outs / size;
        w.end = ((at + 1) * outs + size - 1) / size;
    } else {
        w.from = before < 0 ? 0 : before / p.stride[axis] + 1;
        w.end = place / p.stride[axis] < outs ? place / p.stride[axis] + 1 : outs;
    }
    return w;
}

/* index NULL: of a mean. */
static __device__ float pool_gradient(const ls__pool2d &p, const ls__real dy, const int32_t *index,
                                      const spot &s)
{
    const ls__window high = outputs_over(p, 0, s.row), wide = outputs_over(p, 1, s.column);
    float sum = 0.0f;
    for (int64_t i = high.from; i < high.end; i++) {
        const ls__window rows = ls__pool2d_window(&p, 0, i);
        for (int64_t j = wide.from; j < wide.end; j++) {
            const ls__window columns = ls__pool2d_window(&p, 1, j);
            const int64_t from =
                ((s.n * p.out_height + i) * p.out_width + j) * p.channels + s.channel;
            if (index == NULL) {
                sum += get(dy, from) / (float)divisor_of(p, rows, columns);
            } else if (index[from] == s.row * p.width + s.column) {
                sum += get(dy, from);
            }
        }
    }
    return sum;
}

KERNEL(max_pool2d_backward)
{
    const ls__pool2d &p = k.p;
    EACH(at, p.batch * p.height * p.width * p.channels)
    {
        const spot s = spot_of(at, p.height, p.width, p.channels);
        store(real_of(k.dx, p.half), at, pool_gradient(p, real_of(k.dy, p.half), k.index, s),
              k.beta);
    }
}

KERNEL(avg_pool2d_backward)
{
    const ls__pool2d &p = k.p;
    EACH(at, p.batch * p.height * p.width * p.channels)
    {
        const spot s = spot_of(at, p.height, p.width, p.channels);
        store(real_of(k.dx, p.half), at, pool_gradient(p, real_of(k.dy, p.half), NULL, s), k.beta);
    }
}

/* ---- enlarging -------------------------------------------------------------------------------- */

static __device__ __inline__ float share_of(const ls__tap &tap, int64_t at)
{
    return (at == tap.from ? 1.0f - tap.weight : 0.0f) + (at == tap.next ? tap.weight : 0.0f);
}

KERNEL(upsample_forward)
{
    const ls__upsample2d &u = k.of;
    EACH(at, u.batch * u.out_height * u.out_width * u.channels)
    {
        const spot s = spot_of(at, u.out_height, u.out_width, u.channels);
        const ls__tap row = u.rows[s.row], column = u.columns[s.column];
        float sum = 0.0f;
        for (int64_t r = row.from; r <= row.next; r++) {
            for (int64_t c = column.from; c <= column.next; c++) {
                const float part = share_of(row, r) * share_of(column, c);
                sum +=
                    part == 0.0f
                        ? 0.0f
                        : part *
                              k.from[((s.n * u.height + r) * u.width + c) * u.channels + s.channel];
            }
        }
        k.to[at] = sum;
    }
}

KERNEL(upsample_backward)
{
    const ls__upsample2d &u = k.of;
    EACH(at, u.batch * u.height * u.width * u.channels)
    {
        const spot s = spot_of(at, u.height, u.width, u.channels);
        float sum = 0.0f;
        for (int64_t i = 0; i < u.out_height; i++) {
            const float in_row = share_of(u.rows[i], s.row);
            for (int64_t j = 0; in_row != 0.0f && j < u.out_width; j++) {
                sum +=
                    in_row * share_of(u.columns[j], s.column) *
                    k.from[((s.n * u.out_height + i) * u.out_width + j) * u.channels + s.channel];
            }
        }
        store(k.to, at, sum, k.beta);
    }
}

/* ---- batch norm ------------------------------------------------------------------------------- */

/* The first row of a part. */
static __device__ __inline__ int64_t first_row(const cuda_batch_norm_sums_args &k, int64_t part)
{
    return k.of.batch * k.of.pixels * part / k.parts;
}

/* The mean of each part, and the squares about it. */
KERNEL(batch_norm_part)
{
    const ls__batch_norm &n = k.of;
    const ls__real x = real_of(n.x, n.half);
    ROWS(at, (n.channels + LS__CUDA_TILE - 1) / LS__CUDA_TILE * k.parts)
    {
        const int64_t part = at % k.parts, c = tile_column(at / k.parts);
        const int64_t from = first_row(k, part), end = first_row(k, part + 1);
        double sum = 0.0, squares = 0.0;
        for (int64_t i = from + tile_line(); c < n.channels && i < end; i += LINES) {
            sum += (double)get(x, i * n.channels + c);
        }
        const double mean = sum_of_lines(sum) / (double)(end - from);
        for (int64_t i = from + tile_line(); c < n.channels && i < end; i += LINES) {
            const double d = (double)get(x, i * n.channels + c) - mean;
            squares += d * d;
        }
        squares = sum_of_lines(squares);
        if (tile_line() == 0 && c < n.channels) {
            k.part[2 * part * n.channels + c] = mean;
            k.part[(2 * part + 1) * n.channels + c] = squares;
        }
    }
}

/* Squares about the mean of all are those about the mean of a part, and their distance's (Chan,
 * Golub and LeVeque 1979). */
KERNEL(batch_norm_stats)
{
    const ls__batch_norm &n = k.of;
    const double count = (double)(n.batch * n.pixels);
    EACH(c, n.channels)
    {
        double sum = 0.0, squares = 0.0;
        for (int64_t p = 0; p < k.parts; p++) {
            const double rows = (double)(first_row(k, p + 1) - first_row(k, p));
            sum += rows * k.part[2 * p * n.channels + c];
        }
        const double mean = sum / count;
        for (int64_t p = 0; p < k.parts; p++) {
            const double rows = (double)(first_row(k, p + 1) - first_row(k, p));
            const double d = k.part[2 * p * n.channels + c] - mean;
            squares += k.part[(2 * p + 1) * n.channels + c] + rows * d * d;
        }
        k.mean[c] = (float)mean;
        k.variance[c] = (float)(squares / count);
    }
}

KERNEL(batch_norm_rstd)
{
    EACH(c, k.channels)
    {
        k.rstd[c] = (float)(1.0 / sqrt((double)k.variance[c] + k.eps));
    }
}

KERNEL(batch_norm)
{
    const ls__batch_norm &n = k.n;
    const ls__real x = real_of(n.x, n.half), residual = real_of(n.residual, n.half);
    EACH(at, n.batch * n.pixels * n.channels)
    {
        const int64_t c = at % n.channels;
        const float h = (get(x, at) - n.mean[c]) * n.rstd[c];
        float y = n.w != NULL ? h * n.w[c] : h;
        y += n.b != NULL ? n.b[c] : 0.0f;
        y += n.residual != NULL ? get(residual, at) : 0.0f;
        put(real_of(n.y, n.half), at, n.relu && y < 0.0f ? 0.0f : y);
    }
}

/* dy before the activation. */
static __device__ __inline__ float gradient_at(const ls__batch_norm &n, int64_t at)
{
    const bool cut = n.relu && get(real_of(n.out, n.half), at) <= 0.0f;
    return cut ? 0.0f : get(real_of(n.dy, n.half), at);
}

KERNEL(batch_norm_sums_part)
{
    const ls__batch_norm &n = k.of;
    const ls__real x = real_of(n.x, n.half);
    ROWS(at, (n.channels + LS__CUDA_TILE - 1) / LS__CUDA_TILE * k.parts)
    {
        const int64_t part = at % k.parts, c = tile_column(at / k.parts);
        const int64_t end = first_row(k, part + 1);
        double sum = 0.0, sum_h = 0.0;
        for (int64_t i = first_row(k, part) + tile_line(); c < n.channels && i < end; i += LINES) {
            const double g = (double)gradient_at(n, i * n.channels + c);
            sum += g;
            sum_h += g * (double)((get(x, i * n.channels + c) - n.mean[c]) * n.rstd[c]);
        }
        sum = sum_of_lines(sum);
        sum_h = sum_of_lines(sum_h);
        if (tile_line() == 0 && c < n.channels) {
            k.part[2 * part * n.channels + c] = sum;
            k.part[(2 * part + 1) * n.channels + c] = sum_h;
        }
    }
}

KERNEL(batch_norm_sums)
{
    const ls__batch_norm &n = k.of;
    EACH(c, n.channels)
    {
        double sum = 0.0, sum_h = 0.0;
        for (int64_t p = 0; p < k.parts; p++) {
            sum += k.part[2 * p * n.channels + c];
            sum_h += k.part[(2 * p + 1) * n.channels + c];
        }
        k.sums[c] = sum;
        k.sums[n.channels + c] = sum_h;
        if (n.dw != NULL) {
            store(n.dw, c, (float)sum_h, n.beta_w);
        }
        if (n.db != NULL) {
            store(n.db, c, (float)sum, n.beta_b);
        }
    }
}

KERNEL(batch_norm_gradient)
{
    const ls__batch_norm &n = k.of;
    const ls__real x = real_of(n.x, n.half);
    const int64_t here = n.batch * n.pixels;
    const double count = (double)(n.sums != NULL ? n.count : here);
    EACH(at, here * n.channels)
    {
        const int64_t c = at % n.channels;
        const float dy = gradient_at(n, at);
        if (n.dx != NULL) {
            const float h = (get(x, at) - n.mean[c]) * n.rstd[c];
            float g = dy;
            if (n.training) {
                g -= (float)((k.sums[c] + (double)h * k.sums[n.channels + c]) / count);
            }
            const float w = n.w != NULL ? n.w[c] : 1.0f;
            store(real_of(n.dx, n.half), at, w * n.rstd[c] * g, n.beta_x);
        }
        if (n.dresidual != NULL) {
            store(real_of(n.dresidual, n.half), at, dy, n.beta_residual);
        }
    }
}
