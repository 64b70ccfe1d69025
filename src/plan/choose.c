/* SPDX-License-Identifier: Apache-2.0 */
/* The searches for a plan, and their judgement by the schedule 1f1b (choose.h). */
#include "plan/choose.h"

#include <math.h>
#include <string.h>

#include "plan/inter.h"
#include "plan/plan.h"

#define WORK_MAX 1e6 /* steps of Alpa's program for a value of t_max; not used for larger chains */

typedef struct choosing {
    const ls__env *env;
    const ls__profile *profile;
    const ls__chain *chain;
    const ls__partition_spec *spec;
    ls__plan_choice *out;
} choosing;

static bool is_better(const ls__plan_candidate *a, const ls__plan_candidate *b)
{
    return a->exists && (!b->exists || a->step < b->step * (1.0 - 1e-9));
}

static void keep_if_better(choosing *c, const ls__plan_candidate *candidate,
                           ls__plan_candidate_kind kind)
{
    if (is_better(candidate, &c->out->best)) {
        c->out->best = *candidate;
        c->out->kind = kind;
    }
}

static ls_status time_plan(const choosing *c, ls__plan_candidate *candidate)
{
    const ls_status status = ls__plan_step(c->env, c->profile, c->chain, &candidate->partition,
                                           c->out->micro_batches, &candidate->step);
    candidate->exists = status == LS_OK;
    return status;
}

/* ---- PipeDream's program --------------------------------------------------------------------- */

static ls_status find_steady(const choosing *c, ls__partition_kind kind, ls__partition *found)
{
    ls__partition_spec spec = *c->spec;
    spec.kind = kind;
    return ls__partition_find(c->env, c->chain, &spec, found);
}

/* A plan that need not exist: data parallelism may not fit into the memory, a straight pipeline
 * needs a part for each worker, and a step may have fewer micro-batches than replicas. */
static void try_steady(const choosing *c, ls__partition_kind kind, ls__plan_candidate *out)
{
    out->exists = false;
    if (find_steady(c, kind, &out->partition) == LS_OK) {
        (void)time_plan(c, out);
    }
}

/* ---- Alpa's program -------------------------------------------------------------------------- */

typedef struct stages {
    const choosing *choosing;
    double sums[LS__INTER_SHAPES_MAX]; /* seconds of an all-reduce of a byte, by replicas */
} stages;

static double weights_of(const ls__chain *chain, int first, int end)
{
    double bytes = 0.0;
    for (int i = first; i < end; i++) {
        bytes += chain->weights[i];
    }
    for (int k = 0; k < chain->shared_count; k++) {
        bool used = false;
        for (int i = first; i < end; i++) {
            used = used || chain->shared[k].used_by[i];
        }
        bytes += used ? chain->shared[k].bytes : 0.0;
    }
    return bytes;
}

/* Replicas take turns; the sum of gradients, once a step, is spread over its micro-batches. */
static void cost_of_stage(void *arg, int first, int end, int shape, ls__inter_cost *out)
{
    const stages *s = arg;
    const ls__chain *chain = s->choosing->chain;
    const double bytes = weights_of(chain, first, end);
    const double sum = s->sums[shape] * bytes / s->choosing->out->micro_batches;
    *out = (ls__inter_cost){.fixed = s->choosing->spec->copies * bytes,
                            .kept = first > 0 ? chain->forward[first - 1] : 0.0};
    for (int i = first; i < end; i++) {
        out->seconds += chain->compute[i];
        out->kept += chain->kept[i];
    }
    out->every = out->seconds / (shape + 1) + sum;
    out->seconds += sum;
}

static bool is_small(const ls__chain *chain, int workers)
{
    const double parts = chain->parts, devices = workers;
    return fmin(parts, devices) * parts * parts / 2.0 * devices * devices / 2.0 <= WORK_MAX;
}

/* On all workers, or on fewer. */
static void try_flush(const choosing *c, bool may_leave, ls__plan_candidate *out)
{
    static ls__inter_plan found;
    int shape[LS__INTER_SHAPES_MAX], replicas[LS__SCHEDULE_RANKS_MAX];
    double cut[LS__PLAN_PARTS_MAX];
    stages s = {.choosing = c};
    const int workers = c->spec->levels[0].count;
    const double bandwidth = c->spec->levels[0].bandwidth;
    out->exists = false;
    if (c->spec->level_count > 1 || !is_small(c->chain, workers)) {
        return;
    }
    for (int i = 0; i < workers; i++) {
        shape[i] = i + 1;
        s.sums[i] = 2.0 * i / ((i + 1) * bandwidth);
    }
    for (int i = 0; i + 1 < c->chain->parts; i++) {
        cut[i] = (c->chain->forward[i] + c->chain->backward[i]) / bandwidth;
    }
    const ls__inter_spec spec = {.parts = c->chain->parts,
                                 .devices = workers,
                                 .micro_batches = c->out->micro_batches,
                                 .shapes = workers,
                                 .shape = shape,
                                 .may_leave = may_leave,
                                 .cut = cut,
                                 .memory_bytes = c->spec->memory_bytes,
                                 .live = LS__LIVE_TURNS,
                                 .cost = cost_of_stage,
                                 .arg = &s};
    if (ls__inter_find(c->env, &spec, &found) < 0) {
        return;
    }
    for (int i = 0; i < found.stages; i++) {
        replicas[i] = shape[found.shape[i]];
    }
    if (ls__partition_of(c->env, c->chain, c->spec, found.stages, found.first, replicas,
                         &out->partition) == LS_OK) {
        (void)time_plan(c, out);
    }
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* With several levels: on the workers of one component of the lowest. */
static void try_fewer(choosing *c)
{
    static ls__plan_candidate candidate;
    ls__partition_spec spec = *c->spec;
    const int all = spec.levels[0].count, most = spec.level_count > 1 ? all : all - 1;
    const choosing fewer = {c->env, c->profile, c->chain, &spec, c->out};
    spec.level_count = 1;
    for (int w = 1; w <= most; w++) {
        spec.levels[0].count = w;
        try_steady(&fewer, LS__PARTITION_BEST, &candidate);
        keep_if_better(c, &candidate, LS__PLAN_CANDIDATE_STEADY);
        try_steady(&fewer, LS__PARTITION_DATA, &candidate);
        keep_if_better(c, &candidate, LS__PLAN_CANDIDATE_DATA);
    }
    try_flush(c, true, &candidate);
    keep_if_better(c, &candidate, LS__PLAN_CANDIDATE_FLUSH);
}

ls_status ls__plan_choose(const ls__env *env, const ls__profile *profile, const ls__chain *chain,
                          const ls__partition_spec *spec, int micro_batches, ls__plan_choice *out)
{
    choosing c = {env, profile, chain, spec, out};
    memset(out, 0, sizeof *out);
    ls__plan_candidate *steady = &out->candidate[LS__PLAN_CANDIDATE_STEADY];
    LS_TRY(find_steady(&c, LS__PARTITION_BEST, &steady->partition));
    out->micro_batches =
        micro_batches > 0 ? micro_batches : ls__plan_micro_batches(&steady->partition);
    LS_TRY(time_plan(&c, steady));
    try_steady(&c, LS__PARTITION_DATA, &out->candidate[LS__PLAN_CANDIDATE_DATA]);
    try_steady(&c, LS__PARTITION_STRAIGHT, &out->candidate[LS__PLAN_CANDIDATE_STRAIGHT]);
    try_flush(&c, false, &out->candidate[LS__PLAN_CANDIDATE_FLUSH]);
    for (int k = LS__PLAN_CANDIDATES - 1; k >= 0; k--) {
        keep_if_better(&c, &out->candidate[k], (ls__plan_candidate_kind)k);
    }
    try_fewer(&c);
    return LS_OK;
}
