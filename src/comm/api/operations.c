/* SPDX-License-Identifier: Apache-2.0 */
/* The public operations, each of which is one call of ls__collective_start. Arguments, in-place
 * rules and errors are documented in include/lockstep/comm.h and checked in collective_check.c. */
#include <lockstep/comm.h>

#include "comm/api/collective.h"
#include "comm/core/collective.h"
#include "comm/core/comm.h"

ls_status ls_all_reduce(ls_group *group, const void *in, void *out, int64_t count, ls_dtype dtype,
                        ls_reduce_op op, const ls_collective_options *options, ls_work **work)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_ALL_REDUCE,
                                                  .input = in,
                                                  .output = out,
                                                  .count = count,
                                                  .dtype = dtype,
                                                  .op = op,
                                                  .options = options},
                                work);
}

ls_status ls_reduce_scatter(ls_group *group, const void *in, void *out, int64_t count,
                            ls_dtype dtype, ls_reduce_op op, const ls_collective_options *options,
                            ls_work **work)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_REDUCE_SCATTER,
                                                  .input = in,
                                                  .output = out,
                                                  .count = count,
                                                  .dtype = dtype,
                                                  .op = op,
                                                  .options = options},
                                work);
}

ls_status ls_all_gather(ls_group *group, const void *in, void *out, int64_t count, ls_dtype dtype,
                        const ls_collective_options *options, ls_work **work)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_ALL_GATHER,
                                                  .input = in,
                                                  .output = out,
                                                  .count = count,
                                                  .dtype = dtype,
                                                  .options = options},
                                work);
}

ls_status ls_broadcast(ls_group *group, void *buf, int64_t count, ls_dtype dtype, int root,
                       const ls_collective_options *options, ls_work **work)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_BROADCAST,
                                                  .input = buf,
                                                  .output = buf,
                                                  .count = count,
                                                  .dtype = dtype,
                                                  .root = root,
                                                  .options = options},
                                work);
}

ls_status ls_reduce(ls_group *group, const void *in, void *out, int64_t count, ls_dtype dtype,
                    ls_reduce_op op, int root, const ls_collective_options *options, ls_work **work)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_REDUCE,
                                                  .input = in,
                                                  .output = out,
                                                  .count = count,
                                                  .dtype = dtype,
                                                  .op = op,
                                                  .root = root,
                                                  .options = options},
                                work);
}

ls_status ls_gather(ls_group *group, const void *in, void *out, int64_t count, ls_dtype dtype,
                    int root, const ls_collective_options *options, ls_work **work)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_GATHER,
                                                  .input = in,
                                                  .output = out,
                                                  .count = count,
                                                  .dtype = dtype,
                                                  .root = root,
                                                  .options = options},
                                work);
}

ls_status ls_scatter(ls_group *group, const void *in, void *out, int64_t count, ls_dtype dtype,
                     int root, const ls_collective_options *options, ls_work **work)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_SCATTER,
                                                  .input = in,
                                                  .output = out,
                                                  .count = count,
                                                  .dtype = dtype,
                                                  .root = root,
                                                  .options = options},
                                work);
}

ls_status ls_barrier(ls_group *group, const ls_collective_options *options, ls_work **work)
{
    return ls__collective_start(
        group,
        &(ls__collective){.operation = LS__OP_BARRIER, .dtype = LS_UINT8, .options = options},
        work);
}

ls_status ls_send(ls_group *group, const void *buf, int64_t count, ls_dtype dtype, int peer,
                  int tag, const ls_collective_options *options, ls_work **work)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_SEND,
                                                  .input = buf,
                                                  .count = count,
                                                  .dtype = dtype,
                                                  .root = peer,
                                                  .tag = tag,
                                                  .options = options},
                                work);
}

ls_status ls_recv(ls_group *group, void *buf, int64_t count, ls_dtype dtype, int peer, int tag,
                  const ls_collective_options *options, ls_work **work)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_RECV,
                                                  .output = buf,
                                                  .count = count,
                                                  .dtype = dtype,
                                                  .root = peer,
                                                  .tag = tag,
                                                  .options = options},
                                work);
}

ls_status ls_all_to_all(ls_group *group, const void *in, void *out, int64_t count, ls_dtype dtype,
                        const ls_collective_options *options, ls_work **work)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_ALL_TO_ALL,
                                                  .input = in,
                                                  .output = out,
                                                  .count = count,
                                                  .dtype = dtype,
                                                  .options = options},
                                work);
}

ls_status ls_all_to_all_v(ls_group *group, const void *in, const int64_t *in_counts,
                          const int64_t *in_offsets, void *out, const int64_t *out_counts,
                          const int64_t *out_offsets, ls_dtype dtype,
                          const ls_collective_options *options, ls_work **work)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_ALL_TO_ALL_V,
                                                  .input = in,
                                                  .output = out,
                                                  .counts = {in_counts, out_counts},
                                                  .offsets = {in_offsets, out_offsets},
                                                  .dtype = dtype,
                                                  .options = options},
                                work);
}

ls_status ls_all_gather_v(ls_group *group, const void *in, int64_t count, void *out,
                          const int64_t *counts, const int64_t *offsets, ls_dtype dtype,
                          const ls_collective_options *options, ls_work **work)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_ALL_GATHER_V,
                                                  .input = in,
                                                  .output = out,
                                                  .count = count,
                                                  .counts = {NULL, counts},
                                                  .offsets = {NULL, offsets},
                                                  .dtype = dtype,
                                                  .options = options},
                                work);
}

ls_status ls_reduce_scatter_v(ls_group *group, const void *in, const int64_t *counts,
                              const int64_t *offsets, void *out, ls_dtype dtype, ls_reduce_op op,
                              const ls_collective_options *options, ls_work **work)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_REDUCE_SCATTER_V,
                                                  .input = in,
                                                  .output = out,
                                                  .counts = {counts, NULL},
                                                  .offsets = {offsets, NULL},
                                                  .dtype = dtype,
                                                  .op = op,
                                                  .options = options},
                                work);
}

ls_status ls_gather_v(ls_group *group, const void *in, int64_t count, void *out,
                      const int64_t *counts, const int64_t *offsets, ls_dtype dtype, int root,
                      const ls_collective_options *options, ls_work **work)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_GATHER_V,
                                                  .input = in,
                                                  .output = out,
                                                  .count = count,
                                                  .counts = {NULL, counts},
                                                  .offsets = {NULL, offsets},
                                                  .dtype = dtype,
                                                  .root = root,
                                                  .options = options},
                                work);
}

ls_status ls_scatter_v(ls_group *group, const void *in, const int64_t *counts,
                       const int64_t *offsets, void *out, int64_t count, ls_dtype dtype, int root,
                       const ls_collective_options *options, ls_work **work)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = LS__OP_SCATTER_V,
                                                  .input = in,
                                                  .output = out,
                                                  .count = count,
                                                  .counts = {counts, NULL},
                                                  .offsets = {offsets, NULL},
                                                  .dtype = dtype,
                                                  .root = root,
                                                  .options = options},
                                work);
}

/* ls_scan and ls_exscan differ in nothing but the operation. */
static ls_status scan(ls__operation operation, ls_group *group, const void *in, void *out,
                      int64_t count, ls_dtype dtype, ls_reduce_op op,
                      const ls_collective_options *options, ls_work **work)
{
    return ls__collective_start(group,
                                &(ls__collective){.operation = operation,
                                                  .input = in,
                                                  .output = out,
                                                  .count = count,
                                                  .dtype = dtype,
                                                  .op = op,
                                                  .options = options},
                                work);
}

ls_status ls_scan(ls_group *group, const void *in, void *out, int64_t count, ls_dtype dtype,
                  ls_reduce_op op, const ls_collective_options *options, ls_work **work)
{
    return scan(LS__OP_SCAN, group, in, out, count, dtype, op, options, work);
}

ls_status ls_exscan(ls_group *group, const void *in, void *out, int64_t count, ls_dtype dtype,
                    ls_reduce_op op, const ls_collective_options *options, ls_work **work)
{
    return scan(LS__OP_EXSCAN, group, in, out, count, dtype, op, options, work);
}
