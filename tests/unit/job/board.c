/* SPDX-License-Identifier: Apache-2.0 */
/* The job's board: memory that is none is refused in words, and what a rank's process is doing is
 * told. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/runtime.h>

#include "comm/join/arrival.h"
#include "job/board.h"
#include "says.h"
#include "test.h"

/* What is said of a memory file of so many bytes, all zero. */
static const char *refusal_of(size_t bytes)
{
    const ls__env *env = ls__env_posix();
    ls__board *board = NULL;
    const int fd = env->shm_create(env, "test", bytes);
    CHECK(fd >= 0);
    CHECK(ls__board_open(env, fd, &board) < 0 && board == NULL);
    env->close(env, fd);
    return ls_error_message();
}

TEST(memory_that_is_not_a_board_is_refused_in_words)
{
    CHECK_SAYS(refusal_of(100), "its size is not that of a board");
    CHECK_SAYS(refusal_of(ls__board_bytes(2)),
               "it belongs to another version or to another program");
}

static int state;

static int given_state(const ls__env *env, pid_t pid)
{
    (void)env;
    return pid > 0 ? state : -ENOENT;
}

TEST(unusual_states_of_a_ranks_process_are_told)
{
    static const struct {
        int state;
        const char *says;
    } tried[] = {
        {'T', SAYS("is stopped (state T; `kill -CONT %d` lets it go on),")},
        {'t', SAYS("is held by a debugger (state t),")},
        {'D', SAYS("waits for a disk or a driver (state D),")},
        {'Z', SAYS("has ended, but the launcher (pid %d) has not reported it,")},
    };
    ls__env env = *ls__env_posix();
    ls__board *board = NULL;
    int fd = -1;
    char text[1024];
    env.process_state = given_state;
    const ls__board_job job = {.ranks = 1, .world_size = 1, .launcher_pid = 77, .host = "h"};
    CHECK_OK(ls__board_new(&env, &job, &fd, &board));
    atomic_store(&board->rank[0].pid, (int)getpid());
    for (size_t i = 0; i < sizeof tried / sizeof *tried; i++) {
        state = tried[i].state;
        ls__board_describe(board, &env, 0, text, sizeof text);
        CHECK_SAYS(text, tried[i].says);
        for (size_t k = 0; k < sizeof tried / sizeof *tried; k++) {
            CHECK_INT(test_count_said(text, tried[k].says), i == k);
        }
    }
    ls__board_close(&env, board);
    env.close(&env, fd);
}

static uint64_t clock_ns;

static uint64_t set_clock(const ls__env *env)
{
    (void)env;
    return clock_ns;
}

static void count_warning(ls_log_level level, const char *text, void *arg)
{
    if (level == LS_LOG_WARN && strstr(text, "ls_init has waited") != NULL) {
        ++*(int *)arg;
    }
}

/* Whether the rank warns of the missing ones of three once it has waited for 6 s. */
static int warnings_of(const ls__env *env, const ls__board *board, int local_rank)
{
    int warnings = 0;
    ls__arrival a;
    clock_ns = 1000000000u;
    ls__arrival_begin(&a, env, board, local_rank, 60000);
    clock_ns += 6000000000u;
    ls_set_log_callback(count_warning, &warnings);
    CHECK(ls__arrival_goes_on(&a, LS_ERR_TIMEOUT, 0));
    ls_set_log_callback(NULL, NULL);
    return warnings;
}

/* Otherwise every rank of a host would say the same. */
TEST(the_first_rank_of_a_host_that_has_come_speaks_for_the_others)
{
    ls__env env = *ls__env_posix();
    ls__board *board = NULL;
    int fd = -1;
    env.now_ns = set_clock;
    const ls__board_job job = {.ranks = 3, .world_size = 3, .launcher_pid = 77, .host = "h"};
    CHECK_OK(ls__board_new(&env, &job, &fd, &board));
    atomic_store(&board->rank[1].activity.since_ns, 1);
    atomic_store(&board->rank[2].activity.since_ns, 1);
    CHECK_INT(warnings_of(&env, board, 1), 1);
    CHECK_INT(warnings_of(&env, board, 2), 0);
    ls__board_close(&env, board);
    env.close(&env, fd);
}

/* The processes of a job that Ctrl-Z stops wait for nobody meanwhile. */
TEST(the_deadline_of_ls_init_begins_anew_after_ctrl_z)
{
    ls__env env = *ls__env_posix();
    ls__board *board = NULL;
    ls__arrival a;
    int fd = -1;
    env.now_ns = set_clock;
    const ls__board_job job = {.ranks = 2, .world_size = 2, .launcher_pid = 77, .host = "h"};
    CHECK_OK(ls__board_new(&env, &job, &fd, &board));
    atomic_store(&board->rank[0].activity.since_ns, 1);
    clock_ns = 1000000000u;
    ls__arrival_begin(&a, &env, board, 0, 2000);
    CHECK_INT(ls__arrival_left_ms(&a), 2000);
    clock_ns += 3000000000u;
    CHECK_INT(ls__arrival_slice_ms(&a), 0);
    atomic_store(&board->continued_ns, clock_ns - 500000000u);
    CHECK(ls__arrival_goes_on(&a, LS_ERR_TIMEOUT, 1));
    CHECK_INT(ls__arrival_slice_ms(&a), 1500);
    CHECK(ls__arrival_deadline(&a, clock_ns) == clock_ns + 2000000000u); /* a wait since then */
    clock_ns += 1500000000u;
    CHECK(!ls__arrival_goes_on(&a, LS_ERR_TIMEOUT, 1));
    CHECK_CONTAINS(ls_error_message(), "1 of 2 ranks did not come within 4.5 s");
    ls__board_close(&env, board);
    env.close(&env, fd);
}

static void keep_text(ls_log_level level, const char *text, void *arg)
{
    (void)level;
    (void)snprintf(arg, 1024, "%s", text);
}

/* Nothing is known here of what a rank of another host is doing. */
TEST(a_rank_of_another_host_that_is_waited_for_is_named)
{
    ls__env env = *ls__env_posix();
    ls__board *board = NULL;
    ls__arrival a;
    char warned[1024] = "";
    int fd = -1;
    env.now_ns = set_clock;
    const ls__board_job job = {.ranks = 1, .world_size = 2, .launcher_pid = 77, .host = "h"};
    CHECK_OK(ls__board_new(&env, &job, &fd, &board));
    atomic_store(&board->rank[0].activity.since_ns, 1);
    clock_ns = 1000000000u;
    ls__arrival_begin(&a, &env, board, 0, 60000);
    clock_ns += 6000000000u;
    ls_set_log_callback(keep_text, warned);
    CHECK(ls__arrival_goes_on(&a, LS_ERR_TIMEOUT, 1));
    ls_set_log_callback(NULL, NULL);
    CHECK_SAYS(warned, "rank %d on another host");
    ls__board_close(&env, board);
    env.close(&env, fd);
}

/* A rank may die while it writes the record of an operation. */
TEST(an_operation_in_no_known_state_is_being_written)
{
    const ls__env *env = ls__env_posix();
    ls__board *board = NULL;
    char text[1024];
    int fd = -1;
    const ls__board_job job = {.ranks = 1, .world_size = 1, .launcher_pid = 77, .host = "h"};
    CHECK_OK(ls__board_new(env, &job, &fd, &board));
    atomic_store(&board->rank[0].activity.since_ns, 1);
    atomic_store(&board->rank[0].flight[0].state, 99);
    atomic_store(&board->rank[0].flight_next, 1);
    ls__board_describe(board, env, 0, text, sizeof text);
    CHECK_SAYS(text, "being written");
    ls__board_close(env, board);
    env->close(env, fd);
}

TEST_MAIN
