/* SPDX-License-Identifier: Apache-2.0 */
/* Flows that share resources evenly, in simulated time. A flow has some work; resources divide
 * their rate by the weights of their flows, and a flow goes at the least speed that its shares of
 * resources give. When a flow begins or ends, the flows that share a resource with it are
 * rescheduled. */
#ifndef LS_COST_FLOW_H
#define LS_COST_FLOW_H

#include "base/arena.h"
#include "cost/simulate.h"

#define LS__FLOW_RESOURCES 3

typedef struct ls__flow {
    double left, rate, since; /* work that was left at `since`, and its rate from then on */
    double latency, begin;
    int resource[LS__FLOW_RESOURCES];  /* different ones, or LS__SIM_NONE */
    double weight[LS__FLOW_RESOURCES]; /* there */
    double speed[LS__FLOW_RESOURCES];  /* of its work, for each unit that it gets of the resource */
    int next[LS__FLOW_RESOURCES];      /* the next flow of the resource */
    int event;                         /* its place in the heap; -1: it has none */
    bool moving;            /* it uses its resources: it is not free, and not in its latency */
    int kind, stage, index; /* the owner's */
} ls__flow;

typedef struct ls__flow_event {
    double time;
    uint64_t order;
    int flow;
} ls__flow_event;

typedef struct ls__flow_user {
    double weight; /* sum over its flows */
    int first;
} ls__flow_user;

typedef struct ls__flows {
    ls__arena *arena;
    const ls__sim_resource *resources;
    ls__flow_user *users; /* [resources] */
    ls__flow *flows;
    int flow_count, flow_room, free; /* free: a list by next[0] */
    ls__flow_event *heap;
    int heap_count, heap_room;
    uint64_t order;
    double now;
    bool no_memory; /* nothing further happens */
} ls__flows;

/* False: no memory. `f` is zeroed. */
bool ls__flows_init(ls__flows *f, ls__arena *arena, const ls__sim_resource *resources, int count);

/* Begins at `now`. Work at INFINITY where there is no resource; a computation without a processor
 * goes at `alone`. */
void ls__flows_add(ls__flows *f, const ls__flow *flow, double alone);

/* The next flow that arrives, which is then free; *out is a copy. False: there is none. */
bool ls__flows_next(ls__flows *f, ls__flow *out);

#endif
