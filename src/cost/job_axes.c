/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a job, and the links that those of an axis use (job_build.h). */
#include "cost/job_build.h"

#include <string.h>

#include "base/error.h"

/* In the order of their bits. */
static ls__sim_axis axis_at(const ls__sim_job *job, int a)
{
    const ls__sim_axis all[LS__ALONG_AXES] = {job->tp, job->cp, job->ep, job->dp};
    return (ls__sim_axis){all[a].size > 1 ? all[a].size : 1, all[a].stride};
}

int ls__job_size(const ls__sim_job *job, int along)
{
    int size = 1;
    for (int a = 0; a < LS__ALONG_AXES; a++) {
        size *= along >> a & 1 ? axis_at(job, a).size : 1;
    }
    return size;
}

int ls__sim_job_ranks(const ls__sim_job *job)
{
    return job->pp.size * ls__job_size(job, LS__ALONG_TP | LS__ALONG_DATA);
}

static int rank_at(const ls__sim_job *job, int p, const int *at)
{
    int rank = p * job->pp.stride;
    for (int a = 0; a < LS__ALONG_AXES; a++) {
        rank += at[a] * axis_at(job, a).stride;
    }
    return rank;
}

static void coordinates_of(const ls__sim_job *job, int k, int *at)
{
    for (int a = 0; a < LS__ALONG_AXES; a++) {
        at[a] = k % axis_at(job, a).size;
        k /= axis_at(job, a).size;
    }
}

int ls__job_rank(const ls__sim_job *job, int p, int k)
{
    int at[LS__ALONG_AXES];
    coordinates_of(job, k, at);
    return rank_at(job, p, at);
}

/* The next one of its group, and after the last one the first. */
static void advance_coordinates(const ls__sim_job *job, int along, int *at)
{
    for (int a = 0; a < LS__ALONG_AXES; a++) {
        if (along >> a & 1) {
            at[a] = (at[a] + 1) % axis_at(job, a).size;
            if (at[a] > 0) {
                return;
            }
        }
    }
}

void ls__job_add_rings(ls__job_building *b, int p, int along)
{
    const ls__sim_job *job = b->job;
    const int ranks = ls__job_size(job, LS__ALONG_TP | LS__ALONG_DATA);
    ls__traffic_clear(&b->traffic);
    for (int stage = p < 0 ? 0 : p; stage < (p < 0 ? job->pp.size : p + 1); stage++) {
        for (int k = 0; k < ranks; k++) {
            int at[LS__ALONG_AXES];
            coordinates_of(job, k, at);
            advance_coordinates(job, along, at);
            ls__traffic_add(&b->traffic, ls__job_rank(job, stage, k), rank_at(job, stage, at));
        }
    }
}

ls__sim_route ls__job_route_between(ls__job_building *b, int from, int to, double bytes)
{
    const ls__sim_job *job = b->job;
    const int ranks = ls__job_size(job, LS__ALONG_TP | LS__ALONG_DATA);
    ls__traffic_clear(&b->traffic);
    for (int k = 0; k < ranks; k++) {
        ls__traffic_add(&b->traffic, ls__job_rank(job, from, k), ls__job_rank(job, to, k));
    }
    return ls__traffic_route(&b->traffic, bytes, 1);
}

/* Whether all pairs of a group use links of one level: halving and doubling pays there. */
static bool is_alike(const ls__sim_job *job, int along)
{
    int nearest = 0, farthest = 0;
    for (int a = 0; a < LS__ALONG_AXES; a++) {
        const ls__sim_axis axis = axis_at(job, a);
        if ((along >> a & 1) && axis.size > 1) {
            nearest = nearest == 0 || axis.stride < nearest ? axis.stride : nearest;
            farthest += (axis.size - 1) * axis.stride;
        }
    }
    return nearest > 0 && ls__cluster_level_of(&job->cluster, 0, nearest) ==
                              ls__cluster_level_of(&job->cluster, 0, farthest);
}

bool ls__job_is_within(const ls__job_building *b, const ls__sim_route *route)
{
    const int within = 2 * ls__sim_job_ranks(b->job); /* links of the lowest level come first */
    return route->resource[0] != LS__SIM_NONE && route->resource[0] < within;
}

/* A transfer within a host is work of its cores, and one over a link may need them besides. That
 * takes time from the computation of the ranks that share them, so nothing hides it. */
ls__sim_route ls__job_on_cores(const ls__job_building *b, int p, ls__sim_route route)
{
    const ls__cluster_level *level = &b->job->cluster.level[0];
    if (b->processor == NULL || route.resource[0] == LS__SIM_NONE) {
        return route;
    }
    if (route.cores > 0.0) {
        route.processor = b->processor[p];
        route.cores *= b->sharing[p];
        return route;
    }
    if (!ls__job_is_within(b, &route)) {
        return route;
    }
    return (ls__sim_route){.resource = {b->processor[p], LS__SIM_NONE},
                           .bytes = route.bytes * route.weight / level->bandwidth,
                           .weight = b->sharing[p],
                           .latency = route.latency};
}

ls__collective_cost ls__job_all_reduce(const ls__job_building *b, int along)
{
    return ls__collective_of(is_alike(b->job, along) ? LS__COLLECTIVE_DOUBLING
                                                     : LS__COLLECTIVE_ALL_REDUCE,
                             ls__job_size(b->job, along), b->job->count, b->env);
}

ls__collective_cost ls__job_half(const ls__job_building *b, int along)
{
    return ls__collective_of(LS__COLLECTIVE_HALF, ls__job_size(b->job, along), b->job->count,
                             b->env);
}

static ls__sim_route message_route(ls__job_building *b, int from, int to)
{
    ls__sim_route route = ls__job_route_between(b, from, to, ls__job_boundary_bytes(b));
    route.latency += ls__job_is_within(b, &route) ? b->job->device.message : 0.0;
    return ls__job_on_cores(b, from, route);
}

ls_status ls__job_make_routes(ls__job_building *b)
{
    const size_t stages = (size_t)b->s->stages;
    b->activation = ls__arena_alloc(b->arena, 2 * stages * sizeof *b->activation);
    if (b->activation == NULL) {
        return ls__job_no_memory(b);
    }
    b->gradient = b->activation + stages;
    for (int i = 0; i + 1 < b->s->stages; i++) {
        const int here = b->s->rank_of[i], there = b->s->rank_of[i + 1];
        b->activation[i] = message_route(b, here, there);
        b->gradient[i + 1] = message_route(b, there, here);
    }
    return LS_OK;
}

double ls__job_crowding(const ls__job_building *b)
{
    const int ranks = ls__sim_job_ranks(b->job), host = b->job->cluster.level[0].count;
    const double here = ranks < host ? ranks : host;
    return b->job->cores > 0.0 && here > b->job->cores ? here / b->job->cores : 1.0;
}

double ls__job_wait(const ls__job_building *b)
{
    return ls__job_crowding(b) > 1.0 ? b->job->device.wait : 0.0;
}

bool ls__job_has_processors(const ls__sim_job *job)
{
    bool has = job->cores > 0.0;
    for (int k = 0; k < job->cluster.levels; k++) {
        has = has || job->cluster.level[k].core > 0.0;
    }
    return has;
}

/* The processors of hosts follow the links. */
ls_status ls__job_make_processors(ls__job_building *b)
{
    const ls__sim_job *job = b->job;
    const int host = job->cluster.level[0].count;
    const int hosts = (ls__sim_job_ranks(job) + host - 1) / host;
    const int ranks = ls__job_size(job, LS__ALONG_TP | LS__ALONG_DATA);
    const size_t count = (size_t)(b->links + hosts);
    ls__sim_resource *all = ls__arena_alloc(b->arena, count * sizeof *all);
    int *on = ls__arena_alloc(b->arena, (size_t)hosts * sizeof *on);
    b->processor = ls__arena_alloc(b->arena, (size_t)b->s->ranks * sizeof *b->processor);
    b->sharing = ls__arena_alloc(b->arena, (size_t)b->s->ranks * sizeof *b->sharing);
    if (all == NULL || on == NULL || b->processor == NULL || b->sharing == NULL) {
        return ls__job_no_memory(b);
    }
    memcpy(all, b->resources, (size_t)b->links * sizeof *all);
    for (int i = 0; i < hosts; i++) {
        all[b->links + i] = (ls__sim_resource){job->cores > 0.0 ? job->cores : host, 1.0};
    }
    for (int p = 0; p < b->s->ranks; p++) {
        memset(on, 0, (size_t)hosts * sizeof *on);
        for (int k = 0; k < ranks; k++) {
            const int at = ls__job_rank(job, p, k) / host;
            if (++on[at] > b->sharing[p]) {
                b->sharing[p] = on[at];
                b->processor[p] = b->links + at;
            }
        }
    }
    b->resources = all;
    b->resource_count = (int)count;
    return LS_OK;
}
