/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of a stream, as ls_random_uniform and ls_random_normal make them one by one, to the bit.
 * So this file is compiled without contraction to fused multiply-adds (meson.build). */
#include "base/normal.h"
#include "kernel/cpu/philox.h"

typedef struct numbers {
    ls__philox_key key;
    bool normal;        /* else uniform */
    double from, times; /* number i is from + times x */
} numbers;

/* The upper 24 bits of a word over 2^24: in [0,1), exact in float32. */
static void uniforms(float *out, const ls__philox_words *words)
{
#pragma omp simd
    for (int i = 0; i < LS__PHILOX_PAIRS; i++) {
        out[2 * i] = (float)(int32_t)(words->first[i] >> 8) * 0x1p-24f;
        out[2 * i + 1] = (float)(int32_t)(words->second[i] >> 8) * 0x1p-24f;
    }
}

/* Two words make a pair of numbers (base/normal.h). */
static void normals(float *out, const ls__philox_words *words)
{
#pragma omp simd
    for (int i = 0; i < LS__PHILOX_PAIRS; i++) {
        float even, odd;
        ls__normal_pair(words->first[i], words->second[i], &even, &odd);
        out[2 * i] = even;
        out[2 * i + 1] = odd;
    }
}

/* In double, rounded once. */
static void place(float *out, const float *x, int64_t count, double from, double times)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        out[i] = (float)(from + times * (double)x[i]);
    }
}

/* Numbers [first,first+count) of the stream, a buffer of words at a time; begins within a block
 * of four words where the first number does. */
static void range(float *out, int64_t count, uint64_t first, const numbers *n)
{
    _Alignas(64) float x[LS__PHILOX_WORDS];
    ls__philox_words words;
    for (int64_t i = 0; i < count;) {
        const uint64_t index = first + (uint64_t)i;
        const int64_t skip = (int64_t)(index % 4); /* of the first block */
        const int64_t take = ls__min(LS__PHILOX_WORDS - skip, count - i);
        ls__philox_make(&words, index / 4, &n->key);
        if (n->normal) {
            normals(x, &words);
        } else {
            uniforms(x, &words);
        }
        place(out + i, x + skip, take, n->from, n->times);
        i += take;
    }
}

/* Element i takes the generator's word first + i, whoever draws it: the numbers do not depend on
 * the threads. */
static void draw(float *out, int64_t count, uint64_t first, const numbers *n)
{
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t i = 0, i < count, i += LS__BLOCK,
                     { range(out + i, ls__min(LS__BLOCK, count - i), first + (uint64_t)i, n); })
}

/* In [low, high); the same seed, stream and `first` give the same numbers on every processor. */
void LS__K(random_uniform)(float *out, int64_t count, uint64_t first, double low, double high,
                           uint64_t seed, uint64_t stream_id, ls_stream *stream)
{
    (void)stream;
    draw(out, count, first, &(numbers){.key = {seed, stream_id}, .from = low, .times = high - low});
}

void LS__K(random_normal)(float *out, int64_t count, uint64_t first, double mean, double std,
                          uint64_t seed, uint64_t stream_id, ls_stream *stream)
{
    (void)stream;
    draw(out, count, first,
         &(numbers){.key = {seed, stream_id}, .normal = true, .from = mean, .times = std});
}
