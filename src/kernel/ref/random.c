/* SPDX-License-Identifier: Apache-2.0 */
/* Counter-based random numbers: element i of (seed, stream) is the same whoever draws it. The
 * generator is Philox4x32-10 (base/random.c cites the paper); element i takes word i % 4 of
 * block i / 4, whose key is the seed and whose counter are block and stream. */
#include <math.h>

#include <lockstep/random.h>

#include "kernel/ref/ref.h"

/* 32-bit word `index` of the stream: word index%4 of Philox block index/4. */
static uint32_t word(uint64_t seed, uint64_t stream_id, uint64_t index)
{
    uint64_t block = index / 4;
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream_id,
                                 (uint32_t)(stream_id >> 32)};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];
    ls_philox4x32(counter, key, out);
    return out[index % 4];
}

uint64_t ls__ref_drop_number(const ls__drop *d, int64_t i)
{
    const uint64_t run = d->run > 0 ? (uint64_t)d->run : UINT64_MAX;
    return d->first + (uint64_t)i / run * d->stride + (uint64_t)i % run;
}

/* Element i is kept if its word, as a fraction of 2^32, is at least p; nothing depends on the
 * values. */
void ls__ref_dropout(float *out, const float *a, int64_t count, const ls__drop *drop, float beta,
                     ls_stream *stream)
{
    (void)stream;
    float scale = (float)(1.0 / (1.0 - drop->p)); /* infinite for p = 1, and then nothing is kept */
    double threshold = drop->p * 4294967296.0;
    for (int64_t i = 0; i < count; i++) {
        bool keep =
            (double)word(drop->seed, drop->stream_id, ls__ref_drop_number(drop, i)) >= threshold;
        float value = keep ? a[i] * scale : 0.0f;
        out[i] = beta == 0.0f ? value : beta * out[i] + value;
    }
}

/* Element i is number first + i of the stream, in [low, high). */
void ls__ref_random_uniform(float *out, int64_t count, uint64_t first, double low, double high,
                            uint64_t seed, uint64_t stream_id, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < count; i++) {
        double u = (double)ls_random_uniform(seed, stream_id, first + (uint64_t)i);
        out[i] = (float)(low + (high - low) * u);
    }
}

/* Element i is number first + i of the stream, scaled and moved. */
void ls__ref_random_normal(float *out, int64_t count, uint64_t first, double mean, double std,
                           uint64_t seed, uint64_t stream_id, ls_stream *stream)
{
    (void)stream;
    for (int64_t i = 0; i < count; i++) {
        double z = (double)ls_random_normal(seed, stream_id, first + (uint64_t)i);
        out[i] = (float)(mean + std * z);
    }
}
