/* SPDX-License-Identifier: Apache-2.0 */
/* Training with parameter servers (--server).
 *
 *     worker    steps … ┐ join  checkpoint, evaluation  ┌ steps …
 *     server    serves  ┘ join  checkpoint, evaluation  └ serves
 *
 * All ranks meet at the steps that save or evaluate, at the last one, and after a stop request. */
#ifndef PROGRAMS_SERVED_H
#define PROGRAMS_SERVED_H

#include <lockstep/lockstep.h>

struct trainer;
struct trainer_options;

typedef struct served {
    ls_server_options options;
    ls_group *group; /* of the workers; NULL on other ranks, and without servers */
    int workers;     /* 0: without servers */
    bool running;
} served;

/* Ends the program where --server, --log-replay and --replay do not go with other options. */
void served_check(const struct trainer_options *o);
/* Reads --server, and makes the group of the workers. Collective. */
void served_open(struct trainer *t);
void served_close(struct trainer *t);
/* Wraps the net. */
ls_module *served_wrap(struct trainer *t);
/* The workers are the ranks with samples. */
int served_rank(const struct trainer *t);
int served_workers(const struct trainer *t);

/* Whether every worker is at the same step whenever one has made a step. */
bool served_in_step(const struct trainer *t);
/* Before step number `step`. On a server without a worker it returns when the workers have met, and
 * *step is the number of steps that are done; else false. */
bool served_begin(struct trainer *t, int64_t *step);
/* After `step` steps: whether the ranks meet, which they have done then. */
bool served_meet(struct trainer *t, int64_t *step, bool *stop);

#endif
