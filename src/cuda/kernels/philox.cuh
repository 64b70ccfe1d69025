/* SPDX-License-Identifier: Apache-2.0 */
/* Words of the streams of base/random.c, and which elements a dropout keeps (kernels.h). */
#ifndef LS_CUDA_PHILOX_CUH
#define LS_CUDA_PHILOX_CUH

#include "common.cuh"

#include "base/philox.h"

/* Words of block `block`; see base/random.c. */
static __device__ __inline__ void philox(uint64_t seed, uint64_t stream, uint64_t block,
                                         uint32_t word[4])
{
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    word[0] = (uint32_t)block, word[1] = (uint32_t)(block >> 32);
    word[2] = (uint32_t)stream, word[3] = (uint32_t)(stream >> 32);
    for (int round = 0; round < LS__PHILOX_ROUNDS; round++) {
        const uint64_t a = (uint64_t)LS__PHILOX_M0 * word[0], b = (uint64_t)LS__PHILOX_M1 * word[2];
        const uint32_t next[4] = {(uint32_t)(b >> 32) ^ word[1] ^ key0, (uint32_t)b,
                                  (uint32_t)(a >> 32) ^ word[3] ^ key1, (uint32_t)a};
        word[0] = next[0], word[1] = next[1], word[2] = next[2], word[3] = next[3];
        key0 += LS__PHILOX_W0;
        key1 += LS__PHILOX_W1;
    }
}

static __device__ __inline__ uint32_t word_at(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t word[4];
    philox(seed, stream, index / 4, word);
    return word[index % 4];
}

/* Whether element i of a call is kept. */
static __device__ __inline__ bool is_kept(const ls__drop &d, int64_t i)
{
    const uint64_t run = d.run > 0 ? (uint64_t)d.run : UINT64_MAX;
    const uint64_t number = d.first + (uint64_t)i / run * d.stride + (uint64_t)i % run;
    const uint64_t stream = d.varies != NULL ? *d.varies : d.stream_id;
    return (double)word_at(d.seed, stream, number) >= d.p * 4294967296.0;
}

#endif
