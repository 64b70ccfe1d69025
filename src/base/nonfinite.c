/* SPDX-License-Identifier: Apache-2.0 */
/* Looking for NaN and infinity, as fast as memory is read. */
#include "base/nonfinite.h"

#define BLOCK 4096 /* elements between two looks at what was found */

/* IEEE 754: all bits of the exponent are set in NaN and infinity, and in no number. Adding the
 * lowest of them then carries into the place of the sign. */
#define HOLDS_NONFINITE(name, type, exponent, lowest)                                              \
    static bool name##_holds_nonfinite(const void *at, int64_t count)                              \
    {                                                                                              \
        const type *x = at;                                                                        \
        type found = 0;                                                                            \
        for (int64_t i = 0; i < count; i++) {                                                      \
            found |= (type)((x[i] & (exponent)) + (lowest));                                       \
        }                                                                                          \
        return (found >> (8 * sizeof found - 1)) != 0;                                             \
    }
HOLDS_NONFINITE(float64, uint64_t, 0x7ff0000000000000u, 0x0010000000000000u)
HOLDS_NONFINITE(float32, uint32_t, 0x7f800000u, 0x00800000u)
HOLDS_NONFINITE(float16, uint16_t, 0x7c00u, 0x0400u)
HOLDS_NONFINITE(bfloat16, uint16_t, 0x7f80u, 0x0080u)

static bool holds_nonfinite(const char *at, ls_dtype dtype, int64_t count)
{
    switch (dtype) {
    case LS_FLOAT64:
        return float64_holds_nonfinite(at, count);
    case LS_FLOAT32:
        return float32_holds_nonfinite(at, count);
    case LS_FLOAT16:
        return float16_holds_nonfinite(at, count);
    case LS_BFLOAT16:
        return bfloat16_holds_nonfinite(at, count);
    default:
        return false;
    }
}

/* Block by block, and within the block that holds one element by element. */
int64_t ls__nonfinite_find(const void *at, ls_dtype dtype, int64_t from, int64_t to)
{
    const size_t bytes = ls_dtype_size(dtype);
    for (int64_t step = BLOCK; from < to;) {
        const int64_t count = to - from < step ? to - from : step;
        if (!holds_nonfinite((const char *)at + (size_t)from * bytes, dtype, count)) {
            from += count;
        } else if (count == 1) {
            return from;
        } else {
            step = 1;
        }
    }
    return -1;
}
