/* SPDX-License-Identifier: Apache-2.0 */
/* Losses and their gradients; formulas are those of kernel/ref/loss.c and vocab_loss.c. A block has a
 * row of logits and needs no memory beside it: the gradient may take the place of the logits, which
 * are read three times. */
#include "common.cuh"

/* NaN of a class that is none: a captured step says so after it has been made (first_end). */
static __device__ __inline__ float weight_of(const float *weight, int64_t target, int64_t n)
{
    return weight == NULL ? 1.0f : target >= 0 && target < n ? weight[target] : NAN;
}

KERNEL(count_targets)
{
    double count = 0.0;
    WITHIN(i, k.rows)
    {
        const int64_t target = index_at(k.target, k.index_bytes, i);
        count += target != k.ignore ? (double)weight_of(k.weight, target, k.n) : 0.0;
    }
    count = sum_of(count);
    if (threadIdx.x == 0) {
        *k.count = count;
    }
}

/* NaN of such a class, too. */
static __device__ __inline__ float at_class(ls__real x, int64_t first, int64_t target, int64_t n)
{
    return target >= 0 && target < n ? get(x, first + target) : NAN;
}

/* Of log-probabilities. */
static __device__ void nll_row(const cuda_cross_entropy_rows_args &k, int64_t r, int64_t target)
{
    const ls__real x = real_of(k.logits, k.half), dx = real_of(k.dlogits, k.half);
    const int64_t first = r * k.of.n;
    const bool counts = target != k.of.ignore;
    if (threadIdx.x == 0) {
        k.losses[r] = counts ? -(double)at_class(x, first, target, k.of.n) : 0.0;
    }
    __syncthreads(); /* the gradient may be x */
    WITHIN(j, k.dlogits != NULL ? k.of.n : 0)
    {
        put(dx, first + j, counts && j == target ? (float)(-1.0 / *k.count) : 0.0f);
    }
}

/* -(1 - e) log p[target] - e mean(log p), with e the smoothing, plus z (log sum exp)^2; with weights w of
 * classes w[target] times this, but -e mean(w log p). */
static __device__ void cross_entropy_row(const cuda_cross_entropy_rows_args &k, int64_t r,
                                         int64_t target)
{
    const ls__real x = real_of(k.logits, k.half), dx = real_of(k.dlogits, k.half);
    const int64_t n = k.of.n, first = r * n;
    const float e = (float)k.of.smoothing, z = (float)k.of.z_loss, *weight = k.of.weight;
    const float own = weight_of(weight, target, n);
    float max = -INFINITY, sum = 0.0f, mean = 0.0f, shares = 0.0f;
    WITHIN(j, n)
    {
        max = fmaxf(max, get(x, first + j));
    }
    max = combine(max, larger());
    WITHIN(j, n)
    {
        sum += expf(get(x, first + j) - max);
        mean += weight_of(weight, j, n) * get(x, first + j);
        shares += weight_of(weight, j, n);
    }
    sum = sum_of(sum);
    mean = e > 0.0f ? sum_of(mean) / (float)n : 0.0f;
    shares = weight == NULL ? 1.0f : sum_of(shares) / (float)n;
    const float log_sum = max + logf(sum), wanted = at_class(x, first, target, n);
    __syncthreads(); /* all have read it before it is overwritten */
    if (threadIdx.x == 0) {
        double loss = (1.0 - k.of.smoothing) * (double)(log_sum - wanted);
        loss += z > 0.0f ? k.of.z_loss * (double)log_sum * (double)log_sum : 0.0;
        loss *= (double)own;
        k.losses[r] = loss + (e > 0.0f ? k.of.smoothing * (double)(shares * log_sum - mean) : 0.0);
    }
    const float times = own * (z > 0.0f ? 1.0f + 2.0f * z * log_sum : 1.0f) + e * (shares - own);
    const float count = (float)*k.count;
    WITHIN(j, k.dlogits != NULL ? n : 0)
    {
        const float share = (j == target ? own * (1.0f - e) : 0.0f) + e / (float)n * weight_of(weight, j, n);
        put(dx, first + j, (times * expf(get(x, first + j) - max) / sum - share) / count);
    }
}

KERNEL(cross_entropy_rows)
{
    ROWS(r, k.of.rows)
    {
        const int64_t target = index_at(k.of.target, k.of.index_bytes, r);
        if (k.nll) {
            nll_row(k, r, target);
        } else if (target != k.of.ignore) {
            cross_entropy_row(k, r, target);
        } else {
            WITHIN(j, k.dlogits != NULL ? k.of.n : 0)
            {
                put(real_of(k.dlogits, k.half), r * k.of.n + j, 0.0f);
            }
            if (threadIdx.x == 0) {
                k.losses[r] = 0.0;
            }
        }
    }
}

KERNEL(bce_part)
{
    double sum = 0.0;
    EACH(i, k.count)
    {
        const float x = k.x[i], y = k.y[i];
        sum += (double)((x < 0.0f ? 0.0f : x) - x * y + log1pf(expf(-fabsf(x))));
        if (k.dx != NULL) {
            k.dx[i] = (1.0f / (1.0f + expf(-x)) - y) / (float)k.count;
        }
    }
    sum = sum_of(sum);
    if (threadIdx.x == 0) {
        k.partial[blockIdx.x] = sum;
    }
}

/* ---- classes that several ranks share --------------------------------------------------------- */

static __device__ __inline__ bool counts(const ls__vocab_loss &a, int64_t r)
{
    return index_at(a.target, a.index_bytes, r) != a.ignore;
}

KERNEL(vocab_max)
{
    const ls__vocab_loss &a = k.args;
    ROWS(r, a.rows)
    {
        float max = -INFINITY;
        WITHIN(j, a.n)
        {
            max = fmaxf(max, get(a.logits, r * a.n + j));
        }
        max = combine(max, larger());
        if (threadIdx.x == 0) {
            a.max[r] = counts(a, r) ? max : 0.0f;
        }
    }
}

KERNEL(vocab_sums)
{
    const ls__vocab_loss &a = k.args;
    ROWS(r, a.rows)
    {
        const float max = a.max[r];
        const int64_t target = index_at(a.target, a.index_bytes, r) - a.first;
        const bool wanted = counts(a, r);
        float sum = 0.0f, all = 0.0f;
        WITHIN(j, wanted ? a.n : 0)
        {
            const float shifted = get(a.logits, r * a.n + j) - max;
            sum += expf(shifted);
            all += shifted;
        }
        sum = sum_of(sum);
        all = sum_of(all);
        if (threadIdx.x == 0) {
            const bool here = wanted && target >= 0 && target < a.n;
            a.sums[r] = sum;
            a.sums[a.rows + r] = here ? get(a.logits, r * a.n + target) - max : 0.0f;
            if (a.smoothing > 0.0) {
                a.sums[2 * a.rows + r] = all;
            }
        }
    }
}

KERNEL(vocab_loss)
{
    const ls__vocab_loss &a = k.args;
    const double e = a.smoothing;
    double sum = 0.0, count = 0.0;
    WITHIN(r, a.rows)
    {
        if (counts(a, r)) {
            const double log_sum = log((double)a.sums[r]), lse = (double)a.max[r] + log_sum;
            sum += log_sum - (1.0 - e) * (double)a.sums[a.rows + r];
            sum -= e > 0.0 ? e * (double)a.sums[2 * a.rows + r] / (double)a.classes : 0.0;
            sum += a.z_loss > 0.0 ? a.z_loss * lse * lse : 0.0;
            count += 1.0;
        }
    }
    sum = sum_of(sum);
    count = sum_of(count);
    if (threadIdx.x == 0) {
        *k.loss = (float)(sum / count); /* NaN for no rows, as a mean is */
    }
}

KERNEL(vocab_gradient)
{
    const ls__vocab_loss &a = k.of;
    const float scale = (float)((double)*k.dloss / *k.count), e = (float)a.smoothing;
    const ls__real dx = real_of(k.dlogits, a.logits.half);
    EACH(i, a.rows * a.n)
    {
        const int64_t r = i / a.n, j = i % a.n;
        const int64_t target = index_at(a.target, a.index_bytes, r) - a.first;
        const float lse = a.max[r] + logf(a.sums[r]);
        const float times = a.z_loss > 0.0 ? 1.0f + 2.0f * (float)a.z_loss * lse : 1.0f;
        const float share = (j == target ? 1.0f - e : 0.0f) + e / (float)a.classes;
        const float p = expf(get(a.logits, i) - a.max[r]) / a.sums[r];
        put(dx, i, counts(a, r) ? (times * p - share) * scale : 0.0f);
    }
}
