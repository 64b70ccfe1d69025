/* SPDX-License-Identifier: Apache-2.0 */
/* See reduce.h. */
#include "reduce.h"

#include <stdint.h>
#include <string.h>

#include "base/half.h"

size_t fake_bytes(int type)
{
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return bytes[type];
}

#define COMBINE(x, y)                                                                              \
    (op == FAKE_PROD  ? (x) * (y)                                                                  \
     : op == FAKE_MAX ? ((x) > (y) ? (x) : (y))                                                    \
     : op == FAKE_MIN ? ((x) < (y) ? (x) : (y))                                                    \
                      : (x) + (y))

/* Accumulates in `wide`, and rounds once. */
#define OF_TYPE(name, type, wide, widen, narrow)                                                   \
    static void reduce_##name(type *out, const unsigned char *const *from, int ranks, size_t n,    \
                              int op)                                                              \
    {                                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            wide x = widen(((const type *)(const void *)from[0])[i]);                              \
            for (int r = 1; r < ranks; r++) {                                                      \
                const wide y = widen(((const type *)(const void *)from[r])[i]);                    \
                x = (wide)COMBINE(x, y);                                                           \
            }                                                                                      \
            out[i] = narrow(op == FAKE_AVG ? (wide)(x / (wide)ranks) : x);                         \
        }                                                                                          \
    }                                                                                              \
    static void scale_##name(type *out, const type *in, size_t n, double factor)                   \
    {                                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            out[i] = narrow((wide)(widen(in[i]) * (wide)factor));                                  \
        }                                                                                          \
    }
OF_TYPE(i8, int8_t, int8_t, (int8_t), (int8_t))
OF_TYPE(u8, uint8_t, uint8_t, (uint8_t), (uint8_t))
OF_TYPE(i32, int32_t, int32_t, (int32_t), (int32_t))
OF_TYPE(u32, uint32_t, uint32_t, (uint32_t), (uint32_t))
OF_TYPE(i64, int64_t, int64_t, (int64_t), (int64_t))
OF_TYPE(u64, uint64_t, uint64_t, (uint64_t), (uint64_t))
OF_TYPE(f32, float, float, (float), (float))
OF_TYPE(f64, double, double, (double), (double))
OF_TYPE(f16, uint16_t, float, ls__float16_widen, ls__float16_round)
OF_TYPE(bf16, uint16_t, float, ls__bfloat16_widen, ls__bfloat16_round)

#define EACH(X, ...)                                                                               \
    switch (type) {                                                                                \
        X(0, i8, __VA_ARGS__)                                                                      \
        X(1, u8, __VA_ARGS__)                                                                      \
        X(2, i32, __VA_ARGS__)                                                                     \
        X(3, u32, __VA_ARGS__)                                                                     \
        X(4, i64, __VA_ARGS__)                                                                     \
        X(5, u64, __VA_ARGS__)                                                                     \
        X(6, f16, __VA_ARGS__)                                                                     \
        X(7, f32, __VA_ARGS__)                                                                     \
        X(8, f64, __VA_ARGS__)                                                                     \
        X(9, bf16, __VA_ARGS__)                                                                    \
    default:                                                                                       \
        break;                                                                                     \
    }
#define ONE(number, name, function, ...)                                                           \
    case number:                                                                                   \
        function##name(__VA_ARGS__);                                                               \
        break;

void fake_reduce(void *out, const unsigned char *const *from, int ranks, size_t count, int type,
                 int op)
{
    EACH(ONE, reduce_, out, from, ranks, count, op)
}

void fake_scale(void *out, const void *in, size_t count, int type, double factor)
{
    EACH(ONE, scale_, out, in, count, factor)
}

double fake_value(const void *scalar, int type)
{
    double f64;
    float f32;
    int64_t i64;
    uint16_t half;
    int32_t i32;
    int8_t i8;
    memcpy(&half, scalar, sizeof half);
    memcpy(&f32, scalar, sizeof f32);
    memcpy(&f64, scalar, sizeof f64);
    memcpy(&i64, scalar, sizeof i64);
    memcpy(&i32, scalar, sizeof i32);
    memcpy(&i8, scalar, sizeof i8);
    switch (type) {
    case 0:
    case 1:
        return i8;
    case 2:
    case 3:
        return i32;
    case 6:
        return (double)ls__float16_widen(half);
    case 7:
        return (double)f32;
    case 8:
        return f64;
    case 9:
        return (double)ls__bfloat16_widen(half);
    default:
        return (double)i64;
    }
}
