/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep run` with small shell programs. The harness fails a test that leaves a process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/runtime.h>

#include "script.h"

/* ---- status and report ----------------------------------------------------------------------- */

TEST(status_0_when_every_rank_ends_with_0)
{
    check_script("$L run -n 3 sh -c 'echo here $RANK'", 0, "[2] here 2\n");
    check_script("$L run -n 1 sh -c 'echo here $RANK'", 0, "here 0\n");
    check_script("$L run -n 8 true", 0, "");
}

TEST(the_first_failing_ranks_code_is_the_status)
{
    check_script("$L run -n 3 sh -c '[ $RANK = 1 ] && exit 7; sleep 60'", 7, "exited with code 7");
    check_script("$L run -n 1 sh -c 'exit 3'", 3, "rank 0 (host");
}

TEST(a_signal_is_128_plus_its_number_and_named)
{
    check_script("$L run -n 3 sh -c '[ $RANK = 2 ] && kill -9 $$; sleep 60'", 137,
                 "was killed by signal 9 (SIGKILL)");
    check_script("$L run -n 2 sh -c '[ $RANK = 0 ] && kill -SEGV $$; sleep 60'", 139,
                 "was killed by signal 11 (SIGSEGV)");
}

TEST(a_parent_that_ignores_its_children_changes_nothing)
{
    check_script(
        "command -v python3 >/dev/null || { echo exited with code 7; exit 7; }\n"
        "python3 -c 'import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
        "os.execvp(os.environ[\"L\"], [\"lockstep\", \"run\", \"-n\", \"2\", \"sh\", \"-c\", "
        "\"exit 7\"])'",
        7, "exited with code 7");
}

TEST(the_report_comes_once_with_last_lines_and_consequences)
{
    test_output got = script("$L run -n 4 sh -c 'echo step 1 of $RANK; echo step 2 of $RANK >&2; "
                             "[ $RANK = 2 ] && { echo all is lost; exit 5; }; sleep 60'");
    CHECK_INT(got.status, 5);
    CHECK_INT(count_of(got.text, "exited with code 5"), 1);
    CHECK_CONTAINS(got.text, "last lines of rank 2:");
    CHECK_CONTAINS(got.text, "| all is lost");
    CHECK_CONTAINS(got.text, "3 other ranks stopped because of this");
    free(got.text);
}

TEST(a_program_that_cannot_be_started_is_named)
{
    check_script("$L run -n 2 no_such_program", 127, "\"no_such_program\": no such program");
    check_script("$L run -n 2 ./no_such_program", 127, "\"./no_such_program\"");
    check_script("echo x > file; $L run -n 2 ./file", 126, "\"./file\"");
    check_script("$L run -n 2 /", 126, "\"/\"");
}

/* ---- flags ----------------------------------------------------------------------------------- */

TEST(wrong_flags_are_refused_with_status_2)
{
    check_script("$L", 2, "usage:");
    check_script("$L rnu", 2, "did you mean run?");
    check_script("$L run", 2, "-n N");
    check_script("$L run -n", 2, "needs a value");
    check_script("$L run -n 2", 2, "program is missing");
    check_script("$L run true", 2, "number of ranks is missing");
    check_script("$L run -n 0 true", 2, "1 to 256");
    check_script("$L run -n 257 true", 2, "1 to 256");
    check_script("$L run -n 99999999999999999999 true", 2, "1 to 256");
    check_script("$L run -n two true", 2, "-n is \"two\"");
    check_script("$L run --log-dri x -n 1 true", 2, "did you mean --log-dir?");
    check_script("$L run -n 1 --log-dir /proc/no true", 1, "--log-dir /proc/no");
}

TEST(torchruns_flags_are_accepted)
{
    check_script("$L run --standalone --nproc_per_node=2 sh -c 'echo $WORLD_SIZE'", 0, "[1] 2");
    check_script("$L run --nproc-per-node 2 -- sh -c 'echo $WORLD_SIZE'", 0, "[1] 2");
    check_script("$L run -n2 sh -c 'echo $WORLD_SIZE'", 0, "[1] 2");
}

TEST(other_commands_answer)
{
    check_script("$L version", 0, "lockstep 0.");
    check_script("$L help", 0, "usage:");
    check_script("LOCKSTEP_TIMEOUT=77 $L info", 0, "LOCKSTEP_TIMEOUT=77");
    check_script("LOCKSTEP_TIMEOUT=77 $L info --variables", 0, "now: 77; default: 300");
    check_script("LOCKSTEP_TIMOUT=1 $L info", 0, "did you mean LOCKSTEP_TIMEOUT?");
}

/* ---- output ---------------------------------------------------------------------------------- */

TEST(a_line_of_64_kib_stays_one_line)
{
    check_script("$L run -n 2 sh -c 'printf \"{%065534d}\\n\" 7' > lines\n"
                 "awk '{print $1, length, substr($0, length)}' lines | sort",
                 0, "[0] 65540 }\n[1] 65540 }\n");
    check_script("$L run -n 2 sh -c 'printf \"%065537d\\n\" 7' > lines\n"
                 "awk '{print $1 == \"[0]\", length}' lines | sort",
                 0, "0 5\n0 65540\n1 5\n1 65540\n"); /* a longer one is written in several */
}

/* bash has job control without a terminal. The rank starts no process: its shell would wait for one
 * that is stopped before its execve (vfork), in a state that is not T. */
TEST(ctrl_z_stops_the_ranks_and_the_launcher_until_they_are_continued)
{
    check_script(
        "cat > job <<'E'\n"
        "set -m\n"
        "$L run -n 1 sh -c 'echo $$ > pid; mv pid rank; exec sleep 60' &\n"
        "front=$!\n"
        "state() { awk '{printf \"%s\", $3 == \"T\"}' /proc/$1/stat; }\n"
        "both() { until [ \"$(state $front)$(state $(cat rank))\" = $1 ]; do sleep 0.02; done; }\n"
        "until [ -f rank ]; do sleep 0.02; done\n"
        "both 00; kill -TSTP $front; both 11; echo stopped\n"
        "kill -CONT $front; both 00; echo goes on\n"
        "kill -TERM $front; wait $front; echo status $?\n"
        "E\n"
        "exec timeout 60 bash job 2>&1 | grep -v '^bash\\|^\\[\\|^job'",
        0, "stopped\ngoes on\n");
}

/* An orphaned process group: the kernel stops nobody whom nobody would continue. */
TEST(without_a_shell_that_could_continue_it_ctrl_z_does_not_stop_a_job)
{
    check_script("cat > rank <<'E'\nkill -TSTP $(cat front); sleep 0.2; echo lives\nE\n"
                 "setsid -w sh -c 'echo $$ > front; exec $L run -n 1 sh rank'",
                 0, "lives\n");
}

TEST(a_job_ends_when_its_ranks_do)
{
    double least = 1e9;
    for (int i = 0; i < 5; i++) {
        const double begin = ls_time();
        check_script("$L run -n 2 true", 0, "");
        const double took = ls_time() - begin;
        least = took < least ? took : least;
    }
    CHECK_WITHIN(least, 0.15);
}

/* ---- environment ----------------------------------------------------------------------------- */

TEST(ranks_find_torchruns_variables)
{
    test_output got =
        script("export OLD=kept RANK=9 GOMP_SPINCOUNT=; unset OMP_NUM_THREADS OMP_WAIT_POLICY\n"
               "$L run -n 2 sh -c 'env | sort'");
    static const char *const wanted[] = {"[1] RANK=1\n",
                                         "[1] LOCAL_RANK=1\n",
                                         "[1] WORLD_SIZE=2\n",
                                         "[1] LOCAL_WORLD_SIZE=2\n",
                                         "[1] GROUP_RANK=0\n",
                                         "[1] GROUP_WORLD_SIZE=1\n",
                                         "[1] ROLE_RANK=1\n",
                                         "[1] ROLE_WORLD_SIZE=2\n",
                                         "[1] ROLE_NAME=default\n",
                                         "[1] MASTER_ADDR=127.0.0.1\n",
                                         "[1] MASTER_PORT=",
                                         "[1] TORCHELASTIC_RESTART_COUNT=0\n",
                                         "[1] TORCHELASTIC_MAX_RESTARTS=0\n",
                                         "[1] TORCHELASTIC_RUN_ID=",
                                         "[1] GOMP_SPINCOUNT=1000\n",
                                         "[1] OMP_NUM_THREADS=",
                                         "[1] OLD=kept\n"};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        CHECK_CONTAINS(got.text, wanted[i]);
    }
    CHECK_INT(count_of(got.text, "[1] RANK="), 1);
    free(got.text);
    check_script("OMP_NUM_THREADS=5 $L run -n 2 sh -c 'echo t$OMP_NUM_THREADS'", 0, "[0] t5\n");
    check_script("unset GOMP_SPINCOUNT; export OMP_WAIT_POLICY=active\n"
                 "$L run -n 2 sh -c 'echo s$GOMP_SPINCOUNT'",
                 0, "[0] s\n");
}

TEST(a_rank_has_no_input_and_no_descriptor_of_the_launcher)
{
    check_script("echo text | $L run -n 2 sh -c 'cat; echo end'", 0, "[1] end\n");
    /* 0-2, the listing's own, and the three it joins with */
    check_script("exec 7>open; $L run -n 4 sh -c 'ls /proc/self/fd | wc -l'", 0, "[3] 7\n");
}

/* ---- output ---------------------------------------------------------------------------------- */

/* Each line is printed in pieces, by four ranks at once. */
TEST(lines_of_output_are_never_torn)
{
    test_output got =
        script("$L run -n 4 sh -c 'i=0; while [ $i -lt 300 ]; do printf \"line %d \" $i; "
               "printf \"of rank $RANK\"; printf \" end\\n\"; i=$((i+1)); done'");
    CHECK_INT(got.status, 0);
    int next[4] = {0}, lines = 0;
    for (const char *line = got.text; *line != '\0'; line += strcspn(line, "\n") + 1) {
        int prefix = -1, number = -1, rank = -1, used = 0;
        sscanf(line, "[%d] line %d of rank %d end%n", &prefix, &number, &rank, &used);
        CHECK(used > 0 && line[used] == '\n' && prefix == rank && rank >= 0 && rank < 4);
        CHECK_INT(number, next[rank]++);
        lines++;
    }
    CHECK_INT(lines, 1200);
    free(got.text);
}

TEST(a_last_line_without_its_end_is_written)
{
    check_script("$L run -n 2 sh -c 'printf \"no end $RANK\"'", 0, "[1] no end 1\n");
}

TEST(a_line_longer_than_the_buffer_is_written_in_parts)
{
    test_output got = script("$L run -n 2 sh -c 'head -c 20000 /dev/zero | tr \"\\0\" x; echo'");
    CHECK_INT(got.status, 0);
    int letters = 0;
    for (const char *c = got.text; *c != '\0'; c++) {
        letters += *c == 'x';
    }
    CHECK_INT(letters, 40000);
    free(got.text);
}

TEST(much_output_arrives_whole_through_a_slow_reader)
{
    check_script("$L run -n 2 seq 100000 | { sleep 0.3; wc -l; }", 0, "200000\n");
}

TEST(a_reader_that_goes_away_ends_the_job)
{
    test_output got = script("$L run -n 2 yes | head -n 1");
    CHECK_INT(got.status, 0); /* of head */
    CHECK_CONTAINS(got.text, "] y\n");
    free(got.text);
}

TEST(a_full_disk_under_the_output_does_not_end_the_job)
{
    check_script("[ -c /dev/full ] || { echo No space left on device; exit; }\n"
                 "$L run -n 2 sh -c 'echo $RANK; sleep 0.1; echo $RANK >&2' >/dev/full",
                 0, "No space left on device");
    check_script("$L run -n 2 sh -c 'echo $RANK; sleep 0.1; echo end > end$RANK' >/dev/full 2>&1; "
                 "cat end1",
                 0, "end");
}

TEST(a_live_line_is_updated_on_a_terminal_and_plain_in_a_pipe)
{
    test_output got = script("command -v script >/dev/null || { echo NO; exit; }\n"
                             "cat > p <<'X'\n[ $RANK = 0 ] || exit 0\n"
                             "echo live is $LOCKSTEP_LIVE\n"
                             "printf '\\rstep 1'; sleep 0.1; printf '\\rstep 2'; sleep 0.1; "
                             "printf '\\rdone\\n'\nX\n"
                             "script -qec \"$L run -n 2 sh p\" /dev/null </dev/null");
    if (strstr(got.text, "NO\n") != NULL) {
        SKIP("no script(1) to make a terminal");
    }
    CHECK_CONTAINS(got.text, "live is 1");
    CHECK_CONTAINS(got.text, "\r\033[K[0] step 1\r\033[K[0] step 2\r\033[K[0] done\r\n");
    free(got.text);
    check_script("$L run -n 2 sh -c 'echo live is $LOCKSTEP_LIVE.'", 0, "[0] live is .\n");
}

TEST(the_log_folder_has_each_ranks_output_and_the_pids)
{
    check_script("$L run -n 3 --log-dir logs/ sh -c 'echo out $$; echo err $RANK >&2' >/dev/null\n"
                 "for r in 0 1 2; do\n"
                 "p=$(sed 's/out //' logs/$r/stdout.log); [ \"$(cat logs/$r/stderr.log)\" = \"err "
                 "$r\" ] || exit 1\n"
                 "tr -d ' \\n' < logs/pids.json | grep -q \"\\\"rank\\\":$r,\\\"pid\\\":$p,\" || "
                 "exit 2\n"
                 "done; ls logs | wc -l; hostname",
                 0, "4\n");
}

/* Behind `small KB`: the folder l is a file system of its own of so many KiB. */
static void check_on_a_small_disk(const char *text, int status, const char *part)
{
    char whole[1024];
    snprintf(whole, sizeof whole,
             "unshare -m true || exit 77\nmkdir l\n"
             "unshare -m sh -c 'small() { mount -t tmpfs -o size=$1k tmpfs l || exit 77; }\n%s'",
             text);
    test_output got = script(whole);
    if (got.status == 77 || geteuid() != 0) {
        SKIP("a mount namespace needs root");
    }
    if (got.status != status) {
        test_fail(__FILE__, __LINE__, "status %d, want %d: %s", got.status, status, got.text);
    }
    CHECK_SAYS(got.text, part);
    free(got.text);
}

TEST(a_log_that_does_not_fit_on_the_disk_is_named_and_no_success)
{
    check_on_a_small_disk("small 64; $L run -n 2 --log-dir l --max-restarts 1 "
                          "sh -c \"head -c 100000 /dev/zero | tr \\\\\\0 x\" >/dev/null; s=$?\n"
                          "[ -e l/attempt_1 ] && exit 5; exit $s",
                          1,
                          SAYS("lockstep: all ranks ended well, but logs in %s are not complete; "
                               "make room there, or give another --log-dir"));
    check_on_a_small_disk("small 64; $L run -n 1 --log-dir l head -c 100000 /dev/zero >/dev/null",
                          1,
                          SAYS("--log-dir: \"%s/%d/%s.log\": %s; the rest of this output is not in "
                               "the file"));
}

TEST(a_secret_that_does_not_fit_on_the_disk_leaves_no_file)
{
    check_on_a_small_disk("small 4; head -c 4096 /dev/zero > l/full; $L secret l/s; s=$?\n"
                          "[ -e l/s ] && exit 5; exit $s",
                          1, "lockstep secret: l/s: No space left on device");
}

/* ---- signals --------------------------------------------------------------------------------- */

/* A shell lets what it starts in the background ignore SIGINT, hence `env`. */
TEST(sigterm_and_sigint_reach_the_ranks_which_may_end_well)
{
    for (int i = 0; i < 2; i++) {
        char text[512];
        const char *name = i == 0 ? "TERM" : "INT";
        snprintf(
            text, sizeof text,
            "env --default-signal=INT $L run -n 2 sh -c 'trap \"echo saved $RANK; exit 0\" %s; "
            "echo up > up$RANK; while :; do sleep 0.02; done' & p=$!\n"
            "until_file up0; until_file up1; kill -%s $p; wait $p",
            name, name);
        test_output got = script(text);
        CHECK_INT(got.status, 0);
        CHECK_CONTAINS(got.text, "[0] saved 0");
        CHECK_CONTAINS(got.text, "[1] saved 1");
        free(got.text);
    }
}

TEST(a_job_stopped_by_a_signal_says_so)
{
    check_script("$L run -n 3 --log-dir l sleep 60 & p=$!\n"
                 "until_file l/pids.json; kill -TERM $p; wait $p",
                 143, "the job was stopped by signal 15 (SIGTERM)");
}

TEST(a_second_signal_kills_ranks_that_do_not_listen)
{
    check_script(
        "$L run -n 2 sh -c 'trap \"\" TERM INT; echo up > up$RANK; while :; do sleep 0.02; "
        "done' & p=$!\n"
        "until_file up0; until_file up1; kill -TERM $p; sleep 0.3; kill -0 $p || exit 9\n"
        "kill -TERM $p; wait $p",
        143, "second signal 15");
}

TEST(sigusr1_is_passed_on_and_ends_nothing)
{
    check_script("$L run -n 2 sh -c 'trap \"echo usr1 $RANK > got$RANK; exit 0\" USR1; "
                 "echo up > up$RANK; while :; do sleep 0.02; done' & p=$!\n"
                 "until_file up0; until_file up1; kill -USR1 $p; wait $p; s=$?; cat got0 got1; "
                 "exit $s",
                 0, "usr1 1");
}

/* ---- nothing is left ------------------------------------------------------------------------- */

/* Every rank starts a child of its own, and one that leaves the rank's process group. */
static const char family[] =
    "cat > rank <<'X'\n"
    "sh -c 'echo $$ > child'$RANK'; sleep 60' &\n"
    "setsid sh -c 'trap \"\" TERM; echo $$ > far'$RANK'; sleep 60' &\n"
    "echo $$ > self$RANK; wait\n"
    "X\n"
    "until_up() { for r in 0 1; do until_file child$r; until_file far$r; until_file self$r; done; "
    "pids=$(cat child? far? self?); }\n";

static void check_family(const char *text, int status, const char *part)
{
    char whole[4096];
    snprintf(whole, sizeof whole, "%s%s", family, text);
    check_script(whole, status, part);
}

TEST(killing_the_launcher_leaves_nothing)
{
    test_output got;
    char whole[4096];
    snprintf(whole, sizeof whole, "%s%s", family,
             "$L run -n 2 sh rank & p=$!\nuntil_up\n"
             "b=$(date +%s%N); kill -9 $p; until_gone $pids; e=$(date +%s%N)\n"
             "echo took $(((e-b)/1000000)) ms");
    got = script(whole);
    CHECK_INT(got.status, 0);
    CHECK_CONTAINS(got.text, "took ");
    int ms = atoi(strstr(got.text, "took ") + 5);
    CHECK_WITHIN(ms / 1000.0, 1);
    free(got.text);
}

TEST(killing_the_agent_leaves_nothing)
{
    check_family("$L run -n 2 sh rank & p=$!\nuntil_up\n"
                 "agent=$(cat /proc/$p/task/$p/children); kill -9 $agent; wait $p; s=$?\n"
                 "until_gone $pids; exit $s",
                 137, "agent (process");
}

TEST(killing_a_rank_ends_the_job_within_a_second_and_leaves_nothing)
{
    test_output got;
    char whole[4096];
    snprintf(whole, sizeof whole, "%s%s", family,
             "ls /dev/shm | grep lockstep > before; $L run -n 2 sh rank & p=$!\nuntil_up\n"
             "b=$(date +%s%N); kill -9 $(cat self1); wait $p; s=$?; e=$(date +%s%N)\n"
             "echo took $(((e-b)/1000000)) ms; for q in $pids; do kill -0 $q && exit 99; done\n"
             "ls /dev/shm | grep lockstep > after; cmp before after || exit 98; exit $s");
    got = script(whole);
    CHECK_INT(got.status, 137);
    CHECK_CONTAINS(got.text, "rank 1 (host");
    CHECK_CONTAINS(got.text, "took ");
    CHECK_WITHIN(atoi(strstr(got.text, "took ") + 5) / 1000.0, 1);
    free(got.text);
}

TEST(ranks_that_ignore_sigterm_are_killed)
{
    check_script("$L run -n 3 sh -c 'trap \"\" TERM; echo up > up$RANK; [ $RANK = 0 ] && "
                 "{ until [ -s up1 ] && [ -s up2 ]; do sleep 0.01; done; exit 4; }; "
                 "while :; do sleep 0.05; done'",
                 4, "2 other ranks stopped");
}

TEST(what_ranks_leave_running_at_a_good_end_is_ended_too)
{
    check_script("$L run -n 2 sh -c 'setsid sleep 60 & echo $! > left$RANK'; s=$?\n"
                 "for p in $(cat left?); do kill -0 $p 2>/dev/null && exit 99; done; exit $s",
                 0, "");
}

TEST(eight_ranks_start)
{
    test_output got = script("$L run -n 8 true");
    CHECK_INT(got.status, 0);
    printf("8 ranks of `true`: %.0f ms\n", got.seconds * 1e3);
    free(got.text);
}

TEST_MAIN
