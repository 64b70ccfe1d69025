/* Dropout: Philox4x32-10 for many counters at once; the same words as ls_philox4x32 (base/random.c
 * cites the paper), so the same elements are kept whoever computes them. */
#include "kernel/cpu/isa.h"

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u
#define PHILOX_ROUNDS 10
#define BLOCKS 64 /* Philox blocks at a time: 256 words */
#define CHUNK (LS__BLOCK)

typedef struct stream_key {
    uint64_t seed, stream_id;
} stream_key;

/* words[4*BLOCKS] of Philox blocks first ... first+BLOCKS-1. */
static void philox_words(uint32_t *words, uint64_t first, const stream_key *key)
{
    uint32_t s0 = (uint32_t)key->stream_id, s1 = (uint32_t)(key->stream_id >> 32);
#pragma omp simd
    for (int b = 0; b < BLOCKS; b++) {
        uint64_t block = first + (uint64_t)b;
        uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = s0, c3 = s1;
        uint32_t k0 = (uint32_t)key->seed, k1 = (uint32_t)(key->seed >> 32);
#pragma GCC unroll 10
        for (int i = 0; i < PHILOX_ROUNDS; i++) {
            uint64_t p0 = (uint64_t)PHILOX_M0 * c0, p1 = (uint64_t)PHILOX_M1 * c2;
            c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
            c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
            c1 = (uint32_t)p1;
            c3 = (uint32_t)p0;
            k0 += PHILOX_W0;
            k1 += PHILOX_W1;
        }
        words[4 * b] = c0;
        words[4 * b + 1] = c1;
        words[4 * b + 2] = c2;
        words[4 * b + 3] = c3;
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

void LS__K(dropout)(float *out, const float *a, int64_t count, uint64_t first, double p,
                    uint64_t seed, uint64_t stream_id, float beta, ls_stream *stream)
{
    (void)stream;
    stream_key key = {seed, stream_id};
    double limit = p * 4294967296.0;
    uint64_t threshold = (uint64_t)limit;
    threshold += (double)threshold < limit; /* the least word w with w >= limit */
    keep_rule rule = {.threshold = (uint32_t)threshold, .nothing = threshold > UINT32_MAX};
    rule.scale = (float)(1.0 / (1.0 - p));
    rule.beta = beta;
#pragma omp parallel for schedule(static) if (count >= LS__PARALLEL_MIN)
    for (int64_t i = 0; i < count; i += CHUNK) {
        range(out + i, a + i, ls__min(CHUNK, count - i), first + (uint64_t)i, &key, rule);
    }
}
