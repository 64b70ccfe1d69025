/* SPDX-License-Identifier: Apache-2.0 */
/* splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA
 * 2014): one step of it spreads each bit of x over all bits of the result, and different x have
 * different results. */
#ifndef LS_BASE_SPLITMIX64_H
#define LS_BASE_SPLITMIX64_H

#include <stdint.h>

#define LS__SPLITMIX64_GAMMA UINT64_C(0x9e3779b97f4a7c15) /* from state to state */

static inline uint64_t ls__splitmix64(uint64_t x)
{
    x += LS__SPLITMIX64_GAMMA;
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

#endif
