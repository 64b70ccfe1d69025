/* SPDX-License-Identifier: Apache-2.0 */
/* The harness itself: what fails is seen to fail, what hangs is ended, what is left is found. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "processes.h"
#include "test.h"

/* Runs `helper` of this program; returns its TAP, kept until this test's process ends. */
static const char *tap_of(const char *helper, int want_status)
{
    static char *volatile kept[8]; /* a leak checker sees it there */
    static int count;
    char command[2048];
    snprintf(command, sizeof command, "'%s' helper_%s", test_build_path("tests/unit/base/harness"),
             helper);
    test_output out = test_run(command, 30);
    if (out.status != want_status) {
        test_fail(__FILE__, __LINE__, "%s: status %d: %s", helper, out.status, out.text);
    }
    kept[count] = out.text;
    return kept[count++];
}

TEST(helper_passes)
{
    CHECK(true);
}

TEST(helper_fails_a_check)
{
    printf("said before\n");
    CHECK_INT(2 + 2, 5);
}

TEST(helper_fails_a_status)
{
    CHECK_OK(LS_ERR_LIMIT);
}

TEST(helper_crashes)
{
    raise(SIGSEGV);
}

TEST(helper_exits_with_an_error)
{
    _exit(3);
}

TEST(helper_is_skipped)
{
    SKIP("there is no moon");
}

TEST_REGISTER_(helper_hangs, 0, 1)
{
    pause();
}

TEST(helper_leaves_a_process)
{
    if (fork() == 0) {
        pause();
    }
}

TEST(helper_exits_as_if_skipped)
{
    _exit(77);
}

TEST(helper_skips_in_a_child_only)
{
    if (fork() == 0) {
        SKIP("the child saw no moon");
    }
    wait(NULL);
}

TEST(helper_skips_parts)
{
    SKIP_PART("no %s here", "amx");
    SKIP_PART("no %s here", "amx");
    SKIP_PART("no sve");
}

TEST(helper_breaks_a_promise)
{
    CHECK_WITHIN(1000.0, 0.5);
}

TEST(helper_keeps_a_promise)
{
    CHECK_WITHIN(0.1, 0.5);
    CHECK_WITHIN(0.4, 0.5);
}

TEST(a_passing_test_is_ok)
{
    CHECK_CONTAINS(tap_of("passes", 0), "1..1\n");
    CHECK_CONTAINS(tap_of("passes", 0), "ok 1 - helper_passes\n");
}

TEST(a_failing_check_shows_place_values_and_output)
{
    const char *tap = tap_of("fails_a_check", 1);
    CHECK_CONTAINS(tap, "not ok 1 - helper_fails_a_check\n");
    CHECK_CONTAINS(tap, "# said before\n");
    CHECK_CONTAINS(tap, "harness.c:");
    CHECK_CONTAINS(tap, "2 + 2: got 4, want 5\n");
    CHECK_CONTAINS(tap_of("fails_a_status", 1), "LS_ERR_LIMIT: LS_ERR_LIMIT");
}

TEST(a_crash_and_an_odd_exit_are_failures)
{
    const char *tap = tap_of("crashes", 1);
    CHECK_CONTAINS(tap, "not ok 1 - helper_crashes\n");
    tap = tap_of("exits_with_an_error", 1);
    CHECK_CONTAINS(tap, "not ok 1");
    CHECK_CONTAINS(tap, "exit status 3");
}

TEST(a_skipped_test_says_why)
{
    CHECK_CONTAINS(tap_of("is_skipped", 0), "ok 1 - helper_is_skipped # SKIP there is no moon\n");
}

TEST(only_who_calls_skip_and_ends_by_it_is_skipped)
{
    const char *tap = tap_of("exits_as_if_skipped", 1);
    CHECK_CONTAINS(tap, "not ok 1 - helper_exits_as_if_skipped\n");
    CHECK_CONTAINS(tap, "exit status 77");
    tap = tap_of("skips_in_a_child_only", 1);
    CHECK_CONTAINS(tap, "not ok 1 - helper_skips_in_a_child_only\n");
    CHECK_CONTAINS(tap, "called SKIP (the child saw no moon), but the test went on");
}

TEST(parts_that_do_not_run_are_told_once_each)
{
    CHECK_CONTAINS(tap_of("skips_parts", 0),
                   "ok 1 - helper_skips_parts\n# PART SKIP no amx here\n# PART SKIP no sve\n");
}

TEST(a_broken_promise_fails_and_the_closest_one_is_told)
{
    CHECK_CONTAINS(tap_of("breaks_a_promise", 1), "1000.0: 1000.000 s, promised within 0.500 s");
    CHECK_CONTAINS(tap_of("keeps_a_promise", 0), "# WITHIN 0.400 s of 0.500 s promised, ");
}

/* Busy processes on all cores: what computes beside them has less than a half of one. */
TEST(other_work_widens_what_is_allowed)
{
    enum { TIMES = 3 };
    const long busy = TIMES * sysconf(_SC_NPROCESSORS_ONLN);
    for (long i = 0; i < busy; i++) {
        if (fork() == 0) {
            for (;;) {
            }
        }
    }
    const double begin = process_seconds();
    while (test_slow_down() < TIMES - 1 && process_seconds() - begin < 60) {
        usleep(10000);
    }
    CHECK(test_slow_down() >= TIMES - 1);
    CHECK(test_is_within(1.5, 1.0));
    processes_kill_children();
}

TEST(the_first_failure_ends_a_program_that_shall_bail)
{
    CHECK_CONTAINS(tap_of("fails_a", 1), "not ok 2 - helper_fails_a_status\n");
    CHECK(setenv("TEST_BAIL", "1", 1) == 0);
    const char *tap = tap_of("fails_a", 1);
    CHECK_CONTAINS(tap, "not ok 1 - helper_fails_a_check\n");
    CHECK(strstr(tap, "helper_fails_a_status") == NULL);
}

TEST(a_test_that_hangs_is_ended_at_its_deadline)
{
    const char *tap = tap_of("hangs", 1);
    CHECK_CONTAINS(tap, "not ok 1 - helper_hangs\n");
    CHECK_CONTAINS(tap, "not finished after 1 s");
}

TEST(a_process_left_behind_is_a_failure_and_is_ended)
{
    const char *tap = tap_of("leaves_a_process", 1);
    CHECK_CONTAINS(tap, "not ok 1 - helper_leaves_a_process\n");
    CHECK_CONTAINS(tap, "left 1 process behind");
}

TEST(a_command_that_hangs_is_ended_and_keeps_what_it_printed)
{
    test_output out = test_run("echo early; sleep 1000", 1);
    CHECK_INT(out.status, 124);
    CHECK(strcmp(out.text, "early\n") == 0);
    CHECK(out.seconds < 20);
    free(out.text);
    out = test_run("kill -TERM $$", 10);
    CHECK_INT(out.status, 128 + SIGTERM);
    free(out.text);
}

TEST_MAIN
