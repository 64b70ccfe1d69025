/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that wait for each other in a circle are named within seconds, on all of them, and slow
 * ranks are not. Of ranks that wait in a row the last one is named at the deadline. */
#include "comm/core/comm.h"
#include "comm/core/group.h"
#include "says.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

#include <lockstep/comm.h>
#include <lockstep/store.h>

static ls_group *group_of(const int *ranks, int count, const char *name)
{
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), ranks, count, name, &group));
    return group;
}

static ls_status waits(ls_group *group, int line)
{
    float x = 1;
    ls_site_set("train.c", line);
    return ls_all_reduce(group, &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, NULL);
}

static void pause_ms(int64_t ms)
{
    const ls__env *env = ls_world()->comm->env;
    env->sleep_until(env, env->now_ns(env) + (uint64_t)ms * 1000000u);
}

/* All ranks in the circle read the same words. */
static void same_text(const char *text, int ranks)
{
    char mine[1024] = "", all[8][1024];
    snprintf(mine, sizeof mine, "%s", text);
    CHECK_OK(ls_all_gather(ls_world(), mine, all, sizeof mine, LS_UINT8, NULL, NULL));
    for (int r = 0; r < ranks; r++) {
        CHECK(strcmp(all[r], all[0]) == 0);
    }
}

static void told_in_time(ls_status status, double begin)
{
    CHECK_STATUS(status, LS_ERR_MISMATCH);
    CHECK_WITHIN(ls_time() - begin, 3);
    CHECK_CONTAINS(ls_error_message(), "deadlock: rank 0 waits in ");
    CHECK_CONTAINS(ls_error_message(), "; call the operations of all groups in the same order");
}

static void groups_in_another_order(void)
{
    ls_group *group[2] = {group_of(NULL, 0, "a"), group_of(NULL, 0, "b")};
    const double begin = ls_time();
    told_in_time(waits(group[ls_rank()], 10 + ls_rank()), begin);
    CHECK_CONTAINS(ls_error_message(),
                   "rank 0 waits in all_reduce #1 on group \"a\" at train.c:10 (host ");
    CHECK_CONTAINS(
        ls_error_message(),
        ") for rank 1, rank 1 waits in all_reduce #1 on group \"b\" at train.c:11 (host ");
    CHECK_CONTAINS(ls_error_message(), ") for rank 0;");
    same_text(ls_error_message(), 2);
    CHECK_OK(waits(group_of(NULL, 0, "c"), 1)); /* the process goes on */
    CHECK_STATUS(waits(group[1 - ls_rank()], 1), LS_ERR_MISMATCH);
}

DIST_TEST(groups_called_in_another_order_are_a_named_deadlock, 2)
{
    groups_in_another_order();
    groups_in_another_order(); /* and again, after the first was found */
}

DIST_TEST(a_circle_of_three_pairs_is_named, 3)
{
    const int pair[3][2] = {{0, 1}, {1, 2}, {0, 2}};
    ls_group *group[3];
    for (int i = 0; i < 3; i++) {
        group[i] = group_of(pair[i], 2, "pair");
    }
    const double begin = ls_time();
    told_in_time(waits(group[ls_rank()], 20 + ls_rank()), begin);
    CHECK_CONTAINS(ls_error_message(), "at train.c:20 (host ");
    CHECK_CONTAINS(ls_error_message(), ") for rank 1, rank 1 waits");
    CHECK_CONTAINS(ls_error_message(), ") for rank 2, rank 2 waits");
    same_text(ls_error_message(), 3);
}

/* Of a long path the end is told, since a file's own name matters; and where the names of a circle
 * do not all fit, the remedy does. */
DIST_TEST(a_report_with_long_names_keeps_the_ends_of_paths_and_the_remedy, 4)
{
    static const char *const path =
        "/a/folder/with/a/long/name/in/another/folder/with/a/long/name/and/so/on/model.c";
    static const char *const tag =
        "the gradients of the embedding, the attention and the last layers of the second stage";
    const int pair[4][2] = {{0, 1}, {1, 2}, {2, 3}, {0, 3}};
    float x = 1;
    char kept[LS__FILE_MAX + 16];
    ls_group *group[4];
    for (int i = 0; i < 4; i++) {
        group[i] = group_of(pair[i], 2, "a group whose name is long, too");
    }
    const double begin = ls_time();
    ls_site_set(path, 70 + ls_rank());
    told_in_time(ls_all_reduce(group[ls_rank()], &x, &x, 1, LS_FLOAT32, LS_SUM,
                               LS_OPTIONS(ls_collective_options, .tag = tag), NULL),
                 begin);
    snprintf(kept, sizeof kept, " at %s:70 (host ", path + strlen(path) - (LS__FILE_MAX - 1));
    CHECK_CONTAINS(ls_error_message(), kept);
    CHECK(strlen(ls_error_message()) > LS__FAILURE_MAX - 10); /* it was cut */
    CHECK(strlen(ls_error_message()) < LS__FAILURE_MAX);
    CHECK_CONTAINS(ls_error_message(), " or start them with a work handle and wait later");
    same_text(ls_error_message(), 4);
}

DIST_TEST(a_receive_whose_send_comes_after_a_collective_is_a_deadlock, 2)
{
    float x = 1;
    ls_group *group = group_of(NULL, 0, "p2p"), *other = group_of(NULL, 0, "dp");
    const double begin = ls_time();
    ls_site_set("pipe.c", 30 + ls_rank());
    if (ls_rank() == 0) {
        told_in_time(ls_recv(group, &x, 1, LS_FLOAT32, 1, 7, NULL, NULL), begin);
    } else {
        told_in_time(ls_barrier(other, NULL, NULL), begin);
    }
    CHECK_CONTAINS(ls_error_message(),
                   "rank 0 waits in recv with tag 7 on group \"p2p\" at pipe.c:30 (host ");
    CHECK_CONTAINS(ls_error_message(),
                   "rank 1 waits in barrier #1 on group \"dp\" at pipe.c:31 (host ");
}

DIST_TEST(a_send_with_another_tag_than_the_receive_is_a_deadlock, 2)
{
    static float x[100000];
    ls_group *group = group_of(NULL, 0, "p2p");
    for (int large = 0; large < 2; large++) {
        ls_group *g = large ? group_of(NULL, 0, "large") : group;
        const int64_t count = large ? 100000 : 1;
        const double begin = ls_time();
        ls_site_set("pipe.c", 40 + ls_rank());
        told_in_time(ls_rank() == 0 ? ls_recv(g, x, count, LS_FLOAT32, 1, 5, NULL, NULL)
                                    : ls_send(g, x, count, LS_FLOAT32, 0, 6, NULL, NULL),
                     begin);
        CHECK_CONTAINS(ls_error_message(), "rank 0 waits in recv with tag 5");
        CHECK_CONTAINS(ls_error_message(), "rank 1 waits in send with tag 6");
        CHECK_CONTAINS(ls_error_message(), "at pipe.c:40 (host ");
        CHECK_CONTAINS(ls_error_message(), "at pipe.c:41 (host ");
    }
}

/* An operation that another rank has only started, and waits elsewhere, is no obstacle. */
DIST_TEST(operations_in_flight_do_not_hide_a_deadlock, 4)
{
    static float x[8][50000];
    ls_work *work[8];
    ls_group *flight = group_of(NULL, 0, "flight");
    ls_group *group[2] = {group_of(NULL, 0, "a"), group_of(NULL, 0, "b")};
    for (int i = 0; i < (ls_rank() == 3 ? 0 : 8); i++) {
        CHECK_OK(ls_all_reduce(flight, x[i], x[i], 50000, LS_FLOAT32, LS_SUM, NULL, &work[i]));
    }
    const double begin = ls_time();
    told_in_time(waits(group[ls_rank() % 2], 50 + ls_rank()), begin);
    if (ls_rank() == 3) {
        for (int i = 0; i < 8; i++) {
            CHECK_OK(ls_all_reduce(flight, x[i], x[i], 50000, LS_FLOAT32, LS_SUM, NULL, &work[i]));
        }
    }
    for (int i = 0; i < 8; i++) {
        CHECK_OK(ls_work_wait(work[i]));
    }
}

/* Every rank waits longer than it takes to judge, for one that will come. */
DIST_TEST(ranks_that_are_slow_are_not_taken_for_a_deadlock, 3)
{
    const int pair[2] = {0, 1};
    float x = 1, y = 1, z = 1;
    ls_work *first = NULL, *second = NULL, *letter = NULL;
    ls_group *a = group_of(NULL, 0, "a"), *b = group_of(pair, 2, "b"), *p = group_of(NULL, 0, "p");
    if (ls_rank() == 2) {
        pause_ms(1600); /* the others wait for it, and for nobody else */
        CHECK_OK(waits(a, 1));
        pause_ms(1600);
        CHECK_OK(ls_send(p, &x, 1, LS_FLOAT32, 0, 1, NULL, NULL));
    } else if (ls_rank() == 0) {
        CHECK_OK(ls_recv(p, &z, 1, LS_FLOAT32, 2, 1, NULL, &letter));
        CHECK_OK(ls_all_reduce(a, &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, &first));
        CHECK_OK(ls_all_reduce(b, &y, &y, 1, LS_FLOAT32, LS_SUM, NULL, &second));
        CHECK_OK(ls_work_wait(letter));
        CHECK_OK(ls_work_wait(second));
        CHECK_OK(ls_work_wait(first));
    } else {
        CHECK_OK(ls_all_reduce(b, &y, &y, 1, LS_FLOAT32, LS_SUM, NULL, &second));
        CHECK_OK(waits(a, 1));
        CHECK_OK(ls_work_wait(second));
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

typedef struct helper {
    ls_runtime *runtime;
    ls_group *group;
    ls_status status;
} helper;

static void calls_late(void *arg)
{
    helper *h = arg;
    float x = 1;
    h->runtime->env->sleep_until(h->runtime->env,
                                 h->runtime->env->now_ns(h->runtime->env) + 1800000000u);
    h->status = ls_all_reduce(h->group, &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, NULL);
    (void)ls_runtime_attach(NULL);
}

static _Atomic int attached;

static void attaches(void *arg)
{
    helper *h = arg;
    CHECK_OK(ls_runtime_attach(h->runtime));
    atomic_store(&attached, 1);
    calls_late(h);
}

/* Rank 0's main thread waits in "a", rank 1's in "b"; another thread of rank 0 comes to "b". */
DIST_TEST(a_thread_that_is_yet_to_call_is_waited_for, 2)
{
    const ls__env *env = ls_world()->comm->env;
    ls_group *group[2] = {group_of(NULL, 0, "a"), group_of(NULL, 0, "b")};
    helper h = {ls_runtime_current(), group[1], LS_OK};
    ls__env_thread *thread = NULL;
    if (ls_rank() == 0) {
        CHECK(env->thread_start(env, "helper", attaches, &h, &thread) == 0);
        while (atomic_load(&attached) == 0) {
            env->yield(env);
        }
        CHECK_OK(waits(group[0], 1));
        env->thread_join(env, thread);
        CHECK_OK(h.status);
    } else {
        CHECK_OK(waits(group[1], 1));
        CHECK_OK(waits(group[0], 1));
    }
}

/* Each rank waits for the one before it, and rank 0 for nobody. The deadline of the last rank
 * passes first; `links` is what it says of the ranks between. */
static void follow_chain(const char *links)
{
    float x = 0;
    const int last = ls_world_size() - 1;
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "chain", &group));
    if (ls_rank() > 0) {
        const int64_t timeout_ms = ls_rank() == last ? 1500 : 60000;
        CHECK_STATUS(ls_recv(group, &x, 1, LS_FLOAT32, ls_rank() - 1, 0,
                             LS_OPTIONS(ls_collective_options, .timeout_ms = timeout_ms), NULL),
                     LS_ERR_TIMEOUT);
        CHECK_SAYS(ls_error_message(), links);
        CHECK_CONTAINS(ls_error_message(), " rank 0: rank 0 (host ");
    }
    if (ls_rank() == last) {
        CHECK_OK(ls_store_set(ls_runtime_store(), "told", "", 1, -1));
    } else if (ls_rank() == 0) {
        CHECK_OK(ls_store_wait(ls_runtime_store(), "told", -1));
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

DIST_TEST(a_chain_of_waits_is_followed_to_the_rank_that_waits_for_none, 3)
{
    follow_chain(SAYS("; it waits for"));
}

DIST_TEST(of_a_long_chain_the_first_ranks_and_the_last_are_named, 7)
{
    follow_chain(SAYS(", and so on to"));
    if (ls_rank() > 0) {
        CHECK_CONTAINS(ls_error_message(),
                       ": rank 5 has not called its side; it waits for rank 4, which "
                       "waits for rank 3, which waits for rank 2, and so on to "
                       "rank 0: ");
    }
}

TEST_MAIN
