/* SPDX-License-Identifier: Apache-2.0 */
/* A world of one: the same engine without peers. Life of the runtime, arguments, memory. */
#include "test.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/comm.h>
#include <lockstep/store.h>

#include "base/runtime.h"
#include "comm/core/comm.h"
#include "comm/core/group.h"

TEST(a_runtime_can_be_made_again_after_it_ended)
{
    for (int i = 0; i < 3; i++) {
        CHECK(ls_world() == NULL);
        CHECK_OK(ls_init(NULL));
        CHECK_INT(ls_world_size(), 1);
        CHECK_STATUS(ls_init(NULL), LS_ERR_STATE);
        CHECK(strcmp(ls_group_name(ls_world()), "world") == 0);
        CHECK_OK(ls_finalize());
        CHECK_STATUS(ls_finalize(), LS_ERR_STATE);
    }
}

TEST(calls_without_a_runtime_say_what_to_do)
{
    float x = 1;
    CHECK_STATUS(ls_all_reduce(NULL, &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, NULL), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "ls_init");
    CHECK_STATUS(ls_init(LS_OPTIONS(ls_init_options, .threads = -1)), LS_ERR_INVALID);
}

TEST(one_rank_reduces_to_its_own_values)
{
    CHECK_OK(ls_init(NULL));
    float x[3] = {1, 2, 3}, y[3] = {0};
    CHECK_OK(ls_all_reduce(ls_world(), x, x, 3, LS_FLOAT32, LS_AVG, NULL, NULL));
    CHECK(x[0] == 1 && x[2] == 3);
    CHECK_OK(ls_all_reduce(ls_world(), x, x, 3, LS_FLOAT32, LS_SUM,
                           LS_OPTIONS(ls_collective_options, .divisor = 2), NULL));
    CHECK(x[0] == 0.5f && x[2] == 1.5f);
    CHECK_OK(ls_all_gather(ls_world(), x, y, 3, LS_FLOAT32, NULL, NULL));
    CHECK(memcmp(x, y, sizeof x) == 0);
    CHECK_OK(ls_finalize());
}

TEST(wrong_arguments_are_refused_in_words)
{
    CHECK_OK(ls_init(NULL));
    ls_group *w = ls_world();
    float x[4] = {0};
    int32_t n[4] = {0};
    ls_work *work = (ls_work *)x;
    CHECK_STATUS(ls_all_reduce(NULL, x, x, 4, LS_FLOAT32, LS_SUM, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_all_reduce(w, NULL, NULL, 4, LS_FLOAT32, LS_SUM, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_all_reduce(w, x, x, -1, LS_FLOAT32, LS_SUM, NULL, &work), LS_ERR_INVALID);
    CHECK(work == NULL);
    CHECK_CONTAINS(ls_error_message(), "count is -1");
    CHECK_STATUS(ls_all_reduce(w, x, x, INT64_MAX, LS_FLOAT32, LS_SUM, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_all_reduce(w, x, x, 4, (ls_dtype)77, LS_SUM, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_all_reduce(w, x, x, 4, LS_FLOAT32, (ls_reduce_op)9, NULL, NULL),
                 LS_ERR_INVALID);
    CHECK_STATUS(ls_all_reduce(w, x, x, 4, LS_FLOAT32, LS_BXOR, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_all_reduce(w, n, n, 4, LS_BOOL, LS_AVG, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_all_reduce(w, n, n, 4, LS_INT32, LS_SUM,
                               LS_OPTIONS(ls_collective_options, .divisor = 2), NULL),
                 LS_ERR_INVALID);
    CHECK_STATUS(ls_broadcast(w, x, 4, LS_FLOAT32, 1, NULL, NULL), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "root 1 is not a rank");
    CHECK_STATUS(ls_send(w, x, 4, LS_FLOAT32, -1, 0, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_recv(w, x, 4, LS_FLOAT32, 0, -1, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_barrier(w, LS_OPTIONS(ls_collective_options, .stream = (ls_stream *)x), NULL),
                 LS_ERR_UNSUPPORTED);
    CHECK_STATUS(ls_work_wait(NULL), LS_ERR_INVALID);
    CHECK_OK(ls_group_status(w)); /* none of it failed the group */
    CHECK_OK(ls_barrier(w, NULL, NULL));
    CHECK_OK(ls_finalize());
}

TEST(memory_is_aligned_and_zeroed_again)
{
    CHECK_OK(ls_init(NULL));
    for (size_t bytes = 1; bytes < 4 << 20; bytes = bytes * 3 + 1) {
        for (int again = 0; again < 2; again++) {
            unsigned char *p = NULL;
            CHECK_OK(ls_group_alloc(ls_world(), bytes, (void **)&p));
            CHECK_INT((uintptr_t)p % (bytes >= 1 << 20 ? 4096 : 64), 0);
            for (size_t i = 0; i < bytes; i++) {
                CHECK(p[i] == 0);
            }
            memset(p, 0xff, bytes);
            CHECK_OK(ls_group_dealloc(ls_world(), p));
        }
    }
    int local = 0;
    CHECK_STATUS(ls_group_dealloc(ls_world(), &local), LS_ERR_INVALID);
    CHECK_OK(ls_group_dealloc(ls_world(), NULL));
    void *p = NULL;
    CHECK_STATUS(ls_group_alloc(ls_world(), SIZE_MAX / 2, &p), LS_ERR_MEMORY);
    CHECK_OK(ls_finalize());
}

TEST(a_forked_child_is_refused)
{
    CHECK_OK(ls_init(NULL));
    ls_group *w = ls_world();
    const pid_t child = fork();
    if (child == 0) {
        _exit(ls_barrier(w, NULL, NULL) == LS_ERR_FORKED && ls_finalize() == LS_ERR_FORKED ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
    CHECK_OK(ls_finalize());
}

TEST(an_unwaited_operation_ends_before_finalize)
{
    static float x[100000];
    ls_work *work = NULL;
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_all_reduce(ls_world(), x, x, 100000, LS_FLOAT32, LS_SUM, NULL, &work));
    CHECK_OK(ls_finalize());
}

TEST(the_engine_ends_what_nobody_waits_for)
{
    float x = 2;
    ls_work *work = NULL;
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, &work));
    const double begin = ls_time();
    ls_status status = LS_IN_PROGRESS;
    while (status == LS_IN_PROGRESS && ls_time() - begin < 10) {
        status = ls_work_test(work);
    }
    CHECK_STATUS(status, LS_OK);
    CHECK_OK(ls_work_wait(work));
    CHECK_OK(ls_finalize());
}

TEST(every_operation_leaves_a_flight_record)
{
    float x = 1;
    CHECK_OK(ls_init(NULL));
    for (int i = 0; i < LS__FLIGHT_MAX + 10; i++) {
        CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_FLOAT32, LS_MAX,
                               LS_OPTIONS(ls_collective_options, .tag = "loss"), NULL));
    }
    const ls__board_rank *me = ls_world()->comm->me;
    CHECK_INT(atomic_load(&me->flight_next), LS__FLIGHT_MAX + 10);
    const ls__flight_record *last = &me->flight[(LS__FLIGHT_MAX + 9) % LS__FLIGHT_MAX];
    CHECK_INT(atomic_load(&last->state), LS__FLIGHT_DONE);
    CHECK_INT(last->descriptor.sequence, LS__FLIGHT_MAX + 10);
    CHECK(strcmp(last->descriptor.text, "loss") == 0);
    CHECK(last->ended_ns >= last->queued_ns && last->queued_ns > 0);
    char text[512];
    ls__board_describe(ls_world()->comm->board, ls_world()->comm->env, 0, text, sizeof text);
    CHECK_CONTAINS(text, "loss");
    CHECK_OK(ls_finalize());
}

TEST_MAIN
