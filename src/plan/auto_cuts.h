/* SPDX-License-Identifier: Apache-2.0 */
/* The stages of a plan of auto.h, and bounds of its step that need no simulation. */
#ifndef LS_PLAN_AUTO_CUTS_H
#define LS_PLAN_AUTO_CUTS_H

#include "plan/auto.h"

#define LS__AUTO_NEARLY 1e-9 /* of a step: plans that differ by less are equally fast */

enum { LS__AUTO_RECOMPUTED = 3 }; /* nothing, blocks, or stages */

/* Without a limit of the memory the best cuts depend neither on the schedule nor on zero. */
typedef struct ls__auto_known {
    bool known;
    int first[LS__SCHEDULE_RANKS_MAX]; /* part of each stage */
} ls__auto_known;

/* Of a mesh, a micro-batch and a placement. */
typedef struct ls__auto_cuts {
    const ls__env *env;
    const ls__auto_ask *ask;
    double *cut;            /* [layers + 1] seconds of the cuts of a plan; the caller's */
    ls__sim_parts parts[2]; /* with recomputed blocks in [1] */
    bool described[2];
    ls__auto_known known[LS__AUTO_RECOMPUTED][2]; /* messages that take time, and hidden ones */
    bool no_memory;
} ls__auto_cuts;

/* Before another mesh, micro-batch or placement. */
void ls__auto_cuts_forget(ls__auto_cuts *s);

/* Whether there may be cuts with which a step takes at most `seconds`: where the computation alone
 * takes longer with all of them, or without memory, there are none. */
bool ls__auto_cuts_may_take(ls__auto_cuts *s, const ls__auto_plan *p, double seconds);

/* Seconds of the computation alone that a step takes at least, with the cuts of the plan. INFINITY:
 * no memory. */
double ls__auto_cuts_least(ls__auto_cuts *s, const ls__auto_plan *p);

/* The cuts of a plan with a stage for each rank of pp, and the seconds that its longest stage
 * computes for a micro-batch; with `hidden` as if messages took no time. False: no cuts fit into
 * the memory. */
bool ls__auto_cuts_find(ls__auto_cuts *s, ls__auto_plan *p, bool hidden, double *longest);

#endif
