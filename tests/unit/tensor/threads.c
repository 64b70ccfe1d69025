/* SPDX-License-Identifier: Apache-2.0 */
/* What the threads of kernels do between two kernels. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "local.h"

#define REGIONS 20
#define MS 1000000

static int64_t cpu_ns(void)
{
    struct timespec t;
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0);
    return (int64_t)t.tv_sec * 1000 * MS + t.tv_nsec;
}

static int threads_alive(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;
    CHECK(tasks != NULL);
    for (const struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    CHECK(closedir(tasks) == 0);
    return count;
}

/* Processor time that a parallel kernel of 100,000 elements costs, with the pause after it. */
static int64_t cost_ns(void)
{
    const struct timespec pause = {.tv_nsec = 20 * MS};
    const int64_t before = cpu_ns();
    for (int i = 0; i < REGIONS; i++) {
        LS_SCOPE;
        ls_tensor *x = ls_ones(LS_SHAPE(100000), LS_FLOAT32);
        CHECK(ls_add(x, x) != NULL);
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
    }
    return (cpu_ns() - before) / REGIONS;
}

/* libgomp's own 300,000 spins take 3 to 10 ms. Not a promise about time but about who spins: the
 * processor's time does not depend on other work. */
static void check_idle_threads(void)
{
    ls_runtime runtime;
    (void)local_begin(&runtime);
    runtime.threads = 2;
    (void)cost_ns();
    const int64_t cost = cost_ns();
    CHECK(cost < 2 * MS * TEST_SLOWER); /* of which a sanitizer takes most for the elements */
    local_end(&runtime);
}

/* libgomp has read the variables, which tests/run sets, by now: the check needs a process without
 * them. */
TEST(idle_threads_sleep_soon_also_outside_of_the_launcher)
{
    char command[600];
    if (getenv("OMP_WAIT_POLICY") == NULL && getenv("GOMP_SPINCOUNT") == NULL) {
        check_idle_threads();
        return;
    }
    snprintf(command, sizeof command,
             "env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT %s "
             "idle_threads_sleep_soon_also_outside_of_the_launcher",
             test_build_path("tests/unit/tensor/threads"));
    test_output run = test_run(command, 60);
    CHECK_INT(run.status, 0);
    CHECK_CONTAINS(run.text, "ok 1");
    free(run.text);
}

TEST(the_threads_that_bound_the_spinning_end_with_the_runtime)
{
    ls_runtime runtime;
    (void)local_begin(&runtime);
    runtime.threads = 2;
    (void)cost_ns();
    local_end(&runtime);
    const int between = threads_alive();
    (void)local_begin(&runtime);
    runtime.threads = 2;
    (void)cost_ns();
    local_end(&runtime);
    CHECK_INT(threads_alive(), between);
}

TEST_MAIN
