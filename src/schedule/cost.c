/* Times a table: a computation begins when the one before it on its rank has ended and its input
 * has arrived. A receive is posted and waited for at its first use, so messages take no time of a
 * rank. Sums of a few doubles: with times that are multiples of a power of two the result is exact.
 */
#include "base/assert.h"
#include "base/error.h"
#include "schedule/schedule.h"

typedef struct clock {
    const ls__schedule *s;
    const ls__stage_times *times;
    double latency;
    double *activation, *gradient; /* [stages, micro-batches] when the stage's output is made */
    double *now;                   /* [ranks] */
    int *next;                     /* [ranks] */
    ls__schedule_cost *cost;
} clock;

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

static double *cell(const clock *c, double *of, int stage, int micro_batch)
{
    return &of[(size_t)stage * (size_t)c->s->micro_batches + (size_t)micro_batch];
}

/* When the input of a computation is on its rank; negative: not yet known. */
static double arrival(const clock *c, const ls__action *a)
{
    const bool backward = ls__action_form_of(a->kind)->backward;
    const int other = a->stage + (backward ? 1 : -1);
    if ((!backward && a->kind != LS__FORWARD) || other < 0 || other >= c->s->stages) {
        return 0.0;
    }
    const double made = *cell(c, backward ? c->gradient : c->activation, other, a->micro_batch);
    const bool here = ls__schedule_rank(c->s, other, a->micro_batch) ==
                      ls__schedule_rank(c->s, a->stage, a->micro_batch);
    return made < 0.0 || here ? made : made + c->latency;
}

/* Until an input is missing. Returns whether the rank came further. */
static bool go_on(clock *c, int rank)
{
    const ls__actions *list = &c->s->rank[rank];
    const int before = c->next[rank];
    for (; c->next[rank] < list->count; c->next[rank]++) {
        const ls__action *a = &list->list[c->next[rank]];
        const double time = ls__action_time(a, &c->times[a->stage]), arrived = arrival(c, a);
        if (arrived < 0.0) {
            break;
        }
        if (ls__action_form_of(a->kind)->arrow == 0 && arrived > c->now[rank]) {
            c->now[rank] = arrived;
        }
        c->cost->begin[rank][c->next[rank]] = c->now[rank];
        c->now[rank] += time;
        c->cost->busy[rank] += time;
        if (a->kind == LS__FORWARD) {
            *cell(c, c->activation, a->stage, a->micro_batch) = c->now[rank];
        } else if (ls__action_form_of(a->kind)->backward) {
            *cell(c, c->gradient, a->stage, a->micro_batch) = c->now[rank];
        }
    }
    return c->next[rank] > before;
}

static void run_clock(clock *c)
{
    double most = 0.0;
    for (size_t i = 0; i < (size_t)c->s->stages * (size_t)c->s->micro_batches; i++) {
        c->activation[i] = c->gradient[i] = -1.0;
    }
    for (bool progress = true; progress;) {
        progress = false;
        for (int r = 0; r < c->s->ranks; r++) {
            progress = go_on(c, r) || progress;
        }
    }
    for (int r = 0; r < c->s->ranks; r++) {
        LS_ASSERT(c->next[r] == c->s->rank[r].count); /* the table was verified */
        c->cost->makespan = c->now[r] > c->cost->makespan ? c->now[r] : c->cost->makespan;
        most = c->cost->busy[r] > most ? c->cost->busy[r] : most;
    }
    c->cost->bubble = c->cost->makespan - most;
}

ls_status ls__schedule_cost_of(ls__schedule *s, const ls__stage_times *times, double latency,
                               ls__schedule_cost *cost)
{
    const size_t cells = (size_t)s->stages * (size_t)s->micro_batches, ranks = (size_t)s->ranks;
    *cost = (ls__schedule_cost){.begin = ls__arena_alloc(&s->arena, ranks * sizeof *cost->begin),
                                .busy = ls__arena_alloc(&s->arena, ranks * sizeof *cost->busy)};
    clock c = {s,
               times,
               latency,
               ls__arena_alloc(&s->arena, cells * sizeof *c.activation),
               ls__arena_alloc(&s->arena, cells * sizeof *c.gradient),
               ls__arena_alloc(&s->arena, ranks * sizeof *c.now),
               ls__arena_alloc(&s->arena, ranks * sizeof *c.next),
               cost};
    bool enough = cost->begin != NULL && cost->busy != NULL && c.activation != NULL &&
                  c.gradient != NULL && c.now != NULL && c.next != NULL;
    for (size_t r = 0; enough && r < ranks; r++) {
        cost->begin[r] =
            ls__arena_alloc(&s->arena, ((size_t)s->rank[r].count + 1) * sizeof **cost->begin);
        enough = cost->begin[r] != NULL;
    }
    if (!enough) {
        return ls__fail(LS_ERR_MEMORY, "schedule %s: no memory to time it", s->name);
    }
    run_clock(&c);
    return LS_OK;
}
