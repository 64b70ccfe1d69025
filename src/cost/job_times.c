/* SPDX-License-Identifier: Apache-2.0 */
/* The times of a micro-batch on a stage, and of the parts that it waits for (job_build.h). */
#include "cost/job_build.h"

#include <math.h>

int ls__job_first_layer(const ls__job_building *b, int stage)
{
    const int64_t layers = b->job->use.model.layers;
    return b->job->first_layer == NULL ? (int)(layers * stage / b->s->stages)
           : stage == b->s->stages     ? (int)layers
                                       : b->job->first_layer[stage];
}

int ls__job_layers(const ls__job_building *b, int stage)
{
    return ls__job_first_layer(b, stage + 1) - ls__job_first_layer(b, stage);
}

double ls__job_boundary_bytes(const ls__job_building *b)
{
    const ls__gpt_use *u = &b->job->use;
    return ls__gpt_activation(u) * u->width / (u->sequence ? u->tp : 1);
}

void ls__job_add_times(ls__stage_times *sum, const ls__stage_times *more, double count)
{
    sum->forward += count * more->forward;
    sum->backward += count * more->backward;
    sum->input += count * more->input;
    sum->weight += count * more->weight;
}

/* ---- axes ------------------------------------------------------------------------------------ */

/* Blocks that are recomputed exchange what their forward does once more. */
static double forward_count(const ls__sim_job *job)
{
    return job->use.recompute ? 2.0 : 1.0;
}

static ls__stage_times wait_times(double forward, double backward)
{
    return (ls__stage_times){.forward = forward, .backward = backward, .input = backward};
}

/* An all-reduce in the forward of an embedding that is divided, and one in the backward of such a
 * head. For a whole one sequence parallelism gathers the parts of the sequence, half an all-reduce,
 * in the other direction. */
static void measure_ends(ls__job_building *b, double bytes)
{
    static const int part[2] = {LS__GPT_TOKENS, LS__GPT_HEAD};
    const ls__gpt_use *u = &b->job->use;
    for (int i = 0; i < 2; i++) {
        const bool whole = ls__gpt_ranks(u, part[i]) == 1;
        const double sums = !whole ? 1.0 : u->sequence ? 0.5 : 0.0, seconds = sums * b->tp_sum;
        b->tp_ends[i] = sums * bytes;
        b->tp_end[i] = (i == 0) != whole ? wait_times(seconds, 0.0) : wait_times(0.0, seconds);
    }
}

/* All-reduces of a layer in one direction. Experts that are whole on each rank are computed from
 * whole sequences: where these are divided, they are gathered before, and their gradients after. */
static double sums_of_layer(const ls__gpt_use *u, bool experts)
{
    const double attention = ls__gpt_ranks(u, LS__GPT_ATTENTION) > 1;
    if (ls__gpt_ranks(u, experts ? LS__GPT_EXPERTS : LS__GPT_MLP) > 1) {
        return attention + 1.0;
    }
    return attention + (experts && u->sequence ? 0.5 : 0.0);
}

/* In backward also those of the gradients of keys and values that ranks share. */
static void measure_tp(ls__job_building *b)
{
    const ls__sim_job *job = b->job;
    const double bytes = ls__gpt_activation(&job->use) * job->use.width;
    const ls__collective_cost cost = ls__job_all_reduce(b, LS__ALONG_TP);
    const double keys = cost.sent * ls__gpt_shared_keys(&job->use) * job->use.width;
    ls__job_add_rings(b, -1, LS__ALONG_TP);
    b->tp_sum = ls__traffic_seconds(&b->traffic, cost.sent * bytes, cost.messages) +
                (cost.messages > 0 ? ls__job_wait(b) : 0.0);
    for (int experts = 0; experts <= 1; experts++) {
        const double sums = sums_of_layer(&job->use, experts == 1);
        b->tp_layer[experts] = sums * b->tp_sum;
        b->tp_bytes[experts] = sums * (1.0 + forward_count(job)) * cost.sent * bytes + keys;
    }
    b->tp_keys = keys > 0.0 ? ls__traffic_seconds(&b->traffic, keys, 2 * cost.messages) : 0.0;
    measure_ends(b, cost.sent * bytes);
}

/* In each of cp - 1 rounds a rank sends two tensors, in backward with their gradients four, while
 * it computes one part of the attention in cp, in backward twice as long; after the last one
 * gradients go home. */
static void measure_cp(ls__job_building *b)
{
    const ls__sim_job *job = b->job;
    const int n = ls__job_size(job, LS__ALONG_CP);
    const double bytes = 2.0 * ls__gpt_keys(&job->use) * job->use.width;
    const bool within = ls__cluster_level_of(&job->cluster, 0, (n - 1) * job->cp.stride) == 0;
    const double part = job->cores > 0.0 && within /* the cores themselves send */
                            ? 0.0
                            : ls__gpt_attention_time(&job->use, &job->device) / n;
    ls__job_add_rings(b, -1, LS__ALONG_CP);
    const double there = ls__traffic_seconds(&b->traffic, bytes, 1),
                 back = ls__traffic_seconds(&b->traffic, 2.0 * bytes, 1);
    const double message = n > 1 && within ? job->device.message : 0.0;
    b->cp_forward = (n - 1) * (fmax(0.0, there - part) + message);
    b->cp_backward = (n - 1) * (fmax(0.0, back - 2.0 * part) + message) + message;
    b->cp_bytes = (2.0 + forward_count(job)) * (n - 1) * bytes;
}

/* Rows to their experts, and the results back. */
static void measure_ep(ls__job_building *b)
{
    const ls__sim_job *job = b->job;
    const ls__gpt *g = &job->use.model;
    const int n = ls__job_size(job, LS__ALONG_EP);
    const ls__collective_cost cost =
        ls__collective_of(LS__COLLECTIVE_EXCHANGE, n, job->count, b->env);
    const double bytes = ls__gpt_activation(&job->use) * (double)g->top_k * job->use.width;
    ls__job_add_rings(b, -1, LS__ALONG_EP);
    b->ep_layer = 2.0 * (ls__traffic_seconds(&b->traffic, cost.sent * bytes, cost.messages) +
                         (n > 1 ? ls__job_wait(b) : 0.0));
    b->ep_bytes = 2.0 * (1.0 + forward_count(job)) * cost.sent * bytes;
}

/* ---- a layer --------------------------------------------------------------------------------- */

/* Waits of a layer, which may be recomputed. */
static ls__stage_times layer_waits(const ls__job_building *b, double forward, double backward)
{
    return wait_times(forward, backward + (forward_count(b->job) - 1.0) * forward);
}

static ls__stage_times measure_part(const ls__job_building *b, int part, bool experts)
{
    switch (part) {
    case LS__JOB_COMPUTE:
        return ls__gpt_layer_times(&b->job->use, &b->job->device, experts);
    case LS__JOB_TP:
        return layer_waits(b, b->tp_layer[experts], b->tp_layer[experts] + b->tp_keys);
    case LS__JOB_CP:
        return layer_waits(b, b->cp_forward, b->cp_backward);
    case LS__JOB_EP:
        return layer_waits(b, experts ? b->ep_layer : 0.0, experts ? b->ep_layer : 0.0);
    default:
        return (ls__stage_times){0};
    }
}

void ls__job_measure_layers(ls__job_building *b)
{
    const int kinds = b->job->use.model.experts > 0 ? 2 : 1;
    measure_tp(b);
    measure_cp(b);
    measure_ep(b);
    for (int part = 0; part < LS__JOB_PARTS; part++) {
        for (int experts = 0; experts < kinds; experts++) {
            b->layer[experts][part] = measure_part(b, part, experts == 1);
        }
    }
}

static const ls__stage_times *layer_parts(const ls__job_building *b, int layer)
{
    return b->layer[ls__gpt_has_experts(&b->job->use.model, layer)];
}

ls__stage_times ls__job_layer_times(const ls__job_building *b, int layer)
{
    ls__stage_times sum = {0};
    for (int part = 0; part < LS__JOB_PARTS; part++) {
        ls__job_add_times(&sum, &layer_parts(b, layer)[part], 1.0);
    }
    return sum;
}

/* ---- a stage --------------------------------------------------------------------------------- */

static void add_ends(const ls__job_building *b, int stage)
{
    const ls__gpt_use *u = &b->job->use;
    const ls__stage_times first = ls__gpt_embedding_times(u, &b->job->device),
                          last = ls__gpt_head_times(u, &b->job->device);
    if (stage == 0) {
        ls__job_add_times(&b->part[LS__JOB_COMPUTE][stage], &first, 1.0);
        ls__job_add_times(&b->part[LS__JOB_TP][stage], &b->tp_end[0], 1.0);
    }
    if (stage == b->s->stages - 1) {
        ls__job_add_times(&b->part[LS__JOB_COMPUTE][stage], &last, 1.0);
        ls__job_add_times(&b->part[LS__JOB_TP][stage], &b->tp_end[1], 1.0);
    }
}

/* Without a flush a stage steps in the time of its backwards. */
static void add_steps(const ls__job_building *b, int stage)
{
    if (b->s->delay != 0) {
        const double seconds = ls__job_optimizer(b, b->s->rank_of[stage]) / b->s->per_step;
        const ls__stage_times step = {.backward = seconds, .weight = seconds};
        ls__job_add_times(&b->part[LS__JOB_STEP][stage], &step, 1.0);
    }
}

ls_status ls__job_make_times(ls__job_building *b)
{
    const size_t stages = (size_t)b->s->stages;
    b->out->times =
        ls__arena_alloc(b->arena, (1 + LS__JOB_PARTS) * stages * sizeof(ls__stage_times));
    if (b->out->times == NULL) {
        return ls__job_no_memory(b);
    }
    for (int part = 0; part < LS__JOB_PARTS; part++) {
        b->part[part] = b->out->times + (size_t)(1 + part) * stages;
    }
    for (int i = 0; i < b->s->stages; i++) {
        const int first = ls__job_first_layer(b, i);
        for (int part = 0; part < LS__JOB_PARTS; part++) {
            for (int layer = first; layer < first + ls__job_layers(b, i); layer++) {
                ls__job_add_times(&b->part[part][i], &layer_parts(b, layer)[part], 1.0);
            }
        }
        add_ends(b, i);
        add_steps(b, i);
        for (int part = 0; part < LS__JOB_PARTS; part++) {
            ls__job_add_times(&b->out->times[i], &b->part[part][i], 1.0);
        }
    }
    return LS_OK;
}
