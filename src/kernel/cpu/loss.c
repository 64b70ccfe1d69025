/* SPDX-License-Identifier: Apache-2.0 */
/* Losses in one pass over the logits, forward and gradient together; formulas in ref/loss.c.
 * logits [rows,n], targets [rows]. A row's exponentials are summed in float32 by lanes; losses
 * of rows are added in float64 in the order of rows within up to LOSS_BLOCKS blocks, and the
 * blocks in order. The blocks follow from the shape alone. */
#include "base/assert.h"
#include "kernel/cpu/halves.h"
#include "kernel/cpu/vmath.h"

#define LOSS_BLOCKS 64 /* of rows; their sums are added in order */

typedef struct row_rule {
    float scale;      /* of the gradient: 1/rows that count */
    float own, share; /* of the target: 1 - smoothing; of every class: smoothing/n */
    double smoothing, z_loss;
    const float *weight; /* of the classes; NULL: none … */
    double shares;       /* … and smoothing times their mean */
} row_rule;

/* For label smoothing: each class takes part with its logit; shifted by the largest, as the sum of
 * exponentials is. */
static double mean_shifted(const float *x, int64_t n, float max)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        sum += (double)(x[j] - max);
    }
    return sum / (double)n;
}

/* z-loss of a row whose log sum exp this is. */
LS__INLINE double z_loss_of(const row_rule *rule, double lse)
{
    return rule->z_loss > 0.0 ? rule->z_loss * lse * lse : 0.0; /* lse may be infinite */
}

/* Loss of one row [n] in float64; dx = (softmax - shares) * scale where wanted, dx may be x. The
 * largest logit is subtracted first, so that no exponential overflows. */
LS__INLINE double loss_row(float *dx, const float *x, int64_t target, int64_t n,
                           const row_rule *rule)
{
    float max = ls__row_max(x, n), sum = 0.0f;
    double shifted = (double)(x[target] - max); /* before dx, which may be x */
    if (rule->smoothing > 0.0) {
        shifted = (1.0 - rule->smoothing) * shifted + rule->smoothing * mean_shifted(x, n, max);
    }
    if (dx == NULL) {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < n; j++) {
            sum += ls__exp(x[j] - max);
        }
        const double log_sum = log((double)sum);
        return log_sum - shifted + z_loss_of(rule, (double)max + log_sum);
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        float e = ls__exp(x[j] - max);
        dx[j] = e;
        sum += e;
    }
    float factor = rule->scale / sum, share = rule->share * rule->scale;
    const double log_sum = log((double)sum), lse = (double)max + log_sum;
    if (rule->z_loss > 0.0) {
        factor *= (float)(1.0 + 2.0 * rule->z_loss * lse);
    }
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        dx[j] = dx[j] * factor - share;
    }
    dx[target] -= rule->own * rule->scale;
    return log_sum - shifted + z_loss_of(rule, lse);
}

/* Targets are int32 or int64 as the user gave them. */
LS__INLINE int64_t target_at(const ls__cross_entropy *a, int64_t i)
{
    return a->index_bytes == 4 ? ((const int32_t *)a->target)[i] : ((const int64_t *)a->target)[i];
}

/* Counted before the rows are shared: every gradient is divided by it. In order of the rows. */
static double counted(const ls__cross_entropy *a)
{
    double count = 0.0;
    for (int64_t i = 0; i < a->rows; i++) {
        const int64_t target = target_at(a, i);
        const double own =
            target != a->ignore && a->weight != NULL ? (double)a->weight[target] : 1.0;
        count += target != a->ignore ? own : 0.0;
    }
    return count;
}

/* Smoothing of a row with weights: each class counts by its own. */
static double spread_shifted(const float *x, int64_t n, float max, const float *weight)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        sum += (double)weight[j] * (double)(x[j] - max);
    }
    return sum / (double)n;
}

/* loss_row with weights of classes. */
static double loss_row_weighted(float *dx, const float *x, int64_t target, int64_t n,
                                const row_rule *rule)
{
    const double own = (double)rule->weight[target], e = rule->smoothing;
    const float max = ls__row_max(x, n);
    double shifted = own * (1.0 - e) * (double)(x[target] - max); /* before dx, which may be x */
    shifted += e > 0.0 ? e * spread_shifted(x, n, max, rule->weight) : 0.0;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        sum += ls__exp(x[j] - max);
    }
    const double log_sum = log((double)sum), lse = (double)max + log_sum;
    const double times = own * (1.0 - e) + rule->shares;
    const double z = rule->z_loss > 0.0 ? own * 2.0 * rule->z_loss * lse : 0.0;
    const float factor = rule->scale * (float)(times + z) / sum, share = rule->share * rule->scale;
    if (dx != NULL) {
#pragma omp simd
        for (int64_t j = 0; j < n; j++) {
            dx[j] = ls__exp(x[j] - max) * factor - share * rule->weight[j];
        }
        dx[target] -= (float)(own * (1.0 - e)) * rule->scale;
    }
    return times * log_sum - shifted + own * z_loss_of(rule, lse);
}

/* A row of bfloat16: the float32 row runs in place, in a buffer. */
static double loss_row_half(ls__bfloat16 *dx, const ls__bfloat16 *x, int64_t target, int64_t n,
                            const row_rule *rule)
{
    _Alignas(64) float wide[LS__HALF_LOGITS_MAX];
    LS_ASSERT(n > 0 && n <= LS__HALF_LOGITS_MAX);
    ls__halves_widen(wide, x, n);
    double loss = loss_row(dx != NULL ? wide : NULL, wide, target, n, rule);
    if (dx != NULL) {
        ls__halves_narrow(dx, wide, n);
    }
    return loss;
}

typedef struct loss_rows { /* logits and dlogits are those of `args` or, of bfloat16, these */
    const ls__cross_entropy *args;
    const ls__bfloat16 *halves;
    ls__bfloat16 *half_gradients;
} loss_rows;

/* The gradient of a row is written in the same pass where one is wanted. */
static double loss_at(const loss_rows *r, int64_t i, int64_t target, const row_rule *rule)
{
    const ls__cross_entropy *a = r->args;
    if (r->halves == NULL) {
        float *dx = a->dlogits != NULL ? a->dlogits + i * a->n : NULL;
        if (rule->weight != NULL) {
            return loss_row_weighted(dx, a->logits + i * a->n, target, a->n, rule);
        }
        return loss_row(dx, a->logits + i * a->n, target, a->n, rule);
    }
    ls__bfloat16 *dx = r->half_gradients != NULL ? r->half_gradients + i * a->n : NULL;
    return loss_row_half(dx, r->halves + i * a->n, target, a->n, rule);
}

/* A row that counts for nothing has a gradient of zeros. */
static void clear_at(const loss_rows *r, int64_t i)
{
    const size_t n = (size_t)r->args->n;
    if (r->half_gradients != NULL) {
        memset(r->half_gradients + i * r->args->n, 0, n * sizeof(ls__bfloat16));
    } else if (r->halves == NULL && r->args->dlogits != NULL) {
        memset(r->args->dlogits + i * r->args->n, 0, n * sizeof(float));
    }
}

/* The sum of one block's rows. */
static double block_loss(const loss_rows *r, int64_t from, int64_t end, const row_rule *rule)
{
    double sum = 0.0;
    for (int64_t i = from; i < end; i++) {
        int64_t target = target_at(r->args, i);
        if (target == r->args->ignore) {
            clear_at(r, i);
        } else {
            sum += loss_at(r, i, target, rule);
        }
    }
    return sum;
}

/* The mean of the rows' losses. The blocks' sums are added in order in float64, whoever computed
 * them. */
static double mean_loss(const loss_rows *r)
{
    const ls__cross_entropy *a = r->args;
    double partial[LOSS_BLOCKS], sum = 0.0;
    const double count = counted(a);
    int64_t blocks = ls__min(LOSS_BLOCKS, a->rows);
    row_rule rule = {.scale = 1.0f / (float)count, .own = (float)(1.0 - a->smoothing)};
    rule.share = (float)(a->smoothing / (double)a->n);
    rule.smoothing = a->smoothing;
    rule.z_loss = a->z_loss;
    rule.weight = a->weight;
    for (int64_t j = 0; a->weight != NULL && j < a->n; j++) {
        rule.shares += a->smoothing * (double)a->weight[j] / (double)a->n;
    }
    LS__PARALLEL_FOR(a->rows * a->n >= LS__PARALLEL_MIN, int64_t b = 0, b < blocks, b++, {
        partial[b] = block_loss(r, a->rows * b / blocks, a->rows * (b + 1) / blocks, &rule);
    })
    for (int64_t b = 0; b < blocks; b++) {
        sum += partial[b];
    }
    return sum / count; /* NaN for no rows, as a mean is */
}

/* The mean over the rows that count; NaN if none does, as PyTorch. */
void LS__K(cross_entropy)(const ls__cross_entropy *a, ls_stream *stream)
{
    (void)stream;
    *a->loss = (float)mean_loss(&(loss_rows){.args = a});
}

/* As cross_entropy_with; a row is widened into a buffer on the stack and its gradient rounded
 * once. */
void LS__K(cross_entropy_bf16)(ls__bfloat16 *dlogits, const ls__bfloat16 *logits,
                               const ls__cross_entropy *args, ls_stream *stream)
{
    (void)stream;
    *args->loss = (float)mean_loss(&(loss_rows){args, logits, dlogits});
}

/* x already holds log-probabilities, so only the target's element has a gradient. */
void LS__K(nll)(const ls__cross_entropy *a, ls_stream *stream)
{
    const double count = counted(a);
    float slope = (float)(-1.0 / count);
    double sum = 0.0;
    if (a->dlogits != NULL) {
        LS__K(fill)(a->dlogits, a->rows * a->n, 0.0f, stream);
    }
    for (int64_t i = 0; i < a->rows; i++) {
        int64_t at = i * a->n + target_at(a, i);
        if (target_at(a, i) == a->ignore) {
            continue;
        }
        sum -= (double)a->logits[at];
        if (a->dlogits != NULL) {
            a->dlogits[at] = slope;
        }
    }
    *a->loss = (float)(sum / count);
}

/* Sum over one block of log(1 + e^-|x|) + max(x, 0) - x y, in float64 in the order of memory; no
 * exponential overflows. dx = (s(x) - y) scale where wanted. */
static double bce_block(float *dx, const float *x, const float *y, int64_t count, float scale)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        float at = x[i], share = y[i];
        float above = at < 0.0f ? 0.0f : at; /* keeps NaN */
        sum += (double)(above - at * share + log1pf(expf(-fabsf(at))));
        if (dx != NULL) {
            dx[i] = (ls__sigmoid(at) - share) * scale;
        }
    }
    return sum;
}

/* dx may be NULL. The number of blocks follows from the count alone, so the sum is the same for any
 * number of threads. */
void LS__K(bce)(float *loss, float *dx, const float *x, const float *y, int64_t count,
                ls_stream *stream)
{
    (void)stream;
    double partial[LOSS_BLOCKS], sum = 0.0;
    int64_t blocks = ls__min(LOSS_BLOCKS, (count + LS__BLOCK - 1) / LS__BLOCK);
    float scale = 1.0f / (float)count;
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t b = 0, b < blocks, b++, {
        int64_t from = count * b / blocks, end = count * (b + 1) / blocks;
        partial[b] =
            bce_block(dx != NULL ? dx + from : NULL, x + from, y + from, end - from, scale);
    })
    for (int64_t b = 0; b < blocks; b++) {
        sum += partial[b];
    }
    *loss = (float)(sum / (double)count);
}
