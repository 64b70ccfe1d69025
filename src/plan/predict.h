/* SPDX-License-Identifier: Apache-2.0 */
/* The predicted times of a plan, and its file. */
#ifndef LS_PLAN_PREDICT_H
#define LS_PLAN_PREDICT_H

#include "plan/partition.h"
#include "plan/profile.h"

/* Seconds of a step of `micro_batches` by schedule 1f1b, with a flush. A stage takes the
 * measured times of its parts; what crosses a cut takes its own transfer, each direction by itself,
 * and messages of one worker share its link; the last backward of a stage and the all-reduce of its
 * gradients overlap, in which each direction counts by itself, too. The optimizer is left out.
 * LS_ERR_INVALID and LS_ERR_LIMIT as ls__schedule_new; LS_ERR_MEMORY. */
ls_status ls__plan_step(const ls__env *env, const ls__profile *profile, const ls__chain *chain,
                        const ls__partition *partition, int micro_batches, double *seconds);

/* A number of micro-batches that all replicas of a stage share equally, if there is a small one,
 * and with which the pipeline is full most of the time: at least four for each stage. */
int ls__plan_micro_batches(const ls__partition *partition);

/* "3-1", as papers write replicas, or with another separator; returns out. */
char *ls__plan_replicas_text(const ls__partition *partition, char separator, char *out,
                             size_t bytes);
#define LS__REPLICAS_TEXT_BYTES (5 * LS__SCHEDULE_RANKS_MAX)

typedef struct ls__plan_prediction {
    int micro_batches;
    double step;                /* ls__plan_step */
    double worker, worker_step; /* one worker: a micro-batch, a step */
    double bandwidth, memory;   /* as asked for */
} ls__plan_prediction;

/* The file of lockstep/plan.h. LS_ERR_MEMORY, LS_ERR_SYSTEM. */
ls_status ls__plan_write(const ls__env *env, const ls__profile *profile,
                         const ls__partition *partition, const ls__plan_prediction *prediction,
                         const char *path);

#endif
