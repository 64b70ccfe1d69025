/* SPDX-License-Identifier: Apache-2.0 */
/* The clients of federated rounds. */
#include <lockstep/lockstep.h>

#include "says.h"
#include "test.h"

enum { CLIENTS = 12, ROUNDS = 6000 };

DIST_TEST(all_ranks_draw_the_same_clients, 3)
{
    int64_t mine[5], first[5];
    for (int round = 0; round < 50; round++) {
        CHECK_OK(ls_sample_clients(7, round, CLIENTS, 5, mine));
        memcpy(first, mine, sizeof first);
        CHECK_OK(ls_broadcast(ls_world(), first, 5, LS_INT64, 0, NULL, NULL));
        CHECK(memcmp(first, mine, sizeof mine) == 0);
    }
}

TEST(clients_are_ascending_and_none_comes_twice)
{
    int64_t out[CLIENTS];
    for (int round = 0; round < 200; round++) {
        for (int64_t k = 1; k <= CLIENTS; k++) {
            CHECK_OK(ls_sample_clients((uint64_t)round * 77, round, CLIENTS, k, out));
            for (int64_t i = 0; i < k; i++) {
                CHECK(out[i] >= 0 && out[i] < CLIENTS && (i == 0 || out[i] > out[i - 1]));
            }
        }
    }
}

/* Every client, and every pair, is drawn equally often; 6000 rounds spread a pair's count, of mean
 * 545, by 22. */
TEST(clients_and_pairs_are_drawn_equally_often)
{
    static int single[CLIENTS], pair[CLIENTS][CLIENTS];
    int64_t out[4];
    memset(single, 0, sizeof single);
    memset(pair, 0, sizeof pair);
    for (int round = 0; round < ROUNDS; round++) {
        CHECK_OK(ls_sample_clients(3, round, CLIENTS, 4, out));
        for (int i = 0; i < 4; i++) {
            single[out[i]]++;
            for (int k = i + 1; k < 4; k++) {
                pair[out[i]][out[k]]++;
            }
        }
    }
    for (int a = 0; a < CLIENTS; a++) {
        CHECK_NEAR(single[a], ROUNDS * 4.0 / CLIENTS, 5 * 37.0);
        for (int b = a + 1; b < CLIENTS; b++) {
            CHECK_NEAR(pair[a][b], ROUNDS * 4.0 * 3.0 / (CLIENTS * (CLIENTS - 1)), 5 * 22.0);
        }
    }
}

TEST(rounds_and_seeds_draw_other_clients)
{
    int64_t a[4], b[4];
    int same[2] = {0, 0};
    for (int round = 0; round < 200; round++) {
        CHECK_OK(ls_sample_clients(1, round, 1000, 4, a));
        CHECK_OK(ls_sample_clients(1, round + 1, 1000, 4, b));
        same[0] += memcmp(a, b, sizeof a) == 0;
        CHECK_OK(ls_sample_clients(2, round, 1000, 4, b));
        same[1] += memcmp(a, b, sizeof a) == 0;
    }
    CHECK_INT(same[0], 0);
    CHECK_INT(same[1], 0);
}

TEST(impossible_samples_are_refused)
{
    int64_t out[4];
    CHECK_STATUS(ls_sample_clients(1, 0, 3, 4, out), LS_ERR_INVALID);
    CHECK_STATUS(ls_sample_clients(1, 0, 3, 0, out), LS_ERR_INVALID);
    CHECK_STATUS(ls_sample_clients(1, -1, 3, 2, out), LS_ERR_INVALID);
    CHECK_STATUS(ls_sample_clients(1, 0, 3, 2, NULL), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_sample_clients: %lld of %lld clients in round %lld; give 1 <= k <= clients, a "
               "round from 0, and a place for the numbers");
}

TEST_MAIN
