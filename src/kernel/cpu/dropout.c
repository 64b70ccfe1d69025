/* Dropout: Philox4x32-10, a vector of counters at once; the same words as ls_philox4x32
 * (base/random.c cites the paper), so the same elements are kept whoever computes them. */
#include "kernel/cpu/halves.h"
#include "kernel/cpu/wide.h"

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u
#define PHILOX_ROUNDS 10
#define BLOCKS 64 /* Philox blocks at a time: 256 words */

typedef struct stream_key {
    uint64_t seed, stream_id;
} stream_key;

/* LS__WIDE_LANES blocks at once; upper halves of the state hold what no later step reads. */
LS__INLINE void philox_group(uint32_t *words, ls__wide block, const stream_key *key)
{
    const ls__wide zero = {0};
    const ls__wide m0 = zero + (uint64_t)PHILOX_M0, m1 = zero + (uint64_t)PHILOX_M1;
    ls__wide c0 = block, c1 = block >> 32, c2 = zero + key->stream_id, c3 = c2 >> 32;
    uint32_t k0 = (uint32_t)key->seed, k1 = (uint32_t)(key->seed >> 32);
    for (int i = 0; i < PHILOX_ROUNDS; i++) {
        ls__wide p0 = ls__wide_multiply(m0, c0), p1 = ls__wide_multiply(m1, c2);
        c0 = (p1 >> 32) ^ c1 ^ (uint64_t)k0;
        c2 = (p0 >> 32) ^ c3 ^ (uint64_t)k1;
        c1 = p1;
        c3 = p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    ls__wide low = (c0 & UINT32_MAX) | c1 << 32, high = (c2 & UINT32_MAX) | c3 << 32;
    for (int i = 0; i < LS__WIDE_LANES; i++) {
        words[4 * i] = (uint32_t)low[i];
        words[4 * i + 1] = (uint32_t)(low[i] >> 32);
        words[4 * i + 2] = (uint32_t)high[i];
        words[4 * i + 3] = (uint32_t)(high[i] >> 32);
    }
}

/* words[4*BLOCKS] of Philox blocks first ... first+BLOCKS-1. */
static void philox_words(uint32_t *words, uint64_t first, const stream_key *key)
{
    ls__wide lane;
    for (int i = 0; i < LS__WIDE_LANES; i++) {
        lane[i] = (uint64_t)i;
    }
    for (int b = 0; b < BLOCKS; b += LS__WIDE_LANES) {
        philox_group(words + 4 * b, lane + (first + (uint64_t)b), key);
    }
}

typedef struct keep_rule {
    uint32_t threshold;
    bool nothing; /* p = 1: the threshold would be 2^32 */
    float scale, beta;
} keep_rule;

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

static void range(float *out, const float *a, int64_t count, uint64_t first, const stream_key *key,
                  keep_rule rule)
{
    _Alignas(64) uint32_t words[4 * BLOCKS];
    for (int64_t i = 0; i < count;) {
        uint64_t element = first + (uint64_t)i;
        int64_t skip = (int64_t)(element % 4); /* words before the first wanted one */
        int64_t n = ls__min(4 * BLOCKS - skip, count - i);
        philox_words(words, element / 4, key);
        apply(out + i, a + i, words + skip, n, rule);
        i += n;
    }
}

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

void LS__K(dropout)(float *out, const float *a, int64_t count, uint64_t first, double p,
                    uint64_t seed, uint64_t stream_id, float beta, ls_stream *stream)
{
    (void)stream;
    stream_key key = {seed, stream_id};
    keep_rule rule = rule_of(p, beta);
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK, {
        range(out + i, a + i, ls__min(LS__BLOCK, count - i), first + (uint64_t)i, &key, rule);
    })
}

static void range_halves(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count, uint64_t first,
                         const stream_key *key, keep_rule rule)
{
    _Alignas(64) float kept[LS__HALF_BLOCK], x[LS__HALF_BLOCK];
    for (int64_t i = 0; i < count; i += LS__HALF_BLOCK) {
        int64_t n = ls__min(LS__HALF_BLOCK, count - i);
        ls__halves_widen(x, a + i, n);
        if (rule.beta != 0.0f) {
            ls__halves_widen(kept, out + i, n);
        }
        range(kept, x, n, first + (uint64_t)i, key, rule);
        ls__halves_narrow(out + i, kept, n);
    }
}

void LS__K(dropout_bf16)(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count, uint64_t first,
                         double p, uint64_t seed, uint64_t stream_id, float beta, ls_stream *stream)
{
    (void)stream;
    stream_key key = {seed, stream_id};
    keep_rule rule = rule_of(p, beta);
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK, {
        range_halves(out + i, a + i, ls__min(LS__BLOCK, count - i), first + (uint64_t)i, &key,
                     rule);
    })
}
