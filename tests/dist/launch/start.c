/* SPDX-License-Identifier: Apache-2.0 */
/* The start of a job: on a busy host, under limits, without parts of the system, and with ranks
 * that do not come. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "script.h"

/* ---- many ranks on a busy host --------------------------------------------------------------- */

TEST(the_store_answers_while_ranks_are_started)
{
    test_output got = script_with("", "$L run -n 200 sh -c '[ $RANK != 0 ] || exec $M early'", 60);
    CHECK_INT(got.status, 0);
    CHECK_CONTAINS(got.text, "joined while others were started");
    free(got.text);
}

/* `ranks` of them, and four times as many busy loops as cores. */
static void start_beside_others(int ranks, int seconds)
{
    char text[512], all[64];
    snprintf(text, sizeof text,
             "busy() { while :; do :; done; }\np=\nfor i in $(seq $((4 * $(nproc)))); do busy & "
             "p=\"$p $!\"; done\n$L run -n %d $E/01_hello_all_reduce; s=$?; kill $p; exit $s",
             ranks);
    snprintf(all, sizeof all, "%d of %d ranks hold the right sums", ranks, ranks);
    test_output got = script_with("", text, seconds);
    CHECK_INT(got.status, 0);
    CHECK_CONTAINS(got.text, all);
    free(got.text);
}

TEST(many_ranks_start_on_a_busy_host)
{
    start_beside_others(64, 100);
    if (getenv("TEST_LONG") != NULL) {
        start_beside_others(256, 280);
    }
}

TEST(ranks_start_under_a_limit_of_virtual_memory)
{
    if (TEST_SLOWER > 1) {
        SKIP("a sanitizer needs terabytes of address space");
    }
    for (int gib = 4; gib <= 8; gib += 4) {
        char text[128];
        snprintf(text, sizeof text, "ulimit -v %d; $L run -n 4 $E/01_hello_all_reduce", gib << 20);
        check_script(text, 0, "4 of 4 ranks hold the right sums");
    }
}

TEST(a_launcher_that_does_not_answer_is_named_after_the_deadline)
{
    check_script(
        "$L run -n 1 sh -c 'kill -STOP $PPID; LOCKSTEP_TIMEOUT=1 $E/01_hello_all_reduce "
        ">out 2>&1; kill -CONT $PPID; cat out' 2>&1",
        0,
        SAYS("joining the job's store: the process that serves it (the launcher, or local "
             "rank 0) did not answer within %g s; check that it is not stopped, start fewer "
             "ranks on this host, or raise LOCKSTEP_TIMEOUT"));
}

/* ---- ranks that do not come ------------------------------------------------------------------ */

TEST(a_rank_that_does_not_come_is_named_in_a_warning_and_in_the_error)
{
    test_output got = script_with("",
                                  "LOCKSTEP_TIMEOUT=7 $L run -n 3 sh -c '[ $RANK = 1 ] && exec "
                                  "sleep 30; exec $E/01_hello_all_reduce'",
                                  60);
    CHECK_INT(got.status, 1);
    CHECK_INT(count_of(got.text, "[0] [rank 0] warning: ls_init has waited for 5."), 1);
    CHECK_INT(count_of(got.text, "[rank 2] warning"), 0); /* one speaks for all */
    CHECK_SAYS(got.text, "ls_init has waited for %.1f s for %d of %d ranks: %s");
    CHECK_CONTAINS(got.text, " s for 1 of 3 ranks: rank 1 (host ");
    CHECK_CONTAINS(got.text, "in its own code before ls_init");
    CHECK_CONTAINS(got.text, "failed: ls_init: 1 of 3 ranks did not come within 7.");
    CHECK_SAYS(got.text, "ls_init: %d of %d ranks did not come within %.1f s: %s; start every rank "
                         "and let each call ls_init, or raise LOCKSTEP_TIMEOUT");
    CHECK_INT(count_of(got.text, "heap/"), 0);
    free(got.text);
}

/* Whatever the program does with the error: the others wait in ls_init. */
TEST(a_rank_that_ends_well_after_ls_init_has_failed_is_the_root_cause)
{
    check_script("$L run -n 2 sh -c 'if [ $RANK = 1 ]; then export LOCKSTEP_ALGORITHM=garbage; fi; "
                 "$E/01_hello_all_reduce || [ $RANK = 1 ]' 2>&1 | grep '^lockstep: rank 1 (host '",
                 0, "failed: LOCKSTEP_ALGORITHM: \"garbage\" does not begin with");
}

/* The ranks wait for nobody while the whole job is stopped. */
TEST(the_time_after_ctrl_z_does_not_count_in_ls_init)
{
    check_script("cat > job <<'E'\n"
                 "set -m\n"
                 "mkfifo go\n"
                 "LOCKSTEP_TIMEOUT=$LATE $L run -n 2 bash -c 'if [ $RANK = 1 ]; then read x < go; "
                 "else echo $$ > pid; mv pid rank; fi; exec $E/01_hello_all_reduce' >said 2>&1 &\n"
                 "front=$!\n"
                 "until [ -f rank ] && grep -q hello /proc/$(cat rank)/comm; do sleep 0.02; done\n"
                 "kill -TSTP $front; until grep -q ') T ' /proc/$front/stat; do sleep 0.02; done\n"
                 "sleep $((LATE + 1)); kill -CONT $front; echo >go\n"
                 "wait $front; echo status $?; cat said\n"
                 "E\n"
                 "export L E LATE; exec timeout 100 bash job 2>&1 | grep -v '^bash\\|^\\[\\|^job'",
                 0, "status 0\n");
}

TEST(a_rank_of_another_host_that_does_not_come_is_named)
{
    test_output got =
        script_with("",
                    "LOCKSTEP_HOSTS=2 LOCKSTEP_TIMEOUT=2 $L run -n 2 sh -c '[ $RANK = "
                    "1 ] && exec sleep 30; exec $E/01_hello_all_reduce'",
                    60);
    CHECK_CONTAINS(got.text, "ls_init: 1 of 2 ranks did not come within 2.");
    CHECK_CONTAINS(got.text, ": rank 1 (host ");
    free(got.text);
}

/* ---- without parts of the system ------------------------------------------------------------- */

#define HELLO "run -n 2 $E/01_hello_all_reduce"

static void check_without(const char *taken, const char *command, const char *part)
{
    char text[512];
    snprintf(text, sizeof text,
             "unshare -m true || exit 77\nunshare -m sh -c '%s; timeout -s KILL 20 $L %s'", taken,
             command);
    test_output got = script_with("", text, 40);
    if (got.status == 77 || geteuid() != 0) {
        SKIP("a mount namespace needs root");
    }
    if (got.status != 1) {
        test_fail(__FILE__, __LINE__, "%s: status %d: %s", taken, got.status, got.text);
    }
    CHECK_SAYS(got.text, part);
    free(got.text);
}

TEST(without_proc_the_launcher_says_so_and_ends)
{
    check_without("umount -l /proc", HELLO,
                  SAYS("the launcher finds the processes of a job in /proc, but cannot read its "
                       "own entry there "
                       "(%s): mount it (mount -t proc proc /proc), in a chroot as well"));
}

TEST(without_proc_the_command_does_not_find_its_programs)
{
    const char *const why =
        SAYS("lockstep: cannot read /proc/self/exe: %s; mount /proc (mount -t proc proc /proc)");
    check_without("umount -l /proc", "train gpt", why);
    check_without("umount -l /proc", "train gpt -n 2", why);
}

TEST(without_dev_null_the_launcher_says_so_and_ends)
{
    check_without(
        "mount -t tmpfs none /dev", HELLO,
        SAYS("the launcher's agent (process %d) ended with code %d before it could start a rank; "
             "check that /dev/null and /proc exist (ls /dev/null /proc/self)"));
}

TEST_MAIN
