/* Reductions over raw memory against plain recursive loops, bit for bit, on every instruction set
 * this processor has. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/reduce/half.h"
#include "kernel/reduce/reduce.h"
#include "test.h"

/* ---- the oracle: one element, by the definition in reduce.h -------------------------------- */

typedef union element {
    float f;
    double d;
    int64_t i; /* every integer type, sign-extended or zero-extended */
} element;

static bool is_float(ls_dtype dtype)
{
    return dtype <= LS_BFLOAT16;
}

static bool is_half(ls_dtype dtype)
{
    return dtype == LS_FLOAT16 || dtype == LS_BFLOAT16;
}

/* 16-bit floats by arithmetic on their fields. */
static float half_value(uint16_t h, ls_dtype dtype)
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
static uint16_t half_nearest(float x, ls_dtype dtype)
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

static element load(const void *x, int64_t at, ls_dtype dtype)
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
    default:
        memcpy(&e, raw, size);
        return e;
    }
}

static void store(void *x, int64_t at, ls_dtype dtype, element e)
{
    const size_t size = ls_dtype_size(dtype);
    const uint16_t h = is_half(dtype) ? half_nearest(e.f, dtype) : 0;
    memcpy((unsigned char *)x + (size_t)at * size, is_half(dtype) ? (const void *)&h : &e, size);
}

static double combine_double(double a, double b, ls_reduce_op op)
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

static float combine_float(float a, float b, ls_reduce_op op)
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

static int64_t combine_integer(int64_t a, int64_t b, ls_reduce_op op)
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
static int64_t narrow(int64_t x, ls_dtype dtype)
{
    switch (dtype) {
    case LS_INT8:
        return (int8_t)(uint64_t)x;
    case LS_INT32:
        return (int32_t)(uint64_t)x;
    case LS_INT64:
        return x;
    default:
        return (uint8_t)(uint64_t)x;
    }
}

static element combine(element a, element b, ls_dtype dtype, ls_reduce_op op)
{
    if (dtype == LS_FLOAT64) {
        return (element){.d = combine_double(a.d, b.d, op)};
    }
    if (is_float(dtype)) {
        return (element){.f = combine_float(a.f, b.f, op)};
    }
    return (element){.i = narrow(combine_integer(a.i, b.i, op), dtype)};
}

/* tree(low, n): split at the largest power of two below n. */
static element tree(const void *const *src, int low, int n, int64_t at, ls_dtype dtype,
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

static element divide(element e, ls_dtype dtype, double divisor)
{
    if (divisor == 0.0) {
        return e;
    }
    if (dtype == LS_FLOAT64) {
        return (element){.d = e.d / divisor};
    }
    return (element){.f = e.f / (float)divisor};
}

static bool is_nan(element e, ls_dtype dtype)
{
    return dtype == LS_FLOAT64 ? isnan(e.d) : is_float(dtype) && isnan(e.f);
}

/* Same bits; of two NaNs the payload may differ. */
static bool same(const void *got, const void *want, int64_t at, ls_dtype dtype)
{
    const size_t size = ls_dtype_size(dtype);
    const size_t offset = (size_t)at * size;
    return memcmp((const char *)got + offset, (const char *)want + offset, size) == 0 ||
           (is_nan(load(got, at, dtype), dtype) && is_nan(load(want, at, dtype), dtype));
}

/* ---- cases -------------------------------------------------------------------------------- */

#define OPERANDS_MAX 64
#define COUNT_MAX 1100
#define SLOT_BYTES ((COUNT_MAX + 8) * sizeof(double))

typedef struct bench {
    unsigned char *original, *work, *want;
    uint64_t random;
} bench;

static uint64_t next_random(bench *b)
{
    b->random ^= b->random << 13;
    b->random ^= b->random >> 7;
    b->random ^= b->random << 17;
    return b->random;
}

static bench bench_new(void)
{
    bench b = {.random = test_seed() | 1};
    b.original = malloc(OPERANDS_MAX * SLOT_BYTES);
    b.work = malloc(OPERANDS_MAX * SLOT_BYTES);
    b.want = malloc(SLOT_BYTES);
    CHECK(b.original && b.work && b.want);
    return b;
}

static void bench_free(bench *b)
{
    free(b->original);
    free(b->work);
    free(b->want);
}

/* Plain values mostly, some of every kind of bits. */
static void fill(bench *b, ls_dtype dtype)
{
    const size_t size = ls_dtype_size(dtype);
    for (size_t i = 0; i + size <= OPERANDS_MAX * SLOT_BYTES; i += size) {
        const uint64_t bits = next_random(b);
        element e = {.i = (int64_t)bits};
        if (dtype == LS_BOOL) {
            e.i = (int64_t)(bits >> 63);
        } else if (is_float(dtype) && bits % 16 != 0) {
            const double x = (double)(int64_t)bits * 0x1p-60;
            if (dtype == LS_FLOAT64) {
                e.d = x;
            } else {
                e.f = (float)x;
            }
        }
        if (is_half(dtype) && bits % 16 == 0) {
            memcpy(b->original + i, &bits, size);
        } else {
            store(b->original + i, 0, dtype, e);
        }
    }
}

typedef struct job {
    ls_dtype dtype;
    ls_reduce_op op;
    int sources, destinations;
    bool in_place; /* destination d is source d */
    size_t shift;  /* bytes by which every slot is misaligned */
    int64_t count;
    double divisor;
    ls__isa isa;
} job;

static void run_job(bench *b, const job *j)
{
    const void *src[OPERANDS_MAX], *clean[OPERANDS_MAX];
    void *dst[OPERANDS_MAX];
    memcpy(b->work, b->original, OPERANDS_MAX * SLOT_BYTES);
    for (int s = 0; s < OPERANDS_MAX; s++) {
        const size_t at = (size_t)s * SLOT_BYTES + j->shift * ls_dtype_size(j->dtype);
        src[s] = b->work + at;
        clean[s] = b->original + at;
        dst[s] = b->work + (j->in_place ? at : at + (size_t)j->sources * SLOT_BYTES);
    }
    for (int64_t i = 0; i < j->count; i++) {
        const element e = tree(clean, 0, j->sources, i, j->dtype, j->op);
        store(b->want, i, j->dtype, divide(e, j->dtype, j->divisor));
    }
    ls__reduce(&(ls__reduce_args){.dst = dst,
                                  .dst_count = j->destinations,
                                  .src = src,
                                  .src_count = j->sources,
                                  .count = j->count,
                                  .dtype = j->dtype,
                                  .op = j->op,
                                  .divisor = j->divisor,
                                  .table = ls__reduce_table_of(j->isa)});
    const size_t end = (size_t)j->count * ls_dtype_size(j->dtype);
    for (int d = 0; d < j->destinations; d++) {
        for (int64_t i = 0; i < j->count; i++) {
            if (!same(dst[d], b->want, i, j->dtype)) {
                test_fail(__FILE__, __LINE__,
                          "%s %s of %d sources into %d, count %lld, isa %s: element %lld of "
                          "destination %d differs",
                          ls_dtype_name(j->dtype), ls_reduce_op_name(j->op), j->sources,
                          j->destinations, (long long)j->count, ls__isa_name(j->isa), (long long)i,
                          d);
            }
        }
        const size_t offset = (size_t)((unsigned char *)dst[d] - b->work);
        CHECK(memcmp(b->work + offset + end, b->original + offset + end, 8) == 0);
    }
}

static void run_everywhere(bench *b, job j)
{
    for (int isa = 0; isa < LS__ISA_COUNT; isa++) {
        j.isa = (ls__isa)isa;
        if (ls__reduce_table_of(j.isa) != NULL) {
            run_job(b, &j);
        }
    }
}

static const int sources[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 33, 64};
#define SOURCES (sizeof sources / sizeof *sources)

TEST(float32_sums_are_the_canonical_tree_bit_for_bit_in_place_into_every_source)
{
    bench b = bench_new();
    fill(&b, LS_FLOAT32);
    static const int64_t counts[] = {0, 1, 3, 17, 63, 64, 65, 255, 257, 1023};
    for (size_t s = 0; s < SOURCES; s++) {
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            run_everywhere(&b, (job){.dtype = LS_FLOAT32,
                                     .op = LS_SUM,
                                     .sources = sources[s],
                                     .destinations = sources[s],
                                     .in_place = true,
                                     .shift = c % 5,
                                     .count = counts[c]});
        }
    }
    bench_free(&b);
}

TEST(every_type_and_operator_equals_the_recursive_definition)
{
    bench b = bench_new();
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
        fill(&b, (ls_dtype)dtype);
        for (int op = 0; op < LS_REDUCE_OP_COUNT; op++) {
            if (op == LS_AVG || !ls__reduce_supported((ls_dtype)dtype, (ls_reduce_op)op)) {
                continue;
            }
            for (size_t s = 0; s < SOURCES; s++) {
                const int n = sources[s];
                run_everywhere(&b, (job){.dtype = (ls_dtype)dtype,
                                         .op = (ls_reduce_op)op,
                                         .sources = n,
                                         .destinations = n > 32 ? n : 1 + n % 3,
                                         .in_place = n > 32 || n % 2 == 0,
                                         .shift = s % 4,
                                         .count = 1 + (int64_t)(s * 37) % 400});
            }
        }
    }
    bench_free(&b);
}

TEST(division_happens_once_at_the_root)
{
    bench b = bench_new();
    static const double divisors[] = {1, 2, 3, 4, 7, 8, 0.5, -6, 1e-3, 1e30, 0x1p-120};
    for (int dtype = LS_FLOAT32; dtype <= LS_BFLOAT16; dtype++) {
        fill(&b, (ls_dtype)dtype);
        for (size_t d = 0; d < sizeof divisors / sizeof *divisors; d++) {
            for (int n = 1; n <= 9; n++) {
                run_everywhere(&b, (job){.dtype = (ls_dtype)dtype,
                                         .op = LS_SUM,
                                         .sources = n,
                                         .destinations = n,
                                         .in_place = n % 2 == 0,
                                         .shift = (size_t)n % 3,
                                         .count = 130,
                                         .divisor = divisors[d]});
            }
        }
    }
    bench_free(&b);
}

TEST(reduce_into_and_divide_are_the_same_arithmetic)
{
    bench b = bench_new();
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
        const ls_dtype t = (ls_dtype)dtype;
        const ls_reduce_op op = t == LS_BOOL ? LS_BXOR : LS_SUM;
        fill(&b, t);
        const void *src[2] = {b.original, b.original + SLOT_BYTES};
        memcpy(b.work, b.original, SLOT_BYTES);
        ls__reduce_into(b.work, src[1], 77, t, op);
        for (int64_t i = 0; i < 77; i++) {
            store(b.want, i, t, tree(src, 0, 2, i, t, op));
            CHECK(same(b.work, b.want, i, t));
        }
        if (!ls__reduce_supported(t, LS_AVG)) {
            continue;
        }
        memcpy(b.work, b.original, SLOT_BYTES);
        ls__divide(b.work, 77, t, 3.0);
        for (int64_t i = 0; i < 77; i++) {
            store(b.want, i, t, divide(load(src[0], i, t), t, 3.0));
            CHECK(same(b.work, b.want, i, t));
        }
    }
    bench_free(&b);
}

TEST(a_thousand_operands_fit)
{
    enum { N = LS__REDUCE_OPERANDS_MAX };
    static int64_t x[N];
    const void *src[N];
    int64_t want = 0;
    for (int i = 0; i < N; i++) {
        x[i] = (int64_t)i * i;
        src[i] = &x[i];
        want += x[i];
    }
    for (int n = N; n >= N - 2; n--) {
        int64_t got = 0;
        ls__reduce(&(ls__reduce_args){.dst = (void *const[]){&got},
                                      .dst_count = 1,
                                      .src = src,
                                      .src_count = n,
                                      .count = 1,
                                      .dtype = LS_INT64,
                                      .op = LS_SUM});
        CHECK_INT(got, want);
        want -= x[n - 1];
    }
}

TEST(meaningless_pairs_are_not_supported)
{
    CHECK(ls__reduce_supported(LS_FLOAT32, LS_AVG));
    CHECK(ls__reduce_supported(LS_BFLOAT16, LS_AVG));
    CHECK(!ls__reduce_supported(LS_INT32, LS_AVG));
    CHECK(!ls__reduce_supported(LS_FLOAT32, LS_BAND));
    CHECK(!ls__reduce_supported(LS_FLOAT16, LS_BXOR));
    CHECK(!ls__reduce_supported(LS_BOOL, LS_SUM));
    CHECK(ls__reduce_supported(LS_BOOL, LS_BOR));
    CHECK(ls__reduce_supported(LS_UINT8, LS_PRODUCT));
    CHECK(!ls__reduce_supported((ls_dtype)99, LS_SUM));
    CHECK(!ls__reduce_supported(LS_INT8, (ls_reduce_op)-1));
}

/* ---- 16-bit conversions, every value ------------------------------------------------------- */

TEST(every_16_bit_float_widens_to_its_value_and_back_to_itself)
{
    for (unsigned h = 0; h < 65536; h++) {
        const uint16_t bits = (uint16_t)h;
        const float f16 = ls__float16_widen(bits), bf16 = ls__bfloat16_widen(bits);
        const float want16 = half_value(bits, LS_FLOAT16), wantb = half_value(bits, LS_BFLOAT16);
        CHECK(isnan(want16) ? isnan(f16) : ls__float_bits(f16) == ls__float_bits(want16));
        CHECK(isnan(wantb) ? isnan(bf16) : ls__float_bits(bf16) == ls__float_bits(wantb));
        CHECK(isnan(want16) ? isnan(ls__float16_widen(ls__float16_round(f16)))
                            : ls__float16_round(f16) == bits);
        CHECK(isnan(wantb) ? isnan(ls__bfloat16_widen(ls__bfloat16_round(bf16)))
                           : ls__bfloat16_round(bf16) == bits);
        CHECK(!signbit(f16) == (h < 0x8000) && !signbit(bf16) == (h < 0x8000));
    }
}

static void check_rounding(float x)
{
    CHECK(isnan(x) || ls__float16_round(x) == half_nearest(x, LS_FLOAT16));
    CHECK(isnan(x) || ls__bfloat16_round(x) == half_nearest(x, LS_BFLOAT16));
    CHECK(!isnan(x) || (isnan(ls__float16_widen(ls__float16_round(x))) &&
                        isnan(ls__bfloat16_widen(ls__bfloat16_round(x)))));
}

/* At, just below and just above the middle between each value and the next. */
TEST(rounding_to_16_bits_is_to_nearest_even_at_every_boundary)
{
    for (unsigned h = 0; h < 65535; h++) {
        for (int kind = 0; kind < 2; kind++) {
            const ls_dtype dtype = kind ? LS_BFLOAT16 : LS_FLOAT16;
            const double a = (double)half_value((uint16_t)h, dtype);
            const double c = (double)half_value((uint16_t)(h + 1), dtype);
            const float middle = (float)((a + c) / 2);
            check_rounding(middle);
            check_rounding(nextafterf(middle, INFINITY));
            check_rounding(nextafterf(middle, -INFINITY));
        }
    }
    check_rounding(65519.996f);
    check_rounding(65520.0f);
    check_rounding(3.4028235e38f);
    check_rounding(1e-45f);
    check_rounding(ls__bits_float(0x7f800001u)); /* a NaN whose payload lies in the lower bits */
    check_rounding(ls__bits_float(0xffffffffu));
}

TEST_MAIN
