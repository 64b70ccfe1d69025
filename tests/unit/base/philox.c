/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers against published vectors and known moments. */
#include <lockstep/random.h>

#include <math.h>
#include <stdlib.h>

#include "base/normal.h"
#include "test.h"

typedef struct vector {
    uint32_t counter[4], key[2], out[4];
} vector;

/* Random123, kat_vectors, philox4x32 with 10 rounds (Salmon et al., SC 2011). */
static const vector vectors[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

TEST(philox_gives_the_published_vectors)
{
    for (size_t v = 0; v < sizeof vectors / sizeof *vectors; v++) {
        uint32_t out[4];
        ls_philox4x32(vectors[v].counter, vectors[v].key, out);
        for (int i = 0; i < 4; i++) {
            CHECK_INT(out[i], vectors[v].out[i]);
        }
    }
}

TEST(uniform_is_a_lane_of_the_block_index_over_four_with_the_stream_above)
{
    const uint64_t seed = 0x299f31d0a4093822, stream = 0x0370734413198a2e;
    const uint64_t block = 0x05a308d3243f6a88; /* the index is four times this and fits */
    const uint32_t counter[4] = {0x243f6a88, 0x05a308d3, 0x13198a2e, 0x03707344};
    const uint32_t key[2] = {0xa4093822, 0x299f31d0};
    uint32_t out[4];
    ls_philox4x32(counter, key, out);
    for (uint64_t lane = 0; lane < 4; lane++) {
        float want = (float)(out[lane] >> 8) / 16777216.0f;
        CHECK_NEAR(ls_random_uniform(seed, stream, 4 * block + lane), want, 0.0);
    }
}

TEST(uniform_lies_in_the_half_open_unit_interval_with_the_right_moments)
{
    const int count = 100000;
    double sum = 0, squares = 0;
    for (int i = 0; i < count; i++) {
        double x = (double)ls_random_uniform(test_seed(), 7, (uint64_t)i);
        CHECK(x >= 0.0 && x < 1.0);
        sum += x;
        squares += x * x;
    }
    CHECK_NEAR(sum / count, 0.5, 6 * sqrt(1.0 / 12 / count)); /* six standard errors */
    CHECK_NEAR(squares / count, 1.0 / 3, 6 * sqrt(4.0 / 45 / count));
}

TEST(normal_has_mean_zero_variance_one_and_no_correlation_within_a_pair)
{
    const int count = 100000;
    double sum = 0, squares = 0, products = 0, fourth = 0;
    for (int i = 0; i < count; i += 2) {
        double a = (double)ls_random_normal(test_seed(), 3, (uint64_t)i);
        double b = (double)ls_random_normal(test_seed(), 3, (uint64_t)i + 1);
        CHECK(isfinite(a) && isfinite(b));
        sum += a + b;
        squares += a * a + b * b;
        fourth += a * a * a * a + b * b * b * b;
        products += a * b;
    }
    CHECK_NEAR(sum / count, 0.0, 6 / sqrt(count));
    CHECK_NEAR(squares / count, 1.0, 6 * sqrt(2.0 / count));
    CHECK_NEAR(fourth / count, 3.0, 6 * sqrt(96.0 / count)); /* a bell, not just the moments */
    CHECK_NEAR(products / (count / 2), 0.0, 6 / sqrt(count / 2));
}

/* The pair of two words against Box & Muller's formula in long double. */
static void check_pair(uint32_t first, uint32_t second)
{
    const long double tau = 6.283185307179586476925286766559L;
    float even, odd;
    ls__normal_pair(first, second, &even, &odd);
    const long double radius = sqrtl(-2.0L * logl(((long double)first + 1.0L) * 0x1p-32L));
    const long double angle = tau * ((long double)second * 0x1p-32L);
    /* at whole quarter turns the oracle's zeros are none */
    const bool turns = (second & 0x3fffffffu) == 0;
    const double want_even = turns && second >> 30 & 1u ? 0.0 : (double)(radius * cosl(angle));
    const double want_odd = turns && !(second >> 30 & 1u) ? 0.0 : (double)(radius * sinl(angle));
    CHECK_NEAR(even, want_even, 4e-7 * fabs(want_even));
    CHECK_NEAR(odd, want_odd, 4e-7 * fabs(want_odd));
}

TEST(normals_are_what_their_words_mean_within_4e_7_of_themselves)
{
    static const uint32_t edges[] = {0, 0x3fffffff, 0x7fffffff, 0xb504f333, 0xffffffff};
    for (size_t e = 0; e < sizeof edges / sizeof *edges; e++) {
        for (uint32_t i = 0; i < 400; i++) { /* the tail; near u = 1; where powers of two change */
            check_pair(edges[e] + i - 200, 0x9e3779b9u * i);
        }
    }
    for (uint32_t i = 0; i < 8 * 400; i++) { /* near the eighths of a turn */
        check_pair(0x85ebca6bu * i, (i / 400 << 29) + i % 400 - 200);
    }
    uint64_t state = test_seed();
    for (int i = 0; i < 100000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        check_pair((uint32_t)(state >> 32) >> i % 32, (uint32_t)(state >> 8));
    }
    float even, odd; /* the largest there is, and the smallest */
    ls__normal_pair(0, 0, &even, &odd);
    CHECK_NEAR(even, sqrt(64.0 * log(2.0)), 3e-6);
    ls__normal_pair(UINT32_MAX, 0x12345678, &even, &odd);
    CHECK(even == 0.0f && odd == 0.0f);
}

static int in_order(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Kolmogorov & Smirnov: the largest distance from the distribution, times the root of the count, is
 * above 3.5 with a chance of 5e-11. */
TEST(normals_are_distributed_as_they_should_be_tails_included)
{
    enum { COUNT = 1 << 18 };
    float *x = malloc(COUNT * sizeof *x);
    CHECK(x != NULL);
    for (int i = 0; i < COUNT; i++) {
        x[i] = ls_random_normal(test_seed(), 11, (uint64_t)i);
    }
    qsort(x, COUNT, sizeof *x, in_order);
    double farthest = 0.0;
    int beyond_3 = 0;
    for (int i = 0; i < COUNT; i++) {
        const double below = 0.5 * erfc((double)x[i] * -0.70710678118654752440);
        farthest = fmax(
            farthest, fmax(fabs(below - (double)i / COUNT), fabs(below - (double)(i + 1) / COUNT)));
        beyond_3 += fabsf(x[i]) > 3.0f;
    }
    CHECK(farthest * sqrt(COUNT) < 3.5);
    const double expected = COUNT * 2.6997960632601869e-3;
    CHECK_NEAR(beyond_3, expected, 6 * sqrt(expected));
    free(x);
}

TEST(streams_and_seeds_differ)
{
    int equal = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        equal += ls_random_uniform(1, 0, i) == ls_random_uniform(2, 0, i);
        equal += ls_random_uniform(1, 0, i) == ls_random_uniform(1, 1, i);
        equal += ls_random_uniform(1, 0, i) == ls_random_uniform(1, 0, i + 1);
    }
    CHECK(equal < 5); /* a chance of 2^-24 each */
}

TEST_MAIN
