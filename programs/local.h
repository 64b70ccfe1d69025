/* SPDX-License-Identifier: Apache-2.0 */
/* Local steps of the trainer: --local-steps, --local-after, --outer, --log-replay. */
#ifndef PROGRAMS_LOCAL_H
#define PROGRAMS_LOCAL_H

#include <lockstep/lockstep.h>

#include "parallel.h"

struct trainer;
struct trainer_options;

/* The step that is made of a round's average; from --outer. */
typedef struct local_outer {
    bool given, inner_lr; /* inner_lr: it is the learning rate of the step (SlowMo) */
    ls_outer_options options;
} local_outer;

/* Reads "diloco", "slowmo" or "average", with settings after a colon. Ends the program at one that
 * it does not know. */
local_outer local_read_outer(const char *text);

/* Ends the program if options do not fit each other. */
void local_check(const struct trainer_options *o);

/* Whether steps are local from step `step` on. */
bool local_is_on(const struct trainer_options *o, int64_t step);
/* Whether a round ends with `step` steps. */
bool local_round_ends(const struct trainer_options *o, int64_t step);

/* Begins the mode if it is due at `step`, the number of steps so far, and is not on yet. */
void local_begin(struct trainer *t, int64_t step);
/* Averages after `step` steps, this rank's parameters with a weight. Returns the seconds. */
double local_average(struct trainer *t, int64_t step, double weight);
/* After `step` steps: averages if a round, or training, ends. Returns the seconds it took. */
double local_end_step(struct trainer *t, int64_t step);

/* Lists what a checkpoint holds now, for saving. */
void local_list_items(struct trainer *t);
/* Loads the newest checkpoint of --resume, which may be of ranks that took local steps, as many as
 * now or not, or of others. *start becomes its step. */
ls_status local_load(struct trainer *t, int64_t *start);
/* Of a run without local steps: after `failed` the mean of such ranks, if the checkpoint holds
 * one. */
ls_status local_load_mean(struct trainer *t, ls_status failed, int64_t *start);

/* Says what the ranks do; on rank 0. */
void local_introduce(const struct trainer *t);

#endif
