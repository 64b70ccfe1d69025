/* The n-th call about files fails, for n = 1, 2, 3 … until a save succeeds untouched: after each,
 * the newest complete checkpoint loads with its own bytes, the old one was never lost, every rank
 * got the same named error, and the next open leaves nothing temporary. */
#include <sys/wait.h>

#include "small.h"

#define CALLS_MAX 400

static ls_checkpoint *open_it(const char *folder, bool async)
{
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_checkpoint_open(folder, ls_world(),
                                LS_OPTIONS(ls_checkpoint_options, .async = async), &c));
    return c;
}

/* Loads in a fresh object; the folder is tidy after its open. */
static int64_t load_fresh(const char *folder)
{
    ls_status status;
    ls_checkpoint *c = open_it(folder, false);
    small_check_tidy(folder);
    int64_t step = small_load(c, &status);
    CHECK_OK(status);
    CHECK_OK(ls_checkpoint_close(c));
    return step;
}

/* One save with the fault; returns the step that loads afterwards. */
static int64_t one_save(faults *f, int n, const char *folder, int64_t step, ls_status *status)
{
    ls_checkpoint *c = open_it(folder, false);
    faults_arm(f, f->kind, f->error, n);
    *status = small_save(c, step);
    f->at = 0;
    if (*status < 0) {
        CHECK_CONTAINS(ls_error_message(), folder);
    }
    (void)ls_checkpoint_close(c);
    return load_fresh(folder);
}

/* A save whose bytes may not be on the disk must not say that they are. */
static bool must_fail(const faults *f)
{
    static const char *const calls[] = {"open", "write", "fsync", "make_folder"};
    for (size_t i = 0; f->hit && f->kind == FAULT_ERROR && i < 4; i++) {
        if (strcmp(f->what, calls[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* `again`: every save is of the same step, so each replaces the one before. */
static void fail_every_call(fault_kind kind, int error, bool again)
{
    static faults f;
    char folder[64];
    int failed = 0, n = 1;
    small_folder(folder);
    faults_init(&f, folder);
    CHECK_OK(ls__init_with(&f.env, NULL));
    int64_t newest = 7;
    ls_checkpoint *c = open_it(folder, false);
    CHECK_OK(small_save(c, newest));
    CHECK_OK(ls_checkpoint_close(c));
    for (bool hit = true; hit; n++) {
        ls_status status;
        int64_t step = again ? newest : newest + 1;
        CHECK(n < CALLS_MAX);
        f.kind = kind;
        f.error = error;
        int64_t loaded = one_save(&f, n, folder, step, &status);
        hit = f.hit;
        CHECK(loaded == step || (status < 0 && loaded == newest));
        CHECK(kind != FAULT_SHORT || status == LS_OK);
        CHECK(status < 0 || !must_fail(&f));
        failed += status < 0;
        newest = loaded;
    }
    CHECK(n > 15);
    CHECK(kind == FAULT_SHORT || failed >= 12);
    CHECK_INT(small_count(folder, "step-"), again ? 1 : 2); /* what a failure kept, went later */
    CHECK_OK(ls_finalize());
    small_remove(folder);
}

TEST(whichever_call_of_a_save_fails_with_eio_a_whole_checkpoint_stays)
{
    fail_every_call(FAULT_ERROR, EIO, false);
}

TEST(whichever_call_of_a_save_finds_the_disk_full_a_whole_checkpoint_stays)
{
    fail_every_call(FAULT_ERROR, ENOSPC, false);
}

TEST(a_short_write_is_continued)
{
    fail_every_call(FAULT_SHORT, 0, false);
}

TEST(replacing_a_step_survives_the_failure_of_any_call)
{
    fail_every_call(FAULT_ERROR, EIO, true);
}

TEST(the_order_is_files_manifest_folder_rename_parent)
{
    static faults f;
    char folder[64];
    small_folder(folder);
    faults_init(&f, folder);
    CHECK_OK(ls__init_with(&f.env, NULL));
    ls_checkpoint *c = open_it(folder, false);
    f.logs = true;
    CHECK_OK(small_save(c, 1));
    f.logs = false;
    CHECK_CONTAINS(f.log, "make_folder open write fsync close open write fsync close "
                          "open write fsync close open fsync close stat rename open fsync close ");
    CHECK(strncmp(f.log, "list make_folder ", 17) == 0 && strlen(f.log) < 160);
    CHECK_OK(ls_checkpoint_close(c));
    CHECK_OK(ls_finalize());
    small_remove(folder);
}

/* Opening and loading: a named error, or the bytes of one of the two. */
TEST(whichever_call_of_open_and_load_fails_what_loads_is_whole)
{
    static faults f;
    char folder[64];
    int newest = 0, older = 0, errors = 0;
    small_folder(folder);
    faults_init(&f, folder);
    CHECK_OK(ls__init_with(&f.env, NULL));
    ls_checkpoint *c = open_it(folder, false);
    CHECK_OK(small_save(c, 1));
    CHECK_OK(small_save(c, 2));
    CHECK_OK(ls_checkpoint_close(c));
    f.hit = true;
    for (int n = 1; f.hit; n++) {
        CHECK(n < CALLS_MAX);
        faults_arm(&f, FAULT_ERROR, EIO, n);
        ls_status status = ls_checkpoint_open(folder, ls_world(), NULL, &c);
        int64_t step = status < 0 ? -1 : small_load(c, &status);
        f.at = 0;
        if (status < 0) {
            CHECK_CONTAINS(ls_error_message(), folder);
        }
        errors += status < 0;
        newest += step == 2;
        older += step == 1;
        CHECK_OK(ls_checkpoint_close(c));
    }
    CHECK(errors > 2 && older > 4 && newest >= 1);
    CHECK_INT(load_fresh(folder), 2);
    CHECK_OK(ls_finalize());
    small_remove(folder);
}

/* ---- signals, and another job that writes -----------------------------------------------------
 */

static void ask_to_stop(void *arg)
{
    (void)arg;
    CHECK(kill(getpid(), SIGTERM) == 0);
}

static void check_stop(bool async)
{
    static faults f;
    char folder[64];
    small_folder(folder);
    faults_init(&f, folder);
    f.hook = ask_to_stop;
    f.hit = true;
    for (int n = 1; f.hit; n++) {
        CHECK(n < CALLS_MAX);
        CHECK_OK(ls__init_with(&f.env, LS_OPTIONS(ls_init_options, .graceful_stop = true)));
        ls_checkpoint *c = open_it(folder, async);
        faults_arm(&f, FAULT_CALL, 0, n);
        CHECK_OK(small_save(c, n));
        CHECK_OK(ls_checkpoint_wait(c));
        CHECK(ls_stop_requested() == f.hit);
        CHECK_OK(ls_checkpoint_close(c));
        f.at = 0;
        CHECK_INT(load_fresh(folder), n);
        CHECK_OK(ls_finalize());
    }
    small_remove(folder);
}

TEST(a_wish_to_stop_at_any_call_of_a_save_lets_it_end)
{
    check_stop(false);
}

TEST(a_wish_to_stop_at_any_call_of_an_asynchronous_save_lets_it_end)
{
    check_stop(true);
}

static void save_two_more(void *arg)
{
    CHECK_OK(small_save(arg, 3));
    CHECK_OK(small_save(arg, 4));
}

/* Steps 1 and 2 are listed; then, at any moment of the load, 3 and 4 come and 1 and 2 go. */
TEST(a_load_while_another_job_saves_finds_a_whole_one)
{
    static faults f;
    int older = 0, newer = 0;
    f.hit = true;
    for (int n = 1; f.hit; n++) {
        char folder[64];
        ls_checkpoint *reader = NULL;
        ls_status status;
        CHECK(n < CALLS_MAX);
        small_folder(folder);
        faults_init(&f, folder);
        CHECK_OK(ls__init_with(&f.env, NULL));
        ls_checkpoint *writer = open_it(folder, false);
        CHECK_OK(small_save(writer, 1));
        CHECK_OK(small_save(writer, 2));
        CHECK_OK(ls_checkpoint_open(folder, ls_world(),
                                    LS_OPTIONS(ls_checkpoint_options, .load_only = true), &reader));
        f.hook = save_two_more;
        f.hook_arg = writer;
        faults_arm(&f, FAULT_CALL, 0, n);
        int64_t step = small_load(reader, &status);
        f.at = 0;
        CHECK_OK(status);
        older += step == 2;
        newer += step == 4;
        CHECK(step == 2 || step == 4);
        CHECK_STATUS(small_save(reader, 5), LS_ERR_STATE);
        CHECK_CONTAINS(ls_error_message(), "load_only");
        CHECK_OK(ls_checkpoint_close(reader));
        CHECK_OK(ls_checkpoint_close(writer));
        CHECK_OK(ls_finalize());
        small_remove(folder);
    }
    CHECK(newer >= 3 && older >= 2);
}

/* ---- several ranks -------------------------------------------------------------------------- */

typedef struct job {
    const char *folder;
    int victim; /* rank */
    fault_kind kind;
    int error;
    bool async;
    int n;          /* FAULT_KILL: at which call */
    int64_t expect; /* helper_load: the step or the one before */
} job;

/* All ranks' messages are the same. */
static void check_same_words(ls_status status)
{
    char mine[512] = "", all[4][512];
    (void)snprintf(mine, sizeof mine, "%d %s", status, status < 0 ? ls_error_message() : "");
    CHECK_OK(ls_all_gather(ls_world(), mine, all, sizeof mine, LS_UINT8, NULL, NULL));
    for (int r = 1; r < ls_world_size(); r++) {
        if (strcmp(all[r], all[0]) != 0) {
            test_fail(__FILE__, __LINE__, "rank %d: %s; rank 0: %s", r, all[r], all[0]);
        }
    }
}

static int ranks_fail(void *arg)
{
    static faults f;
    const job *j = arg;
    faults_init(&f, j->folder);
    CHECK_OK(ls__init_with(&f.env, NULL));
    ls_checkpoint *c = open_it(j->folder, j->async);
    int64_t step = 1, newest = 1;
    int32_t hit = 1;
    CHECK_OK(small_save(c, step));
    CHECK_OK(ls_checkpoint_wait(c));
    for (int n = 1; hit; n++) {
        faults_arm(&f, FAULT_ERROR, j->error, ls_rank() == j->victim ? n : 0);
        ls_status status = small_save(c, ++step);
        status = status == LS_OK ? ls_checkpoint_wait(c) : status;
        f.at = 0;
        check_same_words(status);
        ls_status loaded;
        int64_t found = small_load(c, &loaded);
        CHECK_OK(loaded);
        CHECK(found == step || (status < 0 && found == newest));
        newest = found;
        hit = f.hit;
        CHECK_OK(ls_all_reduce(ls_world(), &hit, 1, LS_INT32, LS_MAX, NULL, NULL));
    }
    CHECK(step > (j->victim == 0 ? 15 : 4));
    CHECK_OK(ls_checkpoint_close(c));
    CHECK_OK(ls_finalize());
    return 0;
}

static void check_ranks(int ranks, int victim, int error, bool async)
{
    char folder[64];
    small_folder(folder);
    job j = {.folder = folder, .victim = victim, .error = error, .async = async};
    CHECK_OK(ls_spawn(ranks_fail, &j, ranks));
    small_remove(folder);
}

TEST(a_failure_on_rank_0_is_the_same_error_on_all)
{
    check_ranks(3, 0, EIO, false);
}

TEST(a_full_disk_on_rank_2_is_the_same_error_on_all)
{
    check_ranks(3, 2, ENOSPC, false);
}

static int ranks_apart(void *arg)
{
    static faults f;
    const job *j = arg;
    faults_init(&f, j->folder);
    CHECK_OK(ls__init_with(&f.env, NULL));
    ls_checkpoint *c = open_it(j->folder, true);
    faults_arm(&f, FAULT_ERROR, ENOENT, ls_rank() == 1 ? 1 : 0);
    CHECK_OK(small_save(c, 1));
    CHECK_STATUS(ls_checkpoint_wait(c), LS_ERR_NOT_FOUND);
    CHECK_CONTAINS(ls_error_message(), "rank 1: checkpoint: rank 0 has made ");
    CHECK_CONTAINS(ls_error_message(), "that all hosts share");
    CHECK_OK(ls_checkpoint_close(c));
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(a_folder_that_another_host_does_not_see_is_said_to_be_that)
{
    char folder[64];
    small_folder(folder);
    CHECK_OK(ls_spawn(ranks_apart, &(job){.folder = folder}, 2));
    small_remove(folder);
}

TEST(an_error_of_an_asynchronous_save_comes_with_the_next_call_on_all_ranks)
{
    check_ranks(4, 1, ENOSPC, true);
}

/* ---- kill ----------------------------------------------------------------------------------- */

static int ranks_killed(void *arg)
{
    static faults f;
    const job *j = arg;
    faults_init(&f, j->folder);
    if (ls__init_with(&f.env, LS_OPTIONS(ls_init_options, .timeout_ms = 10000)) < 0) {
        return 0;
    }
    ls_checkpoint *c = NULL;
    if (ls_rank() == j->victim) {
        faults_arm(&f, FAULT_KILL, 0, j->n);
    }
    ls_status status = ls_checkpoint_open(j->folder, ls_world(), NULL, &c);
    if (status == LS_OK) {
        (void)small_load(c, &status);
        (void)small_save(c, j->expect);
        (void)ls_checkpoint_close(c);
    }
    (void)ls_finalize();
    return f.hit;
}

static int ranks_check(void *arg)
{
    job *j = arg;
    CHECK_OK(ls_init(NULL));
    int64_t step = load_fresh(j->folder);
    CHECK(step == j->expect || step == j->expect - 1);
    CHECK_OK(ls_finalize());
    return step == j->expect ? 0 : 3; /* told the parent by the exit status */
}

static int run_child(int (*fn)(void *arg), job *j)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        _exit(fn(j));
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}

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

TEST(a_rank_killed_during_a_save_loses_nothing)
{
    char folder[64];
    small_folder(folder);
    job j = {.folder = folder, .victim = 1, .kind = FAULT_KILL, .expect = 1};
    CHECK_OK(ls_spawn(ranks_killed, &j, 2));
    for (int victim = 0; victim < 2; victim++) {
        for (int n = 20; n < 34; n += 3) { /* those of open and load come first */
            j.victim = victim;
            j.n = n;
            j.expect++;
            (void)ls_spawn(ranks_killed, &j, 2);
            int status = run_child(ranks_check, &j);
            CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3));
            j.expect -= WEXITSTATUS(status) == 3;
        }
    }
    small_remove(folder);
}

/* ---- kill at every system call ----------------------------------------------------------------
 */

#define NO_STRACE "strace is missing or cannot run the saver; the env table's kills cover the calls"

/* Not without strace, not where ptrace is forbidden, not with a leak checker that refuses it. */
static bool can_trace(void)
{
    char folder[64], command[512];
    small_folder(folder);
    (void)snprintf(command, sizeof command,
                   "strace -f -o /dev/null -e inject=rename:signal=KILL:when=99 '%s' '%s' 1",
                   test_build_path("tests/dist/checkpoint/saver"), folder);
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
                   test_build_path("tests/dist/checkpoint/saver"), folder, (long long)step);
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
        folder, test_build_path("tests/dist/checkpoint/saver"), folder, (long long)step, folder,
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
