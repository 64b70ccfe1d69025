/* SPDX-License-Identifier: Apache-2.0 */
/* The stages of a plan, by Alpa's program (auto_cuts.h). */
#include "plan/auto_cuts.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "plan/inter.h"

enum { NOTHING, BLOCKS, STAGES }; /* what is recomputed */

typedef struct cutting {
    const ls__auto_plan *plan;
    const ls__gpt *model;
    const ls__sim_parts *parts;
    int layers, width;
    bool whole_stages; /* are recomputed */
} cutting;

/* The parts from `first` to before `end`, which are the embedding, the layers and the head. */
typedef struct extent {
    bool has_first, has_last;
    double layers[2]; /* without experts, and with them */
} extent;

static extent extent_of(const cutting *c, int first, int end)
{
    const int from = first > 0 ? first - 1 : 0, to = end > c->layers ? c->layers : end - 1;
    const double mixed = (double)ls__gpt_mixed(c->model, from, to);
    return (extent){first == 0, end == c->layers + 2, {to - from - mixed, mixed}};
}

static void add_times(ls__stage_times *sum, const ls__stage_times *more, double count)
{
    sum->forward += count * more->forward;
    sum->backward += count * more->backward;
}

static ls__stage_times times_of(const cutting *c, int first, int end)
{
    const ls__sim_parts *p = c->parts;
    const extent e = extent_of(c, first, end);
    ls__stage_times t = {0};
    add_times(&t, &p->layer[0].times, e.layers[0]);
    add_times(&t, &p->layer[1].times, e.layers[1]);
    add_times(&t, &p->embedding, e.has_first);
    add_times(&t, &p->head, e.has_last);
    return t;
}

static double compute_of(const cutting *c, int first, int end)
{
    const ls__stage_times t = times_of(c, first, end);
    return t.forward + t.backward + (c->whole_stages ? t.forward : 0.0);
}

static double fixed_bytes(const cutting *c, double parameters, int ranks)
{
    const int zero = ls__sim_zero_kept(c->plan->zero, c->plan->micro_batches);
    const ls__state_bytes state = ls__state_bytes_of(parameters, c->width, zero, ranks);
    return state.parameters + state.gradients + state.optimizer;
}

/* The sums of gradients, once a step, are spread over its micro-batches. */
static void cost_of_stage(void *arg, int first, int end, int shape, ls__inter_cost *out)
{
    const cutting *c = arg;
    const ls__sim_parts *p = c->parts;
    const extent e = extent_of(c, first, end);
    const double ends = (e.has_first ? p->embedding_parameters : 0.0) +
                        (e.has_last ? p->head_parameters : 0.0) -
                        (e.has_first && e.has_last ? p->tied : 0.0);
    const double dense =
        ends + e.layers[0] * p->layer[0].parameters + e.layers[1] * p->layer[1].parameters;
    const double expert = e.layers[1] * p->layer[1].expert_parameters;
    const double kept = e.layers[0] * p->layer[0].kept + e.layers[1] * p->layer[1].kept +
                        (e.has_last ? p->head_kept : 0.0);
    const double sums = dense * p->sum + expert * p->expert_sum;
    const double seconds = compute_of(c, first, end) + sums / c->plan->micro_batches;
    (void)shape;
    *out = (ls__inter_cost){.seconds = seconds,
                            .every = seconds,
                            .fixed = fixed_bytes(c, dense, p->ranks) +
                                     fixed_bytes(c, expert, p->expert_ranks) + p->again +
                                     (c->whole_stages ? kept : 0.0),
                            .kept = c->whole_stages ? p->boundary : kept};
}

/* False: no memory. */
static bool begin_cutting(ls__auto_cuts *s, const ls__auto_plan *p, cutting *out)
{
    const ls__sim_job job = ls__auto_job(s->ask, p);
    const int blocks = job.use.recompute;
    if (!s->described[blocks]) {
        s->described[blocks] = ls__sim_parts_of(s->env, &job, &s->parts[blocks]) == LS_OK;
        s->no_memory = s->no_memory || !s->described[blocks];
    }
    *out = (cutting){.plan = p,
                     .model = &s->ask->job.use.model,
                     .parts = &s->parts[blocks],
                     .layers = (int)job.use.model.layers,
                     .width = job.use.width,
                     .whole_stages = job.spec.recompute};
    return s->described[blocks];
}

void ls__auto_cuts_forget(ls__auto_cuts *s)
{
    s->described[0] = s->described[1] = false;
    for (int i = 0; i < LS__AUTO_RECOMPUTED; i++) {
        s->known[i][0].known = s->known[i][1].known = false;
    }
}

/* Before the first computation of the stages that follow, and after their last one; with backwards
 * in two parts they may compute weight parts after that. */
static double passing_of(const cutting *c, int first, int end)
{
    const ls__stage_times t = times_of(c, first, end);
    return t.forward + (strcmp(c->plan->schedule, "zb-h1") == 0 ? 0.0 : t.backward);
}

/* A rank computes all micro-batches after the first one has passed the stages before it, and the
 * last one passes them afterwards. So the more parts the stages before have, the further a stage
 * may go: each takes as many as it can. */
static bool parts_fit(const cutting *c, double seconds)
{
    const int parts = c->layers + 2;
    double passed = 0.0;
    int first = 0;
    for (int stage = 0; stage < c->plan->pp.size && first < parts; stage++) {
        int end = first;
        while (end < parts &&
               passed + c->plan->micro_batches * compute_of(c, first, end + 1) <= seconds) {
            end++;
        }
        passed += end > first ? passing_of(c, first, end) : 0.0;
        first = end;
    }
    return first == parts;
}

bool ls__auto_cuts_may_take(ls__auto_cuts *s, const ls__auto_plan *p, double seconds)
{
    const double most = seconds * (1.0 + LS__AUTO_NEARLY);
    cutting c;
    if (!begin_cutting(s, p, &c)) {
        return false;
    }
    return p->stages == p->pp.size
               ? parts_fit(&c, most)
               : compute_of(&c, 0, c.layers + 2) / p->pp.size * p->micro_batches <= most;
}

static ls__inter_live live_of(const ls__auto_plan *p)
{
    return strcmp(p->schedule, "gpipe") == 0 ? LS__LIVE_ALL : LS__LIVE_STAGES;
}

static int warm_up_of(const ls__auto_plan *p)
{
    return p->warm_up > 0 ? p->warm_up : 1;
}

double ls__auto_cuts_least(ls__auto_cuts *s, const ls__auto_plan *p)
{
    double passed = 0.0, least = 0.0;
    cutting c;
    if (!begin_cutting(s, p, &c)) {
        return INFINITY;
    }
    for (int i = 0; i < p->stages; i++) {
        const int first = i > 0 ? p->first_layer[i] + 1 : 0;
        const int end = i + 1 < p->stages ? p->first_layer[i + 1] + 1 : c.layers + 2;
        least = fmax(least, passed + p->micro_batches * compute_of(&c, first, end));
        passed += passing_of(&c, first, end);
    }
    return least * (1.0 - LS__AUTO_NEARLY);
}

/* The first parts of the stages, one for each rank of pp. LS_ERR_LIMIT: no cuts fit. */
static ls_status solve_cuts(ls__auto_cuts *s, cutting *c, bool hidden, double memory, int *first)
{
    static const int one[] = {1};
    const ls__auto_plan *p = c->plan;
    ls__inter_plan found;
    for (int i = 0; i < c->layers + 1; i++) {
        s->cut[i] = hidden ? 0.0 : c->parts->cut;
    }
    const ls__inter_spec spec = {.parts = c->layers + 2,
                                 .devices = p->pp.size,
                                 .micro_batches = p->micro_batches,
                                 .shapes = 1,
                                 .shape = one,
                                 .stages = p->pp.size,
                                 .cut = s->cut,
                                 .memory_bytes = memory,
                                 .live = live_of(p),
                                 .warm_up = warm_up_of(p),
                                 .cost = cost_of_stage,
                                 .arg = c};
    LS_TRY(ls__inter_find(s->env, &spec, &found));
    LS_ASSERT(found.stages == p->pp.size);
    memcpy(first, found.first, (size_t)found.stages * sizeof *first);
    return LS_OK;
}

static int end_of_stage(const cutting *c, const int *first, int stage)
{
    return stage + 1 < c->plan->pp.size ? first[stage + 1] : c->layers + 2;
}

static bool cuts_fit(const ls__auto_cuts *s, cutting *c, const int *first)
{
    const ls__auto_plan *p = c->plan;
    const ls__inter_spec spec = {
        .micro_batches = p->micro_batches, .live = live_of(p), .warm_up = warm_up_of(p)};
    bool fit = true;
    for (int i = 0; i < p->pp.size && fit && s->ask->memory_bytes > 0.0; i++) {
        ls__inter_cost cost;
        const int after = p->pp.size - 1 - i, held = ls__inter_held(&spec, 1, after, after);
        cost_of_stage(c, first[i], end_of_stage(c, first, i), 0, &cost);
        fit = cost.fixed + cost.kept * held <= s->ask->memory_bytes;
    }
    return fit;
}

/* The best cuts of all, if they fit into the memory, and otherwise the best of those that do. */
static ls_status choose_cuts(ls__auto_cuts *s, cutting *c, bool hidden, int *first)
{
    const int what = c->whole_stages ? STAGES : c->plan->recompute ? BLOCKS : NOTHING;
    ls__auto_known *best = &s->known[what][hidden];
    if (!best->known) {
        LS_TRY(solve_cuts(s, c, hidden, 0.0, best->first));
        best->known = true;
    }
    if (!cuts_fit(s, c, best->first)) {
        return solve_cuts(s, c, hidden, s->ask->memory_bytes, first);
    }
    memcpy(first, best->first, (size_t)c->plan->pp.size * sizeof *first);
    return LS_OK;
}

bool ls__auto_cuts_find(ls__auto_cuts *s, ls__auto_plan *p, bool hidden, double *longest)
{
    int first[LS__SCHEDULE_RANKS_MAX];
    cutting c;
    if (!begin_cutting(s, p, &c)) {
        return false;
    }
    const ls_status status = choose_cuts(s, &c, hidden, first);
    s->no_memory = s->no_memory || status == LS_ERR_MEMORY;
    *longest = 0.0;
    for (int i = 0; status == LS_OK && i < p->pp.size; i++) {
        *longest = fmax(*longest, compute_of(&c, first[i], end_of_stage(&c, first, i)));
        p->first_layer[i] = i > 0 ? first[i] - 1 : 0;
    }
    return status == LS_OK;
}
