/* SPDX-License-Identifier: Apache-2.0 */
/* The test harness: every TEST is a process of its own with a deadline; output is TAP.
 *
 *     TEST(bucket_waits_for_lower_index) { CHECK(x == 1); CHECK_INT(got, 3); }
 *     DIST_TEST(sum_is_exact, 4) { … body of each of 4 ranks, after ls_init, before ls_finalize … }
 *     TEST_MAIN
 *
 * A test's name is a sentence. A failing CHECK prints file, line and values, and ends that test (in
 * a DIST_TEST: that rank with status 1). SKIP("reason") ends a test as skipped; in a DIST_TEST all
 * ranks must call it. The program takes an optional substring that selects tests. TEST_SEED seeds
 * tests that draw random cases; it is printed. A test named helper_… is skipped unless asked for by
 * that name: one that others run in a process of its own (test_run) with another environment.
 * TEST_VERBOSE=1 shows all output, TEST_BAIL=1 ends the program with its first failure,
 * TEST_LIST=1 prints the names of the selected tests and runs none.
 */
#ifndef TEST_H
#define TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/runtime.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define TEST_SLOWER 5 /* what runs under a sanitizer has that much more time */
#else
#define TEST_SLOWER 1
#endif
#define TEST_DEADLINE_SECONDS (120 * TEST_SLOWER) /* beside ten times the work the machine has */

/* Whether something that is promised within `promised` seconds, and took `took`, was in time on
 * this machine as it is now: its noise is measured beside every test (noise.c). Shown behind the
 * test's result. Sanitizers have TEST_SLOWER times as long. */
bool test_is_within(double took, double promised);
/* 1: a process that computes has a core to itself; 3: it gets a third of one. */
double test_slow_down(void);
void test_check_within(const char *file, int line, const char *what, double took, double promised);

typedef struct test_case {
    const char *name;
    void (*body)(void);
    int ranks;    /* 0: a plain test */
    int deadline; /* seconds */
    struct test_case *next;
} test_case;

void test_register(test_case *test);
int test_main(int argc, char **argv);

_Noreturn void test_fail(const char *file, int line, const char *format, ...) LS_PRINTF(3, 4);
_Noreturn void test_skip(const char *reason);
void test_skip_part(const char *format, ...) LS_PRINTF(1, 2);
uint64_t test_seed(void);
/* Path of a file in the build (tools, examples) or source tree, in static storage of the call. */
const char *test_build_path(const char *relative);
const char *test_source_path(const char *relative);

/* What a command printed and how it ended; run by /bin/sh -c with a deadline, times TEST_SLOWER and
 * the slow-down of the machine, below the deadline of a test. Free output. */
typedef struct test_output {
    int status; /* exit code, or 128+signal; 124: the deadline passed */
    char *text; /* stdout and stderr together */
    double seconds;
} test_output;
test_output test_run(const char *command, int deadline_seconds);
/* The test helper_… of this program, in an environment with these variables ("A=1 B=2"). */
test_output test_run_helper(const char *variables, const char *helper);

#define TEST_REGISTER_(name_, ranks_, deadline_)                                                   \
    static void name_(void);                                                                       \
    __attribute__((constructor)) static void register_##name_(void)                                \
    {                                                                                              \
        static test_case test = {#name_, name_, ranks_, deadline_, NULL};                          \
        test_register(&test);                                                                      \
    }                                                                                              \
    static void name_(void)

#define TEST(name) TEST_REGISTER_(name, 0, TEST_DEADLINE_SECONDS)
/* With a number of ranks (0: plain) and a deadline of its own. */
#define TEST_OF(name, ranks, deadline) TEST_REGISTER_(name, ranks, deadline)
#define DIST_TEST(name, ranks) TEST_REGISTER_(name, ranks, TEST_DEADLINE_SECONDS)
/* The same test on each of up to eight numbers of ranks:
 *     DIST_TESTS(sums_of_, _ranks_are_exact, 1, 2, 4) { … }
 * has the tests sums_of_1_ranks_are_exact, sums_of_2_ranks_are_exact and so on. */
#define DIST_TESTS(before, after, ...)                                                             \
    static void before##n##after(void);                                                            \
    TEST_NUMBERS_(__VA_ARGS__, TEST_8_, TEST_7_, TEST_6_, TEST_5_, TEST_4_, TEST_3_, TEST_2_,      \
                  TEST_1_, 0)                                                                      \
    (before, after, __VA_ARGS__, 0) static void before##n##after(void)
#define TEST_NUMBERS_(a, b, c, d, e, f, g, h, name, ...) name
#define TEST_1_(before, after, ranks, ...)                                                         \
    DIST_TEST(before##ranks##after, ranks)                                                         \
    {                                                                                              \
        before##n##after();                                                                        \
    }
#define TEST_2_(b, a, n, ...) TEST_1_(b, a, n, 0) TEST_1_(b, a, __VA_ARGS__)
#define TEST_3_(b, a, n, ...) TEST_1_(b, a, n, 0) TEST_2_(b, a, __VA_ARGS__)
#define TEST_4_(b, a, n, ...) TEST_1_(b, a, n, 0) TEST_3_(b, a, __VA_ARGS__)
#define TEST_5_(b, a, n, ...) TEST_1_(b, a, n, 0) TEST_4_(b, a, __VA_ARGS__)
#define TEST_6_(b, a, n, ...) TEST_1_(b, a, n, 0) TEST_5_(b, a, __VA_ARGS__)
#define TEST_7_(b, a, n, ...) TEST_1_(b, a, n, 0) TEST_6_(b, a, __VA_ARGS__)
#define TEST_8_(b, a, n, ...) TEST_1_(b, a, n, 0) TEST_7_(b, a, __VA_ARGS__)
#define TEST_MAIN                                                                                  \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return test_main(argc, argv);                                                              \
    }

#define SKIP(reason) test_skip(reason)
/* A part of the test cannot run here (say, for a processor without the instructions), the rest goes
 * on; tests/run counts such parts and lists them. The same words count once a test. */
#define SKIP_PART(...) test_skip_part(__VA_ARGS__)
#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            test_fail(__FILE__, __LINE__, "%s", #x);                                               \
        }                                                                                          \
    } while (0)
#define CHECK_OK(x)                                                                                \
    do {                                                                                           \
        ls_status check_status_ = LS_STATUS_OF(x);                                                 \
        if (check_status_ != LS_OK) {                                                              \
            test_fail(__FILE__, __LINE__, "%s: %s: %s", #x, ls_status_name(check_status_),         \
                      ls_error_message());                                                         \
        }                                                                                          \
    } while (0)
#define CHECK_STATUS(x, want)                                                                      \
    do {                                                                                           \
        ls_status check_status_ = LS_STATUS_OF(x);                                                 \
        if (check_status_ != (want)) {                                                             \
            test_fail(__FILE__, __LINE__, "%s: got %s (%s), want %s", #x,                          \
                      ls_status_name(check_status_), ls_error_message(), ls_status_name(want));    \
        }                                                                                          \
    } while (0)
#define CHECK_INT(got, want)                                                                       \
    do {                                                                                           \
        long long got_ = (long long)(got), want_ = (long long)(want);                              \
        if (got_ != want_) {                                                                       \
            test_fail(__FILE__, __LINE__, "%s: got %lld, want %lld", #got, got_, want_);           \
        }                                                                                          \
    } while (0)
#define CHECK_NEAR(got, want, tolerance)                                                           \
    do {                                                                                           \
        double got_ = (double)(got), want_ = (double)(want);                                       \
        if (!(got_ - want_ <= (tolerance) && want_ - got_ <= (tolerance))) {                       \
            test_fail(__FILE__, __LINE__, "%s: got %.9g, want %.9g", #got, got_, want_);           \
        }                                                                                          \
    } while (0)
#define CHECK_STR(got, want)                                                                       \
    do {                                                                                           \
        const char *check_got_ = (got);                                                            \
        if (strcmp(check_got_, (want)) != 0) {                                                     \
            test_fail(__FILE__, __LINE__, "%s is \"%s\", want \"%s\"", #got, check_got_, (want));  \
        }                                                                                          \
    } while (0)
/* `took` seconds are within what is `promised`, see test_is_within */
#define CHECK_WITHIN(took, promised) test_check_within(__FILE__, __LINE__, #took, took, promised)
/* `text` contains `part` */
#define CHECK_CONTAINS(text, part)                                                                 \
    do {                                                                                           \
        const char *text_ = (text), *part_ = (part);                                               \
        if (!test_contains(text_, part_)) {                                                        \
            test_fail(__FILE__, __LINE__, "\"%s\" not in: %s", part_, text_);                      \
        }                                                                                          \
    } while (0)
bool test_contains(const char *text, const char *part);

/* An environment variable of all tests of this program. */
#define TEST_SETTING(id, name, value)                                                              \
    __attribute__((constructor)) static void test_setting_##id(void)                               \
    {                                                                                              \
        (void)setenv(name, value, 1);                                                              \
    }

#endif
