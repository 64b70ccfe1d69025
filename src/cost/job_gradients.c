/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of a job: their gradients' sums, and what ZeRO divides (job_build.h). */
#include "cost/job_build.h"

#include <math.h>

#define AHEAD 2 /* layers whose parameters are whole at a time, with zero 3 */

/* ---- parameters ------------------------------------------------------------------------------ */

/* Of a stage beside its layers; the last stage has the token embedding once more, as its head. */
static double end_parameters(const ls__job_building *b, int stage)
{
    const ls__gpt *g = &b->job->use.model;
    const double tokens = ls__gpt_table_share(&b->job->use, LS__GPT_TOKENS),
                 head = ls__gpt_table_share(&b->job->use, LS__GPT_HEAD);
    const bool last = stage == b->s->stages - 1;
    return (stage == 0 ? tokens + ls__gpt_position_parameters(g) : 0.0) +
           (last ? ls__gpt_last_norm_parameters(g) + (stage > 0 || g->untied ? head : 0.0) : 0.0);
}

ls__job_parameters ls__job_layer_parameters(const ls__job_building *b, int layer)
{
    const ls__gpt *g = &b->job->use.model;
    const int ep = ls__job_size(b->job, LS__ALONG_EP);
    const bool experts = ls__gpt_has_experts(g, layer);
    const double own = experts ? (double)((g->experts + ep - 1) / ep) : 0.0;
    return (ls__job_parameters){ls__gpt_layer_share(&b->job->use, experts),
                                own * ls__gpt_expert_parameters(g) /
                                    ls__gpt_ranks(&b->job->use, LS__GPT_EXPERTS)};
}

ls__job_parameters ls__job_rank_parameters(const ls__job_building *b, int rank)
{
    ls__job_parameters sum = {0.0, 0.0};
    for (int i = 0; i < b->s->stages; i++) {
        const int first = ls__job_first_layer(b, i);
        for (int k = first; k < first + ls__job_layers(b, i) && b->s->rank_of[i] == rank; k++) {
            const ls__job_parameters one = ls__job_layer_parameters(b, k);
            sum.dense += one.dense;
            sum.expert += one.expert;
        }
        sum.dense += b->s->rank_of[i] == rank ? end_parameters(b, i) : 0.0;
    }
    return sum;
}

/* The ranks that sum the gradients of experts, and all others. */
static int axes_of(bool experts)
{
    return experts ? LS__ALONG_EXPERTS : LS__ALONG_DATA;
}

/* ---- sums of gradients ----------------------------------------------------------------------- */

static void add_reduction(ls__job_building *b, int stage, double after, ls__sim_route route)
{
    b->out->reductions[b->reduction_count++] =
        (ls__sim_reduction){stage, after < 1.0 ? after : 1.0, route};
}

static void add_sum(ls__job_building *b, int stage, double after, double parameters, bool experts)
{
    const int along = axes_of(experts);
    if (!(parameters > 0.0) || ls__job_size(b->job, along) == 1) {
        return;
    }
    const ls__collective_cost c =
        b->job->zero > 0 ? ls__job_half(b, along) : ls__job_all_reduce(b, along);
    ls__job_add_rings(b, b->s->rank_of[stage], along);
    const ls__sim_route route =
        ls__traffic_route(&b->traffic, c.sent * parameters * b->job->use.width, c.messages);
    add_reduction(b, stage, after, ls__job_on_cores(b, b->s->rank_of[stage], route));
}

/* Buckets of whole layers in the order of backward: the head, the layers from the last one on, and
 * the embedding. Experts have buckets of their own. */
static void add_buckets(ls__job_building *b, int stage)
{
    const ls__sim_job *job = b->job;
    const bool first = stage == 0, last = stage == b->s->stages - 1;
    const double all = b->out->times[stage].backward, ends = end_parameters(b, stage);
    const double embedding =
        first ? ls__gpt_embedding_times(&job->use, &job->device).backward : 0.0;
    const int from = ls__job_first_layer(b, stage), layers = ls__job_layers(b, stage);
    ls__job_parameters filled = {last && !first ? ends : 0.0, 0.0};
    double done = all - embedding;
    for (int i = 0; i < layers; i++) {
        done -= ls__job_layer_times(b, from + i).backward;
    }
    for (int i = layers - 1; i >= 0; i--) {
        const ls__job_parameters one = ls__job_layer_parameters(b, from + i);
        const double after = i > 0 || first ? 0.0 : 1.0;
        done += ls__job_layer_times(b, from + i).backward;
        filled.dense += one.dense;
        filled.expert += one.expert;
        const double part = after > 0.0 || all <= 0.0 ? 1.0 : done / all;
        if (part < 1.0 && filled.dense * job->use.width >= job->bucket_bytes) {
            add_sum(b, stage, part, filled.dense, false);
            filled.dense = 0.0;
        }
        if (part < 1.0 && filled.expert * job->use.width >= job->bucket_bytes) {
            add_sum(b, stage, part, filled.expert, true);
            filled.expert = 0.0;
        }
    }
    add_sum(b, stage, 1.0, filled.expert, true);
    add_sum(b, stage, 1.0, filled.dense + (first ? ends : 0.0), false);
}

ls_status ls__job_make_reductions(ls__job_building *b)
{
    const ls__sim_job *job = b->job;
    const size_t most = 2 * ((size_t)job->use.model.layers + 2 * (size_t)b->s->stages + 1);
    b->out->reductions = ls__arena_alloc(b->arena, most * sizeof *b->out->reductions);
    if (b->out->reductions == NULL) {
        return ls__job_no_memory(b);
    }
    for (int i = 0; i < b->s->stages && b->s->delay == 0; i++) {
        add_buckets(b, i);
        if (i == 0 && b->s->ranks > 1 && !job->use.model.untied) {
            const double bytes = ls__gpt_table_share(&job->use, LS__GPT_TOKENS) * job->use.width;
            const int here = b->s->rank_of[0], there = b->s->rank_of[b->s->stages - 1];
            const ls__sim_route route = ls__job_route_between(b, here, there, bytes);
            add_reduction(b, 0, 1.0, ls__job_on_cores(b, here, route));
        }
    }
    return LS_OK;
}

/* ---- the end of a step ----------------------------------------------------------------------- */

double ls__job_optimizer(const ls__job_building *b, int rank)
{
    const ls__job_parameters all = ls__job_rank_parameters(b, rank);
    const double dense = b->job->zero > 0 ? ls__job_size(b->job, axes_of(false)) : 1.0,
                 expert = b->job->zero > 0 ? ls__job_size(b->job, axes_of(true)) : 1.0;
    return ls__processor_bytes(&b->job->device,
                               LS__OPTIMIZER_BYTES * (all.dense / dense + all.expert / expert));
}

/* Where cores move them, parameters of other ranks are read from memory and written to it. With
 * zero 3 a rank's own part is copied to where the whole ones are for a while, and back
 * (ddp/unshard.c). */
static double gather_seconds(ls__job_building *b, int rank, double parameters, bool experts)
{
    const int along = axes_of(experts);
    const ls__collective_cost c = ls__job_half(b, along);
    if (!(parameters > 0.0) || ls__job_size(b->job, along) == 1) {
        return 0.0;
    }
    ls__job_add_rings(b, rank, along);
    const double bytes = c.sent * parameters * b->job->use.width;
    const ls__sim_route route = ls__traffic_route(&b->traffic, bytes, c.messages);
    const double seconds = ls__traffic_seconds(&b->traffic, bytes, c.messages) + ls__job_wait(b);
    const double part = parameters * b->job->use.width / ls__job_size(b->job, along);
    const double own = b->job->zero == 3 ? ls__processor_bytes(&b->job->device, 4.0 * part) : 0.0;
    if (!ls__job_is_within(b, &route)) {
        return seconds + own;
    }
    const double copied =
        b->job->cores > 0.0 ? ls__processor_bytes(&b->job->device, 2.0 * bytes) : 0.0;
    return (fmax(seconds, copied) + own) * ls__job_crowding(b);
}

static double gather_layer(ls__job_building *b, int rank, int layer)
{
    const ls__job_parameters one = ls__job_layer_parameters(b, layer);
    return gather_seconds(b, rank, one.dense, false) + gather_seconds(b, rank, one.expert, true);
}

/* The cores of a host that gather compute nothing meanwhile. */
static bool hides_gathers(ls__job_building *b, int rank)
{
    ls__job_add_rings(b, rank, LS__ALONG_DATA);
    const ls__sim_route route = ls__traffic_route(&b->traffic, 1.0, 1);
    return !(b->job->cores > 0.0 && ls__job_is_within(b, &route));
}

/* With zero 3: the first layer's, and what the computation before a layer does not hide of its
 * own. */
static double gather_beside(ls__job_building *b, int stage, bool backward)
{
    const int rank = b->s->rank_of[stage], from = ls__job_first_layer(b, stage);
    const int layers = ls__job_layers(b, stage);
    const bool hides = hides_gathers(b, rank);
    double waits = gather_seconds(b, rank, end_parameters(b, stage), false), before = 0.0;
    for (int i = 0; i < layers; i++) {
        const int layer = backward ? from + layers - 1 - i : from + i;
        const ls__stage_times t = ls__job_layer_times(b, layer);
        waits += fmax(0.0, gather_layer(b, rank, layer) - before);
        before = !hides ? 0.0 : backward ? t.backward : t.forward;
    }
    return waits;
}

double ls__job_gather(ls__job_building *b, int rank)
{
    const ls__job_parameters all = ls__job_rank_parameters(b, rank);
    double waits = 0.0;
    if (b->job->zero == 0) {
        return 0.0;
    }
    if (b->job->zero < 3) {
        return gather_seconds(b, rank, all.dense, false) +
               gather_seconds(b, rank, all.expert, true);
    }
    for (int i = 0; i < b->s->stages; i++) {
        waits +=
            b->s->rank_of[i] == rank ? gather_beside(b, i, false) + gather_beside(b, i, true) : 0.0;
    }
    return waits;
}

ls__state_bytes ls__job_state(const ls__job_building *b, int rank)
{
    const ls__sim_job *job = b->job;
    const ls__job_parameters all = ls__job_rank_parameters(b, rank);
    const int zero = ls__sim_zero_kept(job->zero, job->spec.micro_batches);
    const ls__state_bytes dense = ls__state_bytes_of(all.dense, job->use.width, zero,
                                                     ls__job_size(job, axes_of(false))),
                          expert = ls__state_bytes_of(all.expert, job->use.width, zero,
                                                      ls__job_size(job, axes_of(true)));
    const ls__job_parameters one = ls__job_layer_parameters(b, 0);
    const double whole = zero > 2 ? AHEAD * job->use.width * (one.dense + one.expert) : 0.0;
    return (ls__state_bytes){dense.parameters + expert.parameters + whole,
                             dense.gradients + expert.gradients,
                             dense.optimizer + expert.optimizer};
}
