/* SPDX-License-Identifier: Apache-2.0 */
/* Shares of a step by speed: the division itself, samplers that follow it, and training with a rank
 * that is slower. */
#include <math.h>
#include <stdio.h>
#include <time.h>

#include <lockstep/lockstep.h>

#include "rows.h"
#include "says.h"
#include "test.h"

/* ---- the division ---------------------------------------------------------------------------- */

/* With speeds 1 : 2 : 5, after a step with even shares. */
DIST_TEST(shares_follow_the_speeds, 3)
{
    static const double per_sample[3] = {0.10, 0.05, 0.02};
    int64_t shares[3] = {16, 16, 16};
    bool changed = false;
    CHECK_OK(ls_shares_by_speed(ls_world(), 16 * per_sample[ls_rank()], shares, &changed));
    CHECK(changed);
    CHECK_INT(shares[0], 6);
    CHECK_INT(shares[1], 12);
    CHECK_INT(shares[2], 30);
}

/* The longest time of all ranks under shares of `total` that no other division is below. */
static double best_of(const double *costs, int64_t total)
{
    double best = INFINITY;
    for (int64_t a = 1; a <= total - 2; a++) {
        for (int64_t b = 1; a + b <= total - 1; b++) {
            const double most = fmax(fmax((double)a * costs[0], (double)b * costs[1]),
                                     (double)(total - a - b) * costs[2]);
            best = fmin(best, most);
        }
    }
    return best;
}

DIST_TEST(no_other_division_has_a_faster_slowest_rank, 3)
{
    for (int t = 0; t < 200; t++) {
        int64_t shares[3] = {1 + t % 7, 1 + t % 5, 1 + t % 23};
        const int64_t total = shares[0] + shares[1] + shares[2];
        double costs[3], before = 0.0, after = 0.0;
        bool changed = false;
        for (int r = 0; r < 3; r++) {
            costs[r] = 0.01 + fabs((double)ls_random_normal(5, (uint64_t)t, (uint64_t)r));
            before = fmax(before, costs[r] * (double)shares[r]);
        }
        const double seconds = costs[ls_rank()] * (double)shares[ls_rank()];
        CHECK_OK(ls_shares_by_speed(ls_world(), seconds, shares, &changed));
        CHECK_INT(shares[0] + shares[1] + shares[2], total);
        for (int r = 0; r < 3; r++) {
            CHECK(shares[r] >= 1);
            after = fmax(after, costs[r] * (double)shares[r]);
        }
        const double best = best_of(costs, total);
        CHECK(after <= best * (1 + 1e-9) || !changed);
        CHECK(changed == (best < 0.90 * before));
    }
}

/* A rank that sometimes needs 4 % more or less, and one that has another constant: the shares do
 * not go back and forth. */
DIST_TEST(noise_and_constant_costs_move_nothing_twice, 4)
{
    int64_t shares[4] = {25, 25, 25, 25};
    int changes = 0, late = 0;
    for (int t = 0; t < 60; t++) {
        bool changed = false;
        const double noise =
            1.0 + 0.04 * sin(12.9898 * t + 78.233 * ls_rank()); /* differs for every rank */
        const double seconds =
            (0.02 + (ls_rank() == 1 ? 0.03 : 0.01) * (double)shares[ls_rank()]) * noise;
        CHECK_OK(ls_shares_by_speed(ls_world(), seconds, shares, &changed));
        changes += changed;
        late += changed && t >= 10;
    }
    CHECK(changes >= 1);
    CHECK_INT(late, 0);
    CHECK(shares[1] < 15);
    CHECK_INT(shares[0] + shares[1] + shares[2] + shares[3], 100);
}

DIST_TEST(times_and_shares_that_cannot_be_are_refused, 2)
{
    bool changed;
    int64_t shares[2] = {4, 4}, none[2] = {4, 0};
    CHECK_STATUS(ls_shares_by_speed(ls_world(), ls_rank() == 1 ? 0.0 : 1.0, shares, &changed),
                 LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_shares_by_speed: rank %d of the group gives %g seconds; give the time of its "
               "samples, above 0");
    CHECK_CONTAINS(ls_error_message(), "rank 1 of the group gives 0 seconds");
    CHECK_STATUS(ls_shares_by_speed(ls_world(), 1.0, none, &changed), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "ls_shares_by_speed: the share of rank %d of the group is %lld; "
                                   "give at least 1 sample");
    CHECK_STATUS(ls_shares_by_speed(NULL, 1.0, shares, &changed), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "ls_shares_by_speed: an argument is NULL; give a group, the "
                                   "shares of its ranks, and a place for changed");
}

/* ---- samplers -------------------------------------------------------------------------------- */

static ls_sampler *sampler_of(int64_t count, const int64_t *batches, int rank, bool drop)
{
    return ls_sampler_new(count, LS_OPTIONS(ls_sampler_options, .batches = batches, .rank = rank,
                                            .world_size = 3, .drop_last = drop, .seed = 5));
}

/* An epoch has every sample once, in the order of a sampler of one rank, whatever the shares are,
 * also in its last, shorter step. */
TEST(shares_of_an_epoch_are_all_of_its_samples)
{
    static const int64_t batches[3] = {1, 6, 4};
    enum { COUNT = 50, STEP = 11 };
    ls_sampler *all = ls_sampler_new(COUNT, LS_OPTIONS(ls_sampler_options, .batch = STEP, .rank = 0,
                                                       .world_size = 1, .seed = 5));
    for (int64_t step = 0; step < 5; step++) {
        int64_t want[STEP], got[STEP], count = 0;
        const int64_t total = ls_sampler_get(all, 2, step, want);
        for (int r = 0; r < 3; r++) {
            ls_sampler *s = sampler_of(COUNT, batches, r, false);
            CHECK_INT(ls_sampler_steps(s), 5);
            const int64_t here = ls_sampler_get(s, 2, step, got + count);
            CHECK(here <= batches[r] && (step == 4 || here == batches[r]));
            count += here;
            ls_sampler_free(s);
        }
        CHECK_INT(count, total);
        CHECK(memcmp(got, want, (size_t)total * sizeof *got) == 0);
    }
    ls_sampler_free(all);
}

TEST(shares_that_cannot_be_sampled_are_refused)
{
    static const int64_t none[3] = {4, 0, 4}, many[3] = {40, 40, 40}, fit[3] = {10, 10, 31};
    CHECK(sampler_of(50, none, 0, true) == NULL);
    CHECK_SAYS(ls_error_message(),
               "sampler: batches[%d] is %lld, after %lld samples of lower ranks; give at least 1, "
               "and together at most %lld");
    CHECK(sampler_of(50, many, 0, true) == NULL);
    CHECK(sampler_of(50, fit, 0, true) == NULL);
    CHECK_CONTAINS(ls_error_message(), "batches[2] is 31, after 20 samples");
}

static ls_status get(ls_dataset *d, int64_t index, void *x, void *y)
{
    (void)d;
    *(float *)x = (float)index;
    *(float *)y = 0.0f;
    return LS_OK;
}

DIST_TEST(loaders_that_scatter_refuse_shares, 2)
{
    static const int64_t batches[2] = {1, 3};
    ls_dataset data = {.size = sizeof data,
                       .count = 40,
                       .x_shape = LS_SHAPE(1),
                       .y_shape = LS_SHAPE(1),
                       .x_dtype = LS_FLOAT32,
                       .y_dtype = LS_FLOAT32,
                       .get = get};
    ls_sampler *s =
        ls_sampler_new(40, LS_OPTIONS(ls_sampler_options, .batches = batches, .drop_last = true));
    CHECK(ls_loader_new(&data, s, LS_OPTIONS(ls_loader_options, .feed = LS_FEED_SCATTER)) == NULL);
    CHECK_SAYS(ls_error_message(),
               "loader: the sampler gives the ranks different numbers of samples (batches), which "
               "is for LS_FEED_SPLIT without shards");
    ls_loader *l = ls_loader_new(&data, s, NULL);
    ls_batch batch = {.size = sizeof batch};
    CHECK(ls_loader_next(l, &batch));
    CHECK_INT(batch.count, batches[ls_rank()]);
    CHECK_INT(batch.global_count, 4);
    CHECK_INT(batch.context.sample_offset, ls_rank());
    ls_loader_free(l);
    ls_sampler_free(s);
}

/* ---- a slow rank ----------------------------------------------------------------------------- */

static void sleep_of(int64_t samples, double per_sample)
{
    const double seconds = (double)samples * per_sample;
    const struct timespec time = {(time_t)seconds, (long)(fmod(seconds, 1.0) * 1e9)};
    (void)nanosleep(&time, NULL);
}

/* Rank 1 sleeps four times as long for a sample: from 16:16 the shares become about 26:6, and a
 * step takes 0.4 of the time. */
DIST_TEST(a_sleeping_rank_gets_fewer_samples_and_steps_are_faster, 2)
{
    const double per_sample = ls_rank() == 1 ? 0.004 : 0.001;
    int64_t shares[2] = {16, 16};
    double before = 0.0, after = 0.0;
    for (int step = 0; step < 20; step++) {
        double mine, mean;
        bool changed = false;
        const double begun = ls_time();
        sleep_of(shares[ls_rank()], per_sample);
        mine = ls_time() - begun;
        CHECK_OK(ls_metric_mean(ls_world(), 0.0, 1.0, &mean)); /* waits */
        *(step < 5 ? &before : &after) += step < 5 || step >= 15 ? ls_time() - begun : 0.0;
        if (step >= 5) {
            CHECK_OK(ls_shares_by_speed(ls_world(), mine, shares, &changed));
        }
    }
    CHECK(shares[1] >= 4 && shares[1] <= 9);
    CHECK(after < 0.75 * before);
    if (ls_rank() == 0) {
        printf("# shares %lld and %lld; five steps %.0f ms, then %.0f ms\n", (long long)shares[0],
               (long long)shares[1], 1e3 * before, 1e3 * after);
    }
}

TEST_MAIN
