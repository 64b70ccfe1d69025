/* SPDX-License-Identifier: Apache-2.0 */
/* A job under `lockstep run` that is watched from outside: every line of its output with the time
 * it came, the processes of its ranks, and what it leaves behind. */
#ifndef FAILURES_JOB_H
#define FAILURES_JOB_H

#include <stdbool.h>
#include <sys/types.h>

#include "test.h"

enum { JOB_RANKS_MAX = 8, JOB_LINES_MAX = 4096 };

typedef struct job {
    /* in */
    const char *const *settings;                        /* "NAME=value" …, NULL; may be NULL */
    int deadline;                                       /* seconds */
    void (*on_line)(struct job *job, const char *line); /* may be NULL */
    void *arg;
    /* out */
    pid_t front;
    char folder[64];          /* TMPDIR, and the work folder, of the job */
    char mark[64];            /* "NAME=value" in the environment of all its processes */
    pid_t pid[JOB_RANKS_MAX]; /* from lines "[R] PID n" */
    const char *line[JOB_LINES_MAX];
    double came[JOB_LINES_MAX]; /* when; of CLOCK_MONOTONIC */
    int lines;
    int status;            /* as of test_output */
    double ended;          /* when the front did */
    double struck;         /* from "STRIKE t"; 0: none */
    char *text;            /* the lines' memory */
    size_t bytes, partial; /* of text; of its last line that has no end yet */
} job;

/* Runs argv to its end in a new folder. Then nothing of it may be left: the test fails if a
 * process, shared memory or a temporary file is. */
void job_run(job *j, const char *const *argv);
void job_free(job *j);

/* Kills a rank and waits until the agent has reaped it: of whatever dies later, the agent knows. */
void job_kill_first(const job *j, int rank);

pid_t job_guard(const job *j); /* the front's child; 0: none */
pid_t job_agent(const job *j); /* the guard's child; 0: none */
/* Processes whose environment has the job's mark, without the front. */
int job_processes(const job *j, pid_t *out, int room);
bool job_says(const job *j, const char *part);
/* Whether the launcher says `part`, and every line that does, of it or a rank, says `who` as well.
 */
bool job_all_say(const job *j, const char *part, const char *who);
/* The first line from rank r ("[r] …"; -1: of the launcher, "lockstep: …") with `part`; -1: none.
 */
int job_find(const job *j, int r, const char *part);
_Noreturn void job_fail(const job *j, const char *why); /* with all of the output */

#endif
