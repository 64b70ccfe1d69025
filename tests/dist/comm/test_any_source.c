/* SPDX-License-Identifier: Apache-2.0 */
/* Receives from any source: every letter is taken once, those of a pair in order, none is passed
 * over, and who waits for nobody is told. */
#include "test.h"

#include <stdlib.h>

#include <lockstep/comm.h>
#include <lockstep/store.h>

/* Rank 0 takes `each` letters of every other rank; large ones go by ACCEPT and DATA. */
static void take_all(int each, int64_t count, int tag)
{
    const int size = ls_world_size();
    int32_t *x = calloc((size_t)count, sizeof *x);
    int next[8] = {0};
    CHECK(x != NULL);
    for (int i = 0; ls_rank() != 0 && i < each; i++) {
        x[0] = ls_rank();
        x[count - 1] = 1000 * ls_rank() + i;
        CHECK_OK(ls_send(ls_world(), x, count, LS_INT32, 0, tag, NULL, NULL));
    }
    for (int i = 0; ls_rank() == 0 && i < each * (size - 1); i++) {
        int from = -5;
        CHECK_OK(ls_recv_any(ls_world(), x, count, LS_INT32, tag, NULL, &from));
        CHECK(from > 0 && from < size);
        CHECK_INT(x[count - 1], 1000 * from + next[from]);
        next[from]++;
    }
    for (int r = 1; ls_rank() == 0 && r < size; r++) {
        CHECK_INT(next[r], each);
    }
    free(x);
}

DIST_TEST(letters_of_all_ranks_are_taken_once_and_each_ranks_in_order_2, 2)
{
    take_all(50, 1, 3);
    take_all(3, 300000, 4);
}

DIST_TEST(letters_of_all_ranks_are_taken_once_and_each_ranks_in_order_5, 5)
{
    take_all(40, 2, 3);
    take_all(2, 300000, 4);
}

DIST_TEST(a_rank_may_find_its_own_letter, 1)
{
    int32_t x = 42, y = 0;
    int from = -5;
    ls_work *work = NULL;
    CHECK_OK(ls_send(ls_world(), &x, 1, LS_INT32, 0, 3, NULL, &work));
    CHECK_OK(ls_recv_any(ls_world(), &y, 1, LS_INT32, 3, NULL, &from));
    CHECK_OK(ls_work_wait(work));
    CHECK_INT(from, 0);
    CHECK_INT(y, 42);
}

DIST_TEST(a_receive_that_cannot_start_says_so_and_has_no_source, 1)
{
    int32_t x = 0;
    int from = -5;
    CHECK_STATUS(ls_recv_any(ls_world(), NULL, 1, LS_INT32, 3, NULL, &from), LS_ERR_INVALID);
    CHECK_INT(from, LS_ANY_SOURCE);
    CHECK_STATUS(ls_recv_any(ls_world(), &x, -1, LS_INT32, 3, NULL, NULL), LS_ERR_INVALID);
}

/* Receives match in the order in which they were posted, whether they name a rank or not. */
DIST_TEST(named_and_open_receives_of_one_tag_keep_their_order, 2)
{
    int32_t x[3] = {0};
    ls_work *work[3];
    if (ls_rank() == 0) {
        CHECK_OK(ls_recv(ls_world(), &x[0], 1, LS_INT32, LS_ANY_SOURCE, 1, NULL, &work[0]));
        CHECK_OK(ls_recv(ls_world(), &x[1], 1, LS_INT32, 1, 1, NULL, &work[1]));
        CHECK_OK(ls_recv(ls_world(), &x[2], 1, LS_INT32, LS_ANY_SOURCE, 1, NULL, &work[2]));
        CHECK_INT(ls_work_source(work[2]), LS_ANY_SOURCE);
        CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
        for (int i = 2; i >= 0; i--) {
            while (ls_work_test(work[i]) == LS_IN_PROGRESS) {
            }
            CHECK_INT(ls_work_source(work[i]), 1);
            CHECK_OK(ls_work_wait(work[i]));
            CHECK_INT(x[i], 10 + i);
        }
        return;
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    for (int32_t i = 0; i < 3; i++) {
        x[0] = 10 + i;
        CHECK_OK(ls_send(ls_world(), x, 1, LS_INT32, 0, 1, NULL, NULL));
    }
}

/* What has come first is taken first: nobody is passed over. */
DIST_TEST(the_oldest_letter_is_taken, 4)
{
    int32_t x = ls_rank();
    int64_t unused = 0;
    ls_store *store = ls_runtime_store();
    ls_work *work = NULL;
    const char *const turn[] = {"0", "1", "2", "3"};
    if (ls_rank() != 0) {
        CHECK_OK(ls_store_wait(store, turn[ls_rank()], -1));
        CHECK_OK(ls_send(ls_world(), &x, 1, LS_INT32, 0, 9, NULL, &work));
    }
    for (int r = 3; r > 0 && ls_rank() == 0; r--) { /* 3, 2, 1: each is here before the next goes */
        char key[16] = "sent";
        key[4] = turn[r][0];
        CHECK_OK(ls_store_add(store, turn[r], 1, &unused, -1));
        CHECK_OK(ls_store_wait(store, key, -1));
        CHECK_OK(ls_recv(ls_world(), &x, 1, LS_INT32, r, 8, NULL, NULL)); /* sent after it */
    }
    if (ls_rank() != 0) {
        char key[16] = "sent";
        key[4] = turn[ls_rank()][0];
        CHECK_OK(ls_store_add(store, key, 1, &unused, -1));
        CHECK_OK(ls_send(ls_world(), &x, 1, LS_INT32, 0, 8, NULL, NULL));
        CHECK_OK(ls_work_wait(work));
        return;
    }
    for (int r = 3; r > 0; r--) {
        int from = -1;
        CHECK_OK(ls_recv_any(ls_world(), &x, 1, LS_INT32, 9, NULL, &from));
        CHECK_INT(from, r);
    }
}

DIST_TEST(all_that_wait_for_anybody_are_a_deadlock, 3)
{
    int32_t x = 0;
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "open", &group));
    CHECK_STATUS(ls_recv_any(group, &x, 1, LS_INT32, 4, NULL, NULL), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "deadlock: rank 0 waits in recv from any rank with tag 4");
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

/* One of those who could send is only slow: no deadlock. */
DIST_TEST(who_waits_for_a_slow_one_among_many_is_not_stuck, 3)
{
    int32_t x = ls_rank();
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "open", &group));
    if (ls_rank() == 2) {
        ls_work *work = NULL;
        int32_t y = 0;
        CHECK_OK(ls_recv(group, &y, 1, LS_INT32, 0, 77, NULL, &work));
        CHECK_INT(ls_work_wait_for(work, 2500), LS_IN_PROGRESS);
        CHECK_OK(ls_send(group, &x, 1, LS_INT32, 0, 4, NULL, NULL));
        CHECK_OK(ls_send(group, &x, 1, LS_INT32, 1, 4, NULL, NULL));
        CHECK_OK(ls_work_wait(work));
    } else {
        CHECK_OK(ls_recv_any(group, &x, 1, LS_INT32, 4, NULL, NULL));
        CHECK_INT(x, 2);
        if (ls_rank() == 0) {
            CHECK_OK(ls_send(group, &x, 1, LS_INT32, 2, 77, NULL, NULL));
        }
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

DIST_TEST(a_letter_of_another_size_is_told_with_its_sender, 2)
{
    int32_t x[4] = {0};
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "sizes", &group));
    CHECK_STATUS(ls_rank() == 0 ? ls_recv_any(group, x, 4, LS_INT32, 4, NULL, NULL)
                                : ls_send(group, x, 3, LS_INT32, 0, 4, NULL, NULL),
                 LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "rank 1 sends int32[3]");
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

DIST_TEST(at_the_deadline_it_is_told_who_could_have_sent, 3)
{
    int32_t x = 0;
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "late", &group));
    if (ls_rank() == 1) {
        CHECK_STATUS(ls_recv_any(group, &x, 1, LS_INT32, 4,
                                 LS_OPTIONS(ls_collective_options, .timeout_ms = 200), NULL),
                     LS_ERR_TIMEOUT);
        CHECK_CONTAINS(ls_error_message(), "rank 0 has sent nothing that fits");
        CHECK_CONTAINS(ls_error_message(), "rank 2 has sent nothing that fits");
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

TEST_MAIN
