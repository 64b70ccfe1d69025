/* SPDX-License-Identifier: Apache-2.0 */
/* Many buffers as one operation, handles over several groups, barriers that name who is missing,
 * and all of it from several threads at once. Compared with sums over small integers. */
#include "comm/core/comm.h"
#include "comm/core/group.h"
#include "test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/comm.h>
#include <lockstep/store.h>

enum { BUFS = 7 };
static const int64_t counts[BUFS] = {3, 0, 1, 1000, 17, 40000, 5};

static void fill(int32_t *const *bufs, int round)
{
    for (int b = 0; b < BUFS; b++) {
        for (int64_t i = 0; i < counts[b]; i++) {
            bufs[b][i] = 100 * ls_rank() + 7 * b + (int32_t)(i % 11) + round;
        }
    }
}

static void check_sums(int32_t *const *bufs, int round)
{
    const int n = ls_world_size();
    for (int b = 0; b < BUFS; b++) {
        for (int64_t i = 0; i < counts[b]; i++) {
            CHECK_INT(bufs[b][i],
                      100 * (n * (n - 1) / 2) + n * (7 * b + (int32_t)(i % 11) + round));
        }
    }
}

static void sum_and_broadcast(ls_group *group)
{
    int32_t *bufs[BUFS];
    void *lists[BUFS];
    for (int b = 0; b < BUFS; b++) {
        bufs[b] = calloc((size_t)counts[b] + 1, sizeof **bufs);
        lists[b] = bufs[b];
        CHECK(bufs[b] != NULL);
    }
    for (int round = 0; round < 4; round++) {
        ls_work *work = NULL;
        fill(bufs, round);
        CHECK_OK(ls_all_reduce_many(group, lists, counts, BUFS, LS_INT32, LS_SUM, NULL,
                                    round % 2 == 0 ? &work : NULL));
        if (work != NULL) {
            CHECK_OK(ls_work_wait(work));
        }
        check_sums(bufs, round);
        const int root = round % ls_world_size();
        fill(bufs, round);
        CHECK_OK(ls_broadcast_many(group, lists, counts, BUFS, LS_INT32, root, NULL, NULL));
        for (int b = 0; b < BUFS; b++) {
            for (int64_t i = 0; i < counts[b]; i++) {
                CHECK_INT(bufs[b][i], 100 * root + 7 * b + (int32_t)(i % 11) + round);
            }
        }
    }
    for (int b = 0; b < BUFS; b++) {
        free(bufs[b]);
    }
}

DIST_TEST(many_buffers_are_one_operation_1, 1)
{
    sum_and_broadcast(ls_world());
}

DIST_TEST(many_buffers_are_one_operation_3, 3)
{
    sum_and_broadcast(ls_world());
}

DIST_TEST(many_buffers_are_one_operation_8, 8)
{
    sum_and_broadcast(ls_world());
}

DIST_TEST(many_adjacent_buffers_need_no_pack_and_few_scattered_ones_take_one_launch, 2)
{
    int32_t x[10] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    ls_counters before = {.size = sizeof before}, after = {.size = sizeof after};
    CHECK_OK(ls_group_get_counters(ls_world(), &before));
    CHECK_OK(ls_all_reduce_many(ls_world(), (void *[]){x, x + 4}, (int64_t[]){4, 6}, 2, LS_INT32,
                                LS_SUM, NULL, NULL));
    CHECK(ls__list_empty(&ls_world()->packs));
    CHECK_OK(ls_all_reduce_many(ls_world(), (void *[]){x + 4, x}, (int64_t[]){6, 4}, 2, LS_INT32,
                                LS_SUM, NULL, NULL));
    CHECK(!ls__list_empty(&ls_world()->packs));
    CHECK_OK(ls_all_reduce_many(ls_world(), NULL, NULL, 0, LS_INT32, LS_SUM, NULL, NULL));
    CHECK_OK(ls_group_get_counters(ls_world(), &after));
    CHECK_INT(after.operations - before.operations, 3);
    for (int i = 0; i < 10; i++) {
        CHECK_INT(x[i], 4);
    }
}

DIST_TEST(lists_of_other_counts_are_told, 2)
{
    int32_t x[8] = {0};
    ls_group *group = NULL;
    const int64_t own[2] = {ls_rank() == 0 ? 2 : 3, ls_rank() == 0 ? 3 : 2}; /* as many in all */
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "lists", &group));
    CHECK_STATUS(
        ls_all_reduce_many(group, (void *[]){x, x + 4}, own, 2, LS_INT32, LS_SUM, NULL, NULL),
        LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "give every rank the same list of counts");
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

/* ---- round robin -------------------------------------------------------------------------- */

static ls_group *handle_over(ls_group **groups, int count)
{
    ls_group *handle = NULL;
    for (int i = 0; i < count; i++) {
        CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &groups[i]));
    }
    CHECK_OK(ls_group_round_robin(groups, count, "turns", &handle));
    return handle;
}

DIST_TEST(a_handle_over_several_groups_takes_them_in_turn, 3)
{
    ls_group *groups[3] = {NULL}, *handle = handle_over(groups, 3), *made = NULL;
    int32_t x[7], sent = 5 + ls_rank(), got = 0;
    ls_work *work[7], *letter = NULL;
    CHECK_INT(ls_group_size(handle), 3);
    for (int i = 0; i < 7; i++) {
        x[i] = i + ls_rank();
        CHECK_OK(ls_all_reduce(handle, &x[i], &x[i], 1, LS_INT32, LS_SUM, NULL, &work[i]));
    }
    for (int i = 6; i >= 0; i--) {
        CHECK_OK(ls_work_wait(work[i]));
        CHECK_INT(x[i], 3 * i + 3);
    }
    for (int g = 0; g < 3; g++) {
        CHECK_INT(groups[g]->sequence, g == 0 ? 3 : 2);
    }
    CHECK_OK(ls_send(handle, &sent, 1, LS_INT32, (ls_rank() + 1) % 3, 0, NULL, &letter));
    CHECK_OK(ls_recv(handle, &got, 1, LS_INT32, (ls_rank() + 2) % 3, 0, NULL, NULL));
    CHECK_OK(ls_work_wait(letter));
    CHECK_INT(got, 5 + (ls_rank() + 2) % 3);
    sum_and_broadcast(handle);
    CHECK_OK(ls_group_new(handle, NULL, 0, "copy", &made));
    CHECK_OK(ls_barrier(made, NULL, NULL));
    CHECK_OK(ls_group_free(made));
    CHECK_OK(ls_group_status(handle));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* all have looked */
    if (ls_rank() == 1) {
        CHECK_OK(ls_group_abort(handle, "enough"));
    }
    while (ls_group_status(handle) == LS_OK) {
    }
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(ls_barrier(handle, NULL, NULL), LS_ERR_ABORTED);
    }
    CHECK_OK(ls_group_free(handle));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

/* ---- monitored barrier -------------------------------------------------------------------- */

DIST_TEST(a_monitored_barrier_names_all_who_do_not_come, 5)
{
    ls_group *group = NULL;
    int64_t unused = 0;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "watched", &group));
    CHECK_OK(ls_monitored_barrier(group, 30000, NULL));
    if (ls_rank() == 0 || ls_rank() == 3) {
        CHECK_STATUS(ls_monitored_barrier(group, 700, NULL), LS_ERR_TIMEOUT);
        CHECK_CONTAINS(ls_error_message(),
                       "monitored barrier #2 on group \"watched\": 3 of 5 ranks");
        CHECK_CONTAINS(ls_error_message(), "did not come within");
        CHECK_CONTAINS(ls_error_message(), " s: 1-2, 4 (");
        CHECK_OK(ls_store_add(ls_runtime_store(), ls_rank() == 0 ? "a" : "b", 1, &unused, -1));
    }
    CHECK_OK(ls_store_wait(ls_runtime_store(), "a", -1));
    CHECK_OK(ls_store_wait(ls_runtime_store(), "b", -1));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

DIST_TEST(a_monitored_barrier_matches_no_other, 2)
{
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "watched", &group));
    CHECK_STATUS(ls_rank() == 0 ? ls_barrier(group, NULL, NULL)
                                : ls_monitored_barrier(group, 30000, NULL),
                 LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "call ls_monitored_barrier on all ranks");
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

/* ---- threads ------------------------------------------------------------------------------ */

typedef struct worker {
    ls_runtime *runtime;
    ls_group *group;
    int index;
    int wrong;
} worker;

/* Sums, objects, scattered buffers and letters on a group of the thread's own. */
static void *work_alone(void *arg)
{
    worker *w = arg;
    const int n = ls_group_size(w->group), me = ls_group_rank(w->group);
    w->wrong += ls_runtime_attach(w->runtime) != LS_OK;
    for (int i = 0; i < 25 && w->wrong == 0; i++) {
        int32_t x = me + i, y[2] = {1, 2}, out = 10 * me + i, in = -1;
        ls_work *work[3];
        ls_bytes *list = NULL;
        w->wrong += ls_send(w->group, &out, 1, LS_INT32, (me + 1) % n, 2, NULL, &work[0]) != LS_OK;
        w->wrong += ls_all_reduce(w->group, &x, &x, 1, LS_INT32, LS_SUM, NULL, &work[1]) != LS_OK;
        w->wrong += ls_all_reduce_many(w->group, (void *[]){&y[1], &y[0]}, (int64_t[]){1, 1}, 2,
                                       LS_INT32, LS_SUM, NULL, &work[2]) != LS_OK;
        w->wrong += ls_recv_any(w->group, &in, 1, LS_INT32, 2, NULL, NULL) != LS_OK;
        for (int k = 0; k < 3; k++) {
            w->wrong += ls_work_wait(work[k]) != LS_OK;
        }
        w->wrong += x != n * i + n * (n - 1) / 2 || y[0] != n || y[1] != 2 * n;
        w->wrong += in != 10 * ((me + n - 1) % n) + i;
        w->wrong += ls_all_gather_bytes(w->group, &out, sizeof out, NULL, &list) != LS_OK ||
                    memcmp(list[n - 1].data, (int32_t[]){10 * (n - 1) + i}, sizeof out) != 0;
        ls_bytes_free(list);
    }
    (void)ls_runtime_attach(NULL);
    return NULL;
}

static void four_threads(void)
{
    pthread_t thread[4];
    worker w[4];
    for (int t = 0; t < 4; t++) {
        w[t] = (worker){.runtime = ls_runtime_current(), .index = t};
        CHECK_OK(ls_group_split(ls_world(), t < 2 ? 0 : ls_rank() % 2, t, NULL, &w[t].group));
    }
    for (int t = 0; t < 4; t++) {
        CHECK(pthread_create(&thread[t], NULL, work_alone, &w[t]) == 0);
    }
    for (int t = 0; t < 4; t++) {
        CHECK(pthread_join(thread[t], NULL) == 0);
        CHECK_INT(w[t].wrong, 0);
        CHECK_OK(ls_group_free(w[t].group));
    }
}

DIST_TEST(four_threads_use_four_groups_at_once_2, 2)
{
    four_threads();
}

DIST_TEST(four_threads_use_four_groups_at_once_6, 6)
{
    four_threads();
}

TEST_MAIN
