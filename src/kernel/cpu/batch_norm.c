/* Batch normalisation, a channel a task; formulas in ref/batch_norm.c. In [N,C,pixels] a channel is
 * N runs of `pixels` elements; [N,pixels,C] is batch_norm_last.c's. Sums are made in float32 within
 * LS__SUM_BLOCK elements and in float64 beyond, so their error does not grow with the batch. */
#include <math.h>

#include "base/assert.h"
#include "kernel/cpu/batch_norm_last.h"
#include "kernel/cpu/moments.h"

/* Where one channel of [N,C,pixels] lies: N runs, a whole image apart. */
static ls__runs runs_of(const ls__batch_norm *n, int64_t channel)
{
    return (ls__runs){n->batch, n->pixels, n->channels * n->pixels, channel * n->pixels};
}

/* Starting the threads pays only above this many elements. */
static bool is_parallel(const ls__batch_norm *n)
{
    return n->batch * n->channels * n->pixels >= LS__PARALLEL_MIN;
}

/* Bytes; zero for [N,C,pixels], whose sums fit in registers. */
size_t LS__K(batch_norm_workspace)(const ls__batch_norm *n)
{
    return n->layout == LS__NHWC ? LS__K(norm_last_workspace)(n) : 0;
}

/* ---- mean and variance -------------------------------------------------------------------- */

/* The biased variance; the caller corrects it for the running statistics. */
void LS__K(batch_norm_stats)(const ls__batch_norm *n, float *mean, float *variance,
                             ls_stream *stream)
{
    (void)stream;
    LS_ASSERT(n->batch * n->pixels > 0);
    if (n->layout == LS__NHWC) {
        LS__K(norm_last_stats)(n, mean, variance);
        return;
    }
    LS__PARALLEL_FOR(is_parallel(n), int64_t c = 0, c < n->channels, c++, {
        ls__runs r = runs_of(n, c);
        ls__moments of = ls__moments_of(n->x, &r);
        mean[c] = (float)of.mean;
        variance[c] = (float)of.variance;
    })
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

/* `added` may be NULL. */
LS__INLINE void normalise_run(float *y, const float *x, const float *added, int64_t count,
                              float mean, float scale, float shift, const bool relu)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float v = (x[i] - mean) * scale + shift;
        v = added != NULL ? v + added[i] : v;
        y[i] = relu && v < 0.0f ? 0.0f : v;
    }
}

/* Scale and shift of the channel are folded first; ReLU is a constant in each loop, so the loop
 * stays free of branches. */
static void normalise(const ls__batch_norm *n, int64_t c)
{
    ls__runs r = runs_of(n, c);
    float scale = n->rstd[c] * (n->w != NULL ? n->w[c] : 1.0f);
    float shift = n->b != NULL ? n->b[c] : 0.0f;
    for (int64_t i = 0; i < r.count; i++) {
        int64_t at = r.first + i * r.stride;
        const float *added = n->residual != NULL ? n->residual + at : NULL;
        if (n->relu) {
            normalise_run(n->y + at, n->x + at, added, r.length, n->mean[c], scale, shift, true);
        } else {
            normalise_run(n->y + at, n->x + at, added, r.length, n->mean[c], scale, shift, false);
        }
    }
}

/* mean and rstd are inputs: the batch's in training, the running ones in evaluation. */
void LS__K(batch_norm)(const ls__batch_norm *n, ls_stream *stream)
{
    (void)stream;
    if (n->layout == LS__NHWC) {
        LS__K(norm_last)(n);
        return;
    }
    LS__PARALLEL_FOR(is_parallel(n), int64_t c = 0, c < n->channels, c++, { normalise(n, c); })
}

/* ---- backward ----------------------------------------------------------------------------- */

typedef struct sums {
    double dy, dyx; /* sum g, sum g (x - mean), g the gradient before the activation */
} sums;

/* The gradient before the activation. The output tells where ReLU cut, so its input need not be
 * kept. */
LS__INLINE float before(float dy, float y, const bool relu)
{
    return relu && y <= 0.0f ? 0.0f : dy;
}

/* `y` is read only where relu is set; other callers pass any readable pointer. */
LS__INLINE void add_block(sums *s, const float *dy, const float *x, const float *y, int64_t count,
                          float mean, const bool relu)
{
    float sum = 0.0f, product = 0.0f;
#pragma omp simd reduction(+ : sum, product)
    for (int64_t i = 0; i < count; i++) {
        float g = before(dy[i], y[i], relu);
        sum += g;
        product += g * (x[i] - mean);
    }
    s->dy += (double)sum;
    s->dyx += (double)product;
}

/* Both sums of a channel in one pass over dy and x, blocks added in order. */
static sums sums_of(const ls__batch_norm *n, const ls__runs *r, float mean)
{
    sums s = {0.0, 0.0};
    for (int64_t k = 0; k < r->count; k++) {
        for (int64_t i = 0; i < r->length; i += LS__SUM_BLOCK) {
            int64_t at = r->first + k * r->stride + i,
                    count = ls__min(LS__SUM_BLOCK, r->length - i);
            if (n->relu) {
                add_block(&s, n->dy + at, n->x + at, n->out + at, count, mean, true);
            } else {
                add_block(&s, n->dy + at, n->x + at, n->x + at, count, mean, false);
            }
        }
    }
    return s;
}

typedef struct line { /* dx = a g + b (x - mean) + c */
    float a, b, c, mean, beta;
} line;

/* A beta of 0 does not read dx, which may hold NaN. */
LS__INLINE void backward_run(float *dx, const float *dy, const float *x, const float *y,
                             int64_t count, const line *l, const bool relu)
{
    float a = l->a, b = l->b, c = l->c, mean = l->mean, beta = l->beta;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float d = a * before(dy[i], y[i], relu) + (b * (x[i] - mean) + c);
        dx[i] = beta == 0.0f ? d : d + beta * dx[i];
    }
}

/* Without ReLU the output is not kept, so x is passed in its place; the loop does not read it
 * then. */
static void backward_x(const ls__batch_norm *n, const ls__runs *r, const line *l)
{
    for (int64_t i = 0; i < r->count; i++) {
        int64_t at = r->first + i * r->stride;
        if (n->relu) {
            backward_run(n->dx + at, n->dy + at, n->x + at, n->out + at, r->length, l, true);
        } else {
            backward_run(n->dx + at, n->dy + at, n->x + at, n->x + at, r->length, l, false);
        }
    }
}

/* The residual was added before the activation, so its gradient is dy where ReLU let it pass. */
static void backward_residual(const ls__batch_norm *n, const ls__runs *r)
{
    for (int64_t i = 0; i < r->count; i++) {
        int64_t at = r->first + i * r->stride;
        for (int64_t k = at; k < at + r->length; k++) {
            float d = n->relu && n->out[k] <= 0.0f ? 0.0f : n->dy[k];
            n->dresidual[k] = n->beta_residual == 0.0f ? d : d + n->dresidual[k];
        }
    }
}

/* A beta of 0 overwrites; anything else adds to a gradient that is already there. */
static void store(float *out, double value, float beta)
{
    *out = (float)(beta == 0.0f ? value : value + (double)beta * (double)*out);
}

/* The sums are skipped in evaluation when neither dw nor db is wanted: dx then depends on dy
 * alone. */
static void backward(const ls__batch_norm *n, int64_t c)
{
    ls__runs r = runs_of(n, c);
    float mean = n->mean[c];
    const int64_t here = n->batch * n->pixels;
    double rstd = (double)n->rstd[c], count = (double)(n->sums != NULL ? n->count : here);
    sums s = {0.0, 0.0};
    if (n->sums != NULL) {
        s = (sums){n->sums[c], n->sums[n->channels + c] / rstd};
    } else if (n->dw != NULL || n->db != NULL || n->training) {
        s = sums_of(n, &r, mean);
    }
    if (n->dw != NULL) {
        store(&n->dw[c], s.dyx * rstd, n->beta_w);
    }
    if (n->db != NULL) {
        store(&n->db[c], s.dy, n->beta_b);
    }
    if (n->dx != NULL) {
        double a = rstd * (n->w != NULL ? (double)n->w[c] : 1.0);
        line l = {.a = (float)a, .mean = mean, .beta = n->beta_x};
        if (n->training) {
            l.b = (float)(-a * rstd * rstd * s.dyx / count);
            l.c = (float)(-a * s.dy / count);
        }
        backward_x(n, &r, &l);
    }
    if (n->dresidual != NULL) {
        backward_residual(n, &r);
    }
}

/* Gradients that are NULL are not computed; n->training says whether the batch's own statistics
 * took part. */
void LS__K(batch_norm_backward)(const ls__batch_norm *n, ls_stream *stream)
{
    (void)stream;
    if (n->layout == LS__NHWC) {
        LS__K(norm_last_backward)(n);
        return;
    }
    LS__PARALLEL_FOR(is_parallel(n), int64_t c = 0, c < n->channels, c++, { backward(n, c); })
}
