/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that hangs in the user's code is the job's cause, however many ranks lie between it and
 * the one whose deadline passes: in pipelines of every schedule, groups, messages and a mixture of
 * them.
 *
 * A job here mostly sleeps, so several run side by side, each in a process of its own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "job.h"
#include "says.h"

enum { RANKS = 4, AT_ONCE = 10, TIMEOUT_SECONDS = 2, SLOW_MAX = 4 };

static const char *const schedules[] = {"1f1b",        "zb-h1", "gpipe",        "pipedream",
                                        "interleaved", "naive", "pipedream-2bw"};
static const char *const chains[] = {"groups", "messages", "mixed"};
static const char *const transports[] = {"0,0,0,0", "0,1,2,3"}; /* hosts of the ranks */

typedef struct hang {
    const char *what, *how, *hosts;
    int rank;
} hang;

static void complain(const hang *h, const job *j, const char *what)
{
    char why[256];
    snprintf(why, sizeof why, "%s, rank %d, %s, hosts \"%s\": %s", h->what, h->rank, h->how,
             h->hosts, what);
    job_fail(j, why);
}

static bool says_by(const job *j, int rank, const char *part, const char *other)
{
    char prefix[16];
    snprintf(prefix, sizeof prefix, rank < 0 ? "lockstep: " : "[%d] ", rank);
    for (int i = 0; i < j->lines; i++) {
        if (strncmp(j->line[i], prefix, strlen(prefix)) == 0 && strstr(j->line[i], part) != NULL &&
            strstr(j->line[i], other) != NULL) {
            return true;
        }
    }
    return false;
}

/* "rank 2 (host h, pid 12) …": name, phase, last operation and its place. */
static void judge(const hang *h, const job *j)
{
    const bool stops = strcmp(h->how, "stop") == 0;
    char head[64], who[64];
    snprintf(head, sizeof head,
             stops ? "lockstep: rank %d (host " : "lockstep: rank %d keeps the others waiting: ",
             h->rank);
    snprintf(who, sizeof who, ", pid %d) %s", (int)j->pid[h->rank], stops ? "" : "in ");
    if (!stops && !job_says(j, SAYS("keeps the others waiting"))) {
        complain(h, j, "nobody keeps the others waiting");
    }
    if (j->status != 1 || !says_by(j, -1, head + strlen("lockstep: "), who)) {
        complain(h, j, "the launcher does not name the rank that hangs as the cause");
    }
    for (int i = 0; i < j->lines; i++) {
        if (strncmp(j->line[i], "lockstep: rank ", 15) == 0 &&
            strncmp(j->line[i], head, strlen(head)) != 0) {
            complain(h, j, "the launcher names another rank");
        }
    }
    for (int r = 0; r < RANKS; r++) {
        const bool heard = !stops || strcmp(h->hosts, transports[0]) == 0; /* of its last call */
        if (r != h->rank && !says_by(j, r, who, heard ? "; last operation: " : "")) {
            complain(h, j, "not every rank names the one that hangs");
        }
    }
}

static void run_one(const hang *h)
{
    char command[1024], program[1024], rank[8], timeout[64], hosts[64];
    snprintf(command, sizeof command, "%s", test_build_path("lockstep"));
    snprintf(program, sizeof program, "%s", test_build_path("tests/dist/failures/holder"));
    snprintf(rank, sizeof rank, "%d", h->rank);
    const double slow = test_slow_down() < SLOW_MAX ? test_slow_down() : SLOW_MAX;
    const int seconds = (int)(TIMEOUT_SECONDS * TEST_SLOWER * slow + 0.5);
    snprintf(timeout, sizeof timeout, "LOCKSTEP_TIMEOUT=%d", seconds);
    snprintf(hosts, sizeof hosts, "LOCKSTEP_HOSTS=%s", h->hosts);
    const char *const argv[] = {command, "run", "-n", "4", program, h->what, h->how, rank, NULL};
    const char *const settings[] = {timeout, hosts, "OMP_NUM_THREADS=1", NULL};
    job j = {.settings = settings, .deadline = seconds + 60};
    job_run(&j, argv);
    judge(h, &j);
    job_free(&j);
}

static void end_one(void)
{
    int status = 0;
    CHECK(wait(&status) > 0);
    CHECK_INT(status, 0);
}

static void run_all(const hang *hangs, int count)
{
    for (int i = 0; i < count; i++) {
        if (i >= AT_ONCE) {
            end_one();
        }
        fflush(NULL);
        if (fork() == 0) {
            run_one(&hangs[i]);
            fflush(NULL);
            _exit(0);
        }
    }
    for (int i = 0; i < count && i < AT_ONCE; i++) {
        end_one();
    }
}

static void check_schedules(const char *hosts)
{
    enum { SCHEDULES = sizeof schedules / sizeof *schedules };
    hang all[SCHEDULES * RANKS];
    for (int i = 0; i < SCHEDULES * RANKS; i++) { /* one that spins takes time from the others */
        all[i] = (hang){schedules[i / RANKS], i == 1 ? "spin" : "pause", hosts, i % RANKS};
    }
    run_all(all, SCHEDULES * RANKS);
}

TEST(a_stage_that_hangs_is_the_cause_under_every_schedule_in_shared_memory)
{
    check_schedules(transports[0]);
}

TEST(a_stage_that_hangs_is_the_cause_under_every_schedule_over_tcp)
{
    check_schedules(transports[1]);
}

TEST(a_rank_that_hangs_is_the_cause_behind_groups_and_messages)
{
    static const char *const ways[] = {"pause", "stop"};
    enum { CHAINS = sizeof chains / sizeof *chains, ALL = CHAINS * 2 * 2 };
    hang all[ALL];
    for (int i = 0; i < ALL; i++) {
        all[i] = (hang){chains[i % CHAINS], ways[i / CHAINS % 2], transports[i / CHAINS / 2],
                        (i + i / CHAINS) % RANKS};
    }
    run_all(all, ALL);
}

TEST_MAIN
