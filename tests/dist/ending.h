/* SPDX-License-Identifier: Apache-2.0 */
/* How a job ends after one of its ranks has died: victim.h. */
#ifndef DIST_ENDING_H
#define DIST_ENDING_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "script.h"

typedef struct ending {
    test_output out;
    double seconds; /* from the death to the launcher's end; -1: nobody died */
} ending;

static inline ending ending_of(const char *command, int seconds)
{
    ending e = {.out = test_run(command, seconds)};
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const char *dying = strstr(e.out.text, "DYING ");
    const double end = (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
    e.seconds = dying != NULL ? end - atof(dying + 6) : -1.0;
    return e;
}

/* Four ranks of a victim, below the build; `settings`: of the environment. */
static inline ending run_victim(const char *program, const char *place, int rank,
                                const char *settings)
{
    char command[1536];
    snprintf(command, sizeof command, "%s exec %s run -n 4 %s %s %d", settings,
             test_build_path("lockstep"), test_build_path(program), place, rank);
    return ending_of(command, 60);
}

static inline void check_killed(const char *program, const char *place, int rank,
                                const char *settings)
{
    ending e = run_victim(program, place, rank, settings);
    char who[64];
    snprintf(who, sizeof who, "rank %d (", rank);
    CHECK(e.out.status != 0);
    CHECK_CONTAINS(e.out.text, who);
    CHECK(count_of(e.out.text, "was killed by signal 9 (SIGKILL)") >= 4); /* 3 ranks, launcher */
    CHECK_WITHIN(e.seconds, 1);
    free(e.out.text);
}

/* `source`: the file of the line that is shown as its last one. */
static inline void check_hangs(const char *program, int rank, const char *source)
{
    ending e = run_victim(program, "hang", rank, "LOCKSTEP_TIMEOUT=2");
    char who[64];
    snprintf(who, sizeof who, "rank %d (", rank);
    CHECK(e.out.status != 0);
    CHECK_CONTAINS(e.out.text, who);
    CHECK_CONTAINS(e.out.text, source);
    CHECK_WITHIN(e.seconds, 5);
    free(e.out.text);
}

#endif
