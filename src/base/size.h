/* SPDX-License-Identifier: Apache-2.0 */
/* Checked size arithmetic: products and sums of sizes that come from users, files or peers. */
#ifndef LS_BASE_SIZE_H
#define LS_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* false on overflow, and then *out is unchanged. */
static inline bool ls__mul_size(size_t a, size_t b, size_t *out)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) {
        return false;
    }
    *out = product;
    return true;
}

static inline bool ls__add_size(size_t a, size_t b, size_t *out)
{
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        return false;
    }
    *out = sum;
    return true;
}

/* Product of non-negative int64 values; false when one is negative or the product overflows. */
static inline bool ls__mul_int64(int64_t a, int64_t b, int64_t *out)
{
    int64_t product;
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) {
        return false;
    }
    *out = product;
    return true;
}

/* Bytes of count elements; false when count is negative or they are more than any object can have,
 * whose last byte must be within a ptrdiff_t of its first. */
static inline bool ls__bytes_of(int64_t count, size_t element_bytes, size_t *out)
{
    size_t bytes = 0;
    if (count < 0 || !ls__mul_size((size_t)count, element_bytes, &bytes) || bytes > PTRDIFF_MAX) {
        return false;
    }
    *out = bytes;
    return true;
}

/* n rounded up to a multiple of `to`, a power of two. */
static inline size_t ls__round_up(size_t n, size_t to)
{
    return (n + to - 1) & ~(to - 1);
}

#endif
