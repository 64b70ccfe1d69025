/* SPDX-License-Identifier: Apache-2.0 */
/* Handles: waiting for a while, callbacks of the user's, giving operations up. */
#include "says.h"
#include "test.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include <lockstep/comm.h>
#include <lockstep/store.h>

static int64_t unused;

static void tell(const char *key)
{
    CHECK_OK(ls_store_add(ls_runtime_store(), key, 1, &unused, -1));
}

static void hear(const char *key)
{
    CHECK_OK(ls_store_wait(ls_runtime_store(), key, -1));
}

static double now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

DIST_TEST(a_wait_for_a_while_ends_in_time_and_the_handle_lives_on, 3)
{
    int32_t x = 1;
    ls_work *work = NULL;
    if (ls_rank() == 2) {
        hear("waited0");
        hear("waited1");
    }
    CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, LS_SUM, NULL, &work));
    if (ls_rank() != 2) {
        const double began = now_ms();
        CHECK_INT(ls_work_wait_for(work, 0), LS_IN_PROGRESS);
        CHECK_INT(ls_work_wait_for(work, 30), LS_IN_PROGRESS);
        CHECK(now_ms() - began >= 30);
        CHECK_INT(ls_work_test(work), LS_IN_PROGRESS);
        tell(ls_rank() == 0 ? "waited0" : "waited1");
    }
    CHECK_OK(ls_work_wait_for(work, 50000)); /* releases it */
    CHECK_INT(x, 3);
}

DIST_TEST(a_second_wait_is_refused, 2)
{
    int32_t x = 1;
    ls_work *work = NULL;
    CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, LS_SUM, NULL, &work));
    CHECK_OK(ls_work_wait(work));
    CHECK_STATUS(ls_work_wait(work), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "%s: a wait has released this handle already; wait once for each operation");
    CHECK_STATUS(ls_work_wait_for(work, 0), LS_ERR_INVALID);
    CHECK_STATUS(ls_work_test(work), LS_ERR_INVALID);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

DIST_TEST(an_ended_operation_needs_no_time, 2)
{
    for (int i = 0; i < 50; i++) {
        int32_t x = 1;
        ls_work *work = NULL;
        CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, LS_SUM, NULL, &work));
        while (ls_work_test(work) == LS_IN_PROGRESS) {
        }
        CHECK_OK(ls_work_wait_for(work, 0));
        CHECK_INT(x, 2);
    }
}

/* A thread that waits for a while is not stuck: it may do what its peer waits for. */
DIST_TEST(a_wait_for_a_while_is_no_deadlock, 2)
{
    int32_t x = 1, y = 2;
    ls_group *a = NULL, *b = NULL;
    ls_work *work = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "a", &a));
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "b", &b));
    if (ls_rank() == 0) {
        CHECK_OK(ls_all_reduce(a, &x, &x, 1, LS_INT32, LS_SUM, NULL, &work));
        CHECK_INT(ls_work_wait_for(work, 2500), LS_IN_PROGRESS); /* a circle is told after 1.5 s */
        CHECK_OK(ls_all_reduce(b, &y, &y, 1, LS_INT32, LS_SUM, NULL, NULL));
        CHECK_OK(ls_work_wait(work));
    } else {
        CHECK_OK(ls_all_reduce(b, &y, &y, 1, LS_INT32, LS_SUM, NULL, NULL));
        CHECK_OK(ls_all_reduce(a, &x, &x, 1, LS_INT32, LS_SUM, NULL, NULL));
    }
    CHECK_INT(x, 2);
    CHECK_INT(y, 4);
    CHECK_OK(ls_group_free(b));
    CHECK_OK(ls_group_free(a));
}

/* ---- callbacks ---------------------------------------------------------------------------- */

typedef struct heard {
    _Atomic int calls;
    ls_status status;
    int32_t *value;
    int32_t seen;
} heard;

static void note(void *arg, ls_status status)
{
    heard *h = arg;
    h->status = status;
    h->seen = h->value != NULL ? *h->value : 0;
    atomic_fetch_add(&h->calls, 1);
}

DIST_TEST(a_callback_runs_once_with_the_result_in_place, 4)
{
    for (int i = 0; i < 200; i++) {
        int32_t x = 1;
        heard h = {.value = &x, .status = LS_ERR_INTERNAL};
        ls_work *work = NULL;
        CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, LS_SUM, NULL, &work));
        for (int k = 0; i % 2 == 1 && k < 1000 && ls_work_test(work) == LS_IN_PROGRESS; k++) {
        }
        CHECK_OK(ls_work_on_done(work, note, &h)); /* perhaps before, perhaps after the end */
        CHECK_OK(ls_work_wait(work));
        CHECK_INT(atomic_load(&h.calls), 1);
        CHECK_INT(h.status, LS_OK);
        CHECK_INT(h.seen, 4);
    }
}

DIST_TEST(a_callback_set_after_the_end_runs_at_once, 2)
{
    int32_t x = 1;
    heard h = {.value = &x}, again = {0};
    ls_work *work = NULL;
    CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, LS_SUM, NULL, &work));
    while (ls_work_test(work) == LS_IN_PROGRESS) {
    }
    CHECK_OK(ls_work_on_done(work, note, &h));
    CHECK_INT(atomic_load(&h.calls), 1);
    CHECK_STATUS(ls_work_on_done(work, note, &again), LS_ERR_STATE);
    CHECK_OK(ls_work_wait(work));
    CHECK_INT(atomic_load(&again.calls), 0);
}

/* Nobody waits: the engine's own thread tells. */
DIST_TEST(a_callback_needs_nobody_who_waits, 2)
{
    int32_t x = 1;
    heard h = {.value = &x};
    ls_work *work = NULL;
    CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, LS_SUM, NULL, &work));
    CHECK_OK(ls_work_on_done(work, note, &h));
    while (atomic_load(&h.calls) == 0) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    CHECK_INT(h.seen, 2);
    CHECK_OK(ls_work_wait(work));
}

typedef struct chain {
    int32_t x;
    int left;
    _Atomic int ended;
    ls_work *work[64];
} chain;

static void go_on(void *arg, ls_status status)
{
    chain *c = arg;
    if (status != LS_OK || c->left == 0) {
        atomic_store(&c->ended, status == LS_OK ? 1 : -1);
        return;
    }
    ls_work **work = &c->work[--c->left];
    const bool good =
        ls_all_reduce(ls_world(), &c->x, &c->x, 1, LS_INT32, LS_SUM, NULL, work) == LS_OK &&
        ls_work_on_done(*work, go_on, c) == LS_OK;
    if (!good) {
        atomic_store(&c->ended, -1);
    }
}

DIST_TEST(a_callback_may_start_the_next_operation, 2)
{
    chain c = {.x = 1, .left = 20};
    ls_work *first = NULL;
    CHECK_OK(ls_all_reduce(ls_world(), &c.x, &c.x, 1, LS_INT32, LS_SUM, NULL, &first));
    CHECK_OK(ls_work_on_done(first, go_on, &c));
    CHECK_OK(ls_work_wait(first));
    while (atomic_load(&c.ended) == 0) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    CHECK_INT(atomic_load(&c.ended), 1);
    for (int i = 0; i < 20; i++) {
        CHECK_OK(ls_work_wait(c.work[i]));
    }
    CHECK_INT(c.x, 1 << 21);
}

/* ---- giving up ---------------------------------------------------------------------------- */

DIST_TEST(an_abort_fails_the_group_on_all_ranks_and_tells_callbacks, 3)
{
    int32_t x = 1, y = 1;
    heard h = {0};
    ls_group *group = NULL;
    ls_work *work = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "left alone", &group));
    if (ls_rank() == 1) {
        CHECK_OK(ls_all_reduce(group, &x, &x, 1, LS_INT32, LS_SUM,
                               LS_OPTIONS(ls_collective_options, .tag = "loss"), &work));
        CHECK_OK(ls_work_on_done(work, note, &h));
        CHECK_OK(ls_work_abort(work, "nobody comes"));
        CHECK_STATUS(ls_work_wait(work), LS_ERR_ABORTED);
        CHECK_INT(atomic_load(&h.calls), 1);
        CHECK_INT(h.status, LS_ERR_ABORTED);
        tell("aborted");
    }
    hear("aborted");
    CHECK_STATUS(ls_all_reduce(group, &y, &y, 1, LS_INT32, LS_SUM, NULL, NULL), LS_ERR_ABORTED);
    CHECK_STR(ls_error_message(), "all_reduce #1 (loss) on group \"left alone\" was aborted by "
                                  "rank 1: nobody comes");
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* the world lives */
    (void)ls_group_free(group);
}

DIST_TEST(an_abort_of_what_has_ended_does_nothing, 2)
{
    int32_t x = 1;
    ls_work *work = NULL;
    CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, LS_SUM, NULL, &work));
    while (ls_work_test(work) == LS_IN_PROGRESS) {
    }
    CHECK_OK(ls_work_abort(work, "too late"));
    CHECK_OK(ls_work_wait(work));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

/* A handle that timed out may be waited for by another thread. */
static void *wait_behind(void *arg)
{
    void **args = arg;
    if (ls_runtime_attach(args[0]) == LS_OK && ls_work_wait(args[1]) == LS_OK) {
        args[2] = NULL;
    }
    return NULL;
}

DIST_TEST(another_thread_may_go_on_waiting, 2)
{
    int32_t x = 1;
    ls_work *work = NULL;
    if (ls_rank() == 0) {
        pthread_t thread;
        CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, LS_SUM, NULL, &work));
        CHECK_INT(ls_work_wait_for(work, 5), LS_IN_PROGRESS);
        void *args[] = {ls_runtime_current(), work, work};
        CHECK(pthread_create(&thread, NULL, wait_behind, args) == 0);
        tell("handed over");
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(args[2] == NULL);
    } else {
        hear("handed over");
        CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, LS_SUM, NULL, NULL));
    }
    CHECK_INT(x, 2);
}

static _Atomic int called;

static void count_call(void *arg)
{
    atomic_fetch_add((_Atomic int *)arg, 1);
}

static void *tell_when_called(void *runtime)
{
    CHECK_OK(ls_runtime_attach(runtime));
    while (atomic_load(&called) < 3) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    tell("called");
    CHECK_OK(ls_runtime_attach(NULL));
    return NULL;
}

/* Rank 1 comes to the barrier only when rank 0 has been called there. */
DIST_TEST(a_thread_that_waits_calls_the_users_callback, 2)
{
    if (ls_rank() == 0) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, tell_when_called, ls_runtime_current()) == 0);
        ls_set_wait_callback(count_call, &called);
        CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
        CHECK(pthread_join(thread, NULL) == 0);
        ls_set_wait_callback(NULL, NULL);
        atomic_store(&called, 0);
    } else {
        hear("called");
        CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
        (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    CHECK_INT(atomic_load(&called), 0);
}

/* ---- one thread submits, another waits ------------------------------------------------------ */

enum { OPEN = 100 };

typedef struct ring {
    ls_work *work[OPEN];
    int32_t value[OPEN];
    _Atomic int submitted, waited;
} ring;
static ring shared;

/* Without the lock of announcements half of the runs of 200,000 failed. */
static int submissions(void)
{
    return getenv("LOCKSTEP_HOSTS") != NULL ? 5000 : 500000;
}

static void *wait_for_all(void *runtime)
{
    const int count = submissions();
    CHECK_OK(ls_runtime_attach(runtime));
    for (int i = 0; i < count; i++) {
        while (atomic_load(&shared.submitted) <= i) {
            sched_yield();
        }
        CHECK_OK(ls_work_wait(shared.work[i % OPEN]));
        CHECK_INT(shared.value[i % OPEN], 2 * i + 1);
        atomic_store(&shared.waited, i + 1);
    }
    CHECK_OK(ls_runtime_attach(NULL));
    return NULL;
}

/* More handles are open than announcements have room, so both threads announce. */
DIST_TEST(one_thread_submits_while_another_waits, 2)
{
    const int count = submissions();
    pthread_t waiter;
    CHECK(pthread_create(&waiter, NULL, wait_for_all, ls_runtime_current()) == 0);
    for (int i = 0; i < count; i++) {
        int32_t *x = &shared.value[i % OPEN];
        while (i - atomic_load(&shared.waited) >= OPEN) {
            sched_yield();
        }
        *x = i + ls_rank();
        CHECK_OK(
            ls_all_reduce(ls_world(), x, x, 1, LS_INT32, LS_SUM, NULL, &shared.work[i % OPEN]));
        atomic_store(&shared.submitted, i + 1);
    }
    CHECK(pthread_join(waiter, NULL) == 0);
}

TEST_MAIN
