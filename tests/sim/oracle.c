/* SPDX-License-Identifier: Apache-2.0 */
/* What operations must give, by plain loops over values drawn from the operation's number: for each
 * dtype and operator, in the canonical order. */
#include <string.h>

#include "base/half.h"
#include "sim/scenario.h"

#define DEPTH_MAX 8

/* An element while it is computed: what a dtype is accumulated in. Integers are kept as the dtype
 * has them, sign-extended. */
typedef union wide {
    double d;   /* float64 */
    float f;    /* the other floats */
    uint64_t u; /* integers and bool */
} wide;

static uint64_t mixed(uint64_t x)
{
    ls__sim_random r = {x};
    return ls__sim_draw(&r);
}

static bool is_narrow_float(ls_dtype t)
{
    return t == LS_FLOAT16 || t == LS_BFLOAT16;
}

static bool is_float(ls_dtype t)
{
    return t == LS_FLOAT32 || is_narrow_float(t);
}

static bool is_signed(ls_dtype t)
{
    return t == LS_INT8 || t == LS_INT16 || t == LS_INT32 || t == LS_INT64;
}

/* An integer as it is after a round trip through its dtype. */
static uint64_t wrapped(ls_dtype t, uint64_t u)
{
    const unsigned unused = 64 - 8 * (unsigned)ls_dtype_size(t);
    return is_signed(t) ? (uint64_t)((int64_t)(u << unused) >> unused) : u << unused >> unused;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Floats of many magnitudes, so that another association of a sum gives other bits. */
float ls__oracle_float(uint64_t id, int rank, int64_t i)
{
    const uint64_t h = mixed(id ^ (uint64_t)rank << 56 ^ (uint64_t)i);
    if ((id & LS__ORACLE_WHOLE) != 0) {
        return (float)(h & 0xffffu);
    }
    const float magnitude = (float)(1u << (h >> 60));
    return ((float)(h & 0xffffffu) - 8388608.0f) * magnitude;
}

/* A float that its dtype holds exactly. Factors of products are near 1, so that none overflows. */
static double float_value(const ls__plan_operation *o, uint64_t h)
{
    const double magnitude = (double)(1u << (h >> 61));
    const bool whole = (o->id & LS__ORACLE_WHOLE) != 0;
    if (o->op == LS_PRODUCT) {
        return whole ? (double)(1 + (h & 1)) : (1 + (double)(h & 7) / 8) * (h >> 63 != 0 ? -1 : 1);
    }
    switch (o->dtype) {
    case LS_FLOAT64:
        return whole ? (double)(h & 0xffffu)
                     : ((double)(h & ((1ull << 53) - 1)) - 0x1p52) * magnitude;
    case LS_FLOAT16: /* 16 ranks add up to 224 at most, which both 16-bit floats hold */
        return whole ? (double)(h & 7) : ((double)(h & 0x7ffu) - 1024) / magnitude;
    default:
        return whole ? (double)(h & 7) : ((double)(h & 0xffu) - 128) * magnitude;
    }
}

static wide value_of(const ls__plan_operation *o, int rank, int64_t i)
{
    if (o->dtype == LS_FLOAT32 && o->op != LS_PRODUCT) {
        return (wide){.f = ls__oracle_float(o->id, rank, i)};
    }
    const uint64_t h = mixed(o->id ^ (uint64_t)rank << 56 ^ (uint64_t)i);
    if (o->dtype == LS_FLOAT64) {
        return (wide){.d = float_value(o, h)};
    }
    if (is_float(o->dtype)) {
        return (wide){.f = (float)float_value(o, h)};
    }
    return (wide){.u = o->dtype == LS_BOOL ? h & 1 : wrapped(o->dtype, h)};
}

static void put(ls_dtype t, wide x, void *out)
{
    uint16_t half = 0;
    if (is_narrow_float(t)) {
        half = t == LS_FLOAT16 ? ls__float16_round(x.f) : ls__bfloat16_round(x.f);
        memcpy(out, &half, sizeof half);
    } else {
        memcpy(out, &x, ls_dtype_size(t)); /* the low bytes come first */
    }
}

void ls__oracle_value(const ls__plan_operation *o, int rank, int64_t i, void *out)
{
    put(o->dtype, value_of(o, rank, i), out);
}

/* ---- operators ------------------------------------------------------------------------------- */

static double combined_float(ls_reduce_op op, double a, double b)
{
    return op == LS_MIN ? (a < b ? a : b) : op == LS_MAX ? (a > b ? a : b) : 0;
}

static uint64_t combined_integer(const ls__plan_operation *o, uint64_t a, uint64_t b)
{
    const bool less = is_signed(o->dtype) ? (int64_t)a < (int64_t)b : a < b;
    switch (o->op) {
    case LS_PRODUCT:
        return o->dtype == LS_BOOL ? a & b : wrapped(o->dtype, a * b);
    case LS_MIN:
        return less ? a : b;
    case LS_MAX:
        return less ? b : a;
    case LS_BAND:
        return a & b;
    case LS_BOR:
        return a | b;
    case LS_BXOR:
        return a ^ b;
    default:
        return o->dtype == LS_BOOL ? a | b : wrapped(o->dtype, a + b);
    }
}

static wide combined(const ls__plan_operation *o, wide a, wide b)
{
    if (!is_float(o->dtype) && o->dtype != LS_FLOAT64) {
        return (wide){.u = combined_integer(o, a.u, b.u)};
    }
    if (o->op == LS_MIN || o->op == LS_MAX) {
        return is_float(o->dtype) ? (wide){.f = (float)combined_float(o->op, a.f, b.f)}
                                  : (wide){.d = combined_float(o->op, a.d, b.d)};
    }
    if (o->op == LS_PRODUCT) {
        return is_float(o->dtype) ? (wide){.f = a.f * b.f} : (wide){.d = a.d * b.d};
    }
    return is_float(o->dtype) ? (wide){.f = a.f + b.f} : (wide){.d = a.d + b.d};
}

static wide divided(ls_dtype t, wide x, int by)
{
    if (is_float(t)) {
        return (wide){.f = x.f / (float)by};
    }
    return (wide){.d = x.d / by}; /* float64 */
}

double ls__oracle_factor(int rank)
{
    return 1 + rank % 2; /* exact in each dtype: the product is not rounded */
}

/* What a rank puts into the tree. */
static wide leaf_of(const ls__plan_operation *o, int rank, int64_t i)
{
    wide x = value_of(o, rank, i);
    if (o->op != LS_PREMUL_SUM || ls__oracle_factor(rank) == 1) {
        return x;
    }
    return is_float(o->dtype)       ? (wide){.f = 2 * x.f}
           : o->dtype == LS_FLOAT64 ? (wide){.d = 2 * x.d}
                                    : (wide){.u = wrapped(o->dtype, 2 * x.u)};
}

__extension__ typedef __int128 int128;

/* The mean of integers is that of their exact sum. */
static wide integer_mean(const ls__plan_operation *o, int64_t i, int ranks)
{
    int128 sum = 0;
    for (int r = 0; r < ranks; r++) {
        const uint64_t u = leaf_of(o, r, i).u;
        sum += is_signed(o->dtype) ? (int128)(int64_t)u : (int128)u;
    }
    return (wide){.u = (uint64_t)(sum / ranks)};
}

/* The canonical association (docs/design.md, D5): a tree split at the largest power of two. Without
 * recursion: the sums of complete subtrees wait on a stack, as the bits of a counter. */
void ls__oracle_reduced(const ls__plan_operation *o, int64_t i, int ranks, void *out)
{
    if (o->op == LS_AVG && !is_float(o->dtype) && o->dtype != LS_FLOAT64) {
        put(o->dtype, integer_mean(o, i, ranks), out);
        return;
    }
    wide waiting[DEPTH_MAX];
    int size[DEPTH_MAX], depth = 0;
    for (int r = 0; r < ranks; r++) {
        waiting[depth] = leaf_of(o, r, i);
        size[depth++] = 1;
        while (depth > 1 && size[depth - 2] == size[depth - 1]) {
            depth--;
            waiting[depth - 1] = combined(o, waiting[depth - 1], waiting[depth]);
            size[depth - 1] *= 2;
        }
    }
    while (depth > 1) {
        depth--;
        waiting[depth - 1] = combined(o, waiting[depth - 1], waiting[depth]);
    }
    const int by = o->op == LS_AVG ? ranks : o->divisor;
    put(o->dtype, by != 0 ? divided(o->dtype, waiting[0], by) : waiting[0], out);
}

ls_dtype ls__oracle_other_dtype(ls_dtype t)
{
    static const ls_dtype others[LS_DTYPE_COUNT] = {
        [LS_FLOAT32] = LS_INT32,    [LS_FLOAT64] = LS_INT64, [LS_FLOAT16] = LS_BFLOAT16,
        [LS_BFLOAT16] = LS_FLOAT16, [LS_INT8] = LS_UINT8,    [LS_UINT8] = LS_INT8,
        [LS_INT32] = LS_UINT32,     [LS_INT64] = LS_UINT64,  [LS_BOOL] = LS_UINT8,
        [LS_INT16] = LS_UINT16,     [LS_UINT16] = LS_INT16,  [LS_UINT32] = LS_INT32,
        [LS_UINT64] = LS_INT64};
    return others[t];
}
