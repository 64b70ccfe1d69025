/* SPDX-License-Identifier: Apache-2.0 */
/* Element types to and from float64, one element at a time. All types but 64-bit integers pass
 * through a double without loss; those integers are converted to each other directly where both
 * sides are integers of 64 bits. float16 is done by arithmetic on its fields (IEEE 754 binary16:
 * sign, 5 bits of exponent with bias 15, 10 bits of fraction), bfloat16 is the upper half of a
 * float32, rounded to nearest even. */
#include "tensor/convert.h"

#include <math.h>
#include <string.h>

/* The float32 with these bits, as a double. */
static double from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* The value of a float16: fraction/2^24 for subnormals (exponent 0), (1 + fraction/1024)
 * 2^(exponent - 15) for others, infinity or NaN at exponent 31. By arithmetic, not by a table:
 * casts of float16 are rare (files, printing). */
static double load_half(uint16_t half)
{
    int exponent = half >> 10 & 31, fraction = half & 1023;
    double sign = half >> 15 ? -1.0 : 1.0;
    if (exponent == 31) {
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    }
    return exponent == 0 ? sign * ldexp(fraction, -24)
                         : sign * ldexp(1024 + fraction, exponent - 25);
}

/* The float16 nearest to `value`, ties to even; 65520 and above become infinity. The fraction is
 * scaled to an integer of 10 or 11 bits first, so that one rounding serves normal and subnormal
 * numbers. */
static uint16_t store_half(double value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double size = fabs(value);
    if (isnan(value)) {
        return 0x7e00;
    }
    if (size >= 65520.0) { /* rounds to 2^16 */
        return sign | 0x7c00;
    }
    int exponent = size >= 0x1p-14 ? ilogb(size) : -14;
    /* nearbyint rounds to even; a carry moves into the exponent by itself. */
    uint16_t scaled = (uint16_t)nearbyint(ldexp(size, 10 - exponent));
    return (uint16_t)(sign | (uint16_t)(scaled + ((exponent + 14) << 10)));
}

/* Rounded to nearest even by adding half of the last place that stays; NaN keeps its sign and is
 * made quiet. */
static uint16_t store_bfloat(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value)) {
        return (uint16_t)(bits >> 16 | 0x40);
    }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Truncates towards zero within [low,high]; NaN gives 0. Conversion of a number outside the
 * type's range is undefined in C, so it is saturated first. */
static int64_t to_integer(double value, int64_t low, int64_t high)
{
    if (isnan(value)) {
        return 0;
    }
    if (value <= (double)low) {
        return low;
    }
    return value >= (double)high ? high : (int64_t)value;
}

/* As to_integer with 0 and 2^64 - 1, neither of which a double's conversion may exceed. */
static uint64_t to_unsigned(double value)
{
    if (!(value > 0.0)) { /* NaN, too */
        return 0;
    }
    return value >= 0x1p64 ? UINT64_MAX : (uint64_t)value;
}

/* Element i of `from` as a double; 64-bit integers beyond 2^53 are rounded. */
double ls__convert_load(const void *from, ls_dtype dtype, int64_t i)
{
    switch (dtype) {
    case LS_FLOAT32:
        return (double)((const float *)from)[i];
    case LS_FLOAT64:
        return ((const double *)from)[i];
    case LS_FLOAT16:
        return load_half(((const uint16_t *)from)[i]);
    case LS_BFLOAT16:
        return from_bits((uint32_t)((const uint16_t *)from)[i] << 16);
    case LS_INT8:
        return (double)((const int8_t *)from)[i];
    case LS_UINT8:
        return (double)((const uint8_t *)from)[i];
    case LS_BOOL:
        return ((const uint8_t *)from)[i] != 0 ? 1.0 : 0.0;
    case LS_INT32:
        return (double)((const int32_t *)from)[i];
    case LS_INT64:
        return (double)((const int64_t *)from)[i];
    case LS_INT16:
        return (double)((const int16_t *)from)[i];
    case LS_UINT16:
        return (double)((const uint16_t *)from)[i];
    case LS_UINT32:
        return (double)((const uint32_t *)from)[i];
    case LS_UINT64:
        return (double)((const uint64_t *)from)[i];
    case LS_DTYPE_COUNT:
        break;
    }
    return 0.0;
}

/* Writes `value` as element i; integers truncate towards zero and saturate, NaN gives 0. */
void ls__convert_store(void *to, ls_dtype dtype, int64_t i, double value)
{
    switch (dtype) {
    case LS_FLOAT32:
        ((float *)to)[i] = (float)value;
        break;
    case LS_FLOAT64:
        ((double *)to)[i] = value;
        break;
    case LS_FLOAT16:
        ((uint16_t *)to)[i] = store_half(value);
        break;
    case LS_BFLOAT16:
        ((uint16_t *)to)[i] = store_bfloat((float)value);
        break;
    case LS_INT8:
        ((int8_t *)to)[i] = (int8_t)to_integer(value, INT8_MIN, INT8_MAX);
        break;
    case LS_UINT8:
        ((uint8_t *)to)[i] = (uint8_t)to_integer(value, 0, UINT8_MAX);
        break;
    case LS_BOOL:
        ((uint8_t *)to)[i] = value != 0.0;
        break;
    case LS_INT32:
        ((int32_t *)to)[i] = (int32_t)to_integer(value, INT32_MIN, INT32_MAX);
        break;
    case LS_INT64:
        ((int64_t *)to)[i] = to_integer(value, INT64_MIN, INT64_MAX);
        break;
    case LS_INT16:
        ((int16_t *)to)[i] = (int16_t)to_integer(value, INT16_MIN, INT16_MAX);
        break;
    case LS_UINT16:
        ((uint16_t *)to)[i] = (uint16_t)to_integer(value, 0, UINT16_MAX);
        break;
    case LS_UINT32:
        ((uint32_t *)to)[i] = (uint32_t)to_integer(value, 0, UINT32_MAX);
        break;
    case LS_UINT64:
        ((uint64_t *)to)[i] = to_unsigned(value);
        break;
    case LS_DTYPE_COUNT:
        break;
    }
}

/* Converts once and copies, doubling the filled part: all elements get the same bits. */
void ls__convert_fill(void *to, ls_dtype dtype, int64_t count, double value)
{
    if (count == 0) {
        return;
    }
    const size_t bytes = ls_dtype_size(dtype), all = (size_t)count * bytes;
    ls__convert_store(to, dtype, 0, value);
    /* Each round copies the part that is filled already behind itself. */
    for (size_t done = bytes; done < all; done *= 2) {
        memcpy((char *)to + done, to, done < all - done ? done : all - done);
    }
}

/* Converts count elements of any type to any other; `to` and `from` must not overlap. Pairs of
 * integers that a double would not carry exactly, and the common int64 to int32, have loops of
 * their own. */
void ls__convert(void *to, ls_dtype to_dtype, const void *from, ls_dtype from_dtype, int64_t count)
{
    if (to_dtype == from_dtype) {
        memcpy(to, from, (size_t)count * ls_dtype_size(to_dtype));
        return;
    }
    if (to_dtype == LS_UINT64 && from_dtype == LS_INT64) { /* a double does not hold them all */
        for (int64_t i = 0; i < count; i++) {
            const int64_t value = ((const int64_t *)from)[i];
            ((uint64_t *)to)[i] = value < 0 ? 0 : (uint64_t)value;
        }
        return;
    }
    if (to_dtype == LS_INT64 && from_dtype == LS_UINT64) {
        for (int64_t i = 0; i < count; i++) {
            const uint64_t value = ((const uint64_t *)from)[i];
            ((int64_t *)to)[i] = value > INT64_MAX ? INT64_MAX : (int64_t)value;
        }
        return;
    }
    if (to_dtype == LS_INT32 && from_dtype == LS_INT64) { /* tokens */
        for (int64_t i = 0; i < count; i++) {
            int64_t value = ((const int64_t *)from)[i];
            ((int32_t *)to)[i] = (int32_t)(value < INT32_MIN   ? INT32_MIN
                                           : value > INT32_MAX ? INT32_MAX
                                                               : value);
        }
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        ls__convert_store(to, to_dtype, i, ls__convert_load(from, from_dtype, i));
    }
}
