/* SPDX-License-Identifier: Apache-2.0 */
/* The events of simulate.h: computations, messages and reductions are flows (flow.h); where one
 * ends, what waited for it goes on. */
#include "cost/simulate.h"

#include <math.h>

#include "base/assert.h"
#include "base/error.h"
#include "cost/flow.h"

#define CHUNK_BYTES ((size_t)64 << 10)

enum { COMPUTATION = LS__SIM_REDUCTION + 1 }; /* a kind of flows beside those that travel */

typedef struct engine {
    ls__schedule *s;
    const ls__sim_spec *spec;
    ls__sim_result *out;
    ls__arena arena;
    ls__flows flows;
    bool *activation, *gradient; /* [stages, micro-batches] it is where it is used */
    int *next;                   /* [ranks] the action that is under way, or waits */
    bool *computes;              /* [ranks] */
    int *segment; /* [ranks] of a last backward: the stage's reduction that the rank reaches next */
    int *left;    /* [replicas of all stages] actions that add to the gradient and have not begun */
    int *first_reduction; /* [stages + 1] */
    int *reducing;        /* [stages] the reduction under way, or the next one */
    bool *reduces;        /* [stages] one is under way */
    int *missing;         /* [reductions] replicas that have not reached it */
    int span_room;
} engine;

double ls__action_time(const ls__action *action, const ls__stage_times *times)
{
    switch (action->kind) {
    case LS__FORWARD:
    case LS__RECOMPUTE:
        return times->forward;
    case LS__BACKWARD:
        return times->backward;
    case LS__INPUT_PART:
        return times->input;
    case LS__WEIGHT_PART:
        return times->weight;
    default:
        return 0.0;
    }
}

/* Of the activation, or the gradient, that a stage has made of a micro-batch. */
static bool *arrived_flag(const engine *e, bool *of, int stage, int micro_batch)
{
    return &of[(size_t)stage * (size_t)e->s->micro_batches + (size_t)micro_batch];
}

/* ---- what travels ---------------------------------------------------------------------------- */

/* Without routes messages share nothing and take the latency alone. */
static ls__sim_route route_of(const engine *e, int kind, int stage, int index)
{
    const ls__sim_route *routes =
        kind == LS__SIM_ACTIVATION ? e->spec->activation : e->spec->gradient;
    return kind == LS__SIM_REDUCTION ? e->spec->reductions[index].route
           : routes != NULL          ? routes[stage]
                                     : (ls__sim_route){.resource = {LS__SIM_NONE, LS__SIM_NONE},
                                                       .weight = 1.0,
                                                       .latency = e->spec->latency};
}

static void send_message(engine *e, int kind, int stage, int index)
{
    const ls__sim_route route = route_of(e, kind, stage, index);
    const int processor = route.cores > 0.0 ? route.processor : LS__SIM_NONE;
    const ls__flow flow = {.left = route.bytes,
                           .latency = route.latency,
                           .resource = {route.resource[0], route.resource[1], processor},
                           .weight = {route.weight, route.weight, route.cores},
                           .speed = {1.0, 1.0, route.moved},
                           .kind = kind,
                           .stage = stage,
                           .index = index};
    ls__flows_add(&e->flows, &flow, INFINITY);
}

static void record_span(engine *e, const ls__flow *flow)
{
    ls__sim_result *out = e->out;
    if (e->spec->records && out->span_count < e->span_room) {
        out->spans[out->span_count++] = (ls__sim_span){(ls__sim_kind)flow->kind, flow->stage,
                                                       flow->index, flow->begin, e->flows.now};
    }
}

/* The stage's next reduction, if all replicas have reached it and none is under way. */
static void start_reduction(engine *e, int stage)
{
    const int next = e->reducing[stage];
    if (!e->reduces[stage] && next < e->first_reduction[stage + 1] && e->missing[next] == 0) {
        e->reduces[stage] = true;
        send_message(e, LS__SIM_REDUCTION, stage, next);
    }
}

/* ---- a rank ---------------------------------------------------------------------------------- */

/* NULL: the rank has done its list. */
static const ls__action *action_of(const engine *e, int rank)
{
    const ls__actions *list = &e->s->rank[rank];
    return e->next[rank] < list->count ? &list->list[e->next[rank]] : NULL;
}

/* Whether the input of the action is on the rank: an activation of the stage before, or a gradient
 * of the stage after. */
static bool has_arrived(const engine *e, const ls__action *a)
{
    const bool backward = ls__action_form_of(a->kind)->backward;
    const int other = a->stage + (backward ? 1 : -1);
    return (!backward && a->kind != LS__FORWARD) || other < 0 || other >= e->s->stages ||
           *arrived_flag(e, backward ? e->gradient : e->activation, other, a->micro_batch);
}

/* Begins the part of a computation until its next reduction, or its end. */
static void begin_segment(engine *e, int rank, double from)
{
    const ls__action *a = action_of(e, rank);
    const int k = e->segment[rank];
    const double to =
        k >= 0 && k < e->first_reduction[a->stage + 1] ? e->spec->reductions[k].after : 1.0;
    const bool shares = e->spec->processor != NULL;
    const ls__flow flow = {
        .left = ls__action_time(a, &e->spec->times[a->stage]) * (to - from),
        .resource = {shares ? e->spec->processor[rank] : LS__SIM_NONE, LS__SIM_NONE, LS__SIM_NONE},
        .weight = {shares ? e->spec->sharing[rank] : 1.0},
        .speed = {1.0},
        .kind = COMPUTATION,
        .index = rank};
    e->computes[rank] = true;
    ls__flows_add(&e->flows, &flow, 1.0);
}

/* The last action that adds to a gradient is cut at the reductions of its stage, each of which may
 * begin when all replicas have reached it. */
static void begin_computation(engine *e, int rank, const ls__action *a)
{
    LS_ASSERT(!e->computes[rank]);
    e->segment[rank] = -1;
    if (ls__action_form_of(a->kind)->adds) {
        int *left =
            &e->left[e->s->first_replica[a->stage] + ls__schedule_replica(e->s, a->stage, rank)];
        e->segment[rank] = --*left == 0 ? e->first_reduction[a->stage] : -1;
    }
    begin_segment(e, rank, 0.0);
}

/* Until an input is missing or a computation begins. */
static void continue_rank(engine *e, int rank)
{
    const ls__action *a;
    while (!e->computes[rank] && (a = action_of(e, rank)) != NULL && has_arrived(e, a)) {
        const int i = e->next[rank];
        e->out->begin[rank][i] = e->out->end[rank][i] = e->flows.now;
        if (a->kind <= LS__WEIGHT_PART) {
            begin_computation(e, rank, a);
        } else {
            e->next[rank]++;
        }
    }
}

/* The result is used by the stage after it, or before it. */
static void deliver_result(engine *e, int rank, const ls__action *a)
{
    const bool backward = ls__action_form_of(a->kind)->backward;
    const int user = a->stage + (backward ? -1 : 1);
    if ((!backward && a->kind != LS__FORWARD) || user < 0 || user >= e->s->stages) {
        return;
    }
    if (ls__schedule_rank(e->s, user, a->micro_batch) == rank) {
        bool *flag =
            arrived_flag(e, backward ? e->gradient : e->activation, a->stage, a->micro_batch);
        LS_ASSERT(!*flag); /* once */
        *flag = true;
    } else {
        send_message(e, backward ? LS__SIM_GRADIENT : LS__SIM_ACTIVATION, a->stage, a->micro_batch);
    }
}

static void end_segment(engine *e, int rank)
{
    const ls__action *a = action_of(e, rank);
    const int i = e->next[rank], k = e->segment[rank];
    if (k >= 0 && k < e->first_reduction[a->stage + 1]) {
        LS_ASSERT(e->missing[k] > 0);
        e->missing[k]--;
        e->segment[rank]++;
        start_reduction(e, a->stage);
        begin_segment(e, rank, e->spec->reductions[k].after);
        return;
    }
    e->out->end[rank][i] = e->flows.now;
    e->out->busy[rank] += e->spec->processor != NULL
                              ? e->flows.now - e->out->begin[rank][i]
                              : ls__action_time(a, &e->spec->times[a->stage]);
    e->computes[rank] = false;
    deliver_result(e, rank, a);
    e->next[rank]++;
    continue_rank(e, rank);
}

static void end_transfer(engine *e, const ls__flow *flow)
{
    const bool forward = flow->kind == LS__SIM_ACTIVATION;
    record_span(e, flow);
    if (flow->kind == LS__SIM_REDUCTION) {
        LS_ASSERT(e->reduces[flow->stage]);
        e->out->reduced = fmax(e->out->reduced, e->flows.now);
        e->reduces[flow->stage] = false;
        e->reducing[flow->stage]++;
        start_reduction(e, flow->stage);
        return;
    }
    bool *flag = arrived_flag(e, forward ? e->activation : e->gradient, flow->stage, flow->index);
    LS_ASSERT(!*flag); /* once */
    *flag = true;
    continue_rank(e, ls__schedule_rank(e->s, flow->stage + (forward ? 1 : -1), flow->index));
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* False without memory. */
static bool allocate_engine(engine *e)
{
    ls__arena *own = &e->arena, *kept = &e->s->arena;
    const size_t ranks = (size_t)e->s->ranks, stages = (size_t)e->s->stages;
    const size_t cells = stages * (size_t)e->s->micro_batches;
    const size_t reductions = (size_t)e->spec->reduction_count;
    e->span_room = e->spec->records ? (int)(2 * cells + reductions) : 0;
    *e->out = (ls__sim_result){
        .begin = ls__arena_alloc(kept, ranks * sizeof(double *)),
        .end = ls__arena_alloc(kept, ranks * sizeof(double *)),
        .busy = ls__arena_alloc(kept, ranks * sizeof(double)),
        .spans = ls__arena_alloc(kept, ((size_t)e->span_room + 1) * sizeof(ls__sim_span))};
    bool enough = e->out->begin != NULL && e->out->end != NULL && e->out->busy != NULL &&
                  e->out->spans != NULL;
    for (size_t r = 0; enough && r < ranks; r++) {
        const size_t bytes = ((size_t)e->s->rank[r].count + 1) * sizeof(double);
        e->out->begin[r] = ls__arena_alloc(kept, bytes);
        e->out->end[r] = ls__arena_alloc(kept, bytes);
        enough = e->out->begin[r] != NULL && e->out->end[r] != NULL;
    }
    int *of_ranks = ls__arena_alloc(own, 2 * ranks * sizeof *of_ranks);
    int *of_stages = ls__arena_alloc(own, (2 * stages + 1) * sizeof *of_stages);
    e->activation = ls__arena_alloc(own, 2 * cells);
    e->computes = ls__arena_alloc(own, ranks + stages);
    e->left = ls__arena_alloc(own, (size_t)e->s->replica_count * sizeof *e->left);
    e->missing = ls__arena_alloc(own, (reductions + 1) * sizeof *e->missing);
    if (!enough || of_ranks == NULL || of_stages == NULL || e->activation == NULL ||
        e->computes == NULL || e->left == NULL || e->missing == NULL ||
        !ls__flows_init(&e->flows, own, e->spec->resources, e->spec->resource_count)) {
        return false;
    }
    e->next = of_ranks;
    e->segment = of_ranks + ranks;
    e->first_reduction = of_stages;
    e->reducing = of_stages + stages + 1;
    e->gradient = e->activation + cells;
    e->reduces = e->computes + ranks;
    return true;
}

static void prepare_engine(engine *e)
{
    const ls__schedule *s = e->s;
    int k = 0;
    for (int stage = 0; stage < s->stages; stage++) {
        e->first_reduction[stage] = e->reducing[stage] = k;
        while (k < e->spec->reduction_count && e->spec->reductions[k].stage == stage) {
            e->missing[k++] = s->replicas[stage];
        }
        for (int i = 0; i < s->replicas[stage]; i++) {
            e->left[s->first_replica[stage] + i] =
                ls__schedule_share(s, stage, i, s->micro_batches);
        }
    }
    e->first_reduction[s->stages] = k;
    LS_ASSERT(k == e->spec->reduction_count);
}

static void run_events(engine *e)
{
    ls__flow flow;
    for (int r = 0; r < e->s->ranks; r++) {
        continue_rank(e, r);
    }
    while (ls__flows_next(&e->flows, &flow)) {
        if (flow.kind == COMPUTATION) {
            end_segment(e, flow.index);
        } else {
            end_transfer(e, &flow);
        }
    }
}

static void store_result(engine *e)
{
    double most = 0.0;
    for (int r = 0; r < e->s->ranks; r++) {
        const int count = e->s->rank[r].count;
        LS_ASSERT(e->next[r] == count); /* the table was verified */
        e->out->makespan = count > 0 ? fmax(e->out->makespan, e->out->end[r][count - 1]) : 0.0;
        most = fmax(most, e->out->busy[r]);
    }
    e->out->bubble = e->out->makespan - most;
}

ls_status ls__simulate(ls__schedule *s, const ls__sim_spec *spec, ls__sim_result *out)
{
    engine e = {.s = s, .spec = spec, .out = out};
    ls__arena_init(&e.arena, s->arena.env, CHUNK_BYTES);
    bool enough = allocate_engine(&e);
    if (enough) {
        prepare_engine(&e);
        run_events(&e);
        enough = !e.flows.no_memory;
    }
    if (enough) {
        store_result(&e);
    }
    ls__arena_fini(&e.arena);
    return enough ? LS_OK : ls__fail(LS_ERR_MEMORY, "schedule %s: no memory to time it", s->name);
}
