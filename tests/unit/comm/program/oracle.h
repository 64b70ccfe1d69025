/* SPDX-License-Identifier: Apache-2.0 */
/* What reductions are compared with: one element, by the definition in kernel/reduce/reduce.h. */
#ifndef ORACLE_H
#define ORACLE_H

#include <math.h>
#include <string.h>

#include <lockstep/types.h>

typedef union element {
    float f;
    double d;
    int64_t i; /* every integer type, sign-extended or zero-extended */
} element;

static inline bool is_float(ls_dtype dtype)
{
    return dtype <= LS_BFLOAT16;
}

static inline bool is_half(ls_dtype dtype)
{
    return dtype == LS_FLOAT16 || dtype == LS_BFLOAT16;
}

/* 16-bit floats by arithmetic on their fields. */
static inline float half_value(uint16_t h, ls_dtype dtype)
{
    const int mantissa_bits = dtype == LS_FLOAT16 ? 10 : 7;
    const int exponent_max = dtype == LS_FLOAT16 ? 31 : 255;
    const int exponent = (h >> mantissa_bits) & exponent_max;
    const int mantissa = h & ((1 << mantissa_bits) - 1);
    const int bias = exponent_max / 2;
    double size;
    if (exponent == exponent_max) {
        size = mantissa ? (double)NAN : (double)INFINITY;
    } else if (exponent == 0) {
        size = ldexp(mantissa, 1 - bias - mantissa_bits);
    } else {
        size = ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    }
    return (float)(h & 0x8000 ? -size : size);
}

/* The nearest 16-bit float, by search: of two at the same distance the even one. */
static inline uint16_t half_nearest(float x, ls_dtype dtype)
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const uint16_t infinity = dtype == LS_FLOAT16 ? 0x7c00 : 0x7f80;
    if (isnan(x)) {
        return (uint16_t)(sign | infinity | 1);
    }
    const double size = fabs((double)x);
    int low = 0, high = infinity; /* the largest h with value <= size */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        *(size >= (double)half_value((uint16_t)middle, dtype) ? &low : &high) = middle;
    }
    if (isinf(x)) {
        return (uint16_t)(sign | infinity);
    }
    const double below = (double)half_value((uint16_t)low, dtype);
    /* infinity counts as the next power of two */
    const double above = high == infinity ? (dtype == LS_FLOAT16 ? 65536.0 : ldexp(1.0, 128))
                                          : (double)half_value((uint16_t)high, dtype);
    const double to_low = size - below, to_high = above - size;
    const int nearest = to_low < to_high || (to_low == to_high && low % 2 == 0) ? low : high;
    return (uint16_t)(sign | nearest);
}

static inline element load(const void *x, int64_t at, ls_dtype dtype)
{
    element e = {.i = 0};
    const size_t size = ls_dtype_size(dtype);
    unsigned char raw[8] = {0};
    memcpy(raw, (const unsigned char *)x + (size_t)at * size, size);
    uint16_t h;
    int32_t i32;
    switch (dtype) {
    case LS_FLOAT64:
        memcpy(&e.d, raw, 8);
        return e;
    case LS_FLOAT16:
    case LS_BFLOAT16:
        memcpy(&h, raw, 2);
        e.f = half_value(h, dtype);
        return e;
    case LS_INT8:
        e.i = (int8_t)raw[0];
        return e;
    case LS_INT32:
        memcpy(&i32, raw, 4);
        e.i = i32;
        return e;
    case LS_INT16:
        memcpy(&h, raw, 2);
        e.i = (int16_t)h;
        return e;
    default:
        memcpy(&e, raw, size);
        return e;
    }
}

static inline void store(void *x, int64_t at, ls_dtype dtype, element e)
{
    const size_t size = ls_dtype_size(dtype);
    const uint16_t h = is_half(dtype) ? half_nearest(e.f, dtype) : 0;
    memcpy((unsigned char *)x + (size_t)at * size, is_half(dtype) ? (const void *)&h : &e, size);
}

static inline double combine_double(double a, double b, ls_reduce_op op)
{
    switch (op) {
    case LS_SUM:
        return a + b;
    case LS_PRODUCT:
        return a * b;
    case LS_MIN:
        return isnan(a) || a < b ? a : b;
    default:
        return isnan(a) || a > b ? a : b;
    }
}

static inline float combine_float(float a, float b, ls_reduce_op op)
{
    switch (op) {
    case LS_SUM:
        return a + b;
    case LS_PRODUCT:
        return a * b;
    default:
        return (float)combine_double((double)a, (double)b, op);
    }
}

static inline int64_t combine_integer(int64_t a, int64_t b, ls_reduce_op op)
{
    switch (op) {
    case LS_SUM:
        return (int64_t)((uint64_t)a + (uint64_t)b);
    case LS_PRODUCT:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case LS_MIN:
        return a < b ? a : b;
    case LS_MAX:
        return a > b ? a : b;
    case LS_BAND:
        return a & b;
    case LS_BOR:
        return a | b;
    default:
        return a ^ b;
    }
}

/* Wraps a sum or product to the width of the type. */
static inline int64_t narrow(int64_t x, ls_dtype dtype)
{
    switch (dtype) {
    case LS_INT8:
        return (int8_t)(uint64_t)x;
    case LS_INT32:
        return (int32_t)(uint64_t)x;
    case LS_INT64:
    case LS_UINT64:
        return x;
    case LS_INT16:
        return (int16_t)(uint64_t)x;
    case LS_UINT16:
        return (uint16_t)(uint64_t)x;
    case LS_UINT32:
        return (uint32_t)(uint64_t)x;
    default:
        return (uint8_t)(uint64_t)x;
    }
}

static inline element combine(element a, element b, ls_dtype dtype, ls_reduce_op op)
{
    if (dtype == LS_FLOAT64) {
        return (element){.d = combine_double(a.d, b.d, op)};
    }
    if (is_float(dtype)) {
        return (element){.f = combine_float(a.f, b.f, op)};
    }
    if (dtype == LS_BOOL && (op == LS_SUM || op == LS_PRODUCT)) { /* any, all */
        return (element){.i = op == LS_SUM ? a.i | b.i : a.i & b.i};
    }
    if (dtype == LS_UINT64 && (op == LS_MIN || op == LS_MAX)) {
        const bool less = (uint64_t)a.i < (uint64_t)b.i;
        return less == (op == LS_MIN) ? a : b;
    }
    return (element){.i = narrow(combine_integer(a.i, b.i, op), dtype)};
}

/* tree(low, n): split at the largest power of two below n. */
static inline element tree(const void *const *src, int low, int n, int64_t at, ls_dtype dtype,
                           ls_reduce_op op)
{
    if (n == 1) {
        return load(src[low], at, dtype);
    }
    int half = 1;
    while (half * 2 < n) {
        half *= 2;
    }
    return combine(tree(src, low, half, at, dtype, op),
                   tree(src, low + half, n - half, at, dtype, op), dtype, op);
}

static inline element divide(element e, ls_dtype dtype, double divisor)
{
    if (divisor == 0.0) {
        return e;
    }
    if (dtype == LS_FLOAT64) {
        return (element){.d = e.d / divisor};
    }
    if (dtype == LS_UINT64) {
        return (element){.i = (int64_t)((uint64_t)e.i / (uint64_t)divisor)};
    }
    if (!is_float(dtype)) {
        return (element){.i = e.i / (int64_t)divisor};
    }
    return (element){.f = e.f / (float)divisor};
}

static inline bool is_nan(element e, ls_dtype dtype)
{
    return dtype == LS_FLOAT64 ? isnan(e.d) : is_float(dtype) && isnan(e.f);
}

/* Same bits; of two NaNs the payload may differ. */
static inline bool same(const void *got, const void *want, int64_t at, ls_dtype dtype)
{
    const size_t size = ls_dtype_size(dtype);
    const size_t offset = (size_t)at * size;
    return memcmp((const char *)got + offset, (const char *)want + offset, size) == 0 ||
           (is_nan(load(got, at, dtype), dtype) && is_nan(load(want, at, dtype), dtype));
}

#endif
