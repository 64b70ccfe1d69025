/* Batch normalisation, a channel a task; formulas in ref/batch_norm.c. A channel is N runs of
 * `pixels` elements that lie `step` apart: 1 in NCHW, so that the runs are vectors. Sums are made
 * in float32 within BLOCK elements and in float64 beyond, so their error does not grow with the
 * batch. */
#include <math.h>

#include "kernel/cpu/isa.h"

#define BLOCK 2048

typedef struct runs { /* of one channel */
    int64_t count, pixels, stride, step, first;
} runs;

static runs runs_of(const ls__batch_norm *n, int64_t channel)
{
    ls__image s = ls__image_strides(n->layout, n->channels, 1, n->pixels);
    return (runs){n->batch, n->pixels, s.n, s.w, channel * s.c};
}

static bool is_parallel(const ls__batch_norm *n)
{
    return n->batch * n->channels * n->pixels >= LS__PARALLEL_MIN;
}

/* ---- mean and variance -------------------------------------------------------------------- */

LS__INLINE float sum_block(const float *x, int64_t count, int64_t step)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        sum += x[i * step];
    }
    return sum;
}

LS__INLINE float squares_block(const float *x, int64_t count, int64_t step, float mean)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        sum += (x[i * step] - mean) * (x[i * step] - mean);
    }
    return sum;
}

LS__INLINE double sum_runs(const float *x, const runs *r, const int64_t step)
{
    double sum = 0.0;
    for (int64_t n = 0; n < r->count; n++) {
        for (int64_t i = 0; i < r->pixels; i += BLOCK) {
            sum += (double)sum_block(x + r->first + n * r->stride + i * step,
                                     ls__min(BLOCK, r->pixels - i), step);
        }
    }
    return sum;
}

LS__INLINE double squares_runs(const float *x, const runs *r, const int64_t step, float mean)
{
    double sum = 0.0;
    for (int64_t n = 0; n < r->count; n++) {
        for (int64_t i = 0; i < r->pixels; i += BLOCK) {
            sum += (double)squares_block(x + r->first + n * r->stride + i * step,
                                         ls__min(BLOCK, r->pixels - i), step, mean);
        }
    }
    return sum;
}

void LS__K(batch_norm_stats)(const ls__batch_norm *n, float *mean, float *variance,
                             ls_stream *stream)
{
    (void)stream;
    double count = (double)(n->batch * n->pixels);
    LS__PARALLEL_FOR(is_parallel(n), int64_t c = 0, c < n->channels, c++, {
        runs r = runs_of(n, c);
        double sum = r.step == 1 ? sum_runs(n->x, &r, 1) : sum_runs(n->x, &r, r.step);
        float m = (float)(sum / count);
        double squares =
            r.step == 1 ? squares_runs(n->x, &r, 1, m) : squares_runs(n->x, &r, r.step, m);
        mean[c] = m;
        variance[c] = (float)(squares / count);
    })
}

void LS__K(batch_norm_rstd)(float *rstd, const float *variance, int64_t channels, double eps,
                            ls_stream *stream)
{
    (void)stream;
    for (int64_t c = 0; c < channels; c++) {
        rstd[c] = (float)(1.0 / sqrt((double)variance[c] + eps));
    }
}

/* ---- forward ------------------------------------------------------------------------------ */

LS__INLINE void normalise_run(float *y, const float *x, int64_t count, int64_t step, float mean,
                              float scale, float shift)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        y[i * step] = (x[i * step] - mean) * scale + shift;
    }
}

static void normalise(const ls__batch_norm *n, int64_t c)
{
    runs r = runs_of(n, c);
    float scale = n->rstd[c] * (n->w != NULL ? n->w[c] : 1.0f);
    float shift = n->b != NULL ? n->b[c] : 0.0f;
    for (int64_t i = 0; i < r.count; i++) {
        int64_t at = r.first + i * r.stride;
        if (r.step == 1) {
            normalise_run(n->y + at, n->x + at, r.pixels, 1, n->mean[c], scale, shift);
        } else {
            normalise_run(n->y + at, n->x + at, r.pixels, r.step, n->mean[c], scale, shift);
        }
    }
}

void LS__K(batch_norm)(const ls__batch_norm *n, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(is_parallel(n), int64_t c = 0, c < n->channels, c++, { normalise(n, c); })
}

/* ---- backward ----------------------------------------------------------------------------- */

typedef struct sums {
    double dy, dyx; /* sum dy, sum dy (x - mean) */
} sums;

LS__INLINE void add_block(sums *s, const float *dy, const float *x, int64_t count, int64_t step,
                          float mean)
{
    float sum = 0.0f, product = 0.0f;
#pragma omp simd reduction(+ : sum, product)
    for (int64_t i = 0; i < count; i++) {
        sum += dy[i * step];
        product += dy[i * step] * (x[i * step] - mean);
    }
    s->dy += (double)sum;
    s->dyx += (double)product;
}

LS__INLINE sums sums_of(const ls__batch_norm *n, const runs *r, const int64_t step, float mean)
{
    sums s = {0.0, 0.0};
    for (int64_t k = 0; k < r->count; k++) {
        for (int64_t i = 0; i < r->pixels; i += BLOCK) {
            int64_t at = r->first + k * r->stride + i * step;
            add_block(&s, n->dy + at, n->x + at, ls__min(BLOCK, r->pixels - i), step, mean);
        }
    }
    return s;
}

typedef struct line { /* dx = a dy + b (x - mean) + c */
    float a, b, c, mean, beta;
} line;

LS__INLINE void backward_run(float *dx, const float *dy, const float *x, int64_t count,
                             int64_t step, const line *l)
{
    float a = l->a, b = l->b, c = l->c, mean = l->mean, beta = l->beta;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float d = a * dy[i * step] + (b * (x[i * step] - mean) + c);
        dx[i * step] = beta == 0.0f ? d : d + beta * dx[i * step];
    }
}

static void backward_x(const ls__batch_norm *n, const runs *r, const line *l)
{
    for (int64_t i = 0; i < r->count; i++) {
        int64_t at = r->first + i * r->stride;
        if (r->step == 1) {
            backward_run(n->dx + at, n->dy + at, n->x + at, r->pixels, 1, l);
        } else {
            backward_run(n->dx + at, n->dy + at, n->x + at, r->pixels, r->step, l);
        }
    }
}

static void store(float *out, double value, float beta)
{
    *out = (float)(beta == 0.0f ? value : value + (double)beta * (double)*out);
}

static void backward(const ls__batch_norm *n, int64_t c)
{
    runs r = runs_of(n, c);
    float mean = n->mean[c];
    double rstd = (double)n->rstd[c], count = (double)(n->batch * n->pixels);
    sums s = {0.0, 0.0};
    if (n->dw != NULL || n->db != NULL || n->training) {
        s = r.step == 1 ? sums_of(n, &r, 1, mean) : sums_of(n, &r, r.step, mean);
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
}

void LS__K(batch_norm_backward)(const ls__batch_norm *n, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(is_parallel(n), int64_t c = 0, c < n->channels, c++, { backward(n, c); })
}
