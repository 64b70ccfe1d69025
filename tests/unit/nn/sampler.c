/* SPDX-License-Identifier: Apache-2.0 */
/* The sampler against counting: every sample once an epoch, one global order for every number of
 * ranks, blocks where the header says. */
#include "test.h"

#include <string.h>

#include <lockstep/data.h>

#define COUNT_MAX 1200

static ls_sampler *sampler(int64_t count, int64_t batch, int rank, int ranks, bool drop)
{
    ls_sampler *made = NULL;
    CHECK(LS_STATUS_OF(
              made = ls_sampler_new(count, LS_OPTIONS(ls_sampler_options, .batch = batch, .seed = 7,
                                                      .rank = rank, .world_size = ranks,
                                                      .drop_last = drop))) == LS_OK);
    return made;
}

/* The global order of an epoch as `ranks` ranks read it; returns how many samples it has. */
static int64_t global_order(int64_t count, int64_t batch, int ranks, bool drop, int64_t epoch,
                            int64_t *out)
{
    ls_sampler *each[8];
    int64_t found = 0, steps = 0;
    for (int r = 0; r < ranks; r++) {
        each[r] = sampler(count, batch, r, ranks, drop);
        CHECK(r == 0 || ls_sampler_steps(each[r]) == steps);
        steps = ls_sampler_steps(each[r]);
    }
    for (int64_t s = 0; s < steps; s++) {
        int64_t least = batch, most = 0;
        for (int r = 0; r < ranks; r++) {
            int64_t mine[8];
            int64_t n = ls_sampler_get(each[r], epoch, s, mine);
            CHECK(n >= 0 && n <= batch);
            least = n < least ? n : least;
            most = n > most ? n : most;
            memcpy(out + found, mine, (size_t)n * sizeof *mine);
            found += n;
        }
        CHECK(most - least <= 1);
        CHECK(s + 1 == steps || least == batch);
    }
    for (int r = 0; r < ranks; r++) {
        ls_sampler_free(each[r]);
    }
    return found;
}

static void check_once(const int64_t *order, int64_t found, int64_t count)
{
    char seen[COUNT_MAX] = {0};
    for (int64_t i = 0; i < found; i++) {
        CHECK(order[i] >= 0 && order[i] < count);
        CHECK_INT(seen[order[i]], 0);
        seen[order[i]] = 1;
    }
}

TEST(every_sample_comes_once_and_in_the_same_order_for_all_rank_counts)
{
    static const int64_t counts[] = {8, 9, 17, 63, 64, 65, 101, 1023};
    static int64_t reference[COUNT_MAX], order[COUNT_MAX];
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        int64_t n = counts[c];
        CHECK_INT(global_order(n, 1, 1, false, 3, reference), n);
        for (int ranks = 1; ranks <= 8; ranks++) {
            for (int64_t batch = 1; batch <= 5; batch++) {
                CHECK_INT(global_order(n, batch, ranks, false, 3, order), n);
                check_once(order, n, n);
                CHECK(memcmp(order, reference, (size_t)n * sizeof *order) == 0);
            }
        }
    }
}

TEST(a_dropped_last_step_leaves_whole_steps_only)
{
    static int64_t order[COUNT_MAX];
    for (int ranks = 1; ranks <= 8; ranks++) {
        for (int64_t batch = 1; batch <= 5; batch++) {
            int64_t found = global_order(101, batch, ranks, true, 0, order);
            CHECK_INT(found, 101 / (batch * ranks) * batch * ranks);
            check_once(order, found, 101);
        }
    }
}

TEST(epochs_and_seeds_have_different_orders_and_repeat)
{
    static int64_t a[COUNT_MAX], b[COUNT_MAX];
    (void)global_order(1000, 4, 2, false, 0, a);
    (void)global_order(1000, 4, 2, false, 0, b);
    CHECK(memcmp(a, b, 1000 * sizeof *a) == 0);
    (void)global_order(1000, 4, 2, false, 1, b);
    int same = 0;
    for (int i = 0; i < 1000; i++) {
        same += a[i] == b[i];
    }
    CHECK(same < 20); /* of two random orders, 1 position in 1000 agrees on average */
    ls_sampler *other = NULL;
    CHECK(LS_STATUS_OF(
              other = ls_sampler_new(1000, LS_OPTIONS(ls_sampler_options, .batch = 8, .seed = 8,
                                                      .rank = 0, .world_size = 1))) == LS_OK);
    CHECK_INT(ls_sampler_get(other, 0, 0, b), 8);
    CHECK(memcmp(a, b, 8 * sizeof *a) != 0);
    ls_sampler_free(other);
}

TEST(the_order_looks_random)
{
    /* Means of the first position over many epochs: uniform on [0,n) within 5 standard errors. */
    const int64_t n = 37;
    const int epochs = 4000;
    ls_sampler *s = sampler(n, 1, 0, 1, false);
    double sum = 0.0;
    for (int e = 0; e < epochs; e++) {
        int64_t first;
        CHECK_INT(ls_sampler_get(s, e, 0, &first), 1);
        sum += (double)first;
    }
    double deviation = sum / epochs - (double)(n - 1) / 2.0;
    CHECK(deviation * deviation < 25.0 * ((double)(n * n - 1) / 12.0) / epochs);
    ls_sampler_free(s);
}

TEST(without_shuffling_the_order_is_that_of_the_data)
{
    ls_sampler *s = NULL;
    CHECK(LS_STATUS_OF(
              s = ls_sampler_new(10, LS_OPTIONS(ls_sampler_options, .batch = 2, .shuffle = false,
                                                .rank = 1, .world_size = 2))) == LS_OK);
    int64_t mine[2];
    CHECK_INT(ls_sampler_get(s, 0, 1, mine), 2);
    CHECK_INT(mine[0], 6);
    CHECK_INT(mine[1], 7);
    CHECK_INT(ls_sampler_get(s, 0, 2, mine), 1);
    CHECK_INT(mine[0], 9);
    CHECK_INT(ls_sampler_get(s, 0, 3, mine), 0);
    ls_sampler_free(s);
}

TEST(fewer_samples_than_ranks_are_refused_with_both_numbers)
{
    ls_sampler *s = NULL;
    CHECK(LS_STATUS_OF(s = ls_sampler_new(3, LS_OPTIONS(ls_sampler_options, .rank = 0,
                                                        .world_size = 4))) == LS_ERR_INVALID);
    CHECK(s == NULL);
    CHECK(strstr(ls_error_message(), "3 samples") && strstr(ls_error_message(), "4 ranks"));
    CHECK(LS_STATUS_OF(s = ls_sampler_new(7, LS_OPTIONS(ls_sampler_options, .batch = 2, .rank = 0,
                                                        .world_size = 4, .drop_last = true))) ==
          LS_ERR_INVALID);
    CHECK(strstr(ls_error_message(), "7 samples") != NULL);
    CHECK(LS_STATUS_OF(s = ls_sampler_new(7, LS_OPTIONS(ls_sampler_options, .batch = 0))) ==
          LS_ERR_INVALID);
}

TEST(large_counts_stay_within_their_range)
{
    const int64_t n = ((int64_t)1 << 40) + 12345;
    ls_sampler *s = sampler(n, 5, 3, 7, false);
    int64_t mine[5];
    for (int64_t step = 0; step < 200; step++) {
        int64_t count = ls_sampler_get(s, 0, step * 1000003, mine);
        CHECK_INT(count, 5);
        for (int i = 0; i < 5; i++) {
            CHECK(mine[i] >= 0 && mine[i] < n);
        }
    }
    ls_sampler_free(s);
}

TEST_MAIN
