/* SPDX-License-Identifier: Apache-2.0 */
/* Which plan is written: of those that several searches find, the one whose step is the shortest in
 * the schedule that it names. */
#ifndef LS_PLAN_CHOOSE_H
#define LS_PLAN_CHOOSE_H

#include "plan/predict.h"

typedef enum ls__plan_candidate_kind {
    LS__PLAN_CANDIDATE_DATA,     /* data parallelism */
    LS__PLAN_CANDIDATE_STRAIGHT, /* a worker for each stage */
    LS__PLAN_CANDIDATE_STEADY,   /* PipeDream's: the best rate without a flush */
    LS__PLAN_CANDIDATE_FLUSH,    /* Alpa's: the best step with a flush, by its formula */
    LS__PLAN_CANDIDATES,
} ls__plan_candidate_kind;

typedef struct ls__plan_candidate {
    bool exists;
    double step; /* ls__plan_step */
    ls__partition partition;
} ls__plan_candidate;

typedef struct ls__plan_choice {
    int micro_batches;
    ls__plan_candidate candidate[LS__PLAN_CANDIDATES]; /* with all workers */
    /* The shortest step of these, and of those on fewer workers: at least one is left out where
     * communication costs more than it saves. */
    ls__plan_candidate best;
    ls__plan_candidate_kind kind; /* of `best` */
} ls__plan_choice;

/* Plans with `spec`'s levels and memory, whatever its kind. micro_batches 0: as many as PipeDream's
 * plan needs (ls__plan_micro_batches). Errors of ls__partition_find for LS__PLAN_CANDIDATE_STEADY,
 * or of ls__plan_step for it; other candidates need not exist. */
ls_status ls__plan_choose(const ls__env *env, const ls__profile *profile, const ls__chain *chain,
                          const ls__partition_spec *spec, int micro_batches, ls__plan_choice *out);

#endif
