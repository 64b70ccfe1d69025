/* SPDX-License-Identifier: Apache-2.0 */
/* Plans, the profiles that they are made from, and the clusters and devices that they are for. */
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/env_posix.h"
#include "cost/cluster.h"
#include "cost/processor.h"
#include "dist/axes.h"
#include "plan/plan.h"
#include "plan/predict.h"
#include "schedule/schedule.h"
#include "targets.h"

/* A plan without a mesh is one pipeline of all ranks; else its stages are as many as the mesh and
 * the chunks say. */
static void use_settings(const ls_plan *p, int replicas)
{
    ls_plan_settings s = {.size = sizeof s};
    ls__axes axes;
    LS_ASSERT(ls_plan_get_settings(p, &s) == LS_OK);
    LS_ASSERT(ls_plan_check_model(p, ls_plan_model(p), NULL, 0) == LS_OK);
    if (s.mesh == NULL) {
        LS_ASSERT(replicas == ls_plan_workers(p));
        return;
    }
    LS_ASSERT(ls__axes_parse(s.mesh, ls_plan_workers(p), &axes) == LS_OK);
    const int pp = ls__axes_find(&axes, "pp", 2), chunks = s.chunks > 0 ? s.chunks : 1;
    LS_ASSERT(replicas == chunks * (pp >= 0 ? axes.axis[pp].size : 1));
    LS_ASSERT(s.zero >= 0 && s.zero <= 3 && s.batch >= 0 && s.warm_up >= 0);
}

/* What a pipeline would take from the plan is consistent in itself. */
static void use_plan(const ls_plan *p)
{
    int counts[LS__SCHEDULE_RANKS_MAX], sum = 0, cuts = p->stages > 1;
    const char *replicas = ls_plan_replicas(p), *cut = ls_plan_cut(p);
    const int stages = ls__schedule_parse_replicas("fuzz", replicas, strlen(replicas), counts);
    LS_ASSERT(stages == ls_plan_stages(p) && (cut == NULL) == (stages == 1));
    for (int s = 0; s < stages; s++) {
        LS_ASSERT(counts[s] <= ls_plan_micro_batches(p));
        sum += counts[s];
    }
    for (const char *at = cut; at != NULL && *at != '\0'; at++) {
        cuts += *at == ' ';
    }
    LS_ASSERT(cuts == stages - 1);
    use_settings(p, sum);
    LS_ASSERT(ls_plan_model(p)[0] != '\0' && ls_plan_schedule(p)[0] != '\0');
}

/* Plans with and without a limit of memory; every plan can be timed. */
static void use_profile(ls__profile *p)
{
    static ls__partition found;
    ls__chain chain;
    ls__partition_spec spec = {.levels = {{3, 1e9}}, .level_count = 1, .copies = 4.0};
    double seconds = 0.0;
    LS_ASSERT(ls__profile_chain(p, &chain) == LS_OK);
    LS_ASSERT(ls__partition_find(ls__env_posix(), &chain, &spec, &found) == LS_OK);
    LS_ASSERT(ls__plan_step(ls__env_posix(), p, &chain, &found, ls__plan_micro_batches(&found),
                            &seconds) == LS_OK);
    LS_ASSERT(found.workers == 3 && found.seconds > 0.0 && seconds >= found.seconds);
    spec.kind = LS__PARTITION_SMALLEST;
    LS_ASSERT(ls__partition_find(ls__env_posix(), &chain, &spec, &found) == LS_OK);
}

bool fuzz_profile(const uint8_t *data, size_t bytes)
{
    ls__profile *profile = NULL;
    const bool accepted =
        ls__profile_parse(ls__env_posix(), "fuzz", (const char *)data, bytes, &profile) == LS_OK;
    LS_ASSERT(accepted == (profile != NULL));
    if (accepted) {
        use_profile(profile);
    }
    ls__profile_free(profile);
    return accepted;
}

bool fuzz_plan(const uint8_t *data, size_t bytes)
{
    ls_plan *plan = NULL;
    const bool accepted =
        ls__plan_parse(ls__env_posix(), "fuzz", (const char *)data, bytes, &plan) == LS_OK;
    LS_ASSERT(accepted == (plan != NULL));
    if (accepted) {
        use_plan(plan);
    }
    ls_plan_free(plan);
    return accepted;
}

/* Every pair of some ranks has links, which are listed. */
static void use_cluster(ls__cluster *c)
{
    ls__arena arena;
    ls__traffic traffic;
    int count = 0;
    const int ranks = c->devices < 64 ? c->devices : 64;
    (void)ls__cluster_extend(c, ranks);
    ls__arena_init(&arena, ls__env_posix(), 4096);
    const ls__sim_resource *links = ls__cluster_links(c, ranks, &arena, &count);
    LS_ASSERT(links != NULL && count > 0 && ls__traffic_init(&traffic, c, ranks, &arena));
    ls__traffic_clear(&traffic);
    for (int r = 0; r < ranks; r++) {
        ls__traffic_add(&traffic, r, (r + 1) % ranks);
    }
    const ls__sim_route route = ls__traffic_route(&traffic, 1e6, 1);
    LS_ASSERT(route.resource[0] < count && route.resource[1] < count);
    LS_ASSERT(route.resource[0] == LS__SIM_NONE || links[route.resource[0]].rate > 0.0);
    ls__arena_fini(&arena);
}

bool fuzz_cluster(const uint8_t *data, size_t bytes)
{
    ls__cluster cluster;
    if (ls__cluster_parse("fuzz", (const char *)data, bytes, &cluster) < 0) {
        return false;
    }
    use_cluster(&cluster);
    return true;
}

bool fuzz_device(const uint8_t *data, size_t bytes)
{
    static ls__processor device;
    if (ls__processor_parse("fuzz", (const char *)data, bytes, 4, &device) < 0) {
        return false;
    }
    for (int64_t n = 1; n < (int64_t)1 << 30; n *= 64) {
        const double seconds = ls__processor_matmul(&device, n, 64, n);
        LS_ASSERT(isfinite(seconds) && seconds > 0.0);
    }
    LS_ASSERT(ls__processor_bytes(&device, 1.0) > 0.0);
    return true;
}
