/* SPDX-License-Identifier: Apache-2.0 */
/* A barrier that names all missing ranks: every rank learns of every other one's arrival, so the
 * rank whose time is over first knows the list, and its text becomes the root cause for all. */
#include "base/options.h"
#include "comm/api/collective.h"
#include "comm/core/collective.h"

ls_status ls_monitored_barrier(ls_group *group, int64_t timeout_ms,
                               const ls_collective_options *options)
{
    LS__OPTIONS(ls_collective_options, given, options);
    given.timeout_ms = timeout_ms;
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_BARRIER,
                                                  .dtype = LS_UINT8,
                                                  .mark = 1,
                                                  .monitored = true,
                                                  .options = &given},
                                NULL);
}
