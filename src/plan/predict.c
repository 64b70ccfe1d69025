/* SPDX-License-Identifier: Apache-2.0 */
/* The step of a plan by the cost model of schedules, and the plan's file. */
#include "plan/predict.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "cost/simulate.h"
#include "plan/plan.h"

#define FULL 4 /* micro-batches for each stage: a bubble of at most a fifth */

/* ---- numbers of micro-batches ---------------------------------------------------------------- */

static int64_t common_multiple(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y != 0) {
        const int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

int ls__plan_micro_batches(const ls__partition *p)
{
    const int64_t enough = FULL * p->stages > p->workers ? FULL * p->stages : p->workers;
    int64_t shared = 1;
    for (int i = 0; i < p->stages && shared <= 4 * enough; i++) {
        shared = common_multiple(shared, p->stage[i].replicas);
    }
    return (int)(shared <= 4 * enough ? (enough + shared - 1) / shared * shared : enough);
}

char *ls__plan_replicas_text(const ls__partition *p, char separator, char *out, size_t bytes)
{
    ls__text text = {out, bytes};
    for (int i = 0; i < p->stages; i++) {
        if (i > 0) {
            ls__text_add(&text, "%c", separator);
        }
        ls__text_add(&text, "%d", p->stage[i].replicas);
    }
    return out;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static ls__stage_times times_of(const ls__profile *profile, const ls__partition_stage *stage)
{
    ls__stage_times t = {0};
    for (int i = stage->first; i < stage->first + stage->count; i++) {
        t.forward += profile->parts[i].forward;
        t.input += profile->parts[i].input;
        t.weight += profile->parts[i].weight;
    }
    t.backward = t.input + t.weight;
    return t;
}

/* A message over a cut: the worker that sends and the one that receives have a link each, and the
 * replicas of a stage use theirs side by side. A stage's sum of gradients begins with its last
 * backward, and each direction counts by itself. */
typedef struct step {
    ls__stage_times times[LS__SCHEDULE_RANKS_MAX];
    ls__sim_resource link[2 * LS__SCHEDULE_RANKS_MAX]; /* over the cut after a stage, and back */
    ls__sim_route activation[LS__SCHEDULE_RANKS_MAX], gradient[LS__SCHEDULE_RANKS_MAX];
    ls__sim_reduction sum[LS__SCHEDULE_RANKS_MAX];
} step;

static ls__sim_route add_cut(step *t, const ls__partition *p, int cut, bool back, double bytes)
{
    const ls__partition_stage *from = &p->stage[cut];
    const int link = 2 * cut + back;
    const int fewer = from->replicas < from[1].replicas ? from->replicas : from[1].replicas;
    t->link[link] = (ls__sim_resource){fewer * from->bandwidth, from->bandwidth};
    return (ls__sim_route){.resource = {link, LS__SIM_NONE}, .bytes = bytes, .weight = 1.0};
}

static void describe_step(step *t, const ls__profile *profile, const ls__chain *chain,
                          const ls__partition *p)
{
    for (int i = 0; i < p->stages; i++) {
        const ls__partition_stage *stage = &p->stage[i];
        const int last = stage->first + stage->count - 1;
        t->times[i] = times_of(profile, stage);
        t->sum[i] = (ls__sim_reduction){
            .stage = i,
            .route = {.resource = {LS__SIM_NONE, LS__SIM_NONE}, .latency = stage->sum_seconds / 2}};
        if (i + 1 < p->stages) {
            t->activation[i] = add_cut(t, p, i, false, chain->forward[last]);
            t->gradient[i + 1] = add_cut(t, p, i, true, chain->backward[last]);
        }
    }
}

ls_status ls__plan_step(const ls__env *env, const ls__profile *profile, const ls__chain *chain,
                        const ls__partition *p, int micro_batches, double *seconds)
{
    char replicas[LS__REPLICAS_TEXT_BYTES];
    step t;
    ls__sim_result found;
    ls__schedule *s = NULL;
    const ls__schedule_spec spec = {.ranks = p->workers,
                                    .micro_batches = micro_batches,
                                    .replicas =
                                        ls__plan_replicas_text(p, ',', replicas, sizeof replicas)};
    LS_TRY(ls__schedule_new(env, "1f1b", &spec, &s));
    describe_step(&t, profile, chain, p);
    const ls_status status = ls__simulate(s,
                                          &(ls__sim_spec){.times = t.times,
                                                          .activation = t.activation,
                                                          .gradient = t.gradient,
                                                          .resources = t.link,
                                                          .resource_count = 2 * p->stages,
                                                          .reductions = t.sum,
                                                          .reduction_count = p->stages},
                                          &found);
    if (status == LS_OK) {
        *seconds = fmax(found.makespan, found.reduced);
    }
    ls__schedule_free(s);
    return status;
}

/* ---- the file -------------------------------------------------------------------------------- */

static json_t *names_json(const ls__profile *profile)
{
    json_t *names = json_array();
    for (int i = 0; i < profile->part_count; i++) {
        (void)json_array_append_new(names, json_string(profile->parts[i].name));
    }
    return names;
}

static json_t *stages_json(const ls__profile *profile, const ls__partition *p)
{
    json_t *stages = json_array();
    for (int i = 0; i < p->stages; i++) {
        const ls__partition_stage *s = &p->stage[i];
        (void)json_array_append_new(
            stages, json_pack("{s:s, s:s, s:i, s:f, s:f, s:f, s:f, s:f}", "first",
                              profile->parts[s->first].name, "last",
                              profile->parts[s->first + s->count - 1].name, "replicas", s->replicas,
                              "compute_ms", 1e3 * s->compute, "all_reduce_ms", 1e3 * s->all_reduce,
                              "transfer_ms", 1e3 * s->transfer, "weight_bytes", s->weight_bytes,
                              "memory_bytes", s->memory_bytes));
    }
    return stages;
}

/* NULL where the workers are in the order of the stages. */
static json_t *ranks_json(const ls__partition *p)
{
    json_t *ranks = json_array();
    bool ordered = true;
    for (int i = 0; i < p->workers; i++) {
        ordered = ordered && p->worker[i] == i;
        (void)json_array_append_new(ranks, json_integer(p->worker[i]));
    }
    if (ordered) {
        json_decref(ranks);
        return NULL;
    }
    return ranks;
}

ls_status ls__plan_write(const ls__env *env, const ls__profile *profile, const ls__partition *p,
                         const ls__plan_prediction *predicted, const char *path)
{
    json_t *root = json_pack(
        "{s:s, s:i, s:s, s:I, s:o, s:i, s:s, s:i, s:o, s:o*, s:f, s:f, s:{s:f, s:f, s:f, s:f}}",
        "format", LS__PLAN_FORMAT, "version", LS__PLAN_VERSION_WITHOUT_MESH, "model",
        profile->model, "batch", (json_int_t)profile->batch, "parts", names_json(profile),
        "workers", p->workers, "schedule", "1f1b", "micro_batches", predicted->micro_batches,
        "stages", stages_json(profile, p), "ranks", ranks_json(p), "bandwidth",
        predicted->bandwidth, "memory_bytes", predicted->memory, "predicted", "step_ms",
        1e3 * predicted->step, "micro_batch_ms", 1e3 * p->seconds, "one_worker_step_ms",
        1e3 * predicted->worker_step, "one_worker_micro_batch_ms", 1e3 * predicted->worker);
    const ls_status status = ls__plan_save(env, "plan", root, path);
    json_decref(root);
    return status;
}
