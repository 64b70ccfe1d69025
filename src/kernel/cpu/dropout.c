/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout: a word of Philox for each element (philox.h), the same words as ls_philox4x32's, so the
 * same elements are kept whoever computes them. */
#include "kernel/cpu/halves.h"
#include "kernel/cpu/philox.h"

typedef struct keep_rule { /* an element is kept, times `scale`, where its word is large enough */
    uint32_t threshold;
    bool nothing; /* p = 1: the threshold would be 2^32 */
    float scale, beta;
} keep_rule;

/* One word decides about one element; nothing depends on the values. */
static void apply(float *out, const float *a, const uint32_t *words, int64_t count, keep_rule rule)
{
    if (rule.beta == 0.0f) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            out[i] = words[i] >= rule.threshold && !rule.nothing ? a[i] * rule.scale : 0.0f;
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            float kept = words[i] >= rule.threshold && !rule.nothing ? a[i] * rule.scale : 0.0f;
            out[i] = rule.beta * out[i] + kept;
        }
    }
}

/* Pairs of two generators side by side are put into the order in which one generator gives them. */
static void words_from(uint32_t *out, uint64_t block, const ls__philox_key *key)
{
    ls__philox_words words;
    ls__philox_make(&words, block, key);
#pragma omp simd
    for (int i = 0; i < LS__PHILOX_PAIRS; i++) {
        out[2 * i] = words.first[i];
        out[2 * i + 1] = words.second[i];
    }
}

/* Elements [0,count) of a block, element 0 being number `first` of the stream. Begins within a
 * block of four words where the first element does. */
static void range(float *out, const float *a, int64_t count, uint64_t first,
                  const ls__philox_key *key, keep_rule rule)
{
    _Alignas(64) uint32_t words[LS__PHILOX_WORDS];
    for (int64_t i = 0; i < count;) {
        uint64_t element = first + (uint64_t)i;
        int64_t skip = (int64_t)(element % 4); /* words before the first wanted one */
        int64_t n = ls__min(LS__PHILOX_WORDS - skip, count - i);
        words_from(words, element / 4, key);
        apply(out + i, a + i, words + skip, n, rule);
        i += n;
    }
}

/* The limit p 2^32 is rounded up, so that an element is kept exactly where its word is at least p
 * 2^32. */
static keep_rule rule_of(double p, float beta)
{
    double limit = p * 4294967296.0;
    uint64_t threshold = (uint64_t)limit;
    threshold += (double)threshold < limit; /* the least word w with w >= limit */
    return (keep_rule){.threshold = (uint32_t)threshold,
                       .nothing = threshold > UINT32_MAX,
                       .scale = (float)(1.0 / (1.0 - p)),
                       .beta = beta};
}

/* Elements [from, from + count) of a call, by runs that follow each other in the stream. */
static void runs(float *out, const float *a, int64_t from, int64_t count, const ls__drop *drop,
                 keep_rule rule)
{
    const ls__philox_key key = {drop->seed, drop->stream_id};
    const int64_t run = drop->run > 0 ? drop->run : from + count;
    while (count > 0) {
        const int64_t at = from % run, n = ls__min(run - at, count);
        const uint64_t first = drop->first + (uint64_t)(from / run) * drop->stride + (uint64_t)at;
        range(out, a, n, first, &key, rule);
        out += n, a += n, from += n, count -= n;
    }
}

/* An element's word depends on its number alone, so blocks of any size give the same mask. */
void LS__K(dropout)(float *out, const float *a, int64_t count, const ls__drop *drop, float beta,
                    ls_stream *stream)
{
    (void)stream;
    keep_rule rule = rule_of(drop->p, beta);
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK,
                     { runs(out + i, a + i, i, ls__min(LS__BLOCK, count - i), drop, rule); })
}

/* By blocks that fit the first cache, because each is widened, scaled and narrowed. */
static void runs_halves(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t from, int64_t count,
                        const ls__drop *drop, keep_rule rule)
{
    _Alignas(64) float kept[LS__HALF_BLOCK], x[LS__HALF_BLOCK];
    for (int64_t i = 0; i < count; i += LS__HALF_BLOCK) {
        int64_t n = ls__min(LS__HALF_BLOCK, count - i);
        ls__halves_widen(x, a + i, n);
        if (rule.beta != 0.0f) {
            ls__halves_widen(kept, out + i, n);
        }
        runs(kept, x, from + i, n, drop, rule);
        ls__halves_narrow(out + i, kept, n);
    }
}

/* The same words as for float32; widened, scaled in float32 and rounded once. */
void LS__K(dropout_bf16)(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count,
                         const ls__drop *drop, float beta, ls_stream *stream)
{
    (void)stream;
    keep_rule rule = rule_of(drop->p, beta);
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK,
                     { runs_halves(out + i, a + i, i, ls__min(LS__BLOCK, count - i), drop, rule); })
}
