/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule whose computations and messages share nothing (simulate.h): no events are needed, for
 * the end of each computation follows from the one before it and from its input. A rank goes on
 * until an input is missing, and goes on again when that has been made. */
#include <math.h>

#include "base/assert.h"
#include "base/error.h"
#include "cost/simulate.h"

#define CHUNK_BYTES ((size_t)64 << 10)
#define UNKNOWN (-1.0)

typedef struct walk {
    const ls__schedule *s;
    const ls__sim_spec *spec;
    double *activation, *gradient; /* [stages, micro-batches] when it is where it is used */
    double *sent, *returned;       /* [stages] seconds of a message over the cut after it, before */
    double *speed;                 /* [ranks] of its processor */
    double *now;                   /* [ranks] the end of its last computation */
    double *reached;               /* [reductions] by all replicas */
    int *next;                     /* [ranks] action */
    int *left;            /* [replicas of all stages] actions that add to the gradient and follow */
    int *first_reduction; /* [stages + 1] */
    int *ready;           /* ranks that may go on; others have ended, or wait */
    int ready_count;
    int *waits; /* [ranks] 1: for an input */
} walk;

static double seconds_of(const ls__sim_spec *spec, const ls__sim_route *route)
{
    double rate = INFINITY;
    for (int k = 0; k < 2; k++) {
        if (route->resource[k] != LS__SIM_NONE) {
            rate = fmin(rate, ls__sim_share(&spec->resources[route->resource[k]], route->weight));
        }
    }
    if (route->cores > 0.0) {
        rate = fmin(rate,
                    route->moved * ls__sim_share(&spec->resources[route->processor], route->cores));
    }
    return (route->bytes > 0.0 ? route->bytes / rate : 0.0) + route->latency;
}

/* False without memory. */
static bool allocate_walk(walk *w, ls__arena *arena)
{
    const size_t ranks = (size_t)w->s->ranks, stages = (size_t)w->s->stages;
    const size_t cells = stages * (size_t)w->s->micro_batches;
    const size_t reductions = (size_t)w->spec->reduction_count;
    double *times =
        ls__arena_alloc(arena, (2 * cells + 2 * stages + 2 * ranks + reductions) * sizeof *times);
    int *counts = ls__arena_alloc(arena, (3 * ranks + (size_t)w->s->replica_count + stages + 1) *
                                             sizeof *counts);
    if (times == NULL || counts == NULL) {
        return false;
    }
    w->activation = times;
    w->gradient = w->activation + cells;
    w->sent = w->gradient + cells;
    w->returned = w->sent + stages;
    w->speed = w->returned + stages;
    w->now = w->speed + ranks;
    w->reached = w->now + ranks;
    w->next = counts;
    w->ready = w->next + ranks;
    w->waits = w->ready + ranks;
    w->left = w->waits + ranks;
    w->first_reduction = w->left + w->s->replica_count;
    return true;
}

static void prepare_stage(walk *w, int stage)
{
    const ls__schedule *s = w->s;
    const ls__sim_spec *spec = w->spec;
    w->sent[stage] =
        spec->activation != NULL ? seconds_of(spec, &spec->activation[stage]) : spec->latency;
    w->returned[stage] =
        spec->gradient != NULL ? seconds_of(spec, &spec->gradient[stage]) : spec->latency;
    for (int i = 0; i < s->replicas[stage]; i++) {
        w->left[s->first_replica[stage] + i] = ls__schedule_share(s, stage, i, s->micro_batches);
    }
}

static void prepare_walk(walk *w)
{
    const ls__schedule *s = w->s;
    const ls__sim_spec *spec = w->spec;
    const int cells = s->stages * s->micro_batches;
    for (int i = 0; i < 2 * cells; i++) {
        w->activation[i] = UNKNOWN; /* and the gradients, which follow them */
    }
    for (int stage = 0, k = 0; stage <= s->stages; stage++) {
        w->first_reduction[stage] = k;
        for (; k < spec->reduction_count && spec->reductions[k].stage == stage; k++) {
        }
    }
    for (int stage = 0; stage < s->stages; stage++) {
        prepare_stage(w, stage);
    }
    for (int r = s->ranks - 1; r >= 0; r--) {
        w->speed[r] = spec->processor != NULL
                          ? ls__sim_share(&spec->resources[spec->processor[r]], spec->sharing[r])
                          : 1.0;
        w->ready[w->ready_count++] = r;
    }
}

static double *cell_of(const walk *w, double *of, int stage, int micro_batch)
{
    return &of[(size_t)stage * (size_t)w->s->micro_batches + (size_t)micro_batch];
}

static bool is_backward(const ls__action *a)
{
    return a->kind == LS__BACKWARD || a->kind == LS__INPUT_PART;
}

/* When the input of a computation is on its rank; 0: it needs none of another stage. */
static double input_of(const walk *w, const ls__action *a)
{
    if (a->kind == LS__FORWARD && a->stage > 0) {
        return *cell_of(w, w->activation, a->stage - 1, a->micro_batch);
    }
    return is_backward(a) && a->stage + 1 < w->s->stages
               ? *cell_of(w, w->gradient, a->stage + 1, a->micro_batch)
               : 0.0;
}

/* The rank that waits for it may go on. */
static void deliver_result(walk *w, int rank, const ls__action *a)
{
    const bool backward = is_backward(a);
    const int user = a->stage + (backward ? -1 : 1);
    if ((!backward && a->kind != LS__FORWARD) || user < 0 || user >= w->s->stages) {
        return;
    }
    const int to = ls__schedule_rank(w->s, user, a->micro_batch);
    const double travels = to == rank ? 0.0 : backward ? w->returned[a->stage] : w->sent[a->stage];
    *cell_of(w, backward ? w->gradient : w->activation, a->stage, a->micro_batch) =
        w->now[rank] + travels;
    if (w->waits[to]) {
        LS_ASSERT(w->ready_count < w->s->ranks);
        w->waits[to] = 0;
        w->ready[w->ready_count++] = to;
    }
}

/* The reductions of a stage begin in its last action that adds to the gradient. */
static void reach_reductions(walk *w, int rank, const ls__action *a, double seconds)
{
    const ls__schedule *s = w->s;
    int *left = &w->left[s->first_replica[a->stage] + ls__schedule_replica(s, a->stage, rank)];
    const bool adds = a->kind == LS__BACKWARD || a->kind == LS__WEIGHT_PART;
    if (!adds || --*left > 0) {
        return;
    }
    for (int k = w->first_reduction[a->stage]; k < w->first_reduction[a->stage + 1]; k++) {
        w->reached[k] = fmax(w->reached[k], w->now[rank] + w->spec->reductions[k].after * seconds);
    }
}

static void continue_rank(walk *w, int rank)
{
    const ls__actions *list = &w->s->rank[rank];
    for (; w->next[rank] < list->count; w->next[rank]++) {
        const ls__action *a = &list->list[w->next[rank]];
        if (a->kind > LS__WEIGHT_PART) {
            continue;
        }
        const double input = input_of(w, a);
        if (input < 0.0) {
            w->waits[rank] = 1;
            return;
        }
        const double seconds = ls__action_time(a, &w->spec->times[a->stage]) / w->speed[rank];
        w->now[rank] = fmax(w->now[rank], input);
        reach_reductions(w, rank, a, seconds);
        w->now[rank] += seconds;
        deliver_result(w, rank, a);
    }
}

static double last_reduction(const walk *w)
{
    double last = 0.0;
    for (int stage = 0; stage < w->s->stages; stage++) {
        double end = 0.0;
        for (int k = w->first_reduction[stage]; k < w->first_reduction[stage + 1]; k++) {
            end = fmax(end, w->reached[k]) + seconds_of(w->spec, &w->spec->reductions[k].route);
        }
        last = fmax(last, end);
    }
    return last;
}

ls_status ls__simulate_alone(const ls__schedule *s, const ls__sim_spec *spec, double *seconds)
{
    walk w = {.s = s, .spec = spec};
    ls__arena arena;
    ls__arena_init(&arena, s->arena.env, CHUNK_BYTES);
    const bool enough = allocate_walk(&w, &arena);
    if (enough) {
        prepare_walk(&w);
        while (w.ready_count > 0) {
            continue_rank(&w, w.ready[--w.ready_count]);
        }
        *seconds = last_reduction(&w);
        for (int r = 0; r < s->ranks; r++) {
            LS_ASSERT(w.next[r] == s->rank[r].count); /* the table was verified */
            *seconds = fmax(*seconds, w.now[r]);
        }
    }
    ls__arena_fini(&arena);
    return enough ? LS_OK : ls__fail(LS_ERR_MEMORY, "schedule %s: no memory to time it", s->name);
}
