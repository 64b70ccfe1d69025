/* SPDX-License-Identifier: Apache-2.0 */
/* kill -9 anywhere in a save: by the env table at each call about the folder, and by strace at
 * every system call of the process. The newest complete checkpoint loads, the old one was never
 * lost. */
#include "faults.h"

/* kill -9 of a process of its own at its n-th call about the folder, until it survives. */
TEST(a_kill_at_any_call_of_a_save_loses_nothing)
{
    char folder[64];
    int before = 0, after = 0;
    small_folder(folder);
    job j = {.folder = folder, .kind = FAULT_KILL, .expect = 1};
    CHECK_INT(run_child(ranks_killed, &j), 0);
    bool killed = true;
    for (j.n = 1; killed; j.n++) {
        CHECK(j.n < CALLS_MAX);
        j.expect++;
        killed = WIFSIGNALED(run_child(ranks_killed, &j));
        int status = run_child(ranks_check, &j);
        CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3));
        bool came = WEXITSTATUS(status) == 0;
        j.expect -= !came; /* the next child saves this step again */
        before += killed && !came;
        after += killed && came;
    }
    CHECK(before > 15 && after > 2);
    small_remove(folder);
}

/* ---- kill at every system call --------------------------------------------------------------- */

#define NO_STRACE                                                                                  \
    "strace is missing or cannot run the saver (apt-get install strace); the env table's kills "   \
    "cover the calls"

/* Not without strace, not where ptrace is forbidden, not with a leak checker that refuses it. */
static bool can_trace(void)
{
    char folder[64], command[512];
    small_folder(folder);
    (void)snprintf(command, sizeof command,
                   "strace -f -o /dev/null -e inject=rename:signal=KILL:when=99 '%s' '%s' 1",
                   test_build_path("tests/unit/checkpoint/saver"), folder);
    test_output probe = test_run(command, 20);
    free(probe.text);
    small_remove(folder);
    return probe.status == 0;
}

/* Runs the saver under strace with an injection at the n-th call; its exit status. */
static int save_traced(const char *folder, int64_t step, const char *call, const char *what, int n)
{
    char command[512];
    (void)snprintf(command, sizeof command,
                   "strace -f -o /dev/null -e inject=%s:%s:when=%d '%s' '%s' %lld", call, what, n,
                   test_build_path("tests/unit/checkpoint/saver"), folder, (long long)step);
    test_output done = test_run(command, 30);
    free(done.text);
    return done.status;
}

/* Kills at the 1st, 2nd, … call of that kind until the save survives; the kills. */
static int kill_at_every(const char *call, job *j, int64_t *step)
{
    int kills = 0, status = 137;
    for (int n = 1; status != 0; n++) {
        CHECK(n < CALLS_MAX);
        status = save_traced(j->folder, *step + 1, call, "signal=KILL", n);
        kills += status != 0;
        j->expect = *step + 1;
        int check = run_child(ranks_check, j);
        CHECK(WIFEXITED(check) && (WEXITSTATUS(check) == 0 || WEXITSTATUS(check) == 3));
        *step += WEXITSTATUS(check) == 0;
    }
    return kills;
}

/* The same from outside: strace kills at the n-th call of each kind that changes the folder. */
TEST(a_kill_at_any_system_call_that_changes_files_loses_nothing)
{
    static const char *const calls[] = {"openat", "write", "flock",      "futex",
                                        "fsync",  "mkdir", "rename",     "unlink",
                                        "rmdir",  "close", "newfstatat", "getdents64"};
    char folder[64];
    int64_t step = 1;
    int kills = 0;
    if (!can_trace()) {
        SKIP(NO_STRACE);
    }
    small_folder(folder);
    job j = {.folder = folder, .kind = FAULT_KILL, .expect = step};
    CHECK_INT(run_child(ranks_killed, &j), 0);
    for (size_t k = 0; k < sizeof calls / sizeof calls[0]; k++) {
        kills += kill_at_every(calls[k], &j, &step);
    }
    CHECK(kills > 30);
    small_remove(folder);
}

/* The kinds of calls a save makes, a line each, as strace itself saw them. */
static char *calls_of_a_save(const char *folder, int64_t step)
{
    char command[512];
    (void)snprintf(
        command, sizeof command,
        "strace -f -o '%s.log' '%s' '%s' %lld && sed -n 's/^[0-9]* *\\([a-z][a-z0-9_]*\\)"
        "(.*/\\1/p' '%s.log' | grep -v '^exit' | sort -u; rm -f '%s.log'",
        folder, test_build_path("tests/unit/checkpoint/saver"), folder, (long long)step, folder,
        folder);
    return test_run(command, 30).text;
}

/* And at every one of all kinds, loading the program's own included: about 250 kills. */
TEST_OF(a_kill_at_every_system_call_of_a_process_that_saves_loses_nothing, 0, 300)
{
    char folder[64];
    int64_t step = 1;
    int kills = 0, kinds = 0;
    if (getenv("TEST_LONG") == NULL) {
        SKIP("TEST_LONG=1 runs it");
    }
    if (!can_trace()) {
        SKIP(NO_STRACE);
    }
    small_folder(folder);
    job j = {.folder = folder, .kind = FAULT_KILL, .expect = step};
    CHECK_INT(run_child(ranks_killed, &j), 0);
    char *calls = calls_of_a_save(folder, ++step), *rest = NULL;
    for (char *call = strtok_r(calls, "\n", &rest); call; call = strtok_r(NULL, "\n", &rest)) {
        kills += kill_at_every(call, &j, &step);
        kinds++;
    }
    CHECK(kinds > 20 && kills > 150);
    free(calls);
    small_remove(folder);
}

/* A file system that lets signals through (NFS, FUSE) may say EINTR of anything. */
TEST(an_interrupted_system_call_of_a_save_is_made_again)
{
    static const char *const calls[] = {"fsync", "write"};
    char folder[64];
    int64_t step = 1;
    if (!can_trace()) {
        SKIP(NO_STRACE);
    }
    small_folder(folder);
    for (size_t k = 0; k < sizeof calls / sizeof calls[0]; k++) {
        for (int n = 1; n <= 5; n++) {
            CHECK_INT(save_traced(folder, step++, calls[k], "error=EINTR", n), 0);
        }
    }
    CHECK_INT(small_count(folder, "step-"), 1);
    small_remove(folder);
}

TEST_MAIN
