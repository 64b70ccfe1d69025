/* SPDX-License-Identifier: Apache-2.0 */
/* PipeDream's partitioner (Narayanan et al., SOSP 2019, section 3.1).
 *
 * A model is a chain of parts. A stage is some consecutive ones; r workers that each have a replica
 * of it take the micro-batches in turns. In the steady state, without a flush, a plan takes the
 * time of its slowest stage or cut for each micro-batch. With T(l) the compute time of part l, W
 * the bytes of the parameters of parts i … j, c the bytes that cross a cut, forward and backward,
 * and B the bandwidth of a worker, for one level of m workers:
 *
 *     stage(i … j, r) = max(sum of T(l), 4 (r - 1) W / (r B)) / r         computes while it sums
 *     A(i … j, m)     = min over e, r of max(stage(i … e, r), c(e) / B, A(e+1 … j, m - r))
 *                       or stage(i … j, m)
 *
 * Of several levels (workers within a host, hosts), a component of level k is count(k) components
 * of the level below; its A takes the place of the sum of T(l) in the level above. The search goes
 * from the last stage to the first, so that it knows how many workers follow a stage, on which the
 * number of micro-batches depends that the stage holds in 1F1B.
 */
#ifndef LS_PLAN_PARTITION_H
#define LS_PLAN_PARTITION_H

#include <lockstep/status.h>

#include "base/env.h"
#include "schedule/schedule.h"

#define LS__LEVELS_MAX 4
#define LS__SHARED_MAX 64 /* parameters of several parts */

/* A parameter that several parts use: a stage has it once. */
typedef struct ls__shared {
    double bytes;
    const bool *used_by; /* [parts] */
} ls__shared;

/* Per micro-batch, in seconds and bytes. */
typedef struct ls__chain {
    int parts;
    const double *compute;  /* [parts] forward and backward */
    const double *forward;  /* [parts] bytes that cross a cut after part i, forward */
    const double *backward; /* [parts] the same, backward */
    const double *weights;  /* [parts] parameters that no other part uses */
    const double *kept;     /* [parts] from the forward until the backward */
    const ls__shared *shared;
    int shared_count;
} ls__chain;

typedef struct ls__level {
    int count;        /* components of the level below, of which one of this level consists */
    double bandwidth; /* of a component of the level below, in and out together, in bytes/s */
} ls__level;

typedef enum ls__partition_kind {
    LS__PARTITION_BEST,
    LS__PARTITION_DATA,     /* one stage: data parallelism */
    LS__PARTITION_STRAIGHT, /* a worker for each stage */
    LS__PARTITION_SMALLEST, /* the least memory of a worker, whatever the time */
} ls__partition_kind;

typedef struct ls__partition_spec {
    ls__partition_kind kind;
    ls__level levels[LS__LEVELS_MAX]; /* the lowest first */
    int level_count;
    double memory_bytes; /* of a worker; 0: no limit. Of one level only */
    double copies;       /* of the parameters: themselves, gradients, state of the optimizer */
} ls__partition_spec;

typedef struct ls__partition_stage {
    int first, count; /* parts */
    int replicas;     /* workers, of all levels */
    /* Seconds for each micro-batch of the whole job; the largest of all is the bottleneck. */
    double compute, all_reduce;
    double transfer;     /* over the cut after it; 0 for the last stage */
    double weight_bytes; /* parameters */
    double memory_bytes; /* of a worker, in 1F1B */
    double bandwidth;    /* over the cut after it */
    double sum_seconds;  /* of one all-reduce of its gradients by itself */
} ls__partition_stage;

typedef struct ls__partition {
    double seconds; /* for each micro-batch; with LS__PARTITION_SMALLEST bytes */
    int workers, stages;
    ls__partition_stage stage[LS__SCHEDULE_RANKS_MAX];
    /* Workers in the order of stages and replicas, as a pipeline counts its ranks. Workers are
     * counted host by host. Not ascending where a level repeats a pipeline: replica k of every
     * stage is then within component k mod copies, so that a micro-batch stays within one. */
    int worker[LS__SCHEDULE_RANKS_MAX];
} ls__partition;

/* LS_ERR_LIMIT: no plan fits into the memory; LS_ERR_INVALID: there are fewer parts than stages;
 * LS_ERR_UNSUPPORTED: memory with several levels; LS_ERR_MEMORY. The search is exact. Time: parts^2
 * x count^2 of the highest level, parts^3 x count^2 of others, less what is pruned. */
ls_status ls__partition_find(const ls__env *env, const ls__chain *chain,
                             const ls__partition_spec *spec, ls__partition *out);

/* A plan of one level that was found elsewhere: stages that begin at first[stages] and have
 * replicas[stages] workers; all of the bandwidth of `spec`. LS_ERR_MEMORY. */
ls_status ls__partition_of(const ls__env *env, const ls__chain *chain,
                           const ls__partition_spec *spec, int stages, const int *first,
                           const int *replicas, ls__partition *out);

/* Micro-batches that a replica of a stage holds in 1F1B if the later stages have `after` workers
 * (schedule/generator/one_f_one_b.c). */
int ls__partition_held(int replicas, int after);

#endif
