/* Note [One layout]
 * Parameters get registered memory in the layout of their gradients, so that sharding can gather
 * them in place. Optimizer state is made at the first step, in the order of the parameters'
 * addresses, which is the same order. Parameters move bucket by bucket, and the memory they leave
 * returns to the system, so a model never lies in memory twice; gradients do for that moment. A
 * world of one moves nothing. A pointer from ls_data of a parameter that was taken before the first
 * synchronised backward is invalid after it. */
#include "ddp/values.h"

#include <lockstep/memory.h>

#include "autograd/param.h"
#include "base/assert.h"
#include "base/error.h"
#include "reduce/plan.h"

/* Moves the parameters of one bucket. A parameter that is a view of a larger tensor cannot move and
 * stays where it is, which costs only the gathering in place. */
static ls_status move_bucket(const ls__values *v, const ls_reducer *reducer, const ls_param *params,
                             int count, int bucket)
{
    for (int i = 0; i < count; i++) {
        const ls__reduce_place place = ls__reducer_place(reducer, i);
        if (place.bucket != bucket) {
            continue;
        }
        const ls_status status =
            ls__param_bind_value(params[i].value, v->memory[bucket] + place.offset);
        if (status < 0 && status != LS_ERR_UNSUPPORTED) {
            return status;
        }
    }
    return LS_OK;
}

ls_status ls__values_move(ls__values *v, const ls__env *env, ls_group *group,
                          const ls_reducer *reducer, const ls_param *params, int count)
{
    const int buckets = ls__reducer_buckets(reducer);
    LS_ASSERT(v->memory == NULL && v->buckets == 0); /* once for each wrapper */
    *v = (ls__values){
        .env = env, .group = group, .table_bytes = ((size_t)buckets + 1) * sizeof *v->memory};
    v->memory = env->allocate(env, v->table_bytes);
    if (v->memory == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ddp: no memory for a table of %d buckets", buckets);
    }
    for (int b = 0; b < buckets; b++) {
        void *memory = NULL;
        LS_TRY(ls_group_alloc(group, ls__reducer_bucket_bytes(reducer, b), &memory));
        v->memory[b] = memory;
        v->buckets++;
        LS_TRY(move_bucket(v, reducer, params, count, b));
        LS_TRY(ls_memory_release_cached());
    }
    return LS_OK;
}

void ls__values_free(ls__values *v, const ls_param *params, int count)
{
    if (v->memory == NULL) {
        return;
    }
    for (int i = 0; i < count; i++) {
        (void)ls__param_bind_value(params[i].value, NULL);
    }
    for (int b = 0; b < v->buckets; b++) {
        (void)ls_group_dealloc(v->group, v->memory[b]);
    }
    v->env->release(v->env, v->memory, v->table_bytes);
    *v = (ls__values){0};
}

void ls__values_drop(ls__values *v)
{
    if (v->memory != NULL) {
        v->env->release(v->env, v->memory, v->table_bytes);
    }
    *v = (ls__values){0};
}
