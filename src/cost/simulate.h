/* SPDX-License-Identifier: Apache-2.0 */
/* The time of a schedule on processors and links that may be shared, by events.
 *
 * A computation begins when the one before it on its rank has ended and its input has arrived. A
 * receive is posted and waited for at its first use, so messages take no time of a rank. What
 * computes or travels at the same time shares a resource evenly: a processor, or one direction of
 * a link. Gradients are summed while the last backward of their stage goes on, one reduction of a
 * stage after the other.
 *
 *     compute   rank 0  F0 F1 ..          .. B1 B1 B1        r0, r1: reductions of stage 0, which
 *     link      0 to 1     m0 m1 ..                r0 r1     begin when their part of B1 is done
 *
 * With times that are multiples of a power of two, and nothing shared, all results are exact.
 */
#ifndef LS_COST_SIMULATE_H
#define LS_COST_SIMULATE_H

#include "schedule/schedule.h"

/* A processor or one direction of a link: units of work that it does in a second, in all and at
 * most for one user. */
typedef struct ls__sim_resource {
    double rate, each; /* above 0; INFINITY: no limit */
} ls__sim_resource;

/* The share of one user, of so many. */
static inline double ls__sim_share(const ls__sim_resource *r, double users)
{
    const double even = r->rate / users;
    return even < r->each ? even : r->each;
}

#define LS__SIM_NONE (-1) /* no resource: nothing is shared */

/* A message, or a reduction around a group. */
typedef struct ls__sim_route {
    int resource[2]; /* the link's direction where it leaves, and where it arrives */
    double bytes;
    double weight;  /* equal messages of collapsed ranks that use these links at the same time */
    double latency; /* from the last byte until the result can be used */
    /* What moves the bytes besides: `cores` of the processor, at the speed of the links, with which
     * each of the equal messages moves `moved` bytes a second. cores 0: none. */
    int processor;
    double cores, moved;
} ls__sim_route;

typedef struct ls__sim_reduction {
    int stage;
    double after; /* the part of the stage's last backward, 0 to 1, after which it may begin */
    ls__sim_route route;
} ls__sim_reduction;

typedef struct ls__sim_spec {
    const ls__stage_times *times; /* [stages] */
    double latency; /* where there are no routes: from a computation's end until another rank has
                       its result */
    const ls__sim_route *activation; /* [stages] over the cut after the stage, or NULL */
    const ls__sim_route *gradient;   /* [stages] over the cut before it */
    const ls__sim_resource *resources;
    int resource_count;
    const int *processor;  /* [ranks] a resource; NULL: each rank has one of its own */
    const double *sharing; /* [ranks] equal ranks that the processor serves at the same time */
    const ls__sim_reduction *reductions; /* by stage, and then by `after` */
    int reduction_count;
    bool records; /* spans */
} ls__sim_spec;

typedef enum ls__sim_kind { LS__SIM_ACTIVATION, LS__SIM_GRADIENT, LS__SIM_REDUCTION } ls__sim_kind;

/* A message or a reduction, for the timeline. */
typedef struct ls__sim_span {
    ls__sim_kind kind;
    int stage;       /* that made it */
    int micro_batch; /* of a reduction: which one */
    double begin, end;
} ls__sim_span;

typedef struct ls__sim_result {
    double makespan;       /* from the first action to the end of the last one */
    double bubble;         /* makespan minus the work of the rank that has most of it */
    double reduced;        /* the end of the last reduction; 0: there is none */
    double **begin, **end; /* [ranks][actions] */
    double *busy;          /* [ranks] time in computations */
    ls__sim_span *spans;
    int span_count;
} ls__sim_result;

/* Of a verified schedule. The arrays belong to it. LS_ERR_MEMORY. */
ls_status ls__simulate(ls__schedule *schedule, const ls__sim_spec *spec, ls__sim_result *out);
double ls__action_time(const ls__action *action, const ls__stage_times *times);

/* The end of the last computation or reduction, whichever is later, where none of them waits for a
 * share of anything: with nothing shared that of ls__simulate, else no later. It takes a small part
 * of the time. LS_ERR_MEMORY. */
ls_status ls__simulate_alone(const ls__schedule *schedule, const ls__sim_spec *spec,
                             double *seconds);

#endif
