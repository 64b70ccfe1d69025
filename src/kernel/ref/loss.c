/* SPDX-License-Identifier: Apache-2.0 */
/* Losses, float64 inside, over the rows (or elements) that count:
 *
 *   nll            mean of -x_i,target
 *   cross-entropy  of logits: nll of log softmax x; with smoothing e (Szegedy et al. 2016,
 *                  section 7) the target's share is 1 - e + e/n and every other class' e/n;
 *                  with z-loss c (Chowdhery et al. 2022, section 5) plus c (log sum exp x)^2;
 *                  with weights w of classes the terms of a row count w_target times, those that
 *                  smoothing spreads w_class times, and the mean is over the sum of w_target
 *   binary         mean of log(1 + exp(x)) - x y, as max(x,0) - x y + log(1 + exp(-|x|))
 *
 * Rows are added in order. Gradients are those of the mean: (softmax - share) / count for the
 * logits, (s(x) - y) / count of the binary one, s being the logistic function. */
#include <math.h>

#include "kernel/ref/ref.h"

static double weight_of(const ls__cross_entropy *a, int64_t class)
{
    return a->weight != NULL ? (double)a->weight[class] : 1.0;
}

/* The weights of the rows that count. */
static double counted(const ls__cross_entropy *a)
{
    double count = 0.0;
    for (int64_t i = 0; i < a->rows; i++) {
        const int64_t target = ls__ref_index(a->target, a->index_bytes, i);
        count += target != a->ignore ? weight_of(a, target) : 0.0;
    }
    return count;
}

/* With e the smoothing, l = log sum exp x and w the weights: w_t (1 - e) (l - x_t) + e/n sum_j w_j
 * (l - x_j) + w_t c l^2; dx is divided by the rows that count. */
static double row_loss(const ls__cross_entropy *a, float *dx, const float *x, int64_t target,
                       double count)
{
    const double e = a->smoothing, own = weight_of(a, target), n = (double)a->n;
    double max = -INFINITY, sum = 0.0, spread = 0.0, shares = 0.0;
    for (int64_t j = 0; j < a->n; j++) {
        max = (double)x[j] > max ? (double)x[j] : max;
    }
    for (int64_t j = 0; j < a->n; j++) {
        sum += exp((double)x[j] - max);
        spread += weight_of(a, j) * (double)x[j] / n;
        shares += weight_of(a, j) / n;
    }
    double log_sum = max + log(sum); /* before dx, which may be x */
    double loss = own * (1.0 - e) * (log_sum - (double)x[target]);
    loss += e > 0.0 ? e * (shares * log_sum - spread) : 0.0; /* spread may be infinite */
    loss += a->z_loss > 0.0 ? own * a->z_loss * log_sum * log_sum : 0.0;
    const double z = a->z_loss > 0.0 ? 2.0 * a->z_loss * log_sum : 0.0;
    const double times = own * (1.0 - e + z) + e * shares;
    for (int64_t j = 0; dx != NULL && j < a->n; j++) {
        double share = (j == target ? own * (1.0 - e) : 0.0) + e * weight_of(a, j) / n;
        dx[j] = (float)((times * exp((double)x[j] - max) / sum - share) / count);
    }
    return loss;
}

/* The mean over the rows that count; the others have a gradient of zeros. */
void ls__ref_cross_entropy(const ls__cross_entropy *a, ls_stream *stream)
{
    (void)stream;
    const double count = counted(a);
    double sum = 0.0;
    for (int64_t i = 0; i < a->rows; i++) {
        float *dx = a->dlogits != NULL ? a->dlogits + i * a->n : NULL;
        int64_t target = ls__ref_index(a->target, a->index_bytes, i);
        if (target != a->ignore) {
            sum += row_loss(a, dx, a->logits + i * a->n, target, count);
            continue;
        }
        for (int64_t j = 0; dx != NULL && j < a->n; j++) {
            dx[j] = 0.0f;
        }
    }
    *a->loss = (float)(sum / count); /* NaN for no rows, as a mean is */
}

/* -mean(x[target]): x already holds log-probabilities. */
void ls__ref_nll(const ls__cross_entropy *a, ls_stream *stream)
{
    (void)stream;
    const double count = counted(a);
    double sum = 0.0;
    for (int64_t i = 0; i < a->rows; i++) {
        int64_t target = ls__ref_index(a->target, a->index_bytes, i);
        sum -= target != a->ignore ? (double)a->logits[i * a->n + target] : 0.0;
        for (int64_t j = 0; a->dlogits != NULL && j < a->n; j++) {
            bool wanted = target != a->ignore && j == target;
            a->dlogits[i * a->n + j] = wanted ? (float)(-1.0 / count) : 0.0f;
        }
    }
    *a->loss = (float)(sum / count);
}

/* mean(max(x, 0) - x y + log(1 + e^-|x|)), the form in which no exponential overflows. */
void ls__ref_bce(float *loss, float *dx, const float *x, const float *y, int64_t count,
                 ls_stream *stream)
{
    (void)stream;
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double at = (double)x[i], share = (double)y[i];
        sum += (at < 0.0 ? 0.0 : at) - at * share + log1p(exp(-fabs(at)));
        if (dx != NULL) {
            dx[i] = (float)((1.0 / (1.0 + exp(-at)) - share) / (double)count);
        }
    }
    *loss = (float)(sum / (double)count);
}
