/* SPDX-License-Identifier: Apache-2.0 */
/* Leaf loops of reductions, compiled once for each instruction set (LS__REDUCE_KERNELS names the
 * table). Straight loops only: what to combine in which order is reduce.c's business.
 *
 * `omp simd` states what the contract grants: an output equals an input or does not overlap it,
 * so no element depends on another and no alias check is needed. Stores are plain: non-temporal
 * ones halve the throughput on lines that were just read.
 *
 * Bits do not depend on the instruction set: every element takes the same operations in the same
 * order, and the build forbids contraction to fused multiply-adds (loops.h). The fused sums of 2
 * to 8 float32 operands spell out the canonical tree of reduce.h, SUM_n being tree(0,n). */
#include <stdint.h>

#include "base/half.h"
#include "kernel/reduce/loops.h"

#define COMBINE(name, type, expression)                                                            \
    static void name(void *dst, const void *a, const void *b, int64_t count)                       \
    {                                                                                              \
        type *out = dst;                                                                           \
        const type *left = a, *right = b;                                                          \
        _Pragma("omp simd") for (int64_t i = 0; i < count; i++)                                    \
        {                                                                                          \
            const type x = left[i], y = right[i];                                                  \
            out[i] = (type)(expression);                                                           \
        }                                                                                          \
    }

/* A NaN on either side wins; of equal values (0 and -0) the right one. */
#define COMBINE_FLOAT(name, type)                                                                  \
    COMBINE(name##_sum, type, x + y)                                                               \
    COMBINE(name##_product, type, x *y)                                                            \
    COMBINE(name##_min, type, ((x < y) | (x != x)) ? x : y)                                        \
    COMBINE(name##_max, type, ((x > y) | (x != x)) ? x : y)                                        \
    static void name##_scale(void *accumulator, int64_t count, const ls__reduce_scale *scale)      \
    {                                                                                              \
        type *x = accumulator;                                                                     \
        const type factor = (type)scale->factor, divisor = (type)scale->divisor;                   \
        if (scale->factor != 0.0) {                                                                \
            _Pragma("omp simd") for (int64_t i = 0; i < count; i++)                                \
            {                                                                                      \
                x[i] *= factor;                                                                    \
            }                                                                                      \
        } else {                                                                                   \
            _Pragma("omp simd") for (int64_t i = 0; i < count; i++)                                \
            {                                                                                      \
                x[i] /= divisor;                                                                   \
            }                                                                                      \
        }                                                                                          \
    }

/* Sums and products wrap: computed without sign, in `wide`, where overflow is defined. */
#define COMBINE_INTEGER(name, type, wide)                                                          \
    COMBINE(name##_sum, type, (wide)x + (wide)y)                                                   \
    COMBINE(name##_product, type, (wide)x *(wide)y)                                                \
    COMBINE(name##_min, type, x < y ? x : y)                                                       \
    COMBINE(name##_max, type, x > y ? x : y)                                                       \
    COMBINE(name##_band, type, (wide)x &(wide)y)                                                   \
    COMBINE(name##_bor, type, (wide)x | (wide)y)                                                   \
    COMBINE(name##_bxor, type, (wide)x ^ (wide)y)

COMBINE_FLOAT(float32, float)
COMBINE_FLOAT(float64, double)
COMBINE_INTEGER(int8, int8_t, uint32_t)
COMBINE_INTEGER(uint8, uint8_t, uint32_t)
COMBINE_INTEGER(int32, int32_t, uint32_t)
COMBINE_INTEGER(int64, int64_t, uint64_t)
COMBINE_INTEGER(int16, int16_t, uint32_t)
COMBINE_INTEGER(uint16, uint16_t, uint32_t)
COMBINE_INTEGER(uint32, uint32_t, uint32_t)
COMBINE_INTEGER(uint64, uint64_t, uint64_t)

/* Averages of integers: LS__REDUCE_OPERANDS_MAX values of any type fit into its accumulator.
 * Partial sums in messages begin at any multiple of 8 bytes. */
__extension__ typedef __int128 int128 __attribute__((aligned(8)));
COMBINE(int128_sum, int128, x + y)

#define DIVIDE(name, type)                                                                         \
    static void name##_divide(void *accumulator, int64_t count, const ls__reduce_scale *scale)     \
    {                                                                                              \
        type *x = accumulator;                                                                     \
        const int64_t divisor = (int64_t)scale->divisor;                                           \
        for (int64_t i = 0; i < count; i++) {                                                      \
            const int64_t low = (int64_t)x[i];                                                     \
            x[i] = low == x[i] ? (type)(low / divisor) : (type)(x[i] / divisor);                   \
        }                                                                                          \
    }
DIVIDE(int32, int32_t)
DIVIDE(int64, int64_t)
DIVIDE(int128, int128) /* dividing 128 bits is slow, and few sums have them */

#define CONVERT(name, to, from, function)                                                          \
    static void name(void *dst, const void *src, int64_t count)                                    \
    {                                                                                              \
        to *out = dst;                                                                             \
        const from *in = src;                                                                      \
        _Pragma("omp simd") for (int64_t i = 0; i < count; i++)                                    \
        {                                                                                          \
            out[i] = function(in[i]);                                                              \
        }                                                                                          \
    }

CONVERT(float16_widen, float, uint16_t, ls__float16_widen)
CONVERT(float16_narrow, uint16_t, float, ls__float16_round)
CONVERT(bfloat16_widen, float, uint16_t, ls__bfloat16_widen)
CONVERT(bfloat16_narrow, uint16_t, float, ls__bfloat16_round)

#define CONVERT_INTEGER(name, type, accumulator)                                                   \
    CONVERT(name##_widen, accumulator, type, (accumulator))                                        \
    CONVERT(name##_narrow, type, accumulator, (type))
CONVERT_INTEGER(int8, int8_t, int32_t)
CONVERT_INTEGER(uint8, uint8_t, int32_t)
CONVERT_INTEGER(int16, int16_t, int32_t)
CONVERT_INTEGER(uint16, uint16_t, int32_t)
CONVERT_INTEGER(int32, int32_t, int64_t)
CONVERT_INTEGER(uint32, uint32_t, int64_t)
CONVERT_INTEGER(int64, int64_t, int128)
CONVERT_INTEGER(uint64, uint64_t, int128)

/* ---- float32 sums: the hot case ----------------------------------------------------------- */

/* As many elements as a register holds, at any address. A block is kept in registers until it is
 * stored: an array went through memory, which took 4 times as long in the caches (Zen 5). */
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define LANES ((int64_t)(VECTOR_BYTES / sizeof(float)))
#define BLOCK (4 * LANES) /* long enough to read each stream a few cache lines at a time */
typedef float vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(float))));

#define SCALED(x, scale)                                                                           \
    ((scale)->divisor == 0.0  ? (x)                                                                \
     : (scale)->factor != 0.0 ? (x) * (float)(scale)->factor                                       \
                              : (x) / (float)(scale)->divisor)

/* The canonical tree of n operands, n = 2 … 8: left subtrees have the largest power of two of
 * operands below n, and the right one is tree(0, rest), moved. */
#define SUM_2 (S(0) + S(1))
#define SUM_3 (SUM_2 + S(2))
#define SUM_4 (SUM_2 + (S(2) + S(3)))
#define SUM_5 (SUM_4 + S(4))
#define SUM_6 (SUM_4 + (S(4) + S(5)))
#define SUM_7 (SUM_4 + ((S(4) + S(5)) + S(6)))
#define SUM_8 (SUM_4 + ((S(4) + S(5)) + (S(6) + S(7))))

#define SOURCE(k) const float *const s##k = src[k];
#define SOURCES_2 SOURCE(0) SOURCE(1)
#define SOURCES_3 SOURCES_2 SOURCE(2)
#define SOURCES_4 SOURCES_3 SOURCE(3)
#define SOURCES_5 SOURCES_4 SOURCE(4)
#define SOURCES_6 SOURCES_5 SOURCE(5)
#define SOURCES_7 SOURCES_6 SOURCE(6)
#define SOURCES_8 SOURCES_7 SOURCE(7)

/* The root of the tree for the elements from `at` on: tree_n of a vector, element_n of one. */
#define TREE(name, type, n)                                                                        \
    static inline type name##_##n(const void *const *src, int64_t at)                              \
    {                                                                                              \
        SOURCES_##n return SUM_##n;                                                                \
    }
#define TREES(name, type)                                                                          \
    TREE(name, type, 2)                                                                            \
    TREE(name, type, 3)                                                                            \
    TREE(name, type, 4)                                                                            \
    TREE(name, type, 5)                                                                            \
    TREE(name, type, 6)                                                                            \
    TREE(name, type, 7)                                                                            \
    TREE(name, type, 8)
#define S(k) s##k[at]
TREES(element, float)
#undef S
#define S(k) (*(const vector *)(s##k + at))
TREES(tree, vector)

/* All operands of BLOCK elements at a time: read once, summed in registers, stored to every
 * destination. The rest runs the same expression by vectors, and then element by element. */
#define FUSED_SUM(n)                                                                               \
    static void sum_##n(const ls__reduce_args *args, const ls__reduce_scale *scale)                \
    {                                                                                              \
        const void *const *const src = args->src;                                                  \
        float *const *const dst = (float *const *)args->dst;                                       \
        const int64_t count = args->count;                                                         \
        int64_t at = 0;                                                                            \
        for (; at + BLOCK <= count; at += BLOCK) {                                                 \
            const vector a = SCALED(tree_##n(src, at), scale);                                     \
            const vector b = SCALED(tree_##n(src, at + LANES), scale);                             \
            const vector c = SCALED(tree_##n(src, at + 2 * LANES), scale);                         \
            const vector d = SCALED(tree_##n(src, at + 3 * LANES), scale);                         \
            for (int i = 0; i < args->dst_count; i++) {                                            \
                vector *const out = (vector *)(dst[i] + at);                                       \
                out[0] = a;                                                                        \
                out[1] = b;                                                                        \
                out[2] = c;                                                                        \
                out[3] = d;                                                                        \
            }                                                                                      \
        }                                                                                          \
        for (; at + LANES <= count; at += LANES) {                                                 \
            const vector a = SCALED(tree_##n(src, at), scale);                                     \
            for (int i = 0; i < args->dst_count; i++) {                                            \
                *(vector *)(dst[i] + at) = a;                                                      \
            }                                                                                      \
        }                                                                                          \
        for (; at < count; at++) {                                                                 \
            const float a = SCALED(element_##n(src, at), scale);                                   \
            for (int i = 0; i < args->dst_count; i++) {                                            \
                dst[i][at] = a;                                                                    \
            }                                                                                      \
        }                                                                                          \
    }

FUSED_SUM(2)
FUSED_SUM(3)
FUSED_SUM(4)
FUSED_SUM(5)
FUSED_SUM(6)
FUSED_SUM(7)
FUSED_SUM(8)

/* ---- the table ---------------------------------------------------------------------------- */

#define OPS_FLOAT(name)                                                                            \
    [LS_SUM] = name##_sum, [LS_PRODUCT] = name##_product, [LS_MIN] = name##_min,                   \
    [LS_MAX] = name##_max
#define OPS_BITS(name) [LS_BAND] = name##_band, [LS_BOR] = name##_bor, [LS_BXOR] = name##_bxor
#define LOOPS_FLOAT(name, type)                                                                    \
    {                                                                                              \
        .size = sizeof(type), .accumulator_size = sizeof(type), .scale = name##_scale,             \
        .combine = {OPS_FLOAT(name)},                                                              \
    }
#define LOOPS_HALF(name)                                                                           \
    {                                                                                              \
        .size = 2, .accumulator_size = sizeof(float), .widen = name##_widen,                       \
        .narrow = name##_narrow, .scale = float32_scale, .combine = {OPS_FLOAT(float32)},          \
    }
#define LOOPS_INTEGER(name, type)                                                                  \
    {                                                                                              \
        .size = sizeof(type), .accumulator_size = sizeof(type),                                    \
        .combine = {OPS_FLOAT(name), OPS_BITS(name)},                                              \
    }
#define AVERAGE(name, in, accumulator)                                                             \
    {                                                                                              \
        .size = sizeof(name##_t), .accumulator_size = in, .widen = name##_widen,                   \
        .narrow = name##_narrow, .scale = accumulator##_divide, .combine = {                       \
            [LS_SUM] = accumulator##_sum                                                           \
        }                                                                                          \
    }

const ls__reduce_kernels LS__REDUCE_KERNELS = {
    .dtype =
        {
            [LS_FLOAT32] = LOOPS_FLOAT(float32, float),
            [LS_FLOAT64] = LOOPS_FLOAT(float64, double),
            [LS_FLOAT16] = LOOPS_HALF(float16),
            [LS_BFLOAT16] = LOOPS_HALF(bfloat16),
            [LS_INT8] = LOOPS_INTEGER(int8, int8_t),
            [LS_UINT8] = LOOPS_INTEGER(uint8, uint8_t),
            [LS_INT32] = LOOPS_INTEGER(int32, int32_t),
            [LS_INT64] = LOOPS_INTEGER(int64, int64_t),
            [LS_INT16] = LOOPS_INTEGER(int16, int16_t),
            [LS_UINT16] = LOOPS_INTEGER(uint16, uint16_t),
            [LS_UINT32] = LOOPS_INTEGER(uint32, uint32_t),
            [LS_UINT64] = LOOPS_INTEGER(uint64, uint64_t),
            /* one byte, 0 or 1: a sum is "any", a product "all" */
            [LS_BOOL] = {.size = 1,
                         .accumulator_size = 1,
                         .combine = {[LS_SUM] = uint8_max,
                                     [LS_PRODUCT] = uint8_min,
                                     [LS_MIN] = uint8_min,
                                     [LS_MAX] = uint8_max,
                                     OPS_BITS(uint8)}},
        },
    .average = {[LS_INT8] = AVERAGE(int8, 4, int32),
                [LS_UINT8] = AVERAGE(uint8, 4, int32),
                [LS_INT16] = AVERAGE(int16, 4, int32),
                [LS_UINT16] = AVERAGE(uint16, 4, int32),
                [LS_INT32] = AVERAGE(int32, 8, int64),
                [LS_UINT32] = AVERAGE(uint32, 8, int64),
                [LS_INT64] = AVERAGE(int64, 16, int128),
                [LS_UINT64] = AVERAGE(uint64, 16, int128)},
    .sum_float32 =
        {[2] = sum_2, [3] = sum_3, [4] = sum_4, [5] = sum_5, [6] = sum_6, [7] = sum_7, [8] = sum_8},
};
