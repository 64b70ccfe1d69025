/* SPDX-License-Identifier: Apache-2.0 */
/* Cross-entropy of logits whose classes several ranks share (Shoeybi et al. 2019, section 3),
 * float64 inside. Each rank has classes [first, first + n) of each row; between the passes `max`
 * and `sums` are combined over the ranks, so that the last two know the whole row:
 *
 *   max      m = max_j x_j                                combined by max
 *   sums     s = sum_j exp(x_j - m), t = x_target - m     combined by addition
 *            and u = sum_j (x_j - m), with smoothing e
 *   loss     mean of log s - (1 - e) t - e u / classes + z (m + log s)^2
 *   backward dx_j = dloss ((1 + 2 z (m + log s)) exp(x_j - m) / s - share_j) / count
 */
#include <math.h>

#include "base/half.h"
#include "kernel/ref/ref.h"

static bool counts(const ls__vocab_loss *a, int64_t i)
{
    return ls__ref_index(a->target, a->index_bytes, i) != a->ignore;
}

static int64_t counted(const ls__vocab_loss *a)
{
    int64_t count = 0;
    for (int64_t i = 0; i < a->rows; i++) {
        count += counts(a, i);
    }
    return count;
}

static double logit(const ls__vocab_loss *a, int64_t i, int64_t j)
{
    const int64_t at = i * a->n + j;
    return a->logits.half ? (double)ls__bfloat16_widen(((const ls__bfloat16 *)a->logits.at)[at])
                          : (double)((const float *)a->logits.at)[at];
}

/* 0 for rows that do not count. */
void ls__ref_vocab_max(const ls__vocab_loss *a, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < a->rows; i++) {
        double max = counts(a, i) ? -INFINITY : 0.0;
        for (int64_t j = 0; j < a->n && counts(a, i); j++) {
            max = logit(a, i, j) > max ? logit(a, i, j) : max;
        }
        a->max[i] = (float)max;
    }
}

void ls__ref_vocab_sums(const ls__vocab_loss *a, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < a->rows; i++) {
        double sum = 0.0, all = 0.0, own = 0.0, max = (double)a->max[i];
        const int64_t target = ls__ref_index(a->target, a->index_bytes, i) - a->first;
        for (int64_t j = 0; j < a->n && counts(a, i); j++) {
            sum += exp(logit(a, i, j) - max);
            all += logit(a, i, j) - max;
            own = j == target ? logit(a, i, j) - max : own;
        }
        a->sums[i] = (float)sum;
        a->sums[a->rows + i] = (float)own;
        if (a->smoothing > 0.0) {
            a->sums[2 * a->rows + i] = (float)all;
        }
    }
}

void ls__ref_vocab_loss(float *loss, const ls__vocab_loss *a, ls_stream *stream)
{
    (void)stream;
    double sum = 0.0, e = a->smoothing;
    for (int64_t i = 0; i < a->rows; i++) {
        if (counts(a, i)) {
            const double log_sum = log((double)a->sums[i]), lse = (double)a->max[i] + log_sum;
            sum += log_sum - (1.0 - e) * (double)a->sums[a->rows + i];
            sum -= e > 0.0 ? e * (double)a->sums[2 * a->rows + i] / (double)a->classes : 0.0;
            sum += a->z_loss > 0.0 ? a->z_loss * lse * lse : 0.0;
        }
    }
    *loss = (float)(sum / (double)counted(a)); /* NaN for no rows, as a mean is */
}

void ls__ref_vocab_loss_backward(void *dlogits, const ls__vocab_loss *a, const float *dloss,
                                 ls_stream *stream)
{
    (void)stream;
    const double scale = (double)*dloss / (double)counted(a), e = a->smoothing;
    for (int64_t i = 0; i < a->rows; i++) {
        const int64_t target = ls__ref_index(a->target, a->index_bytes, i) - a->first;
        const double lse = (double)a->max[i] + log((double)a->sums[i]);
        const double times = a->z_loss > 0.0 ? 1.0 + 2.0 * a->z_loss * lse : 1.0;
        for (int64_t j = 0; j < a->n; j++) {
            const double share = (j == target ? 1.0 - e : 0.0) + e / (double)a->classes;
            const double p = exp(logit(a, i, j) - (double)a->max[i]) / (double)a->sums[i];
            const float d = counts(a, i) ? (float)((times * p - share) * scale) : 0.0f;
            if (a->logits.half) {
                ((ls__bfloat16 *)dlogits)[i * a->n + j] = ls__bfloat16_round(d);
            } else {
                ((float *)dlogits)[i * a->n + j] = d;
            }
        }
    }
}
