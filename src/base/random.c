/* SPDX-License-Identifier: Apache-2.0 */
/* Philox4x32-10 and what is drawn from it.
 *
 * Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, section
 * 3.3: ten rounds of two 32x32 multiplications, the key bumped by Weyl constants between rounds.
 *
 *     key     = (seed low, seed high)
 *     counter = (index/4 low, index/4 high, stream low, stream high);  lane index % 4 of the block
 *
 * So four neighbouring numbers of a stream cost one block, and no number depends on the thread or
 * rank that draws it.
 */
#include <lockstep/random.h>

#include "base/normal.h"
#include "base/philox.h"

/* A pure function of counter and key, so any element can be computed anywhere. */
void ls_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int i = 0; i < LS__PHILOX_ROUNDS; i++) {
        uint64_t p0 = (uint64_t)LS__PHILOX_M0 * c0;
        uint64_t p1 = (uint64_t)LS__PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += LS__PHILOX_W0;
        k1 += LS__PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The four numbers that element `index` belongs to. */
static void block(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4])
{
    const uint64_t number = index / 4;
    const uint32_t counter[4] = {(uint32_t)number, (uint32_t)(number >> 32), (uint32_t)stream,
                                 (uint32_t)(stream >> 32)};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    ls_philox4x32(counter, key, out);
}

/* The upper 24 bits: every float32 k * 2^-24 in [0,1), each equally likely. */
static float unit(uint32_t bits)
{
    return (float)(bits >> 8) * 0x1p-24f;
}

/* In [0, 1). */
float ls_random_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t bits[4];
    block(seed, stream, index, bits);
    return unit(bits[index % 4]);
}

/* Elements 2k and 2k + 1 are the two results of one Box-Muller pair. */
float ls_random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t bits[4];
    block(seed, stream, index, bits);
    const uint32_t *pair = &bits[index % 4 / 2 * 2];
    float even, odd;
    ls__normal_pair(pair[0], pair[1], &even, &odd);
    return index % 2 == 0 ? even : odd;
}
