/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that every rank can tell from those of the others, for tests that compute millions of
 * them; ls_random_normal takes ten times as long. */
#ifndef NUMBER_H
#define NUMBER_H

#include <stdint.h>

#include "base/splitmix64.h"

/* Element `index` of a stream, at most 1 in magnitude. Small ones have finer last bits than large
 * ones, so that sums are rounded and their bits depend on the order. */
static inline float test_number(uint64_t seed, uint64_t stream, uint64_t index)
{
    const uint64_t h = ls__splitmix64(seed << 56 ^ stream << 32 ^ index);
    const float x = (float)(h & 0xffffffu) - 8388608.0f;
    return x * (h >> 63 != 0 ? 0x1p-23f : 0x1p-27f);
}

#endif
