/* SPDX-License-Identifier: Apache-2.0 */
/* Random floats of many magnitudes that ranks can tell from each other's, and their sum in the
 * canonical association, by a plain loop. */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>

#include "base/splitmix64.h"

static inline uint64_t draw(uint64_t *state)
{
    return *state = ls__splitmix64(*state);
}

/* Floats of many magnitudes, so that another association gives other bits. */
static inline float value_of(uint64_t operation, int rank, int64_t i)
{
    const uint64_t h = ls__splitmix64(operation ^ (uint64_t)rank << 56 ^ (uint64_t)i);
    const float magnitude = (float)(1u << (h >> 60));
    return ((float)(h & 0xffffffu) - 8388608.0f) * magnitude;
}

static inline float tree(uint64_t operation, int64_t i, int low, int high)
{
    int left = 1;
    if (high - low == 1) {
        return value_of(operation, low, i);
    }
    while (2 * left < high - low) {
        left *= 2;
    }
    return tree(operation, i, low, low + left) + tree(operation, i, low + left, high);
}

#endif
