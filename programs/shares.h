/* SPDX-License-Identifier: Apache-2.0 */
/* --shares: how many samples of a step each rank gets. */
#ifndef PROGRAMS_SHARES_H
#define PROGRAMS_SHARES_H

#include <lockstep/lockstep.h>

struct trainer;
struct trainer_options;

typedef struct shares {
    bool given, automatic;
    int ranks;
    int64_t *now;     /* [ranks] samples of a micro-batch; NULL: all have --batch */
    double *shown;    /* [ranks] the same for checkpoints; after a load, the checkpoint's */
    double computing; /* seconds of forwards and backwards since the last look, of this rank … */
    double passed;    /* … and of whole steps */
    int64_t steps;    /* their number … */
    int64_t every;    /* … at the next look */
    double before, after; /* seconds of a step before the first change, and since the last; 0:
                             unknown */
} shares;

/* Ends the program if the option cannot be used. */
void shares_check(const struct trainer_options *o);
/* After trainer_init, before the loader. */
void shares_open(struct trainer *t);
void shares_close(struct trainer *t);

/* For ls_sampler_options.batches; NULL: equal ones. */
const int64_t *shares_batches(const struct trainer *t);
/* By which this rank's mean loss counts in the mean over the ranks: 1 for an equal share. */
double shares_weight(const struct trainer *t);

/* The item of checkpoints; after a load, what it says is done. */
ls_status shares_state(void *object, const char *prefix, const ls_state_visitor *visitor);
void shares_settle(struct trainer *t);

/* After a step of `seconds`, the `step`-th: measures, and now and then divides anew.
 * Collective then. */
void shares_step(struct trainer *t, int64_t step, double seconds);
/* A line of the summary, if shares changed; on rank 0. */
void shares_print(const struct trainer *t);

#endif
