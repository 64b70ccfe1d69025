/* Random numbers against published vectors and known moments. */
#include <lockstep/random.h>

#include <math.h>

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
