/* SPDX-License-Identifier: Apache-2.0 */
/* ls_spawn: ranks from inside a program, what it returns and what it leaves. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <lockstep/status.h>

#include "base/env.h"
#include "job/bootstrap/bootstrap.h"
#include "says.h"
#include "test.h"

/* What a rank that dies on purpose leaves behind stays reachable: no leak to a sanitizer. */
static int join(ls__boot *boot)
{
    static ls__boot last;
    if (ls__bootstrap(ls__env_posix(), 5000, boot) != LS_OK) {
        fprintf(stderr, "%s\n", ls_error_message());
        return 1;
    }
    last = *boot;
    return last.world_size > 0 ? 0 : 1;
}

static int count_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

/* ---- joining --------------------------------------------------------------------------------- */

static int add_up(void *arg)
{
    ls__boot boot;
    int64_t *total = arg, now = 0;
    if (join(&boot) != 0 || boot.world_size < 1 || boot.rank != boot.local_rank) {
        return 1;
    }
    bool good = ls_store_add(boot.store, "ranks", boot.rank + 1, &now, 5000) == LS_OK;
    char key[32];
    snprintf(key, sizeof key, "done %d", boot.rank);
    good = good && ls_store_set(boot.store, key, "", 0, 5000) == LS_OK;
    for (int r = 0; good && r < boot.world_size; r++) {
        snprintf(key, sizeof key, "done %d", r);
        good = ls_store_wait(boot.store, key, 5000) == LS_OK;
    }
    good = good && ls_store_add(boot.store, "ranks", 0, &now, 5000) == LS_OK;
    if (boot.rank == 0) {
        *total = now;
    }
    ls__bootstrap_close(ls__env_posix(), &boot);
    return good ? 0 : 2;
}

static void *shared(size_t bytes)
{
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

TEST(every_world_of_1_to_8_ranks_meets_in_the_store)
{
    int64_t *total = shared(sizeof *total);
    for (int n = 1; n <= 8; n++) {
        CHECK_OK(ls_spawn(add_up, total, n));
        CHECK_INT(*total, n * (n + 1) / 2);
    }
}

TEST(many_spawns_leave_no_descriptor_and_no_process)
{
    int64_t *total = shared(sizeof *total);
    CHECK_OK(ls_spawn(add_up, total, 2));
    int before = count_descriptors();
    for (int i = 0; i < 10; i++) {
        CHECK_OK(ls_spawn(add_up, total, 2));
    }
    CHECK_INT(count_descriptors(), before);
    CHECK_INT(kill(-getpid(), 0), 0); /* only we are left; the harness looks for orphans */
}

static int do_nothing(void *arg)
{
    (void)arg;
    return 0;
}

TEST(wrong_arguments_are_refused)
{
    CHECK_STATUS(ls_spawn(NULL, NULL, 2), LS_ERR_INVALID);
    CHECK_STATUS(ls_spawn(do_nothing, NULL, 0), LS_ERR_INVALID);
    CHECK_STATUS(ls_spawn(do_nothing, NULL, 257), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "257");
}

TEST(ranks_that_never_join_are_fine)
{
    CHECK_OK(ls_spawn(do_nothing, NULL, 3));
}

/* ---- failures -------------------------------------------------------------------------------- */

static int rank_of_environment(void)
{
    const char *text = getenv("RANK");
    return text == NULL ? -1 : atoi(text);
}

static int wait_for_ever(ls__boot *boot)
{
    return ls_store_wait(boot->store, "never set", 60000) == LS_ERR_PEER ? 3 : 4;
}

static int rank_2_is_killed(void *arg)
{
    ls__boot boot;
    (void)arg;
    if (join(&boot) != 0) {
        return 9;
    }
    if (boot.rank == 2) {
        kill(getpid(), SIGKILL);
    }
    return wait_for_ever(&boot);
}

TEST(a_killed_rank_is_named_and_ends_the_others)
{
    CHECK_STATUS(ls_spawn(rank_2_is_killed, NULL, 4), LS_ERR_PEER);
    CHECK_CONTAINS(ls_error_message(), "rank 2 (host");
    CHECK_CONTAINS(ls_error_message(), "was killed by signal 9 (SIGKILL)");
}

static int rank_1_exits_7(void *arg)
{
    ls__boot boot;
    (void)arg;
    if (join(&boot) != 0) {
        return 9;
    }
    if (boot.rank == 1) {
        _exit(7); /* as a program that calls exit, without the sanitizer's words about leaks */
    }
    return wait_for_ever(&boot);
}

TEST(an_exit_code_is_named_and_ends_the_others)
{
    CHECK_STATUS(ls_spawn(rank_1_exits_7, NULL, 3), LS_ERR_PEER);
    CHECK_CONTAINS(ls_error_message(), "rank 1 (host");
    CHECK_CONTAINS(ls_error_message(), "exited with code 7");
}

static int rank_0_forgets_to_leave(void *arg)
{
    ls__boot boot;
    (void)arg;
    if (join(&boot) != 0) {
        return 9;
    }
    if (boot.rank == 0) {
        _exit(0);
    }
    return wait_for_ever(&boot);
}

TEST(status_0_without_leaving_is_a_failure)
{
    CHECK_STATUS(ls_spawn(rank_0_forgets_to_leave, NULL, 3), LS_ERR_PEER);
    CHECK_CONTAINS(ls_error_message(), "rank 0 (host");
    CHECK_CONTAINS(ls_error_message(), "without ls_finalize");
}

static int rank_1_never_joins(void *arg)
{
    ls__boot boot;
    (void)arg;
    if (rank_of_environment() == 1) {
        return 0;
    }
    return join(&boot) != 0 ? 9 : wait_for_ever(&boot);
}

TEST(a_rank_that_ends_without_joining_is_a_failure_once_others_wait)
{
    CHECK_STATUS(ls_spawn(rank_1_never_joins, NULL, 3), LS_ERR_PEER);
    CHECK_CONTAINS(ls_error_message(), "rank 1 (host");
    CHECK_CONTAINS(ls_error_message(), "without ls_init");
}

/* Rank 3 finds a mismatch and says so on the board; rank 0 hears of it and exits first. */
static int a_finding_then_exits(void *arg)
{
    ls__boot boot;
    (void)arg;
    if (join(&boot) != 0) {
        return 9;
    }
    if (boot.rank == 3) {
        ls__board_rank *own = &boot.board->rank[3];
        snprintf(own->failed_text, sizeof own->failed_text, "linear: x [1,5]");
        atomic_store(&own->failed, (uint32_t)-LS_ERR_INVALID);
        (void)ls_store_set(boot.store, "found", "", 0, 5000);
        return wait_for_ever(&boot);
    }
    if (boot.rank == 0) {
        (void)ls_store_wait(boot.store, "found", 5000);
        return 5;
    }
    return wait_for_ever(&boot);
}

TEST(a_ranks_own_finding_explains_another_ranks_exit)
{
    CHECK_STATUS(ls_spawn(a_finding_then_exits, NULL, 4), LS_ERR_PEER);
    CHECK_CONTAINS(ls_error_message(), "rank 3 (host");
    CHECK_CONTAINS(ls_error_message(), "failed: linear: x [1,5]");
}

/* The same moment: rank 1 exits because rank 2 was killed. */
static int two_fail_closely(void *arg)
{
    ls__boot boot;
    pid_t *killed = arg;
    if (join(&boot) != 0) {
        return 9;
    }
    if (boot.rank == 2) {
        *killed = getpid();
        (void)ls_store_set(boot.store, "ready", "", 0, 5000);
        pause();
    }
    if (boot.rank == 1) {
        (void)ls_store_wait(boot.store, "ready", 5000);
        kill(*killed, SIGKILL);
        _exit(1);
    }
    return wait_for_ever(&boot);
}

TEST(of_two_close_failures_the_signal_is_the_cause)
{
    pid_t *killed = shared(sizeof *killed);
    for (int i = 0; i < 5; i++) {
        CHECK_STATUS(ls_spawn(two_fail_closely, killed, 3), LS_ERR_PEER);
        CHECK_CONTAINS(ls_error_message(), "rank 2 (host");
    }
}

/* ---- a rank's place is taken once ------------------------------------------------------------ */

static int join_twice(void *arg)
{
    ls__boot boot, again;
    (void)arg;
    int first = join(&boot);
    char saved[64];
    snprintf(saved, sizeof saved, "%s", getenv("LOCKSTEP_BOOTSTRAP"));
    ls_status status = ls__bootstrap(ls__env_posix(), 1000, &again); /* descriptors are closed */
    bool refused = status < 0 && strstr(ls_error_message(), "board") != NULL;
    ls__bootstrap_close(ls__env_posix(), &boot);
    return first == 0 && refused ? 0 : 1;
}

TEST(a_second_join_of_one_rank_is_refused)
{
    CHECK_OK(ls_spawn(join_twice, NULL, 2));
}

static int child_joins_too(void *arg)
{
    ls__boot boot;
    (void)arg;
    int keep[3];
    sscanf(getenv("LOCKSTEP_BOOTSTRAP"), "v1:%d:%d:%d", &keep[0], &keep[1], &keep[2]);
    int board = dup(keep[1]), secret = dup(keep[2]), store = dup(keep[0]);
    if (join(&boot) != 0) {
        return 9;
    }
    char text[64];
    snprintf(text, sizeof text, "v1:%d:%d:%d", store, board, secret);
    setenv("LOCKSTEP_BOOTSTRAP", text, 1);
    ls__boot other;
    ls_status status = ls__bootstrap(ls__env_posix(), 1000, &other);
    bool taken =
        status == LS_ERR_STATE &&
        test_count_said(ls_error_message(),
                        SAYS("ls_init: process %d has already joined as rank %d, and each rank is "
                             "one process: start only one Lockstep program per rank, and others "
                             "with LOCKSTEP_BOOTSTRAP, RANK and WORLD_SIZE unset")) == 1;
    ls__bootstrap_close(ls__env_posix(), &boot);
    status = ls__bootstrap(ls__env_posix(), 1000, &other);
    bool left = status == LS_ERR_STATE && strstr(ls_error_message(), "joins once") != NULL;
    return taken && left ? 0 : 1;
}

TEST(a_place_that_is_taken_or_was_left_is_refused_in_words)
{
    CHECK_OK(ls_spawn(child_joins_too, NULL, 2));
}

TEST_MAIN
