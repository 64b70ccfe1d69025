/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers by counters: dropout masks and first values are those of the processor, to the bit.
 * For that this file is compiled without contraction (nvcc -fmad=false), as base/normal.h asks. */
#include "philox.cuh"

#define inline LS__CUDA_INLINE
#include "base/normal.h"
#undef inline

template <class K> static __device__ __inline__ void drop_elements(const K &k)
{
    const float scale = (float)(1.0 / (1.0 - k.drop.p));
    EACH(i, k.count)
    {
        const float value = is_kept(k.drop, i) ? get(k.a, i) * scale : 0.0f;
        store(k.out, i, value, k.beta);
    }
}

KERNEL(dropout)
{
    drop_elements(k);
}

KERNEL(dropout_bf16)
{
    drop_elements(k);
}

KERNEL(random_uniform)
{
    EACH(i, k.count)
    {
        const uint32_t word = word_at(k.seed, k.stream_id, k.first + (uint64_t)i);
        const double u = (double)((float)(word >> 8) * 0x1p-24f);
        k.out[i] = (float)(k.low + (k.high - k.low) * u);
    }
}

KERNEL(random_normal)
{
    EACH(i, k.count)
    {
        const uint64_t number = k.first + (uint64_t)i;
        uint32_t word[4];
        float even, odd;
        philox(k.seed, k.stream_id, number / 4, word);
        const int pair = (int)(number % 4 / 2) * 2;
        ls__normal_pair(word[pair], word[pair + 1], &even, &odd);
        k.out[i] = (float)(k.mean + k.std * (double)(number % 2 == 0 ? even : odd));
    }
}
