/* SPDX-License-Identifier: Apache-2.0 */
/* A backend that is not ours: the plug-in `loop` (tests/plugins/loop.c) moves the data of a group.
 * Its results are those of the native group, what it does not promise is refused in words, and its
 * failures are reported as our own. */
#include "test.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/backend.h>
#include <lockstep/comm.h>

#include "../../plugins/loop.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/group.h"
#include "comm/core/message_state.h"
#include "promises.h"
#include "says.h"

#define LOOP test_build_path("tests/plugins/ls_backend_loop.so")

static ls_group *group_over_loop(const char *name)
{
    ls_group *group = NULL;
    CHECK_OK(ls_group_create(ls_world(),
                             LS_OPTIONS(ls_group_options, .name = name, .backend = LOOP), &group));
    CHECK(strcmp(ls_group_backend(group), "loop") == 0);
    return group;
}

/* ---- results ------------------------------------------------------------------------------- */

static void check_results(void)
{
    setenv("LOOP_DELAY_US", "20", 1);
    ls_group *native = NULL, *loop = group_over_loop("loop");
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "native", &native));
    every_promise_is_kept(native, loop);
    CHECK_OK(ls_group_free(loop));
    CHECK_OK(ls_group_free(native));
}

DIST_TEST(what_a_plug_in_promises_it_does_as_native_on_1_rank, 1)
{
    check_results();
}

DIST_TEST(what_a_plug_in_promises_it_does_as_native_on_3_ranks, 3)
{
    check_results();
}

DIST_TEST(messages_travel_by_the_plug_in, 3)
{
    enum { MESSAGES = 12, LARGE = 70000 };
    static int32_t out[MESSAGES][LARGE], in[MESSAGES][LARGE];
    ls_group *loop = group_over_loop("letters");
    const int me = ls_rank(), next = (me + 1) % 3, before = (me + 2) % 3;
    ls_work *send[MESSAGES], *recv[MESSAGES];
    for (int m = 0; m < MESSAGES; m++) {
        const int64_t count = m % 3 == 0 ? 0 : m % 3 == 1 ? 1 : LARGE;
        for (int k = 0; k < count; k++) {
            out[m][k] = me * 1000 + m * 10 + k;
        }
        CHECK_OK(ls_send(loop, out[m], count, LS_INT32, next, m, NULL, &send[m]));
    }
    for (int m = MESSAGES - 1; m >= 0; m--) { /* in another order than they were sent */
        const int64_t count = m % 3 == 0 ? 0 : m % 3 == 1 ? 1 : LARGE;
        const int from = m == 4 ? LS_ANY_SOURCE : before;
        CHECK_OK(ls_recv(loop, in[m], count, LS_INT32, from, m, NULL, &recv[m]));
    }
    for (int m = 0; m < MESSAGES; m++) {
        CHECK_OK(ls_work_wait(send[m]));
        CHECK_OK(ls_work_wait(recv[m]));
        const int64_t count = m % 3 == 0 ? 0 : m % 3 == 1 ? 1 : LARGE;
        for (int k = 0; k < count; k++) {
            CHECK_INT(in[m][k], before * 1000 + m * 10 + k);
        }
    }
    CHECK_INT(loop->p2p->carried, 0);
    void *bytes = ls_rank() == 0 ? (void *)"an object" : NULL;
    size_t length = ls_rank() == 0 ? sizeof "an object" : 0;
    CHECK_OK(ls_broadcast_bytes(loop, &bytes, &length, 0, NULL));
    CHECK(strcmp(bytes, "an object") == 0);
    if (ls_rank() != 0) {
        ls_bytes_free(bytes);
    }
    CHECK_OK(ls_group_free(loop));
}

/* ---- which group has it -------------------------------------------------------------------- */

DIST_TEST(groups_inherit_their_backend, 2)
{
    static const int both[] = {0, 1};
    ls_group *loop = group_over_loop("parent"), *child[4], *turns = NULL;
    CHECK_OK(ls_group_new(loop, NULL, 0, "duplicate", &child[0]));
    CHECK_OK(ls_group_split(loop, 0, ls_rank(), "split", &child[1]));
    CHECK_OK(ls_group_new_among(loop, both, 2, "among", &child[2]));
    CHECK_OK(ls_group_create(loop, LS_OPTIONS(ls_group_options, .backend = "native"), &child[3]));
    CHECK_OK(ls_group_round_robin(child, 2, "turns", &turns));
    CHECK(strcmp(ls_group_backend(turns), "loop") == 0);
    CHECK(strcmp(ls_group_backend(ls_world()), "native") == 0);
    for (int i = 0; i < 4; i++) {
        int32_t x = 1;
        CHECK(strcmp(ls_group_backend(child[i]), i < 3 ? "loop" : "native") == 0);
        CHECK_OK(ls_all_reduce(i == 1 ? turns : child[i], &x, &x, 1, LS_INT32, LS_SUM, NULL, NULL));
        CHECK_INT(x, 2);
    }
    CHECK_OK(ls_group_free(turns));
    for (int i = 0; i < 4; i++) {
        CHECK_OK(ls_group_free(child[i]));
    }
    CHECK_OK(ls_group_free(loop));
}

DIST_TEST(ranks_that_ask_for_different_backends_are_told, 2)
{
    ls_group *group = NULL;
    const char *backend = ls_rank() == 0 ? "native" : LOOP;
    CHECK_STATUS(
        ls_group_create(ls_world(), LS_OPTIONS(ls_group_options, .backend = backend), &group),
        LS_ERR_MISMATCH);
    CHECK(strstr(ls_error_message(), " by native") != NULL);
    CHECK(group == NULL);
}

/* ---- refusals ------------------------------------------------------------------------------ */

static void add(void *into, const void *right, int64_t count, ls_dtype dtype, void *arg)
{
    (void)dtype;
    (void)arg;
    for (int64_t i = 0; i < count; i++) {
        ((float *)into)[i] += ((const float *)right)[i];
    }
}

DIST_TEST(what_a_backend_does_not_promise_is_refused_in_words, 2)
{
    ls_group *loop = group_over_loop("small"), *other = NULL;
    float x[2] = {1, 2};
    void *memory = NULL;
    ls_reduce_op op = LS_SUM;
    CHECK_STATUS(ls_group_alloc(loop, 64, &memory), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "ls_group_alloc of group \"%s\": backend \"%s\" has no registered memory; use "
               "malloc, or a group of backend \"native\"");
    CHECK_STATUS(ls_group_abort(loop, "why"), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "%s of group \"%s\": backend \"%s\" cannot end operations in flight; wait for them, "
               "or give them a timeout_ms");
    CHECK_STATUS(ls_scan(loop, x, x, 2, LS_FLOAT32, LS_SUM, NULL, NULL), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "%s on group \"%s\": backend \"%s\" does not have it; use a group "
               "of backend \"native\"");
    CHECK_STATUS(ls_all_reduce(loop, x, x, 2, LS_BFLOAT16, LS_SUM, NULL, NULL), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "%s on group \"%s\": backend \"%s\" does not reduce %s; convert "
                                   "the values, or use a group of backend \"native\"");
    CHECK_STATUS(ls_all_reduce(loop, x, x, 2, LS_INT32, LS_BXOR, NULL, NULL), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "%s on group \"%s\": backend \"%s\" does not reduce by %s; use a "
               "group of backend \"native\"");
    CHECK_OK(ls_reduce_op_new(add, NULL, "add", &op));
    CHECK_STATUS(ls_all_reduce(loop, x, x, 2, LS_FLOAT32, op, NULL, NULL), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "%s on group \"%s\": backend \"%s\" does not apply operators of "
                                   "ls_reduce_op_new; use a group of backend \"native\"");
    CHECK_STATUS(ls_all_reduce(loop, x, x, 2, LS_FLOAT32, LS_SUM,
                               LS_OPTIONS(ls_collective_options, .algorithm = "ring"), NULL),
                 LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "%s on group \"%s\": backend \"%s\" chooses its algorithms "
                                   "itself; pass algorithm = NULL");
    ls_stream *stream = (ls_stream *)(void *)x;
    CHECK_STATUS(ls_all_reduce(loop, x, x, 2, LS_FLOAT32, LS_SUM,
                               LS_OPTIONS(ls_collective_options, .stream = stream), NULL),
                 LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "%s on group \"%s\": backend \"%s\" has no streams; pass stream = NULL");
    CHECK_STATUS(
        ls_group_create(loop, LS_OPTIONS(ls_group_options, .canonical_sums = true), &other),
        LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "group \"%s\" shall add in the library's order, and backend \"%s\" does not; use "
               "backend \"native\", or leave canonical_sums false");
    CHECK_OK(ls_all_reduce(loop, x, x, 2, LS_FLOAT32, LS_SUM, NULL, NULL)); /* it still works */
    CHECK(x[0] == 2 && x[1] == 4);
    CHECK_OK(ls_group_free(loop));
}

/* ---- promises beyond moving data ----------------------------------------------------------- */

/* A group of a plug-in that promises more. */
static ls_group *promising_group(const char *promises, const loop_counts **counts)
{
    setenv("LOOP_PROMISES", promises, 1);
    ls_group *group = group_over_loop(promises);
    void *library = dlopen(LOOP, RTLD_NOW | RTLD_NOLOAD);
    CHECK(library != NULL);
    *counts = dlsym(library, "loop_counters");
    CHECK(*counts != NULL);
    return group;
}

DIST_TEST(registered_memory_is_the_plug_ins, 2)
{
    enum { COUNT = 1000 };
    const loop_counts *counts = NULL;
    ls_group *loop = promising_group("registered", &counts);
    float *x = NULL;
    void *left = NULL;
    CHECK_OK(ls_group_alloc(loop, COUNT * sizeof *x, (void **)&x));
    CHECK_OK(ls_group_alloc(loop, 100, &left));
    CHECK_INT(counts->allocated, 2);
    CHECK((uintptr_t)x % 64 == 0 && x[0] == 0 && x[COUNT - 1] == 0);
    for (int i = 0; i < COUNT; i++) {
        x[i] = (float)(i + ls_rank());
    }
    CHECK_OK(ls_all_reduce(loop, x, x, COUNT, LS_FLOAT32, LS_SUM, NULL, NULL));
    for (int i = 0; i < COUNT; i++) {
        CHECK(x[i] == (float)(2 * i + 1));
    }
    CHECK_OK(ls_group_dealloc(loop, x));
    CHECK_INT(counts->allocated, 1);
    CHECK_OK(ls_group_free(loop)); /* with what is left */
    CHECK_INT(counts->allocated, 0);
}

DIST_TEST(after_an_abort_the_plug_in_touches_no_buffer, 2)
{
    enum { COUNT = 1000 };
    static int32_t x[COUNT];
    const loop_counts *counts = NULL;
    ls_work *sum = NULL;
    setenv("LOOP_DELAY_US", "800000", 1); /* before and after a rank shows its input */
    ls_group *loop = promising_group("abort", &counts);
    const int before = atomic_load(&counts->started);
    CHECK_OK(ls_all_reduce(loop, x, x, COUNT, LS_INT32, LS_SUM, NULL, &sum));
    while (atomic_load(&counts->started) == before) {
        usleep(1000);
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* it has started on both */
    CHECK_OK(ls_group_abort(loop, "no longer needed"));
    CHECK(ls_work_wait(sum) < 0);
    CHECK(strstr(ls_error_message(), "no longer needed") != NULL);
    CHECK_INT(counts->aborted, 1);
    for (int i = 0; i < COUNT; i++) {
        x[i] = i;
    }
    usleep(1800000); /* longer than both delays */
    for (int i = 0; i < COUNT; i++) {
        CHECK(x[i] == i);
    }
    (void)ls_group_free(loop); /* it returns the failure */
}

DIST_TEST(a_stream_reaches_the_plug_in, 2)
{
    const loop_counts *counts = NULL;
    ls_group *loop = promising_group("streams", &counts);
    int64_t x = ls_rank();
    ls_stream *stream = (ls_stream *)(void *)&x;
    CHECK_OK(ls_all_reduce(loop, &x, &x, 1, LS_INT64, LS_SUM,
                           LS_OPTIONS(ls_collective_options, .stream = stream), NULL));
    CHECK(x == 1 && counts->stream == stream && counts->after == stream);
    CHECK_OK(ls_all_reduce(loop, &x, &x, 1, LS_INT64, LS_SUM, NULL, NULL));
    CHECK(counts->stream == NULL && counts->after == NULL);
    CHECK_OK(ls_group_free(loop));
}

/* A device keeps the order of what it is given: the second is started before the first has ended,
 * and a barrier behind them waits for both. */
DIST_TEST(operations_in_streams_are_started_without_waiting_for_the_one_before, 2)
{
    const loop_counts *counts = NULL;
    ls_group *loop = promising_group("streams", &counts);
    int64_t x = ls_rank(), y = 2 * ls_rank(), z = 5;
    ls_work *work[2];
    CHECK_OK(ls_all_reduce(loop, &z, &z, 1, LS_INT64, LS_SUM, NULL, NULL));
    const int before = atomic_load(&counts->started);
    CHECK_OK(ls_all_reduce(loop, &x, &x, 1, LS_INT64, LS_SUM, NULL, &work[0]));
    CHECK_OK(ls_all_reduce(loop, &y, &y, 1, LS_INT64, LS_SUM, NULL, &work[1]));
    CHECK_OK(ls_barrier(loop, NULL, NULL));
    CHECK_INT(atomic_load(&counts->started), before + 2);
    CHECK_INT(ls_work_test(work[0]), LS_OK);
    CHECK_INT(ls_work_test(work[1]), LS_OK);
    CHECK_OK(ls_work_wait(work[1]));
    CHECK_OK(ls_work_wait(work[0]));
    CHECK(x == 1 && y == 2 && z == 10);
    CHECK_OK(ls_group_free(loop));
}

DIST_TEST(a_stream_that_cannot_wait_fails_the_group, 2)
{
    const loop_counts *counts = NULL;
    setenv("LOOP_DELAY_US", "20000", 1);
    ls_group *loop = promising_group("streams abort", &counts);
    int64_t x = ls_rank();
    ls_stream *stream = (ls_stream *)(void *)&x;
    ls_work *work = NULL;
    CHECK_OK(ls_all_reduce(loop, &x, &x, 1, LS_INT64, LS_SUM, NULL, &work));
    CHECK_OK(ls_work_wait_stream(work, stream)); /* the backend waits until it has ended */
    CHECK_INT(x, 1);
    setenv("LOOP_BROKEN", "follow", 1);
    CHECK_OK(ls_all_reduce(loop, &x, &x, 1, LS_INT64, LS_SUM, NULL, &work));
    CHECK_STATUS(ls_work_wait_stream(work, stream), LS_ERR_SYSTEM);
    CHECK_SAYS(ls_error_message(), "ls_work_wait_stream on rank %d: %s");
    CHECK_CONTAINS(ls_error_message(), "backend \"loop\": no wait");
}

/* The call takes the place in any case. */
DIST_TEST(a_place_of_a_call_that_fails_is_given_back, 2)
{
    const loop_counts *counts = NULL;
    ls_group *loop = promising_group("streams abort", &counts);
    int64_t x = ls_rank();
    ls_stream *stream = (ls_stream *)(void *)&x;
    const ls_collective_options *options = LS_OPTIONS(ls_collective_options, .stream = stream);
    setenv("LOOP_BROKEN", "mark", 1);
    CHECK_STATUS(ls_all_reduce(loop, &x, &x, 1, LS_INT64, LS_SUM, options, NULL), LS_ERR_SYSTEM);
    CHECK_CONTAINS(ls_error_message(), "backend \"loop\": no event");
    CHECK_INT(counts->unmarked, 0);
    setenv("LOOP_BROKEN", "", 1);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    (void)ls_group_abort(loop, "done");
    while (ls_group_status(loop) == LS_OK) { /* else the call would be queued, and fail there */
        usleep(1000);
    }
    CHECK(ls_all_reduce(loop, &x, &x, 1, LS_INT64, LS_SUM, options, NULL) < 0);
    CHECK_INT(counts->unmarked, 1);
}

/* ---- control is native --------------------------------------------------------------------- */

DIST_TEST(descriptors_are_compared_before_the_plug_in_moves_a_byte, 2)
{
    ls_group *loop = group_over_loop("compared");
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    CHECK_STATUS(ls_all_reduce(loop, x, x, ls_rank() == 0 ? 8 : 4, LS_FLOAT32, LS_SUM, NULL, NULL),
                 LS_ERR_MISMATCH);
    CHECK(strstr(ls_error_message(), "give every rank the same count") != NULL);
    CHECK(x[0] == 1 && x[7] == 8); /* no poison, no sum */
    ls_group *again = group_over_loop("again");
    int64_t counts[2] = {2, 2}, out[2] = {2, ls_rank() == 0 ? 3 : 2};
    float y[8];
    if (!again->has_remote) { /* between hosts only the two ends of a block know its length */
        CHECK_STATUS(ls_all_to_all_v(again, x, counts, NULL, y, out, NULL, LS_FLOAT32, NULL, NULL),
                     LS_ERR_MISMATCH);
    }
}

static _Atomic int ended;

static void on_end(void *arg, ls_status status)
{
    (void)arg;
    atomic_store(&ended, status == LS_OK ? 1 : -1);
}

/* The user's thread makes no call while the operation is in flight. */
DIST_TEST(the_engine_tests_the_plug_in_while_nobody_waits, 2)
{
    ls_group *loop = group_over_loop("polled");
    int64_t x = ls_rank() + 1, sum = 0;
    ls_work *work = NULL;
    CHECK_OK(ls_all_reduce(loop, &x, &sum, 1, LS_INT64, LS_SUM, NULL, &work));
    CHECK_OK(ls_work_on_done(work, on_end, NULL));
    const double begin = ls_time();
    while (atomic_load(&ended) == 0 && ls_time() < begin + 20) {
        usleep(100);
    }
    CHECK_INT(atomic_load(&ended), 1);
    CHECK_INT(sum, 3);
    CHECK_OK(ls_work_wait(work));
    CHECK_OK(ls_group_free(loop));
}

/* ---- faults -------------------------------------------------------------------------------- */

DIST_TEST(a_result_that_is_not_waited_for_is_poison, 2)
{
    setenv("LOOP_FAULT", "early:1:2", 1); /* rank 1, from its second collective on */
    setenv("LOOP_DELAY_US", "2000", 1);
    ls_group *loop = group_over_loop("early");
    for (int i = 0; i < 3; i++) {
        float x[4] = {1, 1, 1, 1};
        CHECK_OK(ls_all_reduce(loop, x, x, 4, LS_FLOAT32, LS_SUM, NULL, NULL));
        const bool poison = x[0] != x[0]; /* NaN */
        CHECK(poison == (ls_rank() == 1 && i >= 1));
        CHECK(poison || x[3] == 2);
    }
    CHECK_OK(ls_group_free(loop));
}

static void keep_log(ls_log_level level, const char *text, void *arg)
{
    char *to = arg;
    if (level <= LS_LOG_WARN && strstr(text, "cannot abort") != NULL) {
        snprintf(to, 4096, "%s", text);
    }
}

DIST_TEST(a_plug_in_that_hangs_ends_at_the_deadline_and_the_rank_is_named, 3)
{
    static char logged[4096];
    ls_set_log_callback(keep_log, logged);
    setenv("LOOP_FAULT", "hang:2:2", 1);
    ls_group *loop = group_over_loop("hanging");
    const ls_collective_options *options = LS_OPTIONS(ls_collective_options, .timeout_ms = 1500);
    float x = 1;
    CHECK_OK(ls_all_reduce(loop, &x, &x, 1, LS_FLOAT32, LS_SUM, options, NULL));
    const double begin = ls_time();
    CHECK_STATUS(ls_all_reduce(loop, &x, &x, 1, LS_FLOAT32, LS_SUM, options, NULL), LS_ERR_TIMEOUT);
    CHECK(ls_time() - begin > 1.0);
    const char *text = ls_error_message();
    CHECK(strstr(text, "backend \"loop\"") != NULL && strstr(text, "rank 2") != NULL);
    if (strstr(text, "has not ended it") != NULL) { /* rank 2 was the first to give up */
        CHECK_SAYS(text,
                   "all ranks have called it, and backend \"%s\" has not ended it on rank %d");
    } else {
        CHECK_SAYS(text, "all ranks have called it, and backend \"%s\" waits on rank %d for %s");
    }
    CHECK_SAYS(logged,
               "group \"%s\" has failed, and backend \"%s\" cannot abort: it may write to "
               "the buffers of operations in flight until this process ends; do not free or "
               "use them");
}

DIST_TEST(an_asynchronous_error_is_the_root_cause_on_all_ranks, 3)
{
    setenv("LOOP_FAULT", "error:1:2", 1);
    ls_group *loop = group_over_loop("failing");
    float x = 1;
    CHECK_OK(ls_all_reduce(loop, &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, NULL));
    CHECK_STATUS(ls_all_reduce(loop, &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, NULL), LS_ERR_SYSTEM);
    CHECK(strstr(ls_error_message(), "all_reduce #4 on group \"failing\"") != NULL);
    CHECK_SAYS(ls_error_message(), "%s cannot run on rank %d: %s");
    CHECK(strstr(ls_error_message(), "rank 1: backend \"loop\": an injected error") != NULL);
    CHECK_STATUS(ls_group_status(loop), LS_ERR_SYSTEM);
}

TEST_MAIN
