/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of a run that its checkpoints carry, so that a run that goes on from one can say
 * where it differs from the run before. Two runs of 20 steps are the same training as one of 40
 * only if all of them have the same schedule. */
#ifndef PROGRAMS_RESUMED_H
#define PROGRAMS_RESUMED_H

#include <lockstep/lockstep.h>

#include "trainer.h"

/* Whole numbers and numbers, each saved under the name that its flag had first. */
typedef struct run_settings {
    int64_t steps, schedule, warmup, seed; /* steps: of the schedule */
    double lr, min_lr, momentum, beta2, weight_decay;
    double decay_all; /* 1: biases and norms decay, too; as in checkpoints that do not say it */
} run_settings;

run_settings settings_of(const trainer_options *options);

/* The object is a run_settings; see ls_checkpoint_item. */
ls_status run_settings_state(void *object, const char *prefix, const ls_state_visitor *visitor);

/* Prints each difference between the run that saved the checkpoint of `step` and this one, and
 * which of the two settings applies; and that nothing is left to do. For rank 0. */
void print_differences(const run_settings *saved, const run_settings *now, int64_t step,
                       int64_t steps);

/* As must, for the status of the load; names the flag by which groups of parameters differ. */
void must_resume(ls_status status);

/* The schedule of a run's settings. */
ls_schedule_options schedule_of(const run_settings *settings);

#endif
