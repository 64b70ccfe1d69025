/* SPDX-License-Identifier: Apache-2.0 */
/* How large buckets are for a link and a model, against a search of all sizes and by hand. */
#include "reduce/bucket_size.h"

#include <math.h>

#include "test.h"

enum { LINKS = 5, MODELS = 7 };

/* By latency / byte: 200 KB in shared memory, about 60 KB at 10 Gbit/s, 6 KB at 1 Gbit/s, 600 KB at
 * 100 Gbit/s, and 1.25 MB between continents. */
static const ls__tune_link links[LINKS] = {
    {20000, 0.1}, {48000, 0.8}, {48000, 8.0}, {48000, 0.08}, {10e6, 8.0}};

static const size_t models[MODELS] = {0,         1000,      2 << 20,   (5 << 20) + 1,
                                      44700000u, 68000000u, 1400000000};

/* What of the time of all buckets depends on their size. */
static double cost_of(const ls__tune_link *link, double bytes, double size)
{
    return link->byte_ns * size + link->latency_ns * bytes / size;
}

TEST(no_size_within_the_bounds_costs_less)
{
    for (int l = 0; l < LINKS; l++) {
        for (int m = 2; m < MODELS; m++) {
            const double bytes = (double)models[m];
            const double size = (double)ls__bucket_size(&links[l], models[m]);
            for (double other = 1 << 20; other <= 25 << 20 && other <= bytes / 2; other *= 1.01) {
                CHECK(cost_of(&links[l], bytes, size) <=
                      cost_of(&links[l], bytes, other) * (1.0 + 1e-6));
            }
        }
    }
}

TEST(latency_is_an_eleventh_where_the_model_takes_a_hundred_times_as_long_as_a_start)
{
    for (int l = 0; l < LINKS; l++) {
        const double hundred = 100.0 * links[l].latency_ns / links[l].byte_ns;
        const double size = (double)ls__bucket_size(&links[l], (size_t)hundred);
        if (size > LS__BUCKET_BYTES_MIN && size < LS__BUCKET_BYTES_MAX) {
            const double latency =
                links[l].latency_ns / (links[l].latency_ns + links[l].byte_ns * size);
            CHECK_NEAR(latency, 1.0 / 11.0, 1e-6);
            CHECK_NEAR(size / hundred, 0.1, 1e-6);
        }
    }
}

TEST(sizes_lie_between_1_and_25_mib_and_leave_two_buckets_from_2_mib_on)
{
    for (int l = 0; l < LINKS; l++) {
        for (int m = 0; m < MODELS; m++) {
            const size_t size = ls__bucket_size(&links[l], models[m]);
            CHECK(size >= LS__BUCKET_BYTES_MIN && size <= LS__BUCKET_BYTES_MAX);
            CHECK(models[m] < 2 * LS__BUCKET_BYTES_MIN || 2 * size <= models[m]);
        }
    }
}

TEST(sizes_grow_with_the_model_and_the_latency_and_shrink_with_the_time_of_a_byte)
{
    for (int l = 0; l < LINKS; l++) {
        const ls__tune_link slow = {2.0 * links[l].latency_ns, links[l].byte_ns};
        const ls__tune_link narrow = {links[l].latency_ns, 2.0 * links[l].byte_ns};
        for (int m = 0; m < MODELS; m++) {
            const size_t size = ls__bucket_size(&links[l], models[m]);
            CHECK(m == 0 || size >= ls__bucket_size(&links[l], models[m - 1]));
            CHECK(ls__bucket_size(&slow, models[m]) >= size);
            CHECK(ls__bucket_size(&narrow, models[m]) <= size);
        }
    }
}

TEST(sizes_of_known_models_are_these)
{
    CHECK_NEAR((double)ls__bucket_size(&links[0], 44700000), sqrt(44.7e6 * 200e3), 1.0);
    CHECK_NEAR((double)ls__bucket_size(&links[1], 44700000), sqrt(44.7e6 * 60e3), 1.0);
    CHECK_INT(ls__bucket_size(&links[2], 44700000), 1 << 20);
    CHECK_INT(ls__bucket_size(&links[3], 1400000000), 25 << 20);
    CHECK_NEAR((double)ls__bucket_size(&links[4], 44700000), sqrt(44.7e6 * 1.25e6), 1.0);
    CHECK_INT(ls__bucket_size(&links[4], 4000000), 2000000); /* half of it */
}

/* Figures that were fitted to times may be zero. */
TEST(links_without_latency_have_the_smallest_buckets_and_links_that_cost_only_latency_the_largest)
{
    CHECK_INT(ls__bucket_size(&(ls__tune_link){0.0, 0.1}, 44700000), LS__BUCKET_BYTES_MIN);
    CHECK_INT(ls__bucket_size(&(ls__tune_link){20000, 0.0}, 1400000000), LS__BUCKET_BYTES_MAX);
    CHECK_INT(ls__bucket_size(&(ls__tune_link){0.0, 0.0}, 1400000000), LS__BUCKET_BYTES_MAX);
    CHECK_INT(ls__bucket_size(&(ls__tune_link){20000, 0.0}, 10000000), 5000000);
}

TEST_MAIN
