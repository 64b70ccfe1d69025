/* Plans of pipelines, and the profiles that they are made from. */
#include <string.h>

#include "base/assert.h"
#include "base/env_posix.h"
#include "plan/plan.h"
#include "plan/predict.h"
#include "schedule/schedule.h"
#include "targets.h"

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
    LS_ASSERT(sum == ls_plan_workers(p) && cuts == stages - 1);
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
