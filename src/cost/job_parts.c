/* SPDX-License-Identifier: Apache-2.0 */
/* Times and memory of the parts of a model, for any division into stages (job.h). */
#include <math.h>

#include "base/error.h"
#include "cost/job_build.h"

#define CHUNK_BYTES 4096

static double slowest_cut(ls__job_building *b, double bytes)
{
    double most = 0.0;
    for (int p = 0; p + 1 < b->job->pp.size; p++) {
        (void)ls__job_route_between(b, p, p + 1, bytes);
        most = fmax(most, 2.0 * ls__traffic_seconds(&b->traffic, bytes, 1));
    }
    return most;
}

/* Of the pipeline rank whose ring has the slowest links; without the latency of its messages. */
static double slowest_sum(ls__job_building *b, int along)
{
    const ls__sim_job *job = b->job;
    const double sent = ls__job_all_reduce(b, along).sent;
    double most = 0.0;
    for (int p = 0; p < job->pp.size; p++) {
        ls__job_add_rings(b, p, along);
        most = fmax(most, ls__traffic_seconds(&b->traffic, sent * job->use.width, 0));
    }
    return most;
}

static ls__sim_layer describe_layer(const ls__job_building *b, int layer)
{
    const ls__gpt_use *u = &b->job->use;
    const ls__job_parameters parameters = ls__job_layer_parameters(b, layer);
    return (ls__sim_layer){.times = ls__job_layer_times(b, layer),
                           .parameters = parameters.dense,
                           .expert_parameters = parameters.expert,
                           .kept = ls__gpt_layer_kept(u, ls__gpt_has_experts(&u->model, layer))};
}

static void describe_parts(ls__job_building *b, ls__sim_parts *out)
{
    const ls__gpt_use *u = &b->job->use;
    const ls__gpt *g = &u->model;
    const double tokens = ls__gpt_table_share(u, LS__GPT_TOKENS);
    const double head = ls__gpt_table_share(u, LS__GPT_HEAD);
    ls__job_measure_layers(b);
    *out = (ls__sim_parts){.layer = {describe_layer(b, 0), describe_layer(b, 1)},
                           .embedding = ls__gpt_embedding_times(u, &b->job->device),
                           .head = ls__gpt_head_times(u, &b->job->device),
                           .embedding_parameters = tokens + ls__gpt_position_parameters(g),
                           .head_parameters = ls__gpt_last_norm_parameters(g) + head,
                           .tied = g->untied ? 0.0 : tokens,
                           .head_kept = ls__gpt_head_kept(u),
                           .again = ls__gpt_layer_again(u, g->experts > 0),
                           .boundary = ls__job_boundary_bytes(b),
                           .ranks = ls__job_size(b->job, LS__ALONG_DATA),
                           .expert_ranks = ls__job_size(b->job, LS__ALONG_EXPERTS)};
    ls__job_add_times(&out->embedding, &b->tp_end[0], 1.0);
    ls__job_add_times(&out->head, &b->tp_end[1], 1.0);
    out->cut = slowest_cut(b, out->boundary);
    out->sum = slowest_sum(b, LS__ALONG_DATA);
    out->expert_sum = slowest_sum(b, LS__ALONG_EXPERTS);
}

ls_status ls__sim_parts_of(const ls__env *env, const ls__sim_job *job, ls__sim_parts *out)
{
    ls__arena arena;
    ls__arena_init(&arena, env, CHUNK_BYTES);
    ls__job_building b = {.job = job, .env = env, .arena = &arena};
    const bool enough = ls__traffic_init(&b.traffic, &job->cluster, ls__sim_job_ranks(job), &arena);
    if (enough) {
        describe_parts(&b, out);
    }
    ls__arena_fini(&arena);
    return enough ? LS_OK : ls__fail(LS_ERR_MEMORY, "no memory to describe the parts of a model");
}
