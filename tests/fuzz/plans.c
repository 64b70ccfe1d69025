/* Plans of pipelines. */
#include <string.h>

#include "base/assert.h"
#include "base/env_posix.h"
#include "plan/plan.h"
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
