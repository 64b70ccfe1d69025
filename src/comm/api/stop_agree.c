/* SPDX-License-Identifier: Apache-2.0 */
/* Agreement on a stop request, for programs without a reducer, which agrees in its control
 * exchange. */
#include <lockstep/comm.h>

#include "base/options.h"
#include "comm/api/control.h"
#include "comm/core/comm.h"
#include "comm/core/group.h"
#include "comm/core/round_robin.h"

/* The maximum over all ranks, so a request that reached one rank stops all. It is kept for
 * ls_stop_requested if the group is the one that agrees; Note [Agreement]. */
ls_status ls_stop_agree(ls_group *group, bool *stop)
{
    ls_runtime *runtime = ls__runtime_get("ls_stop_agree");
    if (runtime == NULL) {
        return ls__self.status;
    }
    if (stop == NULL) {
        return ls__fail(LS_ERR_INVALID, "ls_stop_agree: stop is NULL; give a bool for the answer");
    }
    const uint64_t key = group != NULL ? ls__group_agreement(ls__round_robin_at(group, 0)) : 0;
    ls__agreement_join(runtime, key);
    int32_t wanted = (int32_t)ls__stop_wanted(runtime);
    LS_TRY(ls__control_all_reduce(group, &wanted, 1, LS_INT32, LS_MAX,
                                  LS_OPTIONS(ls_collective_options, .tag = "stop")));
    if (wanted != 0 && atomic_load_explicit(&runtime->agreement, memory_order_relaxed) == key) {
        atomic_store_explicit(&runtime->stop_agreed, (uint32_t)wanted, memory_order_relaxed);
    }
    *stop = wanted != 0;
    return LS_OK;
}
