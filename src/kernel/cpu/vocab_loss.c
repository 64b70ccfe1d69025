/* SPDX-License-Identifier: Apache-2.0 */
/* Cross-entropy of a part of the classes; formulas and passes in ref/vocab_loss.c. Rows go by
 * blocks that fit the first cache, of either type; exponentials are summed in float32 by lanes,
 * blocks and rows in float64 in order. Exponentials are computed again in backward: that costs less
 * than to keep as many of them as there are logits. */
#include <math.h>

#include "kernel/cpu/halves.h"
#include "kernel/cpu/vmath.h"

LS__INLINE int64_t target_at(const ls__vocab_loss *a, int64_t i)
{
    return a->index_bytes == 4 ? ((const int32_t *)a->target)[i] : ((const int64_t *)a->target)[i];
}

static float row_max(const ls__vocab_loss *a, int64_t i)
{
    _Alignas(64) float buffer[LS__HALF_BLOCK];
    float max = -INFINITY;
    for (int64_t j = 0; j < a->n; j += LS__HALF_BLOCK) {
        const int64_t n = ls__min(LS__HALF_BLOCK, a->n - j);
        const float found = ls__row_max(ls__real_read(buffer, a->logits, i * a->n + j, n), n);
        max = found > max ? found : max;
    }
    return max;
}

/* 0 for rows that do not count. */
void LS__K(vocab_max)(const ls__vocab_loss *a, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(a->rows * a->n >= LS__PARALLEL_MIN, int64_t i = 0, i < a->rows, i++,
                     { a->max[i] = target_at(a, i) != a->ignore ? row_max(a, i) : 0.0f; })
}

typedef struct row_sums {
    double exps, own, all;
} row_sums;

LS__INLINE void add_block(row_sums *sums, const float *x, int64_t n, float max, bool all)
{
    float exps = 0.0f;
#pragma omp simd reduction(+ : exps)
    for (int64_t j = 0; j < n; j++) {
        exps += ls__exp(x[j] - max);
    }
    sums->exps += (double)exps;
    if (all) {
        double shifted = 0.0;
#pragma omp simd reduction(+ : shifted)
        for (int64_t j = 0; j < n; j++) {
            shifted += (double)(x[j] - max);
        }
        sums->all += shifted;
    }
}

static row_sums sums_of(const ls__vocab_loss *a, int64_t i)
{
    _Alignas(64) float buffer[LS__HALF_BLOCK];
    row_sums sums = {0};
    const int64_t target = target_at(a, i) - a->first;
    for (int64_t j = 0; target_at(a, i) != a->ignore && j < a->n; j += LS__HALF_BLOCK) {
        const int64_t n = ls__min(LS__HALF_BLOCK, a->n - j);
        const float *x = ls__real_read(buffer, a->logits, i * a->n + j, n);
        add_block(&sums, x, n, a->max[i], a->smoothing > 0.0);
        if (target >= j && target < j + n) {
            sums.own = (double)(x[target - j] - a->max[i]);
        }
    }
    return sums;
}

void LS__K(vocab_sums)(const ls__vocab_loss *a, ls_stream *stream)
{
    (void)stream;
    LS__PARALLEL_FOR(a->rows * a->n >= LS__PARALLEL_MIN, int64_t i = 0, i < a->rows, i++, {
        const row_sums sums = sums_of(a, i);
        a->sums[i] = (float)sums.exps;
        a->sums[a->rows + i] = (float)sums.own;
        if (a->smoothing > 0.0) {
            a->sums[2 * a->rows + i] = (float)sums.all;
        }
    })
}

static int64_t counted(const ls__vocab_loss *a)
{
    int64_t count = 0;
    for (int64_t i = 0; i < a->rows; i++) {
        count += target_at(a, i) != a->ignore;
    }
    return count;
}

void LS__K(vocab_loss)(float *loss, const ls__vocab_loss *a, ls_stream *stream)
{
    (void)stream;
    double sum = 0.0, e = a->smoothing;
    for (int64_t i = 0; i < a->rows; i++) {
        if (target_at(a, i) == a->ignore) {
            continue;
        }
        const double log_sum = log((double)a->sums[i]), lse = (double)a->max[i] + log_sum;
        sum += log_sum - (1.0 - e) * (double)a->sums[a->rows + i];
        sum -= e > 0.0 ? e * (double)a->sums[2 * a->rows + i] / (double)a->classes : 0.0;
        sum += a->z_loss > 0.0 ? a->z_loss * lse * lse : 0.0;
    }
    *loss = (float)(sum / (double)counted(a)); /* NaN for no rows, as a mean is */
}

typedef struct row_slope { /* dx_j = exp(x_j - max) factor - share, less `own` for the target */
    float max, factor, share, own;
    int64_t target;
} row_slope;

static row_slope slope_of(const ls__vocab_loss *a, int64_t i, double scale)
{
    const double sum = (double)a->sums[i], lse = (double)a->max[i] + log(sum);
    const double times = a->z_loss > 0.0 ? 1.0 + 2.0 * a->z_loss * lse : 1.0;
    return (row_slope){.max = a->max[i],
                       .factor = (float)(times * scale / sum),
                       .share = (float)(a->smoothing / (double)a->classes * scale),
                       .own = (float)((1.0 - a->smoothing) * scale),
                       .target = target_at(a, i) - a->first};
}

/* Elements [j,j+n) of a row. */
LS__INLINE void slope_block(float *dx, const float *x, int64_t j, int64_t n, const row_slope *s)
{
#pragma omp simd
    for (int64_t k = 0; k < n; k++) {
        dx[k] = ls__exp(x[k] - s->max) * s->factor - s->share;
    }
    if (s->target >= j && s->target < j + n) {
        dx[s->target - j] -= s->own;
    }
}

static void backward_row(ls__real dlogits, const ls__vocab_loss *a, int64_t i, double scale)
{
    _Alignas(64) float x_buffer[LS__HALF_BLOCK], dx_buffer[LS__HALF_BLOCK];
    const row_slope slope = slope_of(a, i, scale);
    for (int64_t j = 0; j < a->n; j += LS__HALF_BLOCK) {
        const int64_t n = ls__min(LS__HALF_BLOCK, a->n - j), at = i * a->n + j;
        float *dx = ls__real_write(dx_buffer, dlogits, at);
        if (target_at(a, i) == a->ignore) {
            memset(dx, 0, (size_t)n * sizeof *dx);
        } else {
            slope_block(dx, ls__real_read(x_buffer, a->logits, at, n), j, n, &slope);
        }
        ls__real_written(dx, dlogits, at, n);
    }
}

void LS__K(vocab_loss_backward)(void *dlogits, const ls__vocab_loss *a, const float *dloss,
                                ls_stream *stream)
{
    (void)stream;
    const double scale = (double)*dloss / (double)counted(a);
    const ls__real to = ls__real_of(dlogits, a->logits.half);
    LS__PARALLEL_FOR(a->rows * a->n >= LS__PARALLEL_MIN, int64_t i = 0, i < a->rows, i++,
                     { backward_row(to, a, i, scale); })
}
