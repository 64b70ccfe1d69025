/* The harness itself: what fails is seen to fail, what hangs is ended, what is left is found. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test.h"

/* Runs `helper` of this program; returns its TAP, kept until this test's process ends. */
static const char *tap_of(const char *helper, int want_status)
{
    static char *kept[8];
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

TEST(helper_skips)
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

static int *tries; /* of helper_fails_at_first, shared by the processes that are its tries */

__attribute__((constructor)) static void count_tries(void)
{
    tries = mmap(NULL, sizeof *tries, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (getenv("HELPER_OF_TIMES") != NULL) {
        test_of_times();
    }
}

TEST(helper_fails_at_first)
{
    CHECK_INT(++*tries, 3);
}

TEST(a_test_of_times_is_run_again_and_says_so)
{
    CHECK(unsetenv("TEST_LONG") == 0 && unsetenv("TEST_TIMES") == 0);
    CHECK_CONTAINS(tap_of("fails_at_first", 1), "not ok 1 - helper_fails_at_first\n");
    CHECK(setenv("HELPER_OF_TIMES", "1", 1) == 0);
    const char *tap = tap_of("fails_at_first", 0);
    CHECK_CONTAINS(tap, "# AGAIN helper_fails_at_first: exit status 1\n");
    CHECK_CONTAINS(tap, "got 2, want 3\n");
    CHECK_CONTAINS(tap, "\nok 1 - helper_fails_at_first\n");
    CHECK(setenv("TEST_LONG", "1", 1) == 0);
    CHECK_CONTAINS(tap_of("fails_at_first", 1), "not ok 1 - helper_fails_at_first\n");
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
    CHECK_CONTAINS(tap, "exit status 3\n");
}

TEST(a_skipped_test_says_why)
{
    CHECK_CONTAINS(tap_of("skips", 0), "ok 1 - helper_skips # SKIP there is no moon\n");
}

TEST(a_test_that_hangs_is_ended_at_its_deadline)
{
    const char *tap = tap_of("hangs", 1);
    CHECK_CONTAINS(tap, "not ok 1 - helper_hangs\n");
    CHECK_CONTAINS(tap, "not finished after 1 s\n");
}

TEST(a_process_left_behind_is_a_failure_and_is_ended)
{
    const char *tap = tap_of("leaves_a_process", 1);
    CHECK_CONTAINS(tap, "not ok 1 - helper_leaves_a_process\n");
    CHECK_CONTAINS(tap, "left 1 process behind\n");
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
