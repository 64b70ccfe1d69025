/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies in a collective: every survivor and the launcher name it in the same words. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <lockstep/comm.h>
#include <lockstep/store.h>

#include "test.h"

#define RANKS 4
#define VICTIM 2

typedef struct seen {
    int status[RANKS];
    char text[RANKS][2048];
    double seconds[RANKS]; /* from the kill to the error */
    double killed;
} seen;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void note(seen *s, ls_status status)
{
    int r = ls_rank();
    s->status[r] = status;
    s->seconds[r] = now() - s->killed;
    snprintf(s->text[r], sizeof s->text[r], "%s", ls_error_message());
}

static int train_until_one_dies(void *arg)
{
    seen *s = arg;
    float data[1000] = {0};
    LS_CHECK(ls_init(NULL));
    ls_status status = LS_OK;
    for (int step = 0; status == LS_OK; step++) {
        if (step == 20 && ls_rank() == VICTIM) {
            s->killed = now();
            kill(getpid(), SIGKILL);
        }
        status = ls_all_reduce(ls_world(), data, data, 1000, LS_FLOAT32, LS_SUM, NULL, NULL);
    }
    note(s, status);
    (void)ls_finalize();
    return 1;
}

static int wait_in_the_store(void *arg)
{
    seen *s = arg;
    char here[24];
    LS_CHECK(ls_init(NULL));
    snprintf(here, sizeof here, "here/%d", ls_rank());
    LS_CHECK(ls_store_set(ls_runtime_store(), here, "", 0, 60000));
    if (ls_rank() == VICTIM) {
        for (int r = 0; r < RANKS; r++) { /* none is in ls_init any more */
            snprintf(here, sizeof here, "here/%d", r);
            LS_CHECK(ls_store_wait(ls_runtime_store(), here, 60000));
        }
        s->killed = now();
        kill(getpid(), SIGKILL);
    }
    note(s, ls_store_wait(ls_runtime_store(), "never set", 60000));
    (void)ls_finalize();
    return 1;
}

static void check_verdict(int (*fn)(void *arg))
{
    seen *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK_STATUS(ls_spawn(fn, s, RANKS), LS_ERR_PEER);
    double whole = now() - s->killed;
    CHECK_CONTAINS(ls_error_message(), "rank 2 (host");
    CHECK_CONTAINS(ls_error_message(), "was killed by signal 9 (SIGKILL) while");
    const char *cause = strstr(ls_error_message(), "rank 2 (host");
    for (int r = 0; r < RANKS; r++) {
        if (r != VICTIM) {
            CHECK_INT(s->status[r], LS_ERR_PEER);
            CHECK_CONTAINS(s->text[r], cause);
            CHECK(s->seconds[r] < 1.0); /* a promised bound */
        }
    }
    CHECK(whole < 1.0);
    munmap(s, sizeof *s);
}

TEST(survivors_in_a_collective_report_the_launchers_verdict)
{
    check_verdict(train_until_one_dies);
}

TEST(survivors_in_the_store_report_the_launchers_verdict)
{
    check_verdict(wait_in_the_store);
}

static int say_where(void *arg)
{
    (void)arg;
    LS_CHECK(ls_init(NULL));
    LS_CHECK(ls_barrier(ls_world(), NULL, NULL));
    bool good = ls_world_size() == 3 && ls_local_rank() == ls_rank();
    LS_CHECK(ls_finalize());
    return good ? 0 : 1;
}

TEST(a_program_may_spawn_worlds_one_after_the_other_and_join_one_of_its_own)
{
    for (int i = 0; i < 3; i++) {
        CHECK_OK(ls_spawn(say_where, NULL, 3));
    }
    CHECK_OK(ls_init(NULL));
    CHECK_INT(ls_world_size(), 1);
    CHECK_STATUS(ls_spawn(say_where, NULL, 3), LS_ERR_STATE);
    CHECK_OK(ls_store_set(ls_runtime_store(), "k", "v", 1, 100));
    CHECK_OK(ls_finalize());
    CHECK_OK(ls_spawn(say_where, NULL, 3));
}

static void refuses(const char *variable, const char *lacking)
{
    setenv(variable, "4", 1);
    CHECK_STATUS(ls_init(NULL), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), variable);
    CHECK_CONTAINS(ls_error_message(), lacking);
    CHECK_CONTAINS(ls_error_message(), "lockstep run -n 4");
    setenv(variable, "1", 1);
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_finalize());
    unsetenv(variable);
}

TEST(half_of_a_launchers_variables_is_refused_in_words)
{
    refuses("WORLD_SIZE", "RANK is not set");
    refuses("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK is not set");
    refuses("PMI_SIZE", "PMI_RANK is not set");
}

TEST(malformed_bootstrap_values_are_refused)
{
    static const char *const values[] = {
        "x",         "v2:3:4:5",           "v1:",           "v1:3:4", "v1:3:4:5:6", "v1:a:4:5",
        "v1:-3:4:5", "v1:3:4:99999999999", "v1:900:901:902"};
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("LOCAL_RANK", "0", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        setenv("LOCKSTEP_BOOTSTRAP", values[i], 1);
        CHECK_STATUS(ls_init(NULL), LS_ERR_INVALID);
        CHECK_CONTAINS(ls_error_message(), "lockstep run");
    }
    unsetenv("RANK");
    setenv("LOCKSTEP_BOOTSTRAP", "v1:900:901:902", 1);
    CHECK_STATUS(ls_init(NULL), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "RANK");
}

TEST_MAIN
