/* SPDX-License-Identifier: Apache-2.0 */
/* Note [One layout]
 * Parameters get registered memory in the layout of their gradients, so that sharding can gather
 * them in place. Optimizer state is made at the first step, in the order of the parameters'
 * addresses, which is the same order. Parameters move one after the other; registered memory takes
 * pages only as it is written, and the memory they leave returns to the system, so a model never
 * lies in memory twice; gradients do for that moment. A world of one moves nothing. A pointer from
 * ls_data of a parameter that was taken before the first synchronised backward is invalid after
 * it.
 *
 * Note [Parts only]
 * With zero 3 pages of other ranks' elements are given back. Memory of a device has no pages, so
 * there a rank obtains memory for its parts alone, one after the other:
 *
 *     layout    [ bucket 0: ░░ ██ ░░ ][ bucket 1: ░░░░ ████ ░░░░ ]     rank 1 of 3
 *     memory      ██ ████
 *
 * The address of a bucket, and of a parameter, is then that at which it would begin, were it whole:
 * whoever adds the place of this rank's first element to it is at that element. */
#include "ddp/values.h"

#include <lockstep/memory.h>

#include "autograd/param.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/options.h"
#include "comm/backend/plugin_group.h"
#include "reduce/plan.h"
#include "tensor/tensor.h"

#define RELEASE_BYTES ((size_t)32 << 20) /* moved between two returns of memory to the system */

void *ls__ddp_values_place(const ls__ddp_values *v, const ls_reducer *reducer, int i)
{
    const int of = ls__reducer_bucket_of(reducer, i);
    const ls__bucket_place bucket = ls__reducer_bucket_place(reducer, of);
    return ls__ddp_values_bucket(v, &bucket) +
           (ls__reducer_place(reducer, i).offset - bucket.offset);
}

bool ls__ddp_values_has(const ls__ddp_values *v, const ls_reducer *reducer, const ls_tensor *param,
                        int i)
{
    ls__pool *on = NULL;
    const void *at = ls__tensor_place((ls_tensor *)(uintptr_t)param, &on);
    return v->memory != NULL && at == ls__ddp_values_place(v, reducer, i);
}

/* Moves a parameter to its place. One that is a view of a larger tensor cannot move and stays where
 * it is, which costs only the gathering in place. */
static ls_status move(const ls__ddp_values *v, const ls_reducer *reducer, ls_tensor *param, int i)
{
    const ls_status status = ls__param_bind_value(param, ls__ddp_values_place(v, reducer, i));
    return status == LS_ERR_UNSUPPORTED ? LS_OK : status;
}

/* Memory for one of so many equal parts of each bucket. */
static ls_status open_regions(ls__ddp_values *v, const ls__env *env, const ls_reducer *reducer,
                              int parts, int part)
{
    const int regions = ls__reducer_regions(reducer);
    LS_ASSERT(v->memory == NULL && v->regions == 0); /* once for each wrapper */
    *v = (ls__ddp_values){.env = env,
                          .parts = parts,
                          .part = part,
                          .table_bytes = ((size_t)regions + 1) * sizeof *v->memory};
    v->memory = env->allocate(env, v->table_bytes);
    if (v->memory == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ddp: no memory for a table of %d regions", regions);
    }
    for (; v->regions < regions; v->regions++) {
        void *memory = NULL;
        LS_TRY(ls__group_buffers(ls__reducer_region_group(reducer, v->regions),
                                 ls__reducer_region_bytes(reducer, v->regions) / (size_t)parts,
                                 &memory));
        v->memory[v->regions] = memory;
    }
    return LS_OK;
}

ls_status ls__ddp_values_divide(ls__ddp_values *v, const ls__env *env, const ls_reducer *reducer,
                                const ls_group *group)
{
    return open_regions(v, env, reducer, ls_group_size(group), ls_group_rank(group));
}

ls_status ls__ddp_values_move(ls__ddp_values *v, const ls__env *env, const ls_reducer *reducer,
                              const ls_param *params, int count)
{
    size_t moved = 0;
    LS_TRY(open_regions(v, env, reducer, 1, 0));
    for (int i = 0; i < count; i++) {
        LS_TRY(move(v, reducer, params[i].value, i));
        moved += (size_t)ls_numel(params[i].value) * ls_dtype_size(ls_dtype_of(params[i].value));
        if (moved >= RELEASE_BYTES) {
            LS_TRY(ls_memory_release_cached());
            moved = 0;
        }
    }
    return ls_memory_release_cached();
}

char *ls__ddp_values_bucket(const ls__ddp_values *v, const ls__bucket_place *bucket)
{
    const size_t parts = (size_t)v->parts, before = bucket->bytes / parts * (size_t)v->part;
    return v->memory[bucket->region] + ((ptrdiff_t)(bucket->offset / parts) - (ptrdiff_t)before);
}

ls_status ls__ddp_values_gather(const ls__values_gathering *g, ls_work **work)
{
    const ls__bucket_place *bucket = g->bucket;
    const size_t part = bucket->bytes / (size_t)ls_group_size(g->group);
    return ls_all_gather(g->group, g->from + part * (size_t)ls_group_rank(g->group), g->to,
                         (int64_t)(part / ls_dtype_size(bucket->dtype)), bucket->dtype,
                         LS_OPTIONS(ls_collective_options, .tag = bucket->tag, .stream = g->stream),
                         work);
}

void ls__ddp_values_discard(const ls__ddp_values *v, const ls__bucket_place *bucket,
                            ls_group *group)
{
    char *memory = ls__ddp_values_bucket(v, bucket);
    const size_t part = bucket->bytes / (size_t)ls_group_size(group);
    const size_t own = part * (size_t)ls_group_rank(group);
    ls__group_discard(group, memory, own);
    ls__group_discard(group, memory + own + part, bucket->bytes - own - part);
}

void ls__ddp_values_free(ls__ddp_values *v, const ls_reducer *reducer, const ls_param *params,
                         int count)
{
    if (v->memory == NULL) {
        return;
    }
    for (int i = 0; v->parts == 1 && i < count; i++) {
        (void)ls__param_bind_value(params[i].value, NULL);
    }
    for (int i = 0; i < v->regions; i++) {
        (void)ls_group_dealloc(ls__reducer_region_group(reducer, i), v->memory[i]);
    }
    v->env->release(v->env, v->memory, v->table_bytes);
    *v = (ls__ddp_values){0};
}

void ls__ddp_values_drop(ls__ddp_values *v)
{
    if (v->memory != NULL) {
        v->env->release(v->env, v->memory, v->table_bytes);
    }
    *v = (ls__ddp_values){0};
}
