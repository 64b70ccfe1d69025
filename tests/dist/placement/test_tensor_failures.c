/* A rank of a tensor-parallel group dies, hangs, has weight 0 or no data left, by real processes
 * under the launcher. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "script.h"

typedef struct ending {
    test_output out;
    double seconds; /* from the death to the launcher's end; -1: nobody died */
} ending;

static ending run_victim(const char *place, int rank, const char *settings)
{
    char command[1536];
    snprintf(command, sizeof command, "%s exec %s run -n 4 %s %s %d", settings,
             test_build_path("lockstep"), test_build_path("tests/dist/placement/tensor_victim"),
             place, rank);
    ending e = {.out = test_run(command, 60)};
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const char *dying = strstr(e.out.text, "DYING ");
    const double end = (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
    e.seconds = dying != NULL ? end - atof(dying + 6) : -1.0;
    return e;
}

static void check_kill(const char *place, int rank)
{
    ending e = run_victim(place, rank, "");
    char who[64];
    snprintf(who, sizeof who, "rank %d (", rank);
    CHECK(e.out.status != 0);
    CHECK_CONTAINS(e.out.text, who);
    CHECK(count_of(e.out.text, "was killed by signal 9 (SIGKILL)") >= 4); /* 3 ranks, launcher */
    CHECK_WITHIN(e.seconds, 1);
    free(e.out.text);
}

TEST(a_rank_of_a_tensor_group_that_is_killed_is_named_by_all)
{
    for (int rank = 0; rank < 4; rank++) {
        check_kill("forward", rank);
        check_kill("backward", rank);
    }
}

TEST(a_rank_of_a_tensor_group_that_hangs_is_named)
{
    ending e = run_victim("hang", 2, "LOCKSTEP_TIMEOUT=2");
    CHECK(e.out.status != 0);
    CHECK_CONTAINS(e.out.text, "rank 2 (");
    CHECK_CONTAINS(e.out.text, "tensor_victim.c"); /* its last line */
    CHECK_WITHIN(e.seconds, 5);
    free(e.out.text);
}

static void check_whole(const char *place)
{
    ending e = run_victim(place, 2, "");
    CHECK_INT(e.out.status, 0);
    CHECK_INT(count_of(e.out.text, "2 identical"), 4);
    free(e.out.text);
}

TEST(a_data_group_of_weight_0_answers_the_collectives)
{
    check_whole("weight0");
    check_whole("none");
}

TEST(a_data_group_without_data_joins)
{
    check_whole("join");
}

TEST_MAIN
