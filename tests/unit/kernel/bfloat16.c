/* SPDX-License-Identifier: Apache-2.0 */
/* bfloat16: conversions against the plain twin to the bit, the plain twin against the format's
 * definition. */
#include "kernel_test.h"

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static ls__bfloat16 narrowed(float x)
{
    ls__bfloat16 out = 0;
    ls__kernels_ref()->bfloat16_narrow(&out, &x, 1, 0.0f, NULL);
    return out;
}

static float widened(ls__bfloat16 x)
{
    float out = 0.0f;
    ls__kernels_ref()->bfloat16_widen(&out, &x, 1, 0.0f, NULL);
    return out;
}

/* The nearest by distance, in float64, among the two neighbours; even where they are as near. */
TEST(a_float_becomes_the_nearest_bfloat16)
{
    uint64_t state = test_seed();
    for (int i = 0; i < 200000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t bits = (uint32_t)(state >> 32);
        bits = i % 3 == 0 ? (bits & 0xffff0000u) | 0x8000u : bits; /* exactly between two */
        float x = float_of(bits);
        ls__bfloat16 got = narrowed(x);
        if (isnan(x)) {
            CHECK(isnan(widened(got)) && got >> 15 == bits >> 31);
            continue;
        }
        ls__bfloat16 below = (ls__bfloat16)(bits >> 16), above = (ls__bfloat16)(below + 1);
        if (isinf(widened(above))) { /* the first that does not fit: 2^128 */
            continue;
        }
        double to_below = fabs((double)x - (double)widened(below));
        double to_above = fabs((double)widened(above) - (double)x);
        ls__bfloat16 want =
            to_below < to_above || (to_below == to_above && below % 2 == 0) ? below : above;
        CHECK_INT(got, want);
    }
    CHECK_INT(narrowed(INFINITY), 0x7f80);
    CHECK_INT(narrowed(-INFINITY), 0xff80);
    CHECK_INT(narrowed(-0.0f), 0x8000);
    CHECK_INT(narrowed(3.4e38f), 0x7f80);
    CHECK_INT(narrowed(float_of(1)), 0);
}

TEST(every_bfloat16_survives_widening)
{
    for (uint32_t i = 0; i < 0x10000u; i++) {
        ls__bfloat16 x = (ls__bfloat16)i;
        CHECK(isnan(widened(x)) || narrowed(widened(x)) == x);
    }
}

#define COUNT 70001 /* several blocks, and a rest */

static void fill_bits(void *out, size_t bytes, uint64_t seed)
{
    uint64_t state = test_seed() + seed;
    for (size_t i = 0; i < bytes / 2; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ((uint16_t *)out)[i] = (uint16_t)(state >> 48);
    }
}

/* Widen, narrow, add, and strided sums, with and without what is there. */
static void run_all(const ls__kernels *k, const float *x, const ls__bfloat16 *h, float *wide,
                    ls__bfloat16 *half, int64_t count, float beta)
{
    const int64_t shape[3] = {5, 7, count / 70};
    k->bfloat16_widen(wide, h, count, beta, NULL);
    k->bfloat16_narrow(half, x, count, beta, NULL);
    k->axpby_bf16(half, h + 1, count - 1, 1.0f, 1.0f, NULL);
    k->scatter(half, (ls__strided){{count / 5, 1, 7}}, h, 3, shape, 2, beta, NULL);
    k->scatter(half + 3, (ls__strided){{count / 5, count / 35, 1}}, h, 3, shape, 2, beta, NULL);
}

TEST(fast_conversions_have_the_bits_of_the_plain_twin)
{
    const int64_t counts[] = {0, 1, 7, 33, COUNT};
    float *x = allocate(COUNT * 4), *want = allocate(COUNT * 4), *got = allocate(COUNT * 4);
    ls__bfloat16 *h = allocate(COUNT * 2), *want_half = allocate(COUNT * 2);
    ls__bfloat16 *got_half = allocate(COUNT * 2);
    fill_bits(x, COUNT * 4, 1);
    fill_bits(h, COUNT * 2, 2);
    for (int i = 0; i < LS__ISA_COUNT * 10; i++) {
        const ls__kernels *k = variant(i / 10);
        int64_t count = counts[i % 5];
        float beta = i / 5 % 2 == 0 ? 0.0f : 1.0f;
        if (k == NULL || count == 0) {
            continue;
        }
        for (int threads = 1; threads <= 3; threads++) {
            fill_bits(want, COUNT * 4, 3), fill_bits(want_half, COUNT * 2, 4);
            memcpy(got, want, COUNT * 4), memcpy(got_half, want_half, COUNT * 2);
            run_all(ls__kernels_ref(), x, h, want, want_half, count, beta);
            ls__kernels_set_threads(threads);
            run_all(k, x, h, got, got_half, count, beta);
            check_close(k->name, got, want, COUNT, 0.0, 0.0); /* which NaN is left open */
            for (int64_t j = 0; j < COUNT; j++) {
                bool nan = isnan(widened(got_half[j])) && isnan(widened(want_half[j]));
                if (!nan && got_half[j] != want_half[j]) {
                    test_fail(__FILE__, __LINE__, "%s, element %lld of %lld: %x, not %x", k->name,
                              (long long)j, (long long)count, got_half[j], want_half[j]);
                }
            }
        }
    }
    ls__kernels_set_threads(1);
    free(x), free(want), free(got), free(h), free(want_half), free(got_half);
}

TEST_MAIN
