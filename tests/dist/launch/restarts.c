/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep run --max-restarts`: what is tried again, what is not, and what programs see of it. The
 * harness fails a test that leaves a process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "says.h"
#include "script.h"

#define SECONDS 40

/* Runs, and wants this status, so many restarts, and `last` among the output. */
static void check(const char *text, int status, int restarts, const char *last)
{
    test_output got = script_with("", text, SECONDS);
    if (got.status != status || count_of(got.text, "lockstep: restart ") != restarts) {
        test_fail(__FILE__, __LINE__, "%s\nstatus %d, want %d; want %d restarts: %s", text,
                  got.status, status, restarts, got.text);
    }
    CHECK_SAYS(got.text, last);
    free(got.text);
}

TEST(what_fails_once_is_started_again_and_comes_through)
{
    check("$L run -n 3 --max-restarts 2 sh -c '[ $TORCHELASTIC_RESTART_COUNT$RANK = 01 ] && exit "
          "7; echo try $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS'",
          0, 1, "[1] try 1 of 2\n");
    check("$L run -n 4 --max_restarts=1 $W mend", 0, 1, "[1] came through in attempt 1\n");
    check("$L run -n 1 --max-restarts 1 sh -c '[ $TORCHELASTIC_RESTART_COUNT = 1 ] || kill -9 $$'",
          0, 1, "lockstep: restart 1 of 1, at once\n");
}

TEST(without_the_flag_nothing_is_started_again)
{
    test_output got = script_with("", "$L run -n 2 sh -c 'exit 7'", SECONDS);
    CHECK_INT(got.status, 7);
    CHECK_INT(count_of(got.text, "restart"), 0);
    free(got.text);
}

TEST(the_same_failure_twice_is_not_tried_a_third_time)
{
    check("$L run -n 2 --max-restarts 5 sh -c 'echo no such file; exit 7'", 7, 1,
          "lockstep: not restarted: the same failure occurred twice; it would recur\n");
    /* in words that differ in process numbers, and after a resume that began at another step */
    check("$L run -n 2 --max-restarts 5 $W fail", 9, 1,
          "lockstep: not restarted: the same failure occurred twice at step 5; it would recur\n");
}

TEST(different_failures_use_up_the_restarts_and_the_last_ones_status_is_given)
{
    check("$L run -n 2 --max-restarts 2 sh -c 'exit $((TORCHELASTIC_RESTART_COUNT+3))'", 5, 2,
          SAYS("not restarted: %d of %d restarts%s are used"));
    check("$L run -n 2 --max-restarts 2 $W kill", 137, 2, "lockstep: restart 2 of 2, in 1 s\n");
}

TEST(a_kill_from_outside_proves_nothing_where_no_step_is_known)
{
    check("$L run -n 2 --max-restarts 2 sh -c 'kill -9 $$'", 137, 2, "2 of 2 restarts are used");
}

TEST(what_cannot_work_is_not_tried_again)
{
    check("$L run -n 2 --max-restarts 3 ./no_such_program", 127, 0,
          "lockstep: not restarted: it is not a failure of the ranks\n");
    check(
        "$L run -n 2 --max-restarts 3 sh -c no_such_program", 127, 0,
        "lockstep: not restarted: exit codes 126 and 127 mean that a program cannot be started\n");
    for (int code = 2; code <= 64; code += 62) {
        char command[128];
        snprintf(command, sizeof command, "$L run -n 3 --max-restarts 3 sh -c 'exit %d'", code);
        check(command, code, 0,
              "lockstep: not restarted: exit codes 2 and 64 before ls_init mean that a program "
              "was used wrongly\n");
    }
    check("$L run -n 2 --max-restarts 3 $W mismatch", 1, 0, SAYS("not restarted: %s (%s)"));
}

/* A setting that a rank and another rank have differently: the launcher's first line has
 * `cause`. */
static void check_settings(const char *command, const char *cause)
{
    char text[512];
    snprintf(text, sizeof text, "$L run -n 3 --max-restarts 3 %s 2>&1 | grep ^lockstep: | head -3",
             command);
    test_output got = script_with("", text, SECONDS);
    const char *end = strchr(got.text, '\n'), *found = strstr(got.text, cause);
    if (found == NULL || end == NULL || found > end ||
        count_of(got.text, "lockstep: restart ") > 0) {
        test_fail(__FILE__, __LINE__, "%s\nwant \"%s\" in the first line: %s", text, cause,
                  got.text);
    }
    CHECK_CONTAINS(got.text, "lockstep: not restarted: it would recur (LS_ERR_MISMATCH)\n");
    free(got.text);
}

TEST(settings_that_differ_are_the_root_cause_and_are_not_tried_again)
{
    check_settings("$W differ lr", "rank 0 has SGD, lr 0.1");
    check_settings("$W differ optimizer", "rank 1 has Adam, lr 0.1");
    check_settings("$W differ seed", "the seed: rank 0 has 0, as 2 of 3 ranks, rank 1 has 7");
    check_settings("$W differ batch", "rank 1 has 24 samples, batch 3");
    check_settings("$W differ data", "rank 1 has 20 samples, batch 2");
    check_settings("$W differ names", "rank 0 names the group \"even\", rank 1 \"odd\"");
    check_settings("$W differ schedule", "rank 0 has 1f1b, as 2 of 3 ranks, rank 1 has gpipe");
    check_settings("$W differ layers",
                   "part 6: rank 0 has none, as 2 of 3 ranks, rank 1 has \"g\"");
}

TEST(variables_that_differ_are_the_root_cause_and_are_not_tried_again)
{
    check_settings("sh -c 'if [ $RANK = 2 ]; then export LOCKSTEP_CPU=ref; else export "
                   "LOCKSTEP_CPU=base; fi; exec $W train 2'",
                   "LOCKSTEP_CPU=base, rank 2 has LOCKSTEP_CPU=ref; start all ranks");
    check_settings(
        "sh -c '[ $RANK = 1 ] && export LOCKSTEP_ALGORITHM=all_reduce=ring; exec $W train 2'",
        "rank 1 has LOCKSTEP_ALGORITHM=all_reduce=ring (");
}

TEST(the_run_keeps_its_number_and_each_attempt_its_logs)
{
    test_output got = script_with(
        "",
        "mkdir -p l/attempt_0/7; echo old > l/attempt_0/7/kept\n"
        "$L run -n 2 --max-restarts 3 --log-dir l sh -c 'echo $TORCHELASTIC_RUN_ID; echo "
        "$TORCHELASTIC_RESTART_COUNT $$ >&2; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit "
        "3' >/dev/null 2>&1; echo status $?\n"
        "cd l; cat attempt_0/0/stdout.log attempt_1/1/stdout.log | uniq | wc -l\n"
        "cat attempt_1/1/stderr.log; ls; cat attempt_0/7/kept\n"
        "p=$(sed 's/1 //' attempt_1/1/stderr.log); tr -d ' \\n' < pids.json | grep -o "
        "\"\\\"rank\\\":1,\\\"pid\\\":$p,\\\"host\\\":\\\"[^\\\"]*\\\",\\\"attempt\\\":1\"",
        SECONDS);
    CHECK_CONTAINS(got.text, "status 0\n1\n1 ");
    CHECK_CONTAINS(got.text, "attempt_0\nattempt_1\npids.json\nold\n");
    CHECK_CONTAINS(got.text, "\"attempt\":1");
    free(got.text);
}

TEST(nothing_of_the_former_attempt_is_left_when_the_next_begins)
{
    /* rank 1 leaves a process in a session of its own, which the second attempt looks for */
    check("ls /dev/shm | grep lockstep > before\n"
          "$L run -n 2 --max-restarts 1 sh -c 'if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then "
          "[ $RANK = 0 ] && sleep 60; setsid sh -c \"trap \\\"\\\" TERM; echo \\$\\$ > far; sleep "
          "60\" & until [ -s far ]; do sleep 0.01; done; exit 3; fi; kill -0 $(cat far) && exit 4; "
          "echo clean'; s=$?\nls /dev/shm | grep lockstep > after; cmp before after || exit 98; "
          "exit $s",
          0, 1, "[1] clean\n");
}

TEST(a_wish_to_stop_while_waiting_for_the_next_attempt_ends_the_job)
{
    check("$L run -n 1 --max-restarts 9 --log-dir l sh -c 'exit $((TORCHELASTIC_RESTART_COUNT+3))' "
          "2> err & p=$!\n"
          "until grep -qs 'in 2 s' err; do sleep 0.01; done; kill -TERM $p; wait $p; s=$?\n"
          "cat err; exit $s",
          5, 3, SAYS("not restarted: a stop was requested (%s)"));
}

TEST(a_program_that_dies_of_the_wish_to_stop_is_not_started_again)
{
    check("$L run -n 2 --max-restarts 3 sh -c 'echo up > up$RANK; exec sleep 60' & p=$!\n"
          "until_file up0; until_file up1; kill -TERM $p; wait $p",
          143, 0, "lockstep: not restarted: a stop was requested (SIGTERM)\n");
}

TEST(wrong_values_are_refused)
{
    check("$L run -n 1 --max-restarts x true", 2, 0, "--max-restarts is \"x\"; give 0 to 1000");
    check("$L run -n 1 --max-restarts -1 true", 2, 0, "--max-restarts is \"-1\"; give 0 to 1000");
    check("$L run -n 1 --max-restarts 1001 true", 2, 0, "give 0 to 1000");
    check("$L run -n 1 --restart-window 0 true", 2, 0, "give a number of seconds");
    check("$L run -n 1 --max-restart 1 true", 2, 0, "did you mean --max-restarts?");
}

TEST_MAIN
