/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the tests of a program one after the other, each in a process of its own.
 *
 *     program ──fork──▶ test (own process group) ──▶ whatever it starts
 *        │                └─ its output goes to an anonymous file, shown when it fails
 *        └─ waits with a deadline, then kills the group and everything that was orphaned by it
 *
 * The program is the subreaper of what its tests start, so a test that leaves a process behind is
 * seen, and fails. Output is TAP: a plan, one line a test, diagnostics behind "#".
 */
#include "harness.h"

#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "processes.h"

#define ORPHAN_GRACE_MS 2000
#define PARTS_MAX 32
#define EMULATOR_SLOWER 10 /* what runs under one has that much more time; see tests/run */

/* Written by a test's processes, read by the program, which shares this memory with them. */
typedef struct report {
    _Atomic int skipped; /* processes that called SKIP */
    char reason[256];
    _Atomic int parts; /* of `part`, with which SKIP_PART was called */
    char part[PARTS_MAX][160];
} report;

static struct {
    test_case *first, **last;
    report *report;
    uint64_t seed;
} tests;

void test_register(test_case *test)
{
    if (tests.last == NULL) {
        tests.last = &tests.first;
    }
    *tests.last = test;
    tests.last = &test->next;
}

void test_fail(const char *file, int line, const char *format, ...)
{
    char text[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fflush(stdout);
    dprintf(STDOUT_FILENO, "%s:%d: %s\n", file, line, text);
    if (ls_world_size() > 1) {
        dprintf(STDOUT_FILENO, "  on rank %d of %d\n", ls_rank(), ls_world_size());
    }
    _exit(1);
}

/* Ranks of a DIST_TEST skip together: one waits here until all others do. If another one fails
 * instead, ls_spawn ends those that wait, and the failure is the test's result. */
void test_skip(const char *reason)
{
    report *r = tests.report;
    snprintf(r->reason, sizeof r->reason, "%s", reason);
    atomic_fetch_add(&r->skipped, 1);
    while (atomic_load(&r->skipped) < ls_world_size() && getenv("TEST_RANK_OF") == NULL) {
        usleep(1000);
    }
    _exit(TEST_EXIT_SKIPPED);
}

int test_skips(void)
{
    return atomic_load(&tests.report->skipped);
}

void test_skip_part(const char *format, ...)
{
    report *r = tests.report;
    char text[sizeof r->part[0]];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const int parts = atomic_load(&r->parts);
    for (int i = 0; i < parts && i < PARTS_MAX; i++) {
        if (strcmp(r->part[i], text) == 0) {
            return;
        }
    }
    const int mine = atomic_fetch_add(&r->parts, 1);
    if (mine < PARTS_MAX) {
        memcpy(r->part[mine], text, sizeof text);
    }
}

uint64_t test_seed(void)
{
    return tests.seed;
}

bool test_contains(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

static const char *path_in(const char *root, const char *relative)
{
    static char paths[8][1024]; /* a few may be used in one call */
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", root, relative);
    return path;
}

const char *test_build_path(const char *relative)
{
    return path_in(TEST_BUILD_ROOT, relative);
}

const char *test_source_path(const char *relative)
{
    return path_in(TEST_SOURCE_ROOT, relative);
}

static void test_process(const test_case *test, int output)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (test->ranks == 0) {
        test->body();
        exit(0);
    }
    if (test_run_ranks == NULL) {
        printf("this program has a DIST_TEST and must link the harness's dist.c\n");
        exit(1);
    }
    exit(test_run_ranks(test));
}

/* Shows what the test printed, behind "# ". */
static void show_output(int output)
{
    FILE *file = fdopen(output, "r");
    char line[4096];
    rewind(file);
    while (fgets(line, sizeof line, file) != NULL) {
        size_t length = strcspn(line, "\n");
        printf("# %.*s\n", (int)length, line);
    }
    fclose(file);
}

static void explain(char *why, size_t room, int status, int orphans)
{
    const int code = WIFSIGNALED(status) ? -1 : WEXITSTATUS(status);
    const bool skipped = atomic_load(&tests.report->skipped) > 0;
    if (code < 0) {
        snprintf(why, room, "killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    } else if (code != 0 && !(code == TEST_EXIT_SKIPPED && skipped)) {
        snprintf(why, room, "exit status %d", code);
    } else if (code == 0 && skipped) {
        snprintf(why, room, "a process of it called SKIP (%.80s), but the test went on",
                 tests.report->reason);
    } else if (orphans > 0) {
        snprintf(why, room, "left %d process%s behind", orphans, orphans == 1 ? "" : "es");
    }
}

/* Runs one test; `why` stays "" when it passed or was skipped. */
static void run_test(const test_case *test, int output, char *why, size_t room)
{
    fflush(NULL);
    setenv("TEST_NAME", test->name, 1); /* tests/mutate notes what each one runs */
    if (test_promises_begin != NULL) {
        test_promises_begin();
    }
    pid_t pid = fork();
    if (pid == 0) {
        test_process(test, output);
    }
    setpgid(pid, pid);
    int status = 0;
    const int deadline = test->deadline * (getenv("TEST_UNDER") != NULL ? EMULATOR_SLOWER : 1);
    const bool in_time = process_wait(pid, deadline * 1000, &status);
    if (test_promises_end != NULL) {
        test_promises_end();
    }
    if (!in_time) {
        snprintf(why, room, "not finished after %d s", deadline);
        kill(-pid, SIGKILL);
        waitpid(pid, &status, 0);
        processes_kill_children();
        return;
    }
    int orphans = processes_end_orphans(ORPHAN_GRACE_MS);
    explain(why, room, status, orphans);
}

/* Parts of a test that did not run here; tests/run counts and lists them. */
static void show_parts(void)
{
    const int parts = atomic_load(&tests.report->parts);
    for (int i = 0; i < parts && i < PARTS_MAX; i++) {
        printf("# PART SKIP %s\n", tests.report->part[i]);
    }
    if (parts > PARTS_MAX) {
        printf("# PART SKIP and %d more\n", parts - PARTS_MAX);
    }
}

static bool run_and_print(const test_case *test, int number)
{
    char why[192] = "";
    const double begin = process_seconds();
    const int output = memfd_create("test output", MFD_CLOEXEC);
    memset(tests.report, 0, sizeof *tests.report);
    run_test(test, output, why, sizeof why);
    const bool passed = why[0] == '\0';
    printf("%s %d - %s", passed ? "ok" : "not ok", number, test->name);
    if (passed && atomic_load(&tests.report->skipped) > 0) {
        printf(" # SKIP %s", tests.report->reason);
    }
    printf("\n");
    show_parts();
    if (test_promises_show != NULL) {
        test_promises_show();
    }
    if (!passed || getenv("TEST_VERBOSE") != NULL) {
        show_output(output);
        printf("# %s: %s (%.3f s)\n", test->name, passed ? "passed" : why,
               process_seconds() - begin);
    } else {
        close(output);
    }
    fflush(stdout);
    return passed;
}

static uint64_t choose_seed(void)
{
    const char *text = getenv("TEST_SEED");
    uint32_t seed = 1; /* one change, one verdict: without TEST_SEED every run draws the same */
    if (text != NULL && strcmp(text, "random") != 0) {
        return strtoull(text, NULL, 0);
    }
    if (text != NULL) {
        (void)!getrandom(&seed, sizeof seed, 0);
    }
    return seed;
}

/* A helper_… is run by another test, in a process with another environment, by its name only. */
static bool selected(const test_case *test, const char *wanted)
{
    if (getenv("TEST_MPI") != NULL && test->ranks < 2) {
        return false; /* only those with ranks run over MPI */
    }
    bool helper = strncmp(test->name, "helper_", 7) == 0;
    return strstr(test->name, wanted) != NULL && (!helper || strncmp(wanted, "helper_", 7) == 0);
}

/* As a rank under mpirun (dist.c), whose SKIP needs no other process. */
static int run_rank_of(const char *name)
{
    for (const test_case *t = tests.first; t != NULL; t = t->next) {
        if (strcmp(t->name, name) == 0) {
            return test_rank(t);
        }
    }
    return 1;
}

static int list(const char *wanted)
{
    int count = 0;
    for (const test_case *t = tests.first; t != NULL; t = t->next) {
        count += selected(t, wanted) && printf("%s\n", t->name) > 0;
    }
    return count > 0 ? 0 : 1;
}

int test_main(int argc, char **argv)
{
    const char *wanted = argc > 1 ? argv[1] : "";
    if (getenv("TEST_LIST") != NULL) {
        return list(wanted);
    }
    const bool bail = getenv("TEST_BAIL") != NULL; /* the first failure is enough */
    int count = 0, number = 0, failed = 0;
    tests.seed = choose_seed();
    tests.report =
        mmap(NULL, sizeof *tests.report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (getenv("TEST_RANK_OF") != NULL) {
        return run_rank_of(getenv("TEST_RANK_OF"));
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (const test_case *t = tests.first; t != NULL; t = t->next) {
        count += selected(t, wanted);
    }
    printf("1..%d\n# TEST_SEED=%llu\n", count, (unsigned long long)tests.seed);
    for (const test_case *t = tests.first; t != NULL; t = t->next) {
        if (selected(t, wanted) && !(failed > 0 && bail)) {
            failed += !run_and_print(t, ++number);
        }
    }
    return failed == 0 && (count > 0 || getenv("TEST_MPI") != NULL) ? 0 : 1;
}
