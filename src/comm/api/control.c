/* SPDX-License-Identifier: Apache-2.0 */
/* See control.h. */
#include "comm/api/control.h"
#include "comm/api/collective.h"
#include "comm/core/collective.h"

ls_status ls__control_all_reduce(ls_group *group, void *values, int64_t count, ls_dtype dtype,
                                 ls_reduce_op op, const ls_collective_options *options)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_ALL_REDUCE,
                                                  .input = values,
                                                  .output = values,
                                                  .count = count,
                                                  .dtype = dtype,
                                                  .op = op,
                                                  .control = true,
                                                  .options = options},
                                NULL);
}

ls_status ls__control_all_gather(ls_group *group, const void *own, void *all, int64_t count,
                                 ls_dtype dtype, const ls_collective_options *options)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_ALL_GATHER,
                                                  .input = own,
                                                  .output = all,
                                                  .count = count,
                                                  .dtype = dtype,
                                                  .control = true,
                                                  .options = options},
                                NULL);
}

ls_status ls__control_broadcast(ls_group *group, void *values, int64_t count, ls_dtype dtype,
                                int root, const ls_collective_options *options)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_BROADCAST,
                                                  .input = values,
                                                  .output = values,
                                                  .count = count,
                                                  .dtype = dtype,
                                                  .root = root,
                                                  .control = true,
                                                  .options = options},
                                NULL);
}

ls_status ls__control_send(ls_group *group, const void *bytes, size_t count, int peer, int tag,
                           const ls_collective_options *options)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_SEND,
                                                  .input = bytes,
                                                  .count = (int64_t)count,
                                                  .dtype = LS_UINT8,
                                                  .root = peer,
                                                  .tag = tag,
                                                  .control = true,
                                                  .options = options},
                                NULL);
}

ls_status ls__control_recv(ls_group *group, void *bytes, size_t count, int peer, int tag,
                           const ls_collective_options *options)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_RECV,
                                                  .output = bytes,
                                                  .count = (int64_t)count,
                                                  .dtype = LS_UINT8,
                                                  .root = peer,
                                                  .tag = tag,
                                                  .control = true,
                                                  .options = options},
                                NULL);
}
