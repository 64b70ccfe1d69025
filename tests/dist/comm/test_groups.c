/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: parts of the world, many at once, operations in flight on several of them from several
 * threads, callbacks that start the next operation, and nothing allocated in a steady state. */
#include "says.h"
#include "test.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include <lockstep/comm.h>
#include <lockstep/store.h>

#include "comm/algorithm/registry.h"
#include "comm/api/collective.h"
#include "comm/core/collective.h"
#include "comm/core/group.h"
#include "comm/engine/engine.h"
#include "comm/memory/control.h"
#include "comm/runtime/init.h"

TEST_SETTING(tune, "LOCKSTEP_TUNE", "off") /* what is counted here is the operations' own */

typedef struct worker {
    ls_runtime *runtime;
    ls_group *group;
    int index;
    int wrong;
} worker;

static int64_t sum_over(const int *ranks, int count)
{
    int64_t sum = 0;
    for (int i = 0; i < count; i++) {
        sum += ranks[i] + 1;
    }
    return sum;
}

/* All-reduces world rank + 1 over the group and compares. */
static void check_group(ls_group *group, const int *ranks, int count)
{
    int64_t x = ls_rank() + 1;
    CHECK_INT(ls_group_size(group), count);
    CHECK_INT(ranks[ls_group_rank(group)], ls_rank());
    CHECK_OK(ls_all_reduce(group, &x, &x, 1, LS_INT64, LS_SUM, NULL, NULL));
    CHECK_INT(x, sum_over(ranks, count));
}

DIST_TEST(groups_of_some_ranks_see_only_those, 5)
{
    static const int even[] = {0, 2, 4}, back[] = {4, 3, 1}, one[] = {2};
    const struct {
        const int *ranks;
        int count;
    } lists[] = {{even, 3}, {back, 3}, {one, 1}};
    ls_group *group[3] = {NULL};
    for (int g = 0; g < 3; g++) {
        CHECK_OK(ls_group_new(ls_world(), lists[g].ranks, lists[g].count, NULL, &group[g]));
    }
    for (int g = 0; g < 3; g++) {
        bool member = false;
        for (int i = 0; i < lists[g].count; i++) {
            member = member || lists[g].ranks[i] == ls_rank();
        }
        CHECK((group[g] != NULL) == member);
        if (member) {
            check_group(group[g], lists[g].ranks, lists[g].count);
            CHECK_OK(ls_group_free(group[g]));
        }
    }
}

DIST_TEST(groups_can_be_made_from_groups, 4)
{
    static const int upper[] = {3, 2, 1}, world[] = {3, 1}, inner[] = {0, 2};
    ls_group *outer = NULL, *nested = NULL;
    CHECK_OK(ls_group_new(ls_world(), upper, 3, "outer", &outer));
    if (outer != NULL) {
        CHECK_OK(ls_group_new(outer, inner, 2, "nested", &nested));
    }
    CHECK((nested != NULL) == (ls_rank() == 1 || ls_rank() == 3));
    if (nested != NULL) {
        check_group(nested, world, 2);
        CHECK_OK(ls_group_free(nested));
    }
    CHECK_OK(ls_group_free(outer));
}

DIST_TEST(freed_groups_give_their_memory_back, 3)
{
    int blocks = 0;
    ls__comm *comm = ls_world()->comm;
    for (int i = 0; i < 60; i++) {
        ls_group *group = NULL;
        int32_t x = 1;
        CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &group));
        CHECK_OK(ls_all_reduce(group, &x, &x, 1, LS_INT32, LS_SUM, NULL, NULL));
        CHECK_INT(x, 3);
        CHECK_OK(ls_group_free(group));
        blocks = comm->heap.blocks.count > blocks ? comm->heap.blocks.count : blocks;
    }
    CHECK(blocks <= 8); /* a few may wait for slow peers, not sixty */
}

/* Each rank tells its peers in a table of a fixed size which groups it has left. */
DIST_TEST(thousands_of_groups_are_made_while_an_old_one_lives, 2)
{
    const int rounds = getenv("TEST_LONG") != NULL ? 10000 : 1500;
    ls_group *old = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "old", &old));
    for (int i = 0; i < rounds; i++) {
        ls_group *group = NULL;
        int32_t x = 1, y = 2;
        CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &group));
        CHECK_OK(ls_all_reduce(group, &x, &x, 1, LS_INT32, LS_SUM, NULL, NULL));
        CHECK_OK(ls_all_reduce(old, &y, &y, 1, LS_INT32, LS_SUM, NULL, NULL));
        CHECK_INT(x, 2);
        CHECK_INT(y, 4);
        CHECK_OK(ls_group_free(group));
    }
    CHECK_OK(ls_group_free(old));
}

DIST_TEST(more_groups_than_there_is_room_for_are_refused_and_the_rest_lives, 1)
{
    static ls_group *group[LS__GROUP_SLOTS];
    int made = 0;
    ls_status status = LS_OK;
    while (made < LS__GROUP_SLOTS && status == LS_OK) {
        status = ls_group_new(ls_world(), NULL, 0, NULL, &group[made]);
        made += status == LS_OK ? 1 : 0;
    }
    CHECK_STATUS(status, LS_ERR_LIMIT);
    CHECK_CONTAINS(ls_error_message(), "free some");
    CHECK_INT(made, LS__GROUP_SLOTS - 1);
    CHECK_OK(ls_group_free(group[500]));
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &group[500]));
    for (int i = 0; i < made; i++) {
        CHECK_OK(ls_group_free(group[i]));
    }
}

/* A waiter may be late: the handle of an operation outlives the group, its status and text too. */
DIST_TEST(a_handle_may_be_waited_for_after_its_group_was_freed, 2)
{
    for (int i = 0; i < 20; i++) {
        int32_t x = 1, y = 1;
        ls_work *good = NULL, *bad = NULL;
        ls_group *group = NULL;
        CHECK_OK(ls_group_new(ls_world(), NULL, 0, "short", &group));
        CHECK_OK(ls_all_reduce(group, &x, &x, 1, LS_INT32, LS_SUM, NULL, &good));
        CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
        CHECK_OK(ls_recv(group, &y, 1, LS_INT32, 0, 0, NULL, &bad));
        while (ls_work_test(good) == LS_IN_PROGRESS) {
            CHECK_OK(ls_group_status(group)); /* an abort ends what has not ended here */
        }
        CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
        CHECK_OK(ls_group_abort(group, "enough"));
        (void)ls_group_free(group);
        CHECK_OK(ls_work_wait(good));
        CHECK_INT(x, 2);
        CHECK_STATUS(ls_work_wait(bad), LS_ERR_ABORTED);
        CHECK_CONTAINS(ls_error_message(), "group \"short\" was aborted by rank");
        CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    }
}

static void *make_behind(void *arg)
{
    worker *w = arg;
    ls_group *made = NULL;
    w->wrong = ls_runtime_attach(w->runtime) != LS_OK ||
               ls_group_new(w->group, NULL, 0, NULL, &made) != LS_OK ||
               ls_group_free(made) != LS_OK;
    return NULL;
}

DIST_TEST(two_threads_that_make_groups_at_once_are_told_and_so_are_their_peers, 2)
{
    worker w = {.runtime = ls_runtime_current()};
    ls_group *other = NULL, *made = NULL;
    ls_store *store = ls_runtime_store();
    int64_t unused = 0;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "first", &w.group));
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "second", &other));
    if (ls_rank() == 0) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, make_behind, &w) == 0);
        while (atomic_load(&w.group->pending) == 0) {
            ls__env_posix()->yield(ls__env_posix());
        }
        CHECK_STATUS(ls_group_new(other, NULL, 0, NULL, &made), LS_ERR_STATE);
        CHECK_OK(ls_store_add(store, "refused", 1, &unused, -1));
        CHECK(pthread_join(thread, NULL) == 0);
    } else {
        CHECK_OK(ls_store_wait(store, "refused", -1));
        CHECK_STATUS(ls_group_new(other, NULL, 0, NULL, &made), LS_ERR_STATE);
        (void)make_behind(&w);
    }
    CHECK_INT(w.wrong, 0);
    if (ls_rank() == 0) {
        CHECK_SAYS(
            ls_error_message(),
            "ls_group_new on group \"%s\": another thread of rank %d is making a group at this "
            "moment; make groups one after the other, on all ranks in the same order");
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

DIST_TEST(wrong_lists_of_ranks_are_refused_without_waiting, 2)
{
    static const int twice[] = {0, 0}, outside[] = {0, 2};
    ls_group *group = NULL;
    CHECK_STATUS(ls_group_new(ls_world(), twice, 2, NULL, &group), LS_ERR_INVALID);
    CHECK_STATUS(ls_group_new(ls_world(), outside, 2, NULL, &group), LS_ERR_INVALID);
    CHECK_STATUS(ls_group_new(ls_world(), outside, 0, NULL, &group), LS_ERR_INVALID);
    CHECK_STATUS(ls_group_new(NULL, NULL, 0, NULL, &group), LS_ERR_INVALID);
    CHECK_STATUS(ls_group_free(ls_world()), LS_ERR_INVALID);
}

/* ---- many at once ------------------------------------------------------------------------- */

enum { FLIGHTS = 300, LARGE = 50000 };

DIST_TEST(hundreds_of_operations_may_be_in_flight, 4)
{
    static int32_t small[FLIGHTS];
    static int32_t large[3][LARGE];
    static ls_work *work[FLIGHTS];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < FLIGHTS; i++) {
            const bool big = i % 100 == 50;
            int32_t *buf = big ? large[i / 100] : &small[i];
            for (int k = 0; k < (big ? LARGE : 1); k++) {
                buf[k] = ls_rank() + i + k;
            }
            CHECK_OK(ls_all_reduce(ls_world(), buf, buf, big ? LARGE : 1, LS_INT32, LS_SUM, NULL,
                                   &work[i]));
        }
        for (int i = FLIGHTS - 1; i >= 0; i--) { /* waited for in any order */
            CHECK_OK(ls_work_wait(work[i]));
            CHECK_INT(i % 100 == 50 ? large[i / 100][LARGE - 1] : small[i],
                      6 + 4 * (i + (i % 100 == 50 ? LARGE - 1 : 0)));
        }
    }
}

static bool worker_round(worker *w, int32_t *x, int round)
{
    const int64_t count = 1 + (round * 977 + w->index * 131) % 9000;
    for (int64_t k = 0; k < count; k++) {
        x[k] = (int32_t)k + ls_group_rank(w->group) + w->index;
    }
    ls_work *work = NULL;
    ls_status status =
        ls_all_reduce(w->group, x, x, count, LS_INT32, LS_SUM, NULL, round % 2 == 0 ? &work : NULL);
    if (status == LS_OK && work != NULL) {
        status = ls_work_wait(work);
    }
    const int n = ls_group_size(w->group);
    const int32_t want = (int32_t)(n * (count - 1 + w->index) + n * (n - 1) / 2);
    return status == LS_OK && x[count - 1] == want;
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    static _Thread_local int32_t x[9001];
    if (ls_runtime_attach(w->runtime) != LS_OK) {
        w->wrong = -1;
        return NULL;
    }
    for (int round = 0; round < 60; round++) {
        w->wrong += worker_round(w, x, round) ? 0 : 1;
    }
    (void)ls_runtime_attach(NULL);
    return NULL;
}

static void threads_and_groups(void)
{
    enum { THREADS = 3 };
    worker workers[THREADS];
    pthread_t thread[THREADS];
    int32_t x = 0;
    for (int t = 0; t < THREADS; t++) {
        workers[t] = (worker){.runtime = ls_runtime_current(), .index = t};
        CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &workers[t].group));
    }
    for (int t = 0; t < THREADS; t++) {
        CHECK(pthread_create(&thread[t], NULL, worker_main, &workers[t]) == 0);
    }
    for (int i = 0; i < 100; i++) {
        CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, LS_MAX, NULL, NULL));
    }
    for (int t = 0; t < THREADS; t++) {
        CHECK(pthread_join(thread[t], NULL) == 0);
        CHECK_INT(workers[t].wrong, 0);
        CHECK_OK(ls_group_free(workers[t].group));
    }
}

DIST_TEST(threads_may_use_groups_of_their_own_at_the_same_time, 2)
{
    threads_and_groups();
}

DIST_TEST(threads_of_four_ranks_share_two_cores, 4)
{
    threads_and_groups();
}

/* ---- sleepers ----------------------------------------------------------------------------- */

static _Thread_local bool slept, rung; /* this thread, and whether something ended its last sleep */
static ls__env watching;

static int watch_park(const ls__env *env, _Atomic uint32_t *word, uint32_t expected,
                      uint64_t deadline_ns)
{
    (void)env;
    const int status = ls__env_posix()->park(ls__env_posix(), word, expected, deadline_ns);
    slept = true;
    rung = status != -ETIMEDOUT || atomic_load(word) != expected;
    return status;
}

static int watch_poller(const ls__env *env, int poller, ls__env_ready *out, int room,
                        uint64_t deadline_ns)
{
    (void)env;
    const int count = ls__env_posix()->poller_wait(ls__env_posix(), poller, out, room, deadline_ns);
    if (deadline_ns > 0) {
        slept = true;
        rung = count > 0;
    }
    return count;
}

/* Ranks come late in turns, and the others sleep. The safety net, a look every 100 ms, ends some of
 * these sleeps; the last one before an operation's end must be ended by the rank that was late. A
 * rank may come just between a look and the time for it, hence a tenth. Nothing here depends on the
 * time that a wake-up takes. */
static int sleepers_main(void *arg)
{
    enum { SLEEPS = 20, ROUNDS_MAX = 400 };
    int64_t sleeps = 0, unrung = 0, fewest = 0;
    (void)arg;
    watching = *ls__env_posix();
    watching.park = watch_park;
    watching.poller_wait = watch_poller;
    CHECK_OK(ls__init_with(&watching, NULL));
    for (int i = 0; i < ROUNDS_MAX && fewest < SLEEPS; i++) {
        if (i % 3 == ls_rank()) {
            watching.sleep_until(&watching, watching.now_ns(&watching) + 20000000);
        }
        fewest = sleeps;
        slept = rung = false;
        CHECK_OK(ls_all_reduce(ls_world(), &fewest, &fewest, 1, LS_INT64, LS_MIN, NULL, NULL));
        sleeps += slept;
        unrung += slept && !rung;
    }
    CHECK(fewest >= SLEEPS);
    if (unrung > sleeps / 10) {
        test_fail(__FILE__, __LINE__, "rank %d slept %lld times and was not woken %lld times",
                  ls_rank(), (long long)sleeps, (long long)unrung);
    }
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(sleepers_are_woken_and_do_not_just_look_again)
{
    CHECK_OK(ls_spawn(sleepers_main, NULL, 3));
}

/* ---- callbacks ---------------------------------------------------------------------------- */

typedef struct chain {
    ls_group *group;
    int64_t value;
    _Atomic int left;
    _Atomic int failed;
} chain;

static void next_link(void *arg, ls_status status)
{
    chain *c = arg;
    if (status != LS_OK) {
        atomic_store(&c->failed, 1);
    }
    if (atomic_fetch_sub(&c->left, 1) > 1 && status == LS_OK) {
        const ls_status started =
            ls__collective_start(c->group,
                                 &(ls__collective){.operation = LS__OP_ALL_REDUCE,
                                                   .input = &c->value,
                                                   .output = &c->value,
                                                   .count = 1,
                                                   .dtype = LS_INT64,
                                                   .op = LS_MAX,
                                                   .done = next_link,
                                                   .arg = c},
                                 NULL);
        if (started != LS_OK) {
            atomic_store(&c->failed, 1);
        }
    }
}

/* No caller waits: the engine's own thread carries it. */
DIST_TEST(a_callback_may_start_the_next_operation, 3)
{
    static chain c;
    c.group = ls_world();
    c.value = ls_rank();
    atomic_store(&c.left, 30);
    next_link(&c, LS_OK);
    const double begin = ls_time();
    while (atomic_load(&c.left) > 0 && ls_time() - begin < 20) {
        const ls__env *env = c.group->comm->env;
        env->sleep_until(env, env->now_ns(env) + 1000000);
    }
    CHECK_INT(atomic_load(&c.left), 0);
    CHECK_INT(atomic_load(&c.failed), 0);
    CHECK_INT(c.value, 2);
}

/* ---- steady state ------------------------------------------------------------------------- */

static _Atomic int allocations;
static ls__env counting;

static void *count_allocate(const ls__env *env, size_t bytes)
{
    (void)env;
    atomic_fetch_add(&allocations, 1);
    return ls__env_posix()->allocate(ls__env_posix(), bytes);
}

static void one_round(float *registered, float *private)
{
    ls_work *work[4];
    ls_group *w = ls_world();
    const int peer = (ls_rank() + 1) % 2;
    CHECK_OK(ls_all_reduce(w, registered, registered, 100000, LS_FLOAT32, LS_SUM, NULL, &work[0]));
    CHECK_OK(ls_all_reduce(w, private, private, 100000, LS_FLOAT32, LS_AVG, NULL, &work[1]));
    CHECK_OK(ls_recv(w, registered + 100000, 20000, LS_FLOAT32, peer, 1, NULL, &work[2]));
    CHECK_OK(ls_send(w, private + 100000, 20000, LS_FLOAT32, peer, 1, NULL, &work[3]));
    CHECK_OK(ls_barrier(w, NULL, NULL));
    CHECK_OK(ls_broadcast(w, private, 10, LS_FLOAT32, 1, NULL, NULL));
    for (int i = 0; i < 4; i++) {
        CHECK_OK(ls_work_wait(work[i]));
    }
}

static int steady_main(void *arg)
{
    static float private[200000];
    void *registered = NULL;
    (void)arg;
    counting = *ls__env_posix();
    counting.allocate = count_allocate;
    CHECK_OK(ls__init_with(&counting, NULL));
    CHECK_OK(ls_group_alloc(ls_world(), sizeof private, &registered));
    for (int i = 0; i < 20; i++) {
        one_round(registered, private);
    }
    CHECK(atomic_load(&allocations) > 0);
    /* A pool may meet its largest need late, when a peer happens to run far ahead; but in the end,
     * several stretches in a row allocate nothing. */
    int quiet = 0;
    for (int stretch = 0; stretch < 12 && quiet < 3; stretch++) {
        const int before = atomic_load(&allocations);
        for (int i = 0; i < 100; i++) {
            one_round(registered, private);
        }
        int allocated = atomic_load(&allocations) - before; /* by the rank that allocated most */
        CHECK_OK(
            ls_all_reduce(ls_world(), &allocated, &allocated, 1, LS_INT32, LS_MAX, NULL, NULL));
        quiet = allocated == 0 ? quiet + 1 : 0;
    }
    CHECK_INT(quiet, 3);
    CHECK_OK(ls_group_dealloc(ls_world(), registered));
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(a_steady_state_allocates_nothing)
{
    CHECK_OK(ls_spawn(steady_main, NULL, 2));
}

/* ---- counters ----------------------------------------------------------------------------- */

typedef struct counted {
    ls__operation operation;
    ls__memory memory;
    double buffers; /* full buffers in units of `count` */
} counted;

static ls_counters counters_now(ls_group *group)
{
    ls_counters c = {.size = sizeof c};
    CHECK_OK(ls_group_get_counters(group, &c));
    return c;
}

static void run_counted(ls_group *group, const counted *c, float *in, float *out, int64_t count)
{
    switch (c->operation) {
    case LS__OP_ALL_REDUCE:
        CHECK_OK(ls_all_reduce(group, out, out, count, LS_FLOAT32, LS_SUM, NULL, NULL));
        break;
    case LS__OP_REDUCE_SCATTER:
        CHECK_OK(ls_reduce_scatter(group, in, out, count, LS_FLOAT32, LS_SUM, NULL, NULL));
        break;
    case LS__OP_ALL_GATHER:
        CHECK_OK(ls_all_gather(group, in, out, count, LS_FLOAT32, NULL, NULL));
        break;
    default:
        CHECK_OK(ls_broadcast(group, out, count, LS_FLOAT32, 0, NULL, NULL));
        break;
    }
}

static ls__program_cost cost_of_direct(const ls_group *group, const counted *c)
{
    const ls__program_spec spec = {
        .operation = c->operation, .memory = c->memory, .rank = group->rank, .size = group->size};
    ls__program *program = NULL;
    CHECK_OK(
        ls__algorithm_find(c->operation, "direct")->generate(&spec, group->comm->env, &program));
    ls__program_cost cost;
    ls__program_cost_count(program, &cost);
    ls__program_free(program);
    return cost;
}

DIST_TEST(counters_equal_the_cost_of_the_program, 4)
{
    enum { COUNT = 4096 * 4 };
    ls_group *group = ls_world();
    void *in = NULL, *out = NULL;
    CHECK_OK(ls_group_alloc(group, COUNT * 4 * sizeof(float), &in));
    CHECK_OK(ls_group_alloc(group, COUNT * 4 * sizeof(float), &out));
    static const ls__operation operations[] = {LS__OP_ALL_REDUCE, LS__OP_REDUCE_SCATTER,
                                               LS__OP_ALL_GATHER, LS__OP_BROADCAST};
    for (int k = 0; k < 12; k++) {
        const ls__operation operation = operations[k % 4];
        const bool blocks = k % 4 == 1 || k % 4 == 2;
        const ls__memory memory =
            group->has_remote ? LS__MEMORY_MESSAGES : (ls__memory)(LS__MEMORY_MESSAGES + k / 4);
        const counted c = {operation, memory, blocks ? 4.0 : 1.0};
        group->comm->forced = (int)c.memory;
        const ls_counters before = counters_now(group);
        run_counted(group, &c, in, out, COUNT);
        const ls_counters after = counters_now(group);
        const ls__program_cost cost = cost_of_direct(group, &c);
        const double bytes = c.buffers * COUNT * sizeof(float);
        CHECK_INT(after.operations - before.operations, 1);
        CHECK_NEAR(after.bytes_sent - before.bytes_sent, cost.sent * bytes, 0.5);
        CHECK_NEAR(after.bytes_received - before.bytes_received, cost.received * bytes, 0.5);
        CHECK((after.messages > before.messages) == (cost.sent + cost.received > 0));
    }
    group->comm->forced = 0;
    CHECK_OK(ls_group_dealloc(group, in));
    CHECK_OK(ls_group_dealloc(group, out));
}

TEST_MAIN
