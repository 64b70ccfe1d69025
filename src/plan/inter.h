/* SPDX-License-Identifier: Apache-2.0 */
/* Alpa's inter-operator program (Zheng et al., OSDI 2022, section 5.2).
 *
 * A model is a chain of parts. A stage is a run of consecutive parts on a submesh, whose shape is
 * one of several; the stages use all devices, or as many as they need. With t(i) the time of a
 * micro-batch in stage i, c(i) that of the cut after it, and M micro-batches, a step with a flush
 * takes
 *
 *     T = sum of t(i) + sum of c(i) + (M - 1) max of t(i), c(i)
 *
 * The program takes each possible value t_max of that maximum, from the least on, and finds the
 * least sum whose terms are at most t_max, from the last stage to the first:
 *
 *     F(s, k, d) = min over e, shape of  t(k … e - 1, shape) + c(e - 1) + F(s - 1, e, d - devices)
 *
 * of s stages with the parts from k on, on d devices. The stages and devices after a stage are
 * known, and with them the number of micro-batches that it holds in the schedule; stages that do
 * not fit into the memory are left out. The search ends where the least sum of all plus (M - 1)
 * t_max exceeds the best T.
 */
#ifndef LS_PLAN_INTER_H
#define LS_PLAN_INTER_H

#include "plan/partition.h"

#define LS__INTER_SHAPES_MAX LS__SCHEDULE_RANKS_MAX

/* A stage on a submesh. */
typedef struct ls__inter_cost {
    double seconds; /* of a micro-batch, forward and backward; INFINITY: impossible */
    double every;   /* between two micro-batches: less than `seconds` where replicas take turns */
    double fixed;   /* bytes of a device, whatever the schedule */
    double kept;    /* and of each micro-batch that the stage holds */
} ls__inter_cost;

/* How many micro-batches a stage holds, by the stages after it. */
typedef enum ls__inter_live {
    LS__LIVE_STAGES, /* warm_up for each stage after it, and one (1f1b, zb-h1) */
    LS__LIVE_ALL,    /* all (gpipe) */
    LS__LIVE_TURNS,  /* of replicas that take turns: ls__partition_held */
} ls__inter_live;

typedef struct ls__inter_spec {
    int parts, devices, micro_batches;
    int shapes;
    const int *shape;    /* [shapes] devices of each */
    int stages;          /* exactly this many; 0: any number */
    bool may_leave;      /* devices that are not used */
    const double *cut;   /* [parts - 1] seconds of a micro-batch, both directions */
    double memory_bytes; /* of a device; 0: no limit */
    ls__inter_live live;
    int warm_up; /* of LS__LIVE_STAGES */
    void (*cost)(void *arg, int first, int end, int shape, ls__inter_cost *out);
    void *arg;
} ls__inter_spec;

typedef struct ls__inter_plan {
    double seconds; /* T */
    int stages, devices;
    int first[LS__SCHEDULE_RANKS_MAX]; /* part of each stage */
    int shape[LS__SCHEDULE_RANKS_MAX]; /* its index */
} ls__inter_plan;

/* The best plan. LS_ERR_LIMIT: none fits; LS_ERR_MEMORY. The search is exact. Time: for each value
 * of t_max that is tried, stages x parts^2 x devices x shapes. */
ls_status ls__inter_find(const ls__env *env, const ls__inter_spec *spec, ls__inter_plan *out);

/* Micro-batches that a stage of `devices` holds. */
int ls__inter_held(const ls__inter_spec *spec, int devices, int stages_after, int devices_after);

#endif
