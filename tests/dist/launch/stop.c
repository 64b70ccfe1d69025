/* SPDX-License-Identifier: Apache-2.0 */
/* A wish to stop is heeded by all ranks after the same step; the second one is not waited for. The
 * harness fails a test that leaves a process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "says.h"
#include "script.h"

#define SECONDS 40
#define FOR_EVER "1000000"
#define RANKS_MAX 4

/* $G is the GPT program, $T a text; `in_time F` calls F until it succeeds. */
static test_output stop_script(const char *text)
{
    char definitions[2048];
    snprintf(definitions, sizeof definitions,
             "G=$P/train_gpt; T=%s\n"
             "in_time() { n=0; until $1; do n=$((n + 1)); [ $n -lt 8 ] || exit 95; done; }",
             test_source_path("LICENSE"));
    return script_with(definitions, text, SECONDS);
}

/* "ended after step 12 of … with HASH": the same from all `ranks`. */
static void check_same_end(const char *text, int ranks)
{
    char first[64] = "", line[64];
    int found = 0;
    for (const char *at = strstr(text, "ended after"); at != NULL;
         at = strstr(at + 1, "ended aft")) {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        if (found++ == 0) {
            snprintf(first, sizeof first, "%s", line);
        }
        if (strcmp(first, line) != 0) {
            test_fail(__FILE__, __LINE__, "not the same end: %s", text);
        }
    }
    CHECK_INT(found, ranks);
}

static void check_stop(const char *command, const char *signal, int ranks)
{
    char text[1024];
    snprintf(text, sizeof text,
             "env --default-signal=INT %s & p=$!\n"
             "r=0; while [ $r -lt %d ]; do until_file up$r; r=$((r+1)); done\n"
             "kill -%s $p; wait $p",
             command, ranks, signal);
    test_output got = stop_script(text);
    if (got.status != 0) {
        test_fail(__FILE__, __LINE__, "%s, %s: status %d: %s", command, signal, got.status,
                  got.text);
    }
    check_same_end(got.text, ranks);
    CHECK(strstr(got.text, "after step " FOR_EVER) == NULL);
    free(got.text);
}

TEST(all_ranks_stop_after_the_same_step_with_the_same_weights)
{
    for (int ranks = 2; ranks <= RANKS_MAX; ranks++) {
        char command[64];
        snprintf(command, sizeof command, "$L run -n %d $W train " FOR_EVER, ranks);
        check_stop(command, ranks % 2 == 0 ? "TERM" : "INT", ranks);
    }
}

TEST(a_loop_without_a_reducer_agrees_by_a_collective)
{
    check_stop("$L run -n 3 $W agree " FOR_EVER, "TERM", 3);
    check_stop("$W agree " FOR_EVER, "INT", 1);
}

TEST(alone_with_or_without_a_launcher_a_signal_ends_training_well)
{
    check_stop("$W train " FOR_EVER, "TERM", 1);
    check_stop("$W train " FOR_EVER, "INT", 1);
    check_stop("$L run -n 1 $W train " FOR_EVER, "TERM", 1);
}

TEST(the_launcher_says_what_it_was_asked)
{
    test_output got = stop_script("$L run -n 2 $W train " FOR_EVER " & p=$!\n"
                                  "until_file up0; until_file up1; kill -TERM $p; wait $p");
    CHECK_INT(got.status, 0);
    CHECK_SAYS(got.text,
               "lockstep: stop requested: the ranks finish their step; repeat the signal to "
               "stop them now");
    CHECK_SAYS(got.text, "lockstep: stopped by signal %d (%s); all ranks ended well");
    free(got.text);
}

/* As a batch system does, which signals each process of a job. */
TEST(a_signal_to_one_rank_is_a_wish_of_all)
{
    test_output got = stop_script("$L run -n 3 $W train " FOR_EVER " & p=$!\n"
                                  "for r in 0 1 2; do until_file up$r; done\n"
                                  "kill -TERM $(cat up2); wait $p");
    CHECK_INT(got.status, 0);
    check_same_end(got.text, 3);
    free(got.text);
    got = stop_script("$L run -n 2 $W train " FOR_EVER " & p=$!\n"
                      "for r in 0 1; do until_file up$r; done\n"
                      "kill -TERM $(cat up0 up1) $(cat /proc/$p/task/$p/children) $p; wait $p");
    CHECK_INT(got.status, 0);
    check_same_end(got.text, 2);
    free(got.text);
}

TEST(a_program_that_did_not_ask_for_it_gets_the_signal)
{
    test_output got = stop_script("$L run -n 2 $W plain " FOR_EVER " & p=$!\n"
                                  "until_file up0; until_file up1; kill -TERM $p; wait $p");
    CHECK_INT(got.status, 143);
    CHECK_CONTAINS(got.text, "lockstep: the job was stopped by signal 15 (SIGTERM)\n");
    CHECK(strstr(got.text, "ended after") == NULL);
    free(got.text);
}

TEST(a_rank_in_ls_finalize_ends_well_although_the_job_is_asked_to_stop)
{
    test_output got = stop_script("$L run -n 2 $W leave & p=$!\n"
                                  "until_file up0; kill -TERM $p; wait $p");
    CHECK_INT(got.status, 0);
    CHECK_CONTAINS(got.text, "lockstep: stopped by signal 15 (SIGTERM); all ranks ended well\n");
    free(got.text);
}

static int took_ms(const char *text)
{
    CHECK_CONTAINS(text, "took ");
    return atoi(strstr(text, "took ") + 5);
}

TEST(the_second_signal_ends_all_within_a_second)
{
    test_output got = stop_script("$L run -n 3 --max-restarts 3 $W deaf " FOR_EVER " & p=$!\n"
                                  "for r in 0 1 2; do until_file up$r; done\n"
                                  "kill -TERM $p; sleep 0.5; kill -0 $p || exit 99\n"
                                  "b=$(date +%s%N); kill -TERM $p; wait $p; s=$?; e=$(date +%s%N)\n"
                                  "echo took $(((e-b)/1000000)) ms; exit $s");
    CHECK_INT(got.status, 143);
    CHECK_SAYS(got.text, "the job was killed after a second signal %d (%s)");
    CHECK_SAYS(got.text, "lockstep: not restarted: a stop was requested (%s)");
    CHECK_WITHIN(took_ms(got.text) / 1000.0, 1);
    free(got.text);
    got = stop_script("$W deaf " FOR_EVER " & p=$!\nuntil_file up0; kill -TERM $p; sleep 0.2\n"
                      "kill -0 $p || exit 99; kill -TERM $p; wait $p");
    CHECK_INT(got.status, 143);
    free(got.text);
}

/* While the launcher starts its agent, and the agent the ranks: the signal falls anywhere. */
TEST(a_wish_to_stop_in_the_first_moments_is_heeded)
{
    test_output got =
        stop_script("i=0; while [ $i -lt 60 ]; do $L run -n 2 sleep 20 2>>err & p=$!\n"
                    "sleep 0.00$((i / 10))$((i % 10)); kill -TERM $p; wait $p; s=$?\n"
                    "[ $s = 143 ] || { echo status $s; cat err; exit 9; }\n"
                    "i=$((i + 1)); done; cat err");
    CHECK_INT(got.status, 0);
    CHECK(strstr(got.text, "agent") == NULL);
    free(got.text);
}

TEST(the_gpt_program_stops_with_its_summary_and_equal_replicas)
{
    test_output got =
        stop_script("$L run -n 2 --log-dir l $G --data $T --steps 1000000 --layers 1 --heads 4 "
                    "--context 16 --dim 16 & p=$!\n"
                    "until grep -qs 'step 1/' l/0/stdout.log; do sleep 0.02; done\n"
                    "kill -TERM $p; wait $p");
    CHECK_INT(got.status, 0);
    CHECK_CONTAINS(got.text, " of 1000000, as a signal asked\n");
    CHECK_CONTAINS(got.text, "replicas identical: 2 of 2");
    free(got.text);
}

/* So many that a job is stopped, or a rank killed, long before they are done. On a busy machine the
 * signal may come after the last step all the same; then `in_time` starts the job anew. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define STEPS "300"
#else
#define STEPS "4000"
#endif

/* The same losses to the last digit as without the stop; then the same after a killed rank. */
#define TRAIN "$G --data $T --steps " STEPS " --layers 1 --heads 4 --context 16 --dim 16 --batch 2 "

TEST(a_stopped_job_goes_on_from_the_step_it_stopped_at)
{
    test_output got = stop_script(
        "$L run -n 2 " TRAIN "--log-losses whole >/dev/null || exit 90\n"
        "stopped() {\n"
        "    rm -rf l a s\n"
        "    $L run -n 2 --log-dir l " TRAIN "--log-losses a --save s --every 1000000 & p=$!\n"
        "    until grep -qs 'step 1/' l/0/stdout.log; do sleep 0.01; done\n"
        "    kill -TERM $p; wait $p || exit 91; [ $(wc -l < a) -lt " STEPS " ]\n"
        "}\n"
        "in_time stopped; $L run -n 2 " TRAIN "--log-losses b --resume s || exit 92\n"
        "cat a b | cmp - whole || exit 93\n"
        "for s in 1 2 3; do echo $((" STEPS " + s)) 0; done >> a; printf $((" STEPS " + 4)) >> a\n"
        "$L run -n 2 " TRAIN "--log-losses a --resume s || exit 94; cmp a whole");
    CHECK_INT(got.status, 0);
    CHECK_CONTAINS(got.text, " of " STEPS ", as a signal asked\n");
    free(got.text);
}

TEST(a_job_whose_rank_is_killed_goes_on_from_its_checkpoint)
{
    test_output got = stop_script(
        "$L run -n 2 " TRAIN "--log-losses whole >/dev/null || exit 90\n"
        "killed() {\n"
        "    rm -rf l b s\n"
        "    $L run -n 2 --max-restarts 1 --log-dir l " TRAIN
        "--log-losses b --save s --every 20 --resume s >said 2>&1 & p=$!\n"
        "    until grep -qs 'step 1/' l/attempt_0/0/stdout.log && ls s/* >/dev/null 2>&1; do\n"
        "        sleep 0.01\n"
        "    done\n"
        "    kill -9 $(sed -n 's/.*\"pid\": \\([0-9]*\\).*/\\1/p' l/pids.json | tail -n 1)\n"
        "    wait $p; status=$?; cat said; [ $status = 0 ] || exit 91; grep -q 'restart 1' said\n"
        "}\n"
        "in_time killed; cmp whole b");
    CHECK_INT(got.status, 0);
    CHECK_CONTAINS(got.text, "lockstep: restart 1 of 1, at once\n");
    CHECK_CONTAINS(got.text, "replicas identical: 2 of 2");
    free(got.text);
}

TEST_MAIN
