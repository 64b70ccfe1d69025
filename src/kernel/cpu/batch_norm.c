/* SPDX-License-Identifier: Apache-2.0 */
/* Batch normalisation of a matrix [R,C], R = N pixels, whose columns are normalised; formulas in
 * ref/batch_norm.c. The lanes of a vector are channels.
 *
 *     rows   | part 0 | part 1 | …     a task each; how many, the shape alone decides
 *     part   | 32 rows | 32 rows | …   summed in float32, by TILE channels: they stay in the cache
 *
 * Elements of bfloat16 are widened as they are read, and rounded as they are written.
 *
 * Beyond 32 rows sums are float64. Statistics are made in one pass over memory: a block's mean and
 * sum of squares about it are merged into those before it (Chan, Golub & LeVeque 1983).
 */
#include <math.h>

#include "base/assert.h"
#include "kernel/cpu/halves.h"

#define TILE 256
#define ROWS 32
#define PARTS_MAX 32
#define PART_MIN 16384 /* elements */

typedef struct grid {
    int64_t rows, channels, parts; /* x is [rows,channels], cut into parts of rows */
    bool parallel;                 /* parts are shared among threads */
} grid;

/* The number of parts follows from the shape alone, so the sums are the same for any number of
 * threads. */
static grid grid_of(const ls__batch_norm *n)
{
    grid g = {.rows = n->batch * n->pixels, .channels = n->channels};
    int64_t count = g.rows * g.channels;
    g.parts = ls__min(PARTS_MAX, ls__min((g.rows + ROWS - 1) / ROWS, count / PART_MIN + 1));
    g.parallel = count >= LS__PARALLEL_MIN;
    return g;
}

/* First row of a part; the first row of part + 1 is its end. */
static int64_t part_from(const grid *g, int64_t part)
{
    return g->rows * part / g->parts;
}

/* In the workspace: two float64 a channel for each part, then up to four float32 a channel. */
static double *of_part(const ls__batch_norm *n, const grid *g, int64_t part)
{
    return (double *)n->workspace + part * 2 * g->channels;
}

/* A float32 row of one value a channel, behind the parts' sums. */
static float *of_channels(const ls__batch_norm *n, const grid *g, int which)
{
    return (float *)(void *)of_part(n, g, g->parts) + which * g->channels;
}

/* Bytes for both directions: forward uses two of the four float32 rows, backward three. */
size_t LS__K(batch_norm_workspace)(const ls__batch_norm *n)
{
    grid g = grid_of(n);
    return (size_t)(g.parts * 2 * g.channels) * sizeof(double) +
           (size_t)(4 * g.channels) * sizeof(float);
}

/* ---- mean and variance -------------------------------------------------------------------- */

typedef struct moments {
    double mean[TILE], squares[TILE]; /* squares about the mean */
    int64_t count;
} moments;

/* Rows from element `at` of x on. Elements are seen less the block's first row, so that large ones
 * keep their digits. */
LS__INLINE void add_block(moments *m, const float *x, int64_t at, int64_t rows, int64_t stride,
                          const int64_t width, const bool half)
{
    float first[TILE], sum[TILE], square[TILE];
    for (int64_t c = 0; c < width; c++) {
        first[c] = ls__get(x, at + c, half);
        sum[c] = square[c] = 0.0f;
    }
    for (int64_t r = 0; r < rows; r++) {
#pragma omp simd
        for (int64_t c = 0; c < width; c++) {
            sum[c] += ls__get(x, at + r * stride + c, half) - first[c];
        }
    }
#pragma omp simd
    for (int64_t c = 0; c < width; c++) {
        sum[c] /= (float)rows;
    }
    for (int64_t r = 0; r < rows; r++) {
#pragma omp simd
        for (int64_t c = 0; c < width; c++) {
            float d = ls__get(x, at + r * stride + c, half) - first[c] - sum[c];
            square[c] += d * d;
        }
    }
    double all = (double)(m->count + rows), share = (double)rows / all;
    double weight = (double)m->count * share;
#pragma omp simd
    for (int64_t c = 0; c < width; c++) {
        double off = (double)first[c] + (double)sum[c] - m->mean[c];
        m->mean[c] += off * share;
        m->squares[c] += (double)square[c] + off * off * weight;
    }
    m->count += rows;
}

/* A part's rows, ROWS at a time, for `width` channels from `first` on; the width is a constant
 * where callers pass one. */
LS__INLINE void add_rows(const ls__batch_norm *n, const grid *g, moments *m, int64_t part,
                         int64_t first, const int64_t width, const bool half)
{
    int64_t end = part_from(g, part + 1);
    for (int64_t r = part_from(g, part); r < end; r += ROWS) {
        add_block(m, n->x, r * g->channels + first, ls__min(ROWS, end - r), g->channels, width,
                  half);
    }
}

/* Mean and sum of squares about it of each channel over one part, to the part's place in the
 * workspace. 64 channels are the usual width of a first layer, whose loop the compiler unrolls
 * completely. */
static void part_stats(const ls__batch_norm *n, const grid *g, int64_t part)
{
    double *out = of_part(n, g, part);
    for (int64_t first = 0; first < g->channels; first += TILE) {
        int64_t width = ls__min(TILE, g->channels - first);
        moments m;
        m.count = 0;
        for (int64_t c = 0; c < width; c++) {
            m.mean[c] = m.squares[c] = 0.0;
        }
        if (n->half) {
            add_rows(n, g, &m, part, first, width, true);
        } else if (width == 64) {
            add_rows(n, g, &m, part, first, 64, false);
        } else {
            add_rows(n, g, &m, part, first, width, false);
        }
        for (int64_t c = 0; c < width; c++) {
            out[first + c] = m.mean[c];
            out[g->channels + first + c] = m.squares[c];
        }
    }
}

/* Parts are merged in order, after all of them are complete. */
void LS__K(batch_norm_stats)(const ls__batch_norm *n, float *mean, float *variance,
                             ls_stream *stream)
{
    (void)stream;
    LS_ASSERT(n->batch * n->pixels > 0);
    grid g = grid_of(n);
    LS__PARALLEL_FOR(g.parallel, int64_t part = 0, part < g.parts, part++,
                     { part_stats(n, &g, part); })
    for (int64_t c = 0; c < g.channels; c++) {
        double m = 0.0, squares = 0.0;
        for (int64_t part = 0; part < g.parts; part++) {
            const double *of = of_part(n, &g, part);
            double before = (double)part_from(&g, part), all = (double)part_from(&g, part + 1);
            double off = of[c] - m, share = (all - before) / all;
            m += off * share;
            squares += of[g.channels + c] + off * off * before * share;
        }
        mean[c] = (float)m;
        variance[c] = (float)(squares / (double)g.rows);
    }
}

/* Separate from the statistics, because evaluation computes it from the running variance. float64,
 * since eps may vanish next to the variance in float32. */
void LS__K(batch_norm_rstd)(float *rstd, const float *variance, int64_t channels, double eps,
                            ls_stream *stream)
{
    (void)stream;
    for (int64_t c = 0; c < channels; c++) {
        rstd[c] = (float)(1.0 / sqrt((double)variance[c] + eps));
    }
}

/* ---- forward ------------------------------------------------------------------------------ */

typedef struct line { /* y = x scale + shift; of a channel each */
    const float *scale, *shift;
} line;

/* The flags are constants in each instance, so the inner loop has no branch. */
LS__INLINE void forward_rows(const ls__batch_norm *n, const line *l, int64_t from, int64_t end,
                             const int64_t channels, const bool residual, const bool relu,
                             const bool half)
{
    const float *scale = l->scale, *shift = l->shift, *mean = n->mean;
    const float *x = n->x, *added = n->residual;
    float *y = n->y; /* not through n, which it might overwrite for all the compiler knows */
    for (int64_t r = from; r < end; r++) {
        int64_t at = r * channels;
#pragma omp simd
        for (int64_t c = 0; c < channels; c++) {
            float v = (ls__get(x, at + c, half) - mean[c]) * scale[c] + shift[c];
            v = residual ? v + ls__get(added, at + c, half) : v;
            ls__put(y, at + c, relu && v < 0.0f ? 0.0f : v, half);
        }
    }
}

/* Picks the instance of forward_rows; the combinations that models use have loops of their own. */
LS__INLINE void forward_part(const ls__batch_norm *n, const line *l, const grid *g, int64_t part,
                             const bool half)
{
    int64_t from = part_from(g, part), end = part_from(g, part + 1), channels = g->channels;
    if (n->residual != NULL && n->relu) {
        forward_rows(n, l, from, end, channels, true, true, half);
    } else if (n->residual != NULL) {
        forward_rows(n, l, from, end, channels, true, false, half);
    } else if (n->relu && channels == 64) {
        forward_rows(n, l, from, end, 64, false, true, half);
    } else if (n->relu) {
        forward_rows(n, l, from, end, channels, false, true, half);
    } else {
        forward_rows(n, l, from, end, channels, false, false, half);
    }
}

/* Scale and shift are folded for all channels before the threads start; they only read them. */
void LS__K(batch_norm)(const ls__batch_norm *n, ls_stream *stream)
{
    (void)stream;
    grid g = grid_of(n);
    float *scale = of_channels(n, &g, 0), *shift = of_channels(n, &g, 1);
    for (int64_t c = 0; c < g.channels; c++) {
        scale[c] = n->rstd[c] * (n->w != NULL ? n->w[c] : 1.0f);
        shift[c] = n->b != NULL ? n->b[c] : 0.0f;
    }
    line l = {scale, shift};
    LS__PARALLEL_FOR(g.parallel, int64_t part = 0, part < g.parts, part++, {
        if (n->half) {
            forward_part(n, &l, &g, part, true);
        } else {
            forward_part(n, &l, &g, part, false);
        }
    })
}

/* ---- backward ----------------------------------------------------------------------------- */

/* The gradient before the activation goes to `kept` where that is not NULL. */
LS__INLINE void sum_rows(const ls__batch_norm *n, double *dy_sum, double *dyx_sum, float *kept,
                         int64_t at, int64_t rows, int64_t stride, int64_t width, int64_t first,
                         const bool relu, const bool half)
{
    float sum[TILE], product[TILE];
    const float *mean = n->mean + first, *dy = n->dy, *x = n->x, *y = relu ? n->out : n->x;
    for (int64_t c = 0; c < width; c++) {
        sum[c] = product[c] = 0.0f;
    }
    for (int64_t r = 0; r < rows; r++, at += stride) {
#pragma omp simd
        for (int64_t c = 0; c < width; c++) {
            float d = ls__get(dy, at + c, half);
            float g = relu && ls__get(y, at + c, half) <= 0.0f ? 0.0f : d;
            sum[c] += g;
            product[c] += g * (ls__get(x, at + c, half) - mean[c]);
        }
        if (kept != NULL) {
#pragma omp simd
            for (int64_t c = 0; c < width; c++) {
                float d = ls__get(dy, at + c, half);
                ls__put(kept, at + c, relu && ls__get(y, at + c, half) <= 0.0f ? 0.0f : d, half);
            }
        }
    }
#pragma omp simd
    for (int64_t c = 0; c < width; c++) {
        dy_sum[c] += (double)sum[c];
        dyx_sum[c] += (double)product[c];
    }
}

/* Sums of g and g (x - mean) of one part, g being the gradient before the activation. They are
 * cleared first: the workspace holds whatever the caller left there. */
LS__INLINE void sum_part(const ls__batch_norm *n, const grid *g, float *kept, int64_t part,
                         const bool half)
{
    int64_t from = part_from(g, part), end = part_from(g, part + 1);
    double *out = of_part(n, g, part);
    for (int64_t c = 0; c < 2 * g->channels; c++) {
        out[c] = 0.0;
    }
    for (int64_t first = 0; first < g->channels; first += TILE) {
        int64_t width = ls__min(TILE, g->channels - first);
        double *dy = out + first, *dyx = out + g->channels + first;
        for (int64_t r = from; r < end; r += ROWS) {
            int64_t rows = ls__min(ROWS, end - r), at = r * g->channels + first;
            if (n->relu) {
                sum_rows(n, dy, dyx, kept, at, rows, g->channels, width, first, true, half);
            } else {
                sum_rows(n, dy, dyx, kept, at, rows, g->channels, width, first, false, half);
            }
        }
    }
}

/* dx = a dy + b (x - mean) + c. */
LS__INLINE void x_rows(const ls__batch_norm *n, const grid *g, const float *dy, int64_t from,
                       int64_t end, const bool relu, const bool adds, const bool half)
{
    const float *a = of_channels(n, g, 0), *b = of_channels(n, g, 1), *c0 = of_channels(n, g, 2);
    const float *mean = n->mean, *given = n->x, *y = relu ? n->out : n->x;
    float *dx = n->dx;
    int64_t channels = g->channels;
    for (int64_t r = from; r < end; r++) {
        int64_t at = r * channels;
#pragma omp simd
        for (int64_t c = 0; c < channels; c++) {
            float v = ls__get(dy, at + c, half), x = ls__get(given, at + c, half);
            v = relu && ls__get(y, at + c, half) <= 0.0f ? 0.0f : v;
            v = a[c] * v + (b[c] * (x - mean[c]) + c0[c]);
            ls__put(dx, at + c, adds ? v + ls__get(dx, at + c, half) : v, half);
        }
    }
}

/* Picks the instance of x_rows; `relu` is false where dy already is the gradient before the
 * activation. */
LS__INLINE void x_part(const ls__batch_norm *n, const grid *g, const float *dy, bool relu,
                       int64_t part, const bool half)
{
    int64_t from = part_from(g, part), end = part_from(g, part + 1);
    if (relu && n->beta_x != 0.0f) {
        x_rows(n, g, dy, from, end, true, true, half);
    } else if (relu) {
        x_rows(n, g, dy, from, end, true, false, half);
    } else if (n->beta_x != 0.0f) {
        x_rows(n, g, dy, from, end, false, true, half);
    } else {
        x_rows(n, g, dy, from, end, false, false, half);
    }
}

/* Only for a residual gradient that is added to; otherwise sum_rows wrote it on the way. */
LS__INLINE void residual_part(const ls__batch_norm *n, const grid *g, int64_t part, const bool half)
{
    int64_t end = part_from(g, part + 1) * g->channels;
    for (int64_t i = part_from(g, part) * g->channels; i < end; i++) {
        float d = n->relu && ls__get(n->out, i, half) <= 0.0f ? 0.0f : ls__get(n->dy, i, half);
        d = n->beta_residual == 0.0f ? d : d + ls__get(n->dresidual, i, half);
        ls__put(n->dresidual, i, d, half);
    }
}

/* A beta of 0 overwrites; anything else adds to a gradient that is already there. */
static void store(float *out, double value, float beta)
{
    *out = (float)(beta == 0.0f ? value : value + (double)beta * (double)*out);
}

/* The sums of all parts, in order, to dw, db and the lines of x_rows. */
static void finish_channels(const ls__batch_norm *n, const grid *g, bool summed)
{
    float *a = of_channels(n, g, 0), *b = of_channels(n, g, 1), *c0 = of_channels(n, g, 2);
    for (int64_t c = 0; c < g->channels; c++) {
        const double rstd = (double)n->rstd[c];
        const double count = (double)(n->sums != NULL ? n->count : g->rows);
        double dy = n->sums != NULL ? n->sums[c] : 0.0;
        double dyx = n->sums != NULL ? n->sums[g->channels + c] / rstd : 0.0;
        for (int64_t part = 0; summed && part < g->parts; part++) {
            dy += of_part(n, g, part)[c];
            dyx += of_part(n, g, part)[g->channels + c];
        }
        double factor = rstd * (n->w != NULL ? (double)n->w[c] : 1.0);
        a[c] = (float)factor;
        b[c] = n->training ? (float)(-factor * rstd * rstd * dyx / count) : 0.0f;
        c0[c] = n->training ? (float)(-factor * dy / count) : 0.0f;
        if (n->dw != NULL) {
            store(&n->dw[c], dyx * rstd, n->beta_w);
        }
        if (n->db != NULL) {
            store(&n->db[c], dy, n->beta_b);
        }
    }
}

/* Where the residual's gradient is overwritten it is the gradient before the activation, so the
 * pass for the sums stores it and the pass for dx reads it instead of dy and y. */
LS__INLINE void backward(const ls__batch_norm *n, const bool half)
{
    grid g = grid_of(n);
    const bool summed = n->sums == NULL && (n->dw != NULL || n->db != NULL || n->training);
    float *kept = summed && n->beta_residual == 0.0f ? n->dresidual : NULL;
    if (summed) {
        LS__PARALLEL_FOR(g.parallel, int64_t part = 0, part < g.parts, part++,
                         { sum_part(n, &g, kept, part, half); })
    }
    finish_channels(n, &g, summed);
    bool relu = n->relu && kept == NULL;
    if (n->dx != NULL) {
        LS__PARALLEL_FOR(g.parallel, int64_t part = 0, part < g.parts, part++,
                         { x_part(n, &g, kept != NULL ? kept : n->dy, relu, part, half); })
    }
    if (n->dresidual != NULL && kept == NULL) {
        LS__PARALLEL_FOR(g.parallel, int64_t part = 0, part < g.parts, part++,
                         { residual_part(n, &g, part, half); })
    }
}

/* The element type is a constant in each instance of backward. */
void LS__K(batch_norm_backward)(const ls__batch_norm *n, ls_stream *stream)
{
    (void)stream;
    if (n->half) {
        backward(n, true);
    } else {
        backward(n, false);
    }
}
