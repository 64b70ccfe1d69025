/* Losses, float64 inside, over the rows (or elements) that count:
 *
 *   nll            mean of -x_i,target
 *   cross-entropy  of logits: nll of log softmax x; with smoothing e (Szegedy et al. 2016,
 *                  section 7) the target's share is 1 - e + e/n and every other class' e/n;
 *                  with z-loss c (Chowdhery et al. 2022, section 5) plus c (log sum exp x)^2
 *   binary         mean of log(1 + exp(x)) - x y, as max(x,0) - x y + log(1 + exp(-|x|))
 *
 * Rows are added in order. Gradients are those of the mean: (softmax - share) / count for the
 * logits, (s(x) - y) / count of the binary one, s being the logistic function. */
#include <math.h>

#include "kernel/ref/ref.h"

/* Rows that count. */
static int64_t counted(const ls__cross_entropy *a)
{
    int64_t count = 0;
    for (int64_t i = 0; i < a->rows; i++) {
        count += ls__ref_index(a->target, a->index_bytes, i) != a->ignore;
    }
    return count;
}

/* -(1 - e) log p[target] - e mean(log p), with e the smoothing; dx is divided by the rows that
 * count. */
static double row_loss(const ls__cross_entropy *a, float *dx, const float *x, int64_t target,
                       int64_t count)
{
    double max = -INFINITY, sum = 0.0, mean = 0.0, e = a->smoothing;
    for (int64_t j = 0; j < a->n; j++) {
        max = (double)x[j] > max ? (double)x[j] : max;
    }
    for (int64_t j = 0; j < a->n; j++) {
        sum += exp((double)x[j] - max);
        mean += (double)x[j] / (double)a->n;
    }
    double log_sum = max + log(sum); /* before dx, which may be x */
    double loss = (1.0 - e) * (log_sum - (double)x[target]);
    loss += e > 0.0 ? e * (log_sum - mean) : 0.0; /* mean may be infinite */
    loss += a->z_loss > 0.0 ? a->z_loss * log_sum * log_sum : 0.0;
    const double times = a->z_loss > 0.0 ? 1.0 + 2.0 * a->z_loss * log_sum : 1.0;
    for (int64_t j = 0; dx != NULL && j < a->n; j++) {
        double share = (j == target ? 1.0 - e : 0.0) + e / (double)a->n;
        dx[j] = (float)((times * exp((double)x[j] - max) / sum - share) / (double)count);
    }
    return loss;
}

/* The mean over the rows that count; the others have a gradient of zeros. */
void ls__ref_cross_entropy(const ls__cross_entropy *a, ls_stream *stream)
{
    (void)stream;
    int64_t count = counted(a);
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
    *a->loss = (float)(sum / (double)count); /* NaN for no rows, as a mean is */
}

/* -mean(x[target]): x already holds log-probabilities. */
void ls__ref_nll(const ls__cross_entropy *a, ls_stream *stream)
{
    (void)stream;
    int64_t count = counted(a);
    double sum = 0.0;
    for (int64_t i = 0; i < a->rows; i++) {
        int64_t target = ls__ref_index(a->target, a->index_bytes, i);
        sum -= target != a->ignore ? (double)a->logits[i * a->n + target] : 0.0;
        for (int64_t j = 0; a->dlogits != NULL && j < a->n; j++) {
            bool wanted = target != a->ignore && j == target;
            a->dlogits[i * a->n + j] = wanted ? (float)(-1.0 / (double)count) : 0.0f;
        }
    }
    *a->loss = (float)(sum / (double)count);
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
