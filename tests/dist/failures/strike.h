/* SPDX-License-Identifier: Apache-2.0 */
/* A fault at a random moment: one rank of a job is killed, stopped for good, or calls something
 * else. */
#ifndef FAILURES_STRIKE_H
#define FAILURES_STRIKE_H

#include "job.h"

typedef enum way { KILL, STOP, MISMATCH, WAYS } way;
extern const char *const way_names[WAYS]; /* "killed" … */

/* The victim is struck so long after all ranks said READY; of MISMATCH it sees to it itself. */
typedef struct strike {
    way how;
    int ranks, victim, after_ms, ready;
} strike;

int draw(uint64_t *dice, int below); /* 0 … below - 1 */
strike strike_draw(uint64_t *dice, way how);
void strike_on_line(job *j, const char *line); /* j->arg is a strike */

#endif
