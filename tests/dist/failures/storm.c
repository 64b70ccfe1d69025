/* SPDX-License-Identifier: Apache-2.0 */
/* A storm of kills: any rank, at any moment of a job's life, over every transport; in half of the
 * runs another rank is killed up to 50 ms after the agent has seen the first one's end, or at once
 * with it. The culprit must be right in every run: of two that are killed at once either is, but
 * all must say the same one. 500 runs with TEST_LONG=1, a few otherwise. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "processes.h"
#include "strike.h"

#define RUNS_LONG 500
#define RUNS_SHORT 6

typedef struct storm {
    uint64_t state;           /* of a small generator */
    int ranks, first, second; /* second -1: none */
    int after_ms, gap_ms;
    bool at_once; /* the second with the first; else the agent knows the first's end by then */
    bool done;
} storm;

static void plan_run(storm *s)
{
    s->ranks = 2 + draw(&s->state, 5);
    s->first = draw(&s->state, s->ranks);
    s->second =
        draw(&s->state, 2) == 0 ? (s->first + 1 + draw(&s->state, s->ranks - 1)) % s->ranks : -1;
    s->after_ms = draw(&s->state, 120);
    s->gap_ms = draw(&s->state, 50);
    s->at_once = draw(&s->state, 4) == 0;
    s->done = false;
}

static void strike_twice(job *j, const char *line)
{
    storm *s = j->arg;
    (void)line;
    for (int r = 0; r < s->ranks; r++) {
        if (s->done || j->pid[r] == 0) {
            return;
        }
    }
    s->done = true;
    usleep((useconds_t)s->after_ms * 1000u);
    j->struck = process_seconds();
    if (s->second < 0 || s->at_once) {
        kill(j->pid[s->first], SIGKILL);
    } else {
        job_kill_first(j, s->first);
        usleep((useconds_t)s->gap_ms * 1000u);
    }
    if (s->second >= 0) {
        kill(j->pid[s->second], SIGKILL);
    }
}

static bool names(const char *line, int rank, pid_t pid)
{
    char who[64], words[96];
    snprintf(who, sizeof who, "rank %d (host ", rank);
    snprintf(words, sizeof words, ", pid %d) was killed by signal 9 (SIGKILL)", (int)pid);
    return strstr(line, who) != NULL && strstr(line, words) != NULL;
}

/* The launcher names the culprit, and so does every survivor that says anything of a death. */
static bool culprit_is(const job *j, int rank)
{
    bool told = false;
    for (int i = 0; i < j->lines; i++) {
        const bool death = strstr(j->line[i], " was killed by signal ") != NULL;
        if (death && !names(j->line[i], rank, j->pid[rank])) {
            return false;
        }
        told = told || (death && strncmp(j->line[i], "lockstep: ", 10) == 0);
    }
    return told;
}

static void run_one(storm *s, int number)
{
    static const char *const hosts[] = {"LOCKSTEP_TIMEOUT=30", "LOCKSTEP_HOSTS=0,1,0,1,0,1", NULL};
    static const char *const one[] = {"LOCKSTEP_TIMEOUT=30", NULL};
    char command[1024], program[1024], ranks[8];
    snprintf(command, sizeof command, "%s", test_build_path("lockstep"));
    snprintf(program, sizeof program, "%s", test_build_path("tests/dist/failures/victim"));
    plan_run(s);
    snprintf(ranks, sizeof ranks, "%d", s->ranks);
    const char *argv[] = {command, "run",     "-n", ranks,   program,
                          "none",  "forever", "0",  "saved", NULL};
    job j = {.settings = number % 2 == 0 ? one : hosts,
             .deadline = 30,
             .on_line = strike_twice,
             .arg = s};
    job_run(&j, argv);
    const bool both = s->second >= 0 && s->at_once;
    if (j.status != 137 || !(culprit_is(&j, s->first) || (both && culprit_is(&j, s->second)))) {
        char why[160];
        snprintf(why, sizeof why, "run %d: rank %d of %d was killed %d ms after the start%s%s",
                 number, s->first, s->ranks, s->after_ms, s->second >= 0 ? ", another " : "",
                 s->second < 0 ? ""
                 : both        ? "at once"
                               : "when that was known");
        job_fail(&j, why);
    }
    job_free(&j);
}

TEST_OF(the_culprit_is_right_in_every_run_of_a_storm, 0, 550)
{
    storm s = {.state = test_seed()};
    const int runs = getenv("TEST_LONG") != NULL ? RUNS_LONG : RUNS_SHORT;
    for (int i = 0; i < runs; i++) {
        run_one(&s, i);
    }
    printf("%d runs\n", runs);
}

TEST_MAIN
