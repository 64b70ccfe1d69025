/* SPDX-License-Identifier: Apache-2.0 */
/* Small integers in every dtype, so that results can be compared byte for byte with a plain loop
 * over integers: each value here is exact in every type, and so is each sum over eight ranks. */
#ifndef VALUES_H
#define VALUES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <lockstep/types.h>

static inline uint16_t float16_of(int value) /* of a magnitude below 2048 */
{
    const unsigned sign = value < 0 ? 0x8000u : 0;
    unsigned magnitude = (unsigned)(value < 0 ? -value : value), exponent = 25;
    if (magnitude == 0) {
        return (uint16_t)sign;
    }
    while (magnitude < 1024) {
        magnitude *= 2;
        exponent--;
    }
    return (uint16_t)(sign | exponent << 10 | (magnitude & 1023u));
}

static inline uint16_t bfloat16_of(int value) /* of a magnitude up to 256 */
{
    const float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

#define PUT(type)                                                                                  \
    do {                                                                                           \
        const type typed = (type)value;                                                            \
        memcpy(at, &typed, sizeof typed);                                                          \
    } while (0)

/* Writes element i of `buffer`. */
static inline void put_value(void *buffer, int64_t i, ls_dtype dtype, int value)
{
    unsigned char *at = (unsigned char *)buffer + (size_t)i * ls_dtype_size(dtype);
    uint16_t half;
    switch (dtype) {
    case LS_FLOAT32:
        PUT(float);
        break;
    case LS_FLOAT64:
        PUT(double);
        break;
    case LS_FLOAT16:
        half = float16_of(value);
        memcpy(at, &half, sizeof half);
        break;
    case LS_BFLOAT16:
        half = bfloat16_of(value);
        memcpy(at, &half, sizeof half);
        break;
    case LS_INT8:
    case LS_UINT8:
    case LS_BOOL:
        *at = (unsigned char)value;
        break;
    case LS_INT32:
        PUT(int32_t);
        break;
    case LS_INT64:
        PUT(int64_t);
        break;
    case LS_INT16:
        PUT(int16_t);
        break;
    case LS_UINT16:
        PUT(uint16_t);
        break;
    case LS_UINT32:
        PUT(uint32_t);
        break;
    case LS_UINT64:
        PUT(uint64_t);
        break;
    case LS_DTYPE_COUNT:
        break;
    }
}

/* The contribution of a rank. Those of a type and an operator repeat after VALUES_PERIOD elements.
 */
static inline int value_of(int rank, int64_t i, ls_dtype dtype, ls_reduce_op op)
{
    if (dtype == LS_BOOL) {
        return (int)((rank + i) % 2);
    }
    if (op == LS_PRODUCT) {
        return rank == (int)(i % 3) ? 2 : 1;
    }
    return 2 * rank + (int)(i % 5) + 1;
}

enum { VALUES_PERIOD = 30 }; /* i % 2, i % 3, i % 5 */

/* How many of `count` elements must be written or compared one by one. */
static inline int64_t values_own(int64_t count)
{
    return count < VALUES_PERIOD ? count : VALUES_PERIOD;
}

/* Writes the other elements, which repeat the first values_own() of them. */
static inline void values_repeat(unsigned char *buffer, int64_t count, size_t element)
{
    const size_t end = (size_t)count * element;
    for (size_t done = (size_t)values_own(count) * element; done < end; done *= 2) {
        memcpy(buffer + done, buffer, done < end - done ? done : end - done);
    }
}

/* Whether they do. */
static inline bool values_do_repeat(const unsigned char *buffer, int64_t count, size_t element)
{
    const size_t own = (size_t)values_own(count) * element;
    return memcmp(buffer + own, buffer, (size_t)count * element - own) == 0;
}

/* What n ranks reduce it to, by a plain loop. */
static inline int reduced_of(int n, int64_t i, ls_dtype dtype, ls_reduce_op op)
{
    int result = value_of(0, i, dtype, op);
    for (int r = 1; r < n; r++) {
        const int v = value_of(r, i, dtype, op);
        switch (op) {
        case LS_SUM:
        case LS_PREMUL_SUM: /* by 1 */
        case LS_AVG:
            result += v;
            break;
        case LS_PRODUCT:
            result *= v;
            break;
        case LS_MIN:
            result = v < result ? v : result;
            break;
        case LS_MAX:
            result = v > result ? v : result;
            break;
        case LS_BAND:
            result &= v;
            break;
        case LS_BOR:
            result |= v;
            break;
        case LS_BXOR:
            result ^= v;
            break;
        case LS_REDUCE_OP_COUNT:
        case LS_REDUCE_OP_USER:
            break;
        }
    }
    if (op == LS_AVG) {
        return result / n;
    }
    return dtype == LS_BOOL ? result != 0 : result;
}

#endif
