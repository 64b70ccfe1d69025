/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian numbers in files, whatever the alignment. */
#ifndef LS_DATA_BYTES_H
#define LS_DATA_BYTES_H

#include <stdint.h>

static inline uint32_t ls__little_16(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8;
}

static inline uint32_t ls__little_32(const uint8_t *at)
{
    return ls__little_16(at) | ls__little_16(at + 2) << 16;
}

#endif
