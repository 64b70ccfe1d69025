/* More public operations: all_to_all, scan and exscan. */
#include <lockstep/comm.h>

#include "comm/collective.h"

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
