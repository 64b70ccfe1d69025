/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of four dies while they train, by real processes under the launcher: everything ends
 * within a second, the report names rank, cause and what it was doing, and nothing is left. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../ending.h"

/* Those whose name holds `part`. */
static int entries(const char *folder, const char *part)
{
    DIR *dir = opendir(folder);
    int count = 0;
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        count += strstr(e->d_name, part) != NULL;
    }
    if (dir) {
        closedir(dir);
    }
    return count;
}

/* Victims of this job, which its folder tells from those of the same test over another transport;
 * the brackets keep the asking shell out. */
static int running(const char *folder)
{
    char command[1024];
    snprintf(command, sizeof command, "pgrep -c -f '%s/[v]ictim .* %s' || true",
             test_build_path("tests/dist/train"), folder);
    test_output out = test_run(command, 10);
    int count = atoi(out.text);
    free(out.text);
    return count;
}

/* TMPDIR is a fresh folder, so that whatever a job leaves there shows. */
static ending run_alone(const char *place, int rank, int ranks)
{
    char folder[] = "/tmp/lockstep-test-XXXXXX", victim[512], command[1536];
    CHECK(mkdtemp(folder));
    snprintf(victim, sizeof victim, "%s", test_build_path("tests/dist/train/victim"));
    snprintf(command, sizeof command, "TMPDIR=%s exec %s run -n %d %s %s %d %s", folder,
             test_build_path("lockstep"), ranks, victim, place, rank, folder);
    int shm = entries("/dev/shm", "lockstep");
    ending e = ending_of(command, 40);
    CHECK_INT(entries("/dev/shm", "lockstep"), shm);
    CHECK_INT(entries(folder, ""), 2); /* "." and ".." */
    CHECK_INT(rmdir(folder), 0);
    CHECK_INT(running(folder), 0);
    return e;
}

static void check_death(const char *place, const char *cause, const char *doing)
{
    ending e = run_alone(place, 2, 4);
    if (!test_is_within(e.seconds, 1) || e.out.status == 0) {
        test_fail(__FILE__, __LINE__, "%s: status %d, %.2f s after the death\n%s", place,
                  e.out.status, e.seconds, e.out.text);
    }
    CHECK_CONTAINS(e.out.text, "rank 2");
    CHECK_CONTAINS(e.out.text, cause);
    CHECK_SAYS(e.out.text, doing);
    free(e.out.text);
}

TEST(a_rank_killed_in_the_forward_pass_is_named_by_all_within_a_second)
{
    check_death("forward", "SIGKILL", "in the forward pass");
}

TEST(a_stage_that_is_killed_is_named_by_all_within_a_second)
{
    check_death("pipeline", "SIGKILL", "in the forward pass");
}

TEST(a_rank_killed_in_the_backward_pass_is_named_by_all_within_a_second)
{
    check_death("backward", "SIGKILL", SAYS("in the backward pass"));
}

TEST(a_rank_killed_inside_a_collective_is_named_by_all_within_a_second)
{
    check_death("collective", "SIGKILL", "all_reduce");
}

TEST(a_rank_killed_between_steps_is_named)
{
    check_death("between", "SIGKILL", "victim.c");
}

TEST(a_segfault_is_named)
{
    check_death("segfault", "SIGSEGV", "in the forward pass");
}

TEST(a_rank_that_exits_with_an_error_is_named)
{
    check_death("exit3", "3", "rank 2");
}

TEST(a_rank_that_leaves_early_with_status_0_is_named)
{
    check_death("exit0", "ls_finalize", "rank 2");
}

TEST(all_ranks_give_the_same_report)
{
    ending e = run_alone("collective", 2, 4);
    /* each of the three survivors, and the launcher */
    CHECK(count_of(e.out.text, "was killed by signal 9 (SIGKILL)") >= 4);
    free(e.out.text);
}

TEST(a_victim_of_any_rank_is_named)
{
    for (int rank = 0; rank < 4; rank++) {
        ending e = run_alone("backward", rank, 4);
        char who[64];
        snprintf(who, sizeof who, "rank %d (", rank);
        CHECK_CONTAINS(e.out.text, who);
        CHECK_CONTAINS(e.out.text, "SIGKILL");
        CHECK_WITHIN(e.seconds, 1);
        free(e.out.text);
    }
}

TEST(nobody_dies_and_the_job_ends_well)
{
    ending e = run_alone("none", 0, 4);
    CHECK_INT(e.out.status, 0);
    free(e.out.text);
}

TEST_MAIN
