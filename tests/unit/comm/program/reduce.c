/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions over raw memory against plain recursive loops, bit for bit, on every instruction set
 * this processor has. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "kernel/reduce/reduce.h"
#include "oracle.h"
#include "test.h"

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
                                  .table = ls__reduce_kernels_of(j->isa)});
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
        if (ls__reduce_kernels_of(j.isa) != NULL) {
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
            if (op == LS_AVG || op == LS_PREMUL_SUM ||
                !ls__reduce_supported((ls_dtype)dtype, (ls_reduce_op)op)) {
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
        if (!is_float(t)) { /* integers are divided with their sum */
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

/* The mean of integers, of 64 bits at most, whose sum may need more. */
static void store_mean(unsigned char *to, const unsigned char *const *x, int64_t i, ls_dtype dtype)
{
    __extension__ typedef __int128 int128;
    int128 sum = 0;
    for (int s = 0; s < 3; s++) {
        const int64_t value = load(x[s], i, dtype).i;
        sum += dtype == LS_UINT64 ? (int128)(uint64_t)value : value;
    }
    store(to, i, dtype, (element){.i = (int64_t)(sum / 3)});
}

/* A sum made in two steps, with a wide partial sum between, is the sum made in one. */
static void check_two_steps(bench *b, ls_dtype dtype, ls__isa isa, int64_t count)
{
    const bool averages = !is_float(dtype);
    const size_t wide = ls__accumulator_bytes(dtype, averages);
    const unsigned char *x[3] = {b->original, b->original + SLOT_BYTES,
                                 b->original + 2 * SLOT_BYTES};
    unsigned char *partial = b->work, *out = b->work + 2 * SLOT_BYTES; /* 128 bits an element */
    memset(b->work, 0x5a, 3 * SLOT_BYTES);
    ls__reduce_args args = {.dst = (void *const[]){partial},
                            .dst_count = 1,
                            .dst_wide = true,
                            .src = (const void *const[]){x[0], x[1]},
                            .src_count = 2,
                            .count = count,
                            .dtype = dtype,
                            .op = LS_SUM,
                            .averages = averages,
                            .table = ls__reduce_kernels_of(isa)};
    ls__reduce(&args);
    CHECK_INT(partial[(size_t)count * wide], 0x5a);
    args.dst = (void *const[]){out};
    args.dst_wide = false;
    args.src = (const void *const[]){partial, x[2]};
    args.src_wide = (const bool[]){true, false};
    args.divisor = 3;
    ls__reduce(&args);
    CHECK_INT(out[(size_t)count * ls_dtype_size(dtype)], 0x5a);
    for (int64_t i = 0; i < count; i++) {
        const element sum = tree((const void *const *)x, 0, 3, i, dtype, LS_SUM);
        if (averages) {
            store_mean(b->want, x, i, dtype);
        } else {
            store(b->want, i, dtype, divide(sum, dtype, 3));
        }
        CHECK(same(out, b->want, i, dtype));
    }
}

/* Each instruction set that the tests above left out. */
static void check_table_is_there(ls__isa isa, const char *reason)
{
    CHECK(ls__reduce_kernels_of(LS__ISA_BASE) != NULL);
    if (ls__reduce_kernels_of(isa) == NULL) {
        SKIP(reason);
    }
}

TEST(loops_for_avx2_are_tested)
{
    check_table_is_there(LS__ISA_V3, "no AVX2 here: its loops did not run");
}

TEST(loops_for_avx512_are_tested)
{
    check_table_is_there(LS__ISA_V4, "no AVX-512 here: its loops did not run");
}

TEST(partial_sums_that_stay_wide_are_rounded_once)
{
    bench b = bench_new();
    for (int dtype = LS_FLOAT32; dtype < LS_DTYPE_COUNT; dtype++) {
        fill(&b, (ls_dtype)dtype);
        for (int isa = 0; isa < LS__ISA_COUNT && dtype != LS_BOOL; isa++) {
            if (ls__reduce_kernels_of((ls__isa)isa) != NULL) {
                check_two_steps(&b, (ls_dtype)dtype, (ls__isa)isa, 0);
                check_two_steps(&b, (ls_dtype)dtype, (ls__isa)isa, 17);
                check_two_steps(&b, (ls_dtype)dtype, (ls__isa)isa, 1023);
            }
        }
    }
    bench_free(&b);
}

TEST(one_wide_operand_is_kept_widened_or_rounded)
{
    bench b = bench_new();
    fill(&b, LS_BFLOAT16);
    float wide[301];
    uint16_t back[301];
    ls__reduce_args args = {.dst = (void *const[]){wide},
                            .dst_count = 1,
                            .dst_wide = true,
                            .src = (const void *const[]){b.original},
                            .src_count = 1,
                            .count = 301,
                            .dtype = LS_BFLOAT16,
                            .op = LS_MAX};
    ls__reduce(&args);
    for (int64_t i = 0; i < 301; i++) {
        const element want = load(b.original, i, LS_BFLOAT16);
        CHECK(memcmp(&wide[i], &want.f, 4) == 0 || isnan(want.f));
    }
    float copy[301];
    args.dst = (void *const[]){copy};
    args.src = (const void *const[]){wide};
    args.src_wide = (const bool[]){true};
    ls__reduce(&args);
    CHECK(memcmp(copy, wide, sizeof copy) == 0);
    args.dst = (void *const[]){back};
    args.dst_wide = false;
    ls__reduce(&args);
    for (int64_t i = 0; i < 301; i++) {
        CHECK(same(back, b.original, i, LS_BFLOAT16));
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
    CHECK(ls__reduce_supported(LS_INT32, LS_AVG));
    CHECK(ls__reduce_supported(LS_INT8, LS_PREMUL_SUM));
    CHECK(!ls__reduce_supported(LS_BOOL, LS_PREMUL_SUM));
    CHECK(!ls__reduce_supported(LS_FLOAT32, LS_BAND));
    CHECK(!ls__reduce_supported(LS_FLOAT16, LS_BXOR));
    CHECK(ls__reduce_supported(LS_BOOL, LS_SUM));
    CHECK(!ls__reduce_supported(LS_BOOL, LS_AVG));
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
