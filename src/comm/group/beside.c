/* SPDX-License-Identifier: Apache-2.0 */
/* Note [Data of a device]
 * A group of the native backend moves memory of the host. What operations of the library exchange
 * for tensors of a device goes by the backend of that device instead, over a group of the same
 * ranks: that of a reducer (ls_reducer_options.backend), or one beside the group, which is made at
 * the first such exchange and freed with the group. So the device of the data chooses, as in
 * PyTorch's "cpu:gloo,cuda:nccl", and what a program exchanges itself stays where it was. Where a
 * rank cannot load the device's backend, data passes through memory of the host on all of them. */
#include <stdio.h>

#include "base/log.h"
#include "base/options.h"
#include "comm/api/control.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/group.h"
#include "comm/core/round_robin.h"
#include "comm/group/make.h"

ls_status ls__backend_everywhere(ls_group *group, const char *backend, ls__plugin **plugin)
{
    char why[LS__MESSAGE_MAX] = "";
    const int32_t rank = ls_group_rank(group), size = ls_group_size(group);
    int32_t first = size; /* the rank that cannot load it */
    *plugin = NULL;
    if (ls__plugin_of(ls__round_robin_at(group, 0)->comm, backend, plugin) < 0) {
        first = rank;
        (void)snprintf(why, sizeof why, "%s", ls_error_message());
    }
    LS_TRY(ls__control_all_reduce(group, &first, 1, LS_INT32, LS_MIN,
                                  LS_OPTIONS(ls_collective_options, .tag = "backend")));
    if (first == rank) {
        LS__WARN("group \"%s\": data of the device passes through memory of the host: %s",
                 ls_group_name(group), why);
    }
    *plugin = first < size ? NULL : *plugin;
    return LS_OK;
}

ls_status ls__group_beside(ls_group *group, const char *backend, ls_group **out)
{
    ls__plugin *plugin = NULL;
    *out = NULL;
    if (!ls__group_on_host(group)) {
        *out = group;
        return LS_OK;
    }
    if (!group->sought) {
        LS_TRY(ls__backend_everywhere(group, backend, &plugin));
        LS_TRY(plugin != NULL ? ls_group_create(group,
                                                LS_OPTIONS(ls_group_options, .name = group->name,
                                                           .backend = backend),
                                                &group->beside)
                              : LS_OK);
        group->sought = true;
    }
    *out = group->beside;
    return LS_OK;
}
