/* SPDX-License-Identifier: Apache-2.0 */
/* Small blocking operations that are called again and again (src/comm/engine/one_shot.c), beside
 * other calls, late calls, other paths and wrong calls. */
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <lockstep/comm.h>
#include <lockstep/store.h>

#include "comm/core/group.h"
#include "comm/core/post.h"
#include "comm/memory/control.h"
#include "values.h"

TEST_SETTING(tune, "LOCKSTEP_TUNE", "off") /* what is counted here is the operations' own */

enum { LINE = LS__LINE_BYTES, PAIR = LS__PAIR_BYTES, MOST = LS__SMALL_BYTES, TIMES = 4 };

static int64_t unused;

static void tell(const char *key)
{
    CHECK_OK(ls_store_add(ls_runtime_store(), key, 1, &unused, -1));
}

static void hear(const char *key)
{
    CHECK_OK(ls_store_wait(ls_runtime_store(), key, -1));
}

/* ---- results ------------------------------------------------------------------------------ */

static unsigned char buf[MOST + LINE], out[MOST + LINE], want[MOST + LINE];

static int number_of(int rank, int64_t i, int round)
{
    return (int)((unsigned)(rank + 3 * (int)i + 5 * round) % 7) - (rank % 2);
}

static int combined(int ranks, ls_reduce_op op, int64_t i, int round)
{
    int all = number_of(0, i, round);
    for (int r = 1; r < ranks; r++) {
        const int v = number_of(r, i, round);
        all = op == LS_SUM ? all + v : v > all ? v : all;
    }
    return all;
}

static void fill(unsigned char *to, int rank, int64_t count, ls_dtype dtype, int round)
{
    for (int64_t i = 0; i < count; i++) {
        put_value(to, i, dtype, number_of(rank, i, round));
    }
}

static void reduce_once(int64_t count, ls_dtype dtype, ls_reduce_op op, int root, int round)
{
    const size_t bytes = (size_t)count * ls_dtype_size(dtype);
    const int n = ls_world_size();
    fill(buf, ls_rank(), count, dtype, round);
    for (int64_t i = 0; i < count; i++) {
        put_value(want, i, dtype, combined(n, op, i, round));
    }
    memset(out, 1, sizeof out);
    CHECK_OK(ls_reduce(ls_world(), buf, out, count, dtype, op, root, NULL, NULL));
    CHECK(ls_rank() != root || memcmp(out, want, bytes) == 0);
    CHECK_INT(out[bytes], 1);
    CHECK_OK(ls_all_reduce(ls_world(), buf, buf, count, dtype, op, NULL, NULL));
    CHECK(memcmp(buf, want, bytes) == 0);
}

static void broadcast_once(int64_t count, ls_dtype dtype, int root, int round)
{
    fill(buf, ls_rank(), count, dtype, round);
    fill(want, root, count, dtype, round);
    CHECK_OK(ls_broadcast(ls_world(), buf, count, dtype, root, NULL, NULL));
    CHECK(memcmp(buf, want, (size_t)count * ls_dtype_size(dtype)) == 0);
}

static void all_results(void)
{
    static const int64_t bytes[] = {0,        8,    LINE,     LINE + 8, PAIR,
                                    PAIR + 8, 1000, MOST - 8, MOST,     MOST + 8};
    static const ls_dtype dtypes[] = {LS_FLOAT32, LS_BFLOAT16, LS_INT64, LS_INT8};
    for (size_t b = 0; b < sizeof bytes / sizeof *bytes; b++) {
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            const int64_t count = bytes[b] / (int64_t)ls_dtype_size(dtypes[d]);
            for (int round = 0; round < TIMES; round++) {
                const int root = round % ls_world_size();
                reduce_once(count, dtypes[d], round < TIMES / 2 ? LS_SUM : LS_MAX, root, round);
                broadcast_once(count, dtypes[d], root, round);
                CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
            }
        }
    }
}

DIST_TEST(repeated_operations_of_2_are_right_every_time, 2)
{
    all_results();
}

DIST_TEST(repeated_operations_of_1_are_right_every_time, 1)
{
    all_results();
}

DIST_TEST(repeated_operations_of_5_are_right_every_time, 5)
{
    all_results();
}

DIST_TEST(repeated_operations_of_8_are_right_every_time, 8)
{
    all_results();
}

DIST_TEST(averages_are_divided_once, 3)
{
    for (int i = 0; i < 10; i++) {
        float x = (float)(ls_rank() + i);
        CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_FLOAT32, LS_AVG, NULL, NULL));
        CHECK_NEAR(x, 1 + i, 0);
    }
}

DIST_TEST(an_operation_is_counted_like_any_other, 3)
{
    enum { N = 20 };
    ls_counters before = {.size = sizeof before}, after = {.size = sizeof after};
    int32_t x[4] = {0};
    CHECK_OK(ls_group_get_counters(ls_world(), &before));
    for (int i = 0; i < N; i++) {
        CHECK_OK(ls_all_reduce(ls_world(), x, x, 4, LS_INT32, LS_SUM, NULL, NULL));
    }
    CHECK_OK(ls_group_get_counters(ls_world(), &after));
    CHECK_INT(after.operations - before.operations, N);
    CHECK_INT(after.messages - before.messages, 2 * N);
    CHECK_INT(after.bytes_received - before.bytes_received, 2 * N * (int64_t)sizeof x);
}

/* ---- offers ------------------------------------------------------------------------------- */

typedef enum offered { ALL_REDUCE, BROADCAST, ALL_TO_ALL, IN_PLACE, REDUCE_SCATTER } offered;

static float own[2 * (LS__WIDE_BYTES / sizeof(float) + 2)]; /* input and output */

/* `count` numbers of each rank, of which a block is a rank's part. */
static ls_status call_offered(ls_group *group, offered what, float *x, float *y, int64_t count,
                              int root, ls_work **work)
{
    const int64_t block = count / ls_group_size(group);
    switch (what) {
    case ALL_REDUCE:
        return ls_all_reduce(group, x, x, count, LS_FLOAT32, LS_SUM, NULL, work);
    case BROADCAST:
        return ls_broadcast(group, x, count, LS_FLOAT32, root, NULL, work);
    case REDUCE_SCATTER:
        return ls_reduce_scatter(group, x, y, block, LS_FLOAT32, LS_SUM, NULL, work);
    default:
        return ls_all_to_all(group, x, what == IN_PLACE ? x : y, block, LS_FLOAT32, NULL, work);
    }
}

static void check_offered(offered what, const float *x, const float *y, int64_t count, int round)
{
    const int me = ls_rank(), n = ls_world_size();
    const int64_t block = count / n;
    for (int64_t i = 0; what == ALL_REDUCE && i < count; i++) {
        CHECK_NEAR(x[i], combined(n, LS_SUM, i, round), 0);
    }
    for (int64_t i = 0; what == BROADCAST && i < count; i++) {
        CHECK_NEAR(x[i], number_of(round % n, i, round), 0);
    }
    for (int64_t i = 0; what == REDUCE_SCATTER && i < block; i++) {
        CHECK_NEAR(y[i], combined(n, LS_SUM, me * block + i, round), 0);
    }
    for (int64_t i = 0; (what == ALL_TO_ALL || what == IN_PLACE) && i < n * block; i++) {
        const int from = (int)(i / block);
        const int want_here = number_of(from, me * block + i % block, round);
        CHECK_NEAR((what == IN_PLACE ? x : y)[i], want_here, 0);
    }
}

static void offer_once(offered what, float *x, int64_t count, int round, bool blocks)
{
    float *y = x + sizeof own / sizeof *own / 2;
    ls_work *work = NULL;
    const int me = ls_rank();
    for (int64_t i = 0; i < count; i++) {
        x[i] = (float)number_of(me, i, round);
    }
    CHECK_OK(call_offered(ls_world(), what, x, y, count, round % ls_world_size(),
                          blocks ? NULL : &work));
    CHECK_OK(blocks ? LS_OK : ls_work_wait(work));
    check_offered(what, x, y, count, round);
}

/* Note [Offers] in src/comm/engine/select.c: all ranks make one, or some of them, or none. */
DIST_TESTS(an_offer_counts_if_all_, _ranks_make_it, 2, 3, 5)
{
    static const int64_t bytes[] = {4104,  8192,  MOST,   MOST + 8,       40000,
                                    65536, 65544, 100004, LS__WIDE_BYTES, LS__WIDE_BYTES + 8};
    void *shared = NULL;
    CHECK_OK(ls_group_alloc(ls_world(), sizeof own, &shared));
    for (int round = 0; round < 48; round++) {
        const bool registered = round >> ls_rank() & 1, blocks = (round >> 2) % 3 != ls_rank();
        for (size_t b = 0; b < sizeof bytes / sizeof *bytes; b++) {
            const int64_t count = bytes[b] / (int64_t)sizeof *own;
            for (int i = 0; i < 2 + round % 3; i++) {
                const offered what = (offered)((round + i) % (REDUCE_SCATTER + 1));
                offer_once(what, registered ? shared : own, count, round + i, blocks);
            }
        }
    }
    CHECK_OK(ls_group_dealloc(ls_world(), shared));
}

/* Not by every call: the engine's thread may not be done with the one before. */
DIST_TESTS(each_kind_is_offered_by_, _ranks, 2, 5)
{
    const ls_group *world = ls_world();
    for (int what = BROADCAST; what <= REDUCE_SCATTER && !world->has_remote; what++) {
        int offers = 0;
        for (int i = 0; i < 20; i++) {
            offer_once((offered)what, own, LS__WIDE_BYTES / sizeof *own / 2, i, true);
            offers += ls__post_slot(world, world->rank, world->sequence)->line.one_shot != 0;
        }
        CHECK(offers > 0);
    }
}

/* The root has published its numbers, and may have called again, before a rank comes late. */
DIST_TEST(an_offer_waits_for_the_late, 3)
{
    const struct timespec pause = {.tv_nsec = 2000000}; /* longer than anybody spins */
    const int64_t count = LS__WIDE_BYTES / sizeof *own;
    for (int round = 0; round < 12; round++) {
        if (round / 2 % 3 == ls_rank()) {
            (void)nanosleep(&pause, NULL);
        }
        for (int i = 0; i < 4; i++) {
            offer_once((offered)(BROADCAST + round % 4), own, count - round, i % 2 + round, true);
        }
    }
}

static void differing_offers(offered what, int64_t count, const char *first, const char *second)
{
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "offers", &group));
    ls_status status = LS_OK;
    for (int i = 0; i < 4; i++) {
        const int64_t n = i == 3 ? count - ls_rank() : count;
        CHECK_OK(status);
        own[0] = (float)ls_rank();
        status = call_offered(group, what, own, own + count, n, 0, NULL);
    }
    CHECK_STATUS(status, LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), first);
    CHECK_CONTAINS(ls_error_message(), second);
    CHECK_NEAR(own[0], ls_rank(), 0);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

DIST_TEST(a_sum_offered_otherwise_is_named, 2)
{
    differing_offers(ALL_REDUCE, 16384, "all_reduce #4 on group \"offers\" disagrees",
                     "rank 1 has float32[16383] sum");
}

DIST_TEST(a_broadcast_offered_otherwise_is_named, 2)
{
    if (ls_world()->has_remote) {
        return; /* the root has sent its message and is done */
    }
    differing_offers(BROADCAST, 65536, "broadcast #4 on group \"offers\" disagrees",
                     "rank 1 has float32[65535]");
}

DIST_TEST(an_all_to_all_offered_otherwise_is_named, 2)
{
    differing_offers(ALL_TO_ALL, 20000, "all_to_all #4 on group \"offers\" disagrees",
                     "rank 1 has float32[9999]");
}

/* ---- changing places ---------------------------------------------------------------------- */

/* Note [Changing places] in src/comm/memory/control.h: what a rank has published lies where its
 * peer's lay when the slot was used before. */
DIST_TEST(two_ranks_change_places_in_the_small_stage, 2)
{
    enum { BYTES = 1000 };
    ls_group *world = ls_world();
    for (int round = 0; round < 5 * LS__SMALL_SLOTS; round++) {
        fill(buf, ls_rank(), BYTES / 4, LS_FLOAT32, round);
        CHECK_OK(ls_all_reduce(world, buf, out, BYTES / 4, LS_FLOAT32, LS_SUM, NULL, NULL));
        const uint64_t s = world->sequence;
        const bool other = !world->has_remote && s / LS__SMALL_SLOTS % 2 != 0;
        CHECK_INT(ls__post_slot(world, world->rank, s)->line.place,
                  LS__PLACE_SMALL | (other ? LS__PLACE_OTHER : 0));
        CHECK(memcmp(ls__small_place(world, world->rank, s), buf, BYTES) == 0);
    }
}

enum { GATHERED = 75000 }; /* numbers of a rank: three slices */
static float mine[GATHERED], both[2 * GATHERED];

/* The last slice that this rank has staged. */
static void check_stage(const ls_group *world)
{
    const int64_t slice = (int64_t)(LS__SLICE_BYTES / 2 / sizeof *mine);
    const int64_t last = (GATHERED - 1) / slice * slice;
    const uint64_t g = world->stage.slices;
    const int owner = g / 2 % 2 != 0 ? 1 - world->rank : world->rank;
    CHECK(memcmp(world->member[owner].control->stage[g % 2], mine + last,
                 (size_t)(GATHERED - last) * sizeof *mine) == 0);
}

/* A handle is asked for, so nothing is offered; the sums and broadcasts between them keep their
 * places, and these have four slots. */
DIST_TEST(two_ranks_change_places_in_slices, 2)
{
    ls_group *world = ls_world();
    for (int round = 0; round < 20; round++) {
        ls_work *work = NULL;
        for (int64_t i = 0; i < GATHERED; i++) {
            mine[i] = (float)number_of(ls_rank(), i, round);
        }
        CHECK_OK(ls_all_gather(world, mine, both, GATHERED, LS_FLOAT32, NULL, &work));
        CHECK_OK(ls_work_wait(work));
        for (int64_t i = 0; i < 2 * GATHERED; i++) {
            CHECK_NEAR(both[i], number_of((int)(i / GATHERED), i % GATHERED, round), 0);
        }
        if (!world->has_remote) {
            check_stage(world);
        }
        for (int what = ALL_REDUCE; what <= REDUCE_SCATTER; what++) {
            offer_once((offered)what, own, 60000 + round, round, false);
        }
    }
}

/* ---- others call otherwise ---------------------------------------------------------------- */

DIST_TEST(some_block_and_some_do_not, 3)
{
    enum { FLIGHTS = 5 };
    for (int round = 0; round < 60; round++) {
        int32_t x[FLIGHTS];
        ls_work *work[FLIGHTS] = {NULL};
        const bool blocks = (round + ls_rank()) % 3 != 0;
        for (int i = 0; i < FLIGHTS; i++) {
            x[i] = ls_rank() + i;
            CHECK_OK(ls_all_reduce(ls_world(), &x[i], &x[i], 1, LS_INT32, LS_SUM, NULL,
                                   blocks ? NULL : &work[i]));
        }
        for (int i = 0; i < FLIGHTS; i++) {
            CHECK_OK(blocks ? LS_OK : ls_work_wait(work[i]));
            CHECK_INT(x[i], 3 + 3 * i);
        }
    }
}

/* Every rank is the late one several times, whichever ranks its peers look at. */
DIST_TESTS(who_comes_late_of_, _is_waited_for, 3, 6, 7, 8)
{
    const struct timespec pause = {.tv_nsec = 2000000}; /* longer than anybody spins */
    const int n = ls_world_size();
    for (int round = 0; round < 4 * n; round++) {
        double x[2] = {ls_rank(), round};
        if (round % n == ls_rank()) {
            (void)nanosleep(&pause, NULL);
        }
        CHECK_OK(ls_all_reduce(ls_world(), x, x, 2, LS_FLOAT64, LS_SUM, NULL, NULL));
        CHECK_NEAR(x[0], n * (n - 1) / 2, 0);
        CHECK_NEAR(x[1], n * round, 0);
    }
}

typedef struct worker {
    ls_runtime *runtime;
    ls_group *group;
    int32_t first, wrong;
} worker;

static void *block(void *arg)
{
    worker *w = arg;
    w->wrong += ls_runtime_attach(w->runtime) != LS_OK;
    w->wrong +=
        ls_all_reduce(w->group, &w->first, &w->first, 1, LS_INT32, LS_SUM, NULL, NULL) != LS_OK;
    w->wrong += ls_runtime_attach(NULL) != LS_OK;
    return NULL;
}

/* The second operation is submitted by another thread while the first is announced and waits. */
DIST_TEST(what_is_called_behind_an_announced_one_comes_after_it, 2)
{
    int32_t x = 0;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, LS_SUM, NULL, NULL));
    }
    for (int round = 0; round < 20; round++) {
        worker w = {.runtime = ls_runtime_current(), .group = ls_world(), .first = 1};
        int32_t second = 10;
        char key[32];
        (void)snprintf(key, sizeof key, "behind %d", round);
        if (ls_rank() == 0) {
            pthread_t thread;
            ls_work *work = NULL;
            const uint64_t posted = atomic_load(&w.group->posted);
            CHECK(pthread_create(&thread, NULL, block, &w) == 0);
            while (atomic_load(&w.group->posted) == posted) {
                ls__env_posix()->yield(ls__env_posix());
            }
            CHECK_OK(ls_all_reduce(ls_world(), &second, &second, 1, LS_INT32, LS_SUM, NULL, &work));
            tell(key);
            CHECK_OK(ls_work_wait(work));
            CHECK_INT(w.first, 2);
            CHECK(pthread_join(thread, NULL) == 0);
        } else {
            hear(key);
            CHECK_OK(
                ls_all_reduce(ls_world(), &w.first, &w.first, 1, LS_INT32, LS_SUM, NULL, NULL));
            CHECK_OK(ls_all_reduce(ls_world(), &second, &second, 1, LS_INT32, LS_SUM, NULL, NULL));
        }
        CHECK_INT(w.wrong, 0);
        CHECK_INT(w.first, 2);
        CHECK_INT(second, 20);
    }
}

static void *loop(void *arg)
{
    worker *w = arg;
    w->wrong += ls_runtime_attach(w->runtime) != LS_OK;
    for (int i = 0; i < 300; i++) {
        int32_t x = w->first + i;
        w->wrong += ls_all_reduce(w->group, &x, &x, 1, LS_INT32, LS_SUM, NULL, NULL) != LS_OK;
        w->wrong += x != 3 * (w->first + i);
    }
    w->wrong += ls_runtime_attach(NULL) != LS_OK;
    return NULL;
}

DIST_TEST(threads_block_on_groups_of_their_own, 3)
{
    worker w[2];
    pthread_t thread[2];
    for (int t = 0; t < 2; t++) {
        w[t] = (worker){.runtime = ls_runtime_current(), .first = t};
        CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &w[t].group));
    }
    for (int t = 0; t < 2; t++) {
        CHECK(pthread_create(&thread[t], NULL, loop, &w[t]) == 0);
    }
    for (int t = 0; t < 2; t++) {
        CHECK(pthread_join(thread[t], NULL) == 0);
        CHECK_INT(w[t].wrong, 0);
        CHECK_OK(ls_group_free(w[t].group));
    }
}

/* ---- what goes wrong ---------------------------------------------------------------------- */

static void learn(ls_group *group, int64_t count, ls_dtype dtype)
{
    double x[8] = {0};
    for (int i = 0; i < 3; i++) {
        CHECK_OK(ls_all_reduce(group, x, x, count, dtype, LS_SUM, NULL, NULL));
    }
}

DIST_TEST(two_known_operations_that_differ_are_named, 3)
{
    ls_group *group = NULL;
    float x[5] = {1, 2, 3, 4, 5};
    const float same[5] = {1, 2, 3, 4, 5};
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "odd", &group));
    learn(group, 4, LS_FLOAT32);
    learn(group, 5, LS_FLOAT32);
    learn(group, 4, LS_INT32);
    ls_site_set("odd.c", 10 + ls_rank());
    CHECK_STATUS(ls_all_reduce(group, x, x, ls_rank() == 2 ? 5 : 4, LS_FLOAT32, LS_SUM, NULL, NULL),
                 LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "all_reduce #10 on group \"odd\" disagrees");
    CHECK_CONTAINS(ls_error_message(), "rank 0 has float32[4] sum at odd.c:10");
    CHECK_CONTAINS(ls_error_message(), "rank 2 has float32[5] sum at odd.c:12");
    CHECK(memcmp(x, same, sizeof x) == 0);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

DIST_TEST(a_known_operation_that_waits_hears_of_an_abort, 2)
{
    ls_group *group = NULL;
    float x[4] = {0};
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "given up", &group));
    learn(group, 4, LS_FLOAT32);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == 1) {
        CHECK_OK(ls_group_abort(group, "the loss is poisoned"));
    }
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(ls_all_reduce(group, x, x, 4, LS_FLOAT32, LS_SUM, NULL, NULL), LS_ERR_ABORTED);
        CHECK_CONTAINS(ls_error_message(), "the loss is poisoned");
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

DIST_TEST(a_known_operation_has_a_deadline, 2)
{
    ls_group *group = NULL;
    float x[4] = {0};
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "alone", &group));
    learn(group, 4, LS_FLOAT32);
    if (ls_rank() == 0) {
        const ls_collective_options *options = LS_OPTIONS(ls_collective_options, .timeout_ms = 200);
        CHECK_STATUS(ls_all_reduce(group, x, x, 4, LS_FLOAT32, LS_SUM, options, NULL),
                     LS_ERR_TIMEOUT);
        CHECK_CONTAINS(ls_error_message(), "all_reduce #4 on group \"alone\"");
        tell("late");
    } else {
        hear("late");
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

TEST_MAIN
