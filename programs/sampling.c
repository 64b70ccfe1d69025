/* SPDX-License-Identifier: Apache-2.0 */
/* See sampling.h. Computed in float64, in the order temperature, top-k, top-p, as in
 * transformers. */
#include "sampling.h"

#include <math.h>
#include <stdlib.h>

#include <lockstep/random.h>

/* Ties are ordered by token, so that the order does not depend on qsort. */
static int more_probable_first(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->probability != y->probability) {
        return x->probability > y->probability ? -1 : 1;
    }
    return (x->token > y->token) - (x->token < y->token);
}

/* The index of the first largest logit; -1 if one is NaN or infinity, or all are -infinity. */
static int64_t largest(const float *logits, int64_t vocab)
{
    int64_t best = -1;
    for (int64_t i = 0; i < vocab; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY) {
            return -1;
        }
        if (logits[i] > (best < 0 ? -INFINITY : logits[best])) {
            best = i;
        }
    }
    return best;
}

/* The number of sorted candidates that together reach `share` of `sum`, at least one (Holtzman et
 * al. 2020, nucleus sampling). */
static int64_t nucleus(const candidate *c, int64_t count, double share, double sum)
{
    double before = 0.0;
    int64_t n = 0;
    while (n < count && (n == 0 || before < share * sum)) {
        before += c[n++].probability;
    }
    return n;
}

static double sum_of(const candidate *c, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += c[i].probability;
    }
    return sum;
}

/* Sorts only when top-k or top-p needs it. */
ls_status sampling_candidates(const sampling *s, const float *logits, int64_t vocab, candidate *out,
                              int64_t *count)
{
    int64_t best = largest(logits, vocab), n = 0;
    if (best < 0) {
        return ls_fail(
            LS_ERR_INVALID,
            "sampling: the logits of %lld tokens contain NaN or infinity; check that the "
            "training did not diverge",
            (long long)vocab);
    }
    if (s->temperature == 0.0) {
        out[0] = (candidate){(int32_t)best, 1.0};
        *count = 1;
        return LS_OK;
    }
    for (int64_t i = 0; i < vocab; i++) { /* the largest value is 1, so no exponential overflows */
        double p = exp(((double)logits[i] - (double)logits[best]) / s->temperature);
        if (p > 0.0) {
            out[n++] = (candidate){(int32_t)i, p};
        }
    }
    if ((s->top_k > 0 && s->top_k < n) || s->top_p < 1.0) {
        qsort(out, (size_t)n, sizeof *out, more_probable_first);
        n = s->top_k > 0 && s->top_k < n ? s->top_k : n;
        n = s->top_p < 1.0 ? nucleus(out, n, s->top_p, sum_of(out, n)) : n;
    }
    double sum = sum_of(out, n);
    for (int64_t i = 0; i < n; i++) {
        out[i].probability /= sum;
    }
    *count = n;
    return LS_OK;
}

int32_t sampling_draw(const candidate *c, int64_t count, double uniform)
{
    double below = 0.0;
    for (int64_t i = 0; i < count - 1; i++) {
        below += c[i].probability;
        if (uniform < below) {
            return c[i].token;
        }
    }
    return c[count - 1].token; /* rounding may leave the sum below 1 */
}

/* 53 random bits as a number in [0,1). */
double sampling_uniform(uint64_t seed, uint64_t index)
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), 0, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t bits[4];
    ls_philox4x32(counter, key, bits);
    return ((double)(bits[0] >> 5) * 67108864.0 + (double)(bits[1] >> 6)) / 9007199254740992.0;
}
