/* SPDX-License-Identifier: Apache-2.0 */
/* A rank whose part of a pipeline fails, or its loss, is the job's cause: whichever rank ends first
 * of those that were told. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "says.h"

enum { RANKS_MIN = 2, RANKS_MAX = 4, TIMES = 2, TIMES_LONG = 20 };

typedef struct blame {
    const char *fault, *schedule, *hosts;
    int ranks, victim;
} blame;

static const char *const transports[] = {"0,0,0,0", "0,1,2,3"}; /* hosts of the ranks */

static void complain(const blame *b, const job *j, const char *what)
{
    char why[256];
    snprintf(why, sizeof why, "%s, %s, rank %d of %d, hosts \"%s\": %s", b->fault, b->schedule,
             b->victim, b->ranks, b->hosts, what);
    job_fail(j, why);
}

/* The line of faulty.c that a comment marks. */
static int line_of(const char *mark)
{
    char line[512];
    int number = 0;
    FILE *file = fopen(test_source_path("tests/dist/failures/faulty.c"), "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL && ++number > 0 && strstr(line, mark) == NULL) {
    }
    fclose(file);
    return number;
}

/* Who the launcher says has failed, in "rank 1 (host h, pid 12) failed: …". */
static int headline(const blame *b, const job *j, const char **text)
{
    int rank = -1;
    for (int i = 0; i < j->lines; i++) {
        const char *line = j->line[i];
        if (strncmp(line, "lockstep: rank ", strlen("lockstep: rank ")) == 0) {
            if (rank >= 0) {
                complain(b, j, "the launcher names two causes");
            }
            rank = atoi(line + strlen("lockstep: rank "));
            *text = line;
        }
        if (test_count_said(line, "failed: rank %d failed: ") > 0) {
            complain(b, j, "it is said twice that a rank failed");
        }
    }
    if (rank < 0 || rank >= b->ranks || j->status != 1) {
        complain(b, j, "the launcher does not name a rank that failed");
    }
    return rank;
}

/* What is said of `rank` as the cause. */
static void expected_of(const blame *b, int rank, char *out, size_t bytes)
{
    if (strcmp(b->fault, "part") == 0) {
        (void)snprintf(out, bytes, "faulty.c:%d: matmul: ", line_of("FAULTY LINE"));
    } else if (strcmp(b->fault, "null") == 0) {
        (void)snprintf(out, bytes, "faulty.c:%d): it returned NULL; give its result",
                       line_of("DECLARATION"));
    } else if (strcmp(b->fault, "loss") == 0) {
        (void)snprintf(out, bytes, "%s", SAYS("it returned NULL; give a loss"));
    } else {
        (void)snprintf(out, bytes, " is not finite on rank %d (element ", rank);
    }
}

/* A gradient of one stage that is not finite spreads to the others: each of them may be the first
 * to refuse it, but says so of itself. A note does not repeat the cause. */
static void judge(const blame *b, const job *j)
{
    char pid[64], expected[96];
    const char *text = "";
    const int rank = headline(b, j, &text);
    const bool right = strcmp(b->fault, "nan") == 0       ? true
                       : strcmp(b->fault, "replica") == 0 ? rank % 2 == b->victim % 2
                                                          : rank == b->victim;
    expected_of(b, rank, expected, sizeof expected);
    snprintf(pid, sizeof pid, ", pid %d) failed: ", (int)j->pid[rank]);
    if (!right || strstr(text, pid) == NULL) {
        complain(b, j, "the launcher names another rank");
    }
    const bool of_loss = strcmp(b->fault, "loss") == 0;
    if (strstr(text, expected) == NULL ||
        (of_loss && strstr(text, SAYS("the loss of the pipeline")) == NULL)) {
        complain(b, j, "the launcher does not say what failed");
    }
    if (job_says(j, " failed and continued: ")) {
        complain(b, j, "the launcher says it again in a note");
    }
}

static void run_one(const blame *b)
{
    char command[1024], program[1024], ranks[8], victim[8], hosts[64];
    snprintf(command, sizeof command, "%s", test_build_path("lockstep"));
    snprintf(program, sizeof program, "%s", test_build_path("tests/dist/failures/faulty"));
    snprintf(ranks, sizeof ranks, "%d", b->ranks);
    snprintf(victim, sizeof victim, "%d", b->victim);
    snprintf(hosts, sizeof hosts, "LOCKSTEP_HOSTS=%.*s", 2 * b->ranks - 1, b->hosts);
    const char *const argv[] = {command,  "run",  "-n",        ranks, program,
                                b->fault, victim, b->schedule, NULL};
    const char *const settings[] = {hosts, "OMP_NUM_THREADS=1", NULL};
    job j = {.settings = settings, .deadline = 60};
    job_run(&j, argv);
    judge(b, &j);
    job_free(&j);
}

static void run_all(const char *fault, const char *schedule, const char *hosts)
{
    const int times = getenv("TEST_LONG") != NULL ? TIMES_LONG : TIMES;
    for (int ranks = RANKS_MIN; ranks <= RANKS_MAX; ranks++) {
        for (int victim = strcmp(fault, "loss") == 0 ? ranks - 1 : 0; victim < ranks; victim++) {
            for (int i = 0; i < times; i++) {
                run_one(&(blame){fault, schedule, hosts, ranks, victim});
            }
        }
    }
}

TEST_OF(a_part_that_fails_is_the_cause, 0, 600)
{
    run_all("part", "1f1b", transports[0]);
    run_all("part", "1f1b", transports[1]);
}

TEST_OF(a_part_that_returns_nothing_is_the_cause, 0, 600)
{
    run_all("null", "gpipe", transports[0]);
    run_all("null", "1f1b", transports[1]);
}

TEST_OF(a_loss_that_returns_nothing_is_the_cause, 0, 600)
{
    run_all("loss", "1f1b", transports[0]);
    run_all("loss", "gpipe", transports[1]);
}

TEST_OF(a_stage_whose_optimizer_refuses_a_step_is_the_cause, 0, 600)
{
    run_all("nan", "pipedream", transports[0]);
    run_all("nan", "pipedream", transports[1]);
}

/* The norm is that of averages, so it is not finite on any rank. */
TEST_OF(a_replica_whose_gradient_is_not_finite_is_the_cause_when_the_norm_is_not, 0, 600)
{
    static const char *const hosts[] = {"0,0,0,0", "0,1,2,3", "0,1,0,1", "0,0,1,1"};
    for (int i = 0; i < 4; i++) {
        for (int victim = 0; victim < 2; victim++) {
            run_one(&(blame){"replica", "1f1b", hosts[i], RANKS_MAX, victim});
        }
    }
}

TEST_MAIN
