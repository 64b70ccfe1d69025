/* How gradients are laid out in buckets.
 *
 *   registration order:   embed  fc1.w fc1.b   fc2.w fc2.b
 *   backward finishes:    fc2.b  fc2.w fc1.b   fc1.w embed
 *   buckets:            [ fc2.b | fc2.w fc1.b fc1.w | embed ]     the first is small, so that the
 *                                                                 first reduction starts early
 *
 * The order is the reverse of registration (VLDB 2020, section 3.2.3) until one synchronised
 * backward has shown the real one. Parameters start on 64-byte borders; the gaps hold zeros and
 * stay zero.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "reduce/internal.h"
#include "reduce/reducer.h"

static size_t cap_of(const ls_reducer *r, int bucket)
{
    int64_t cap = bucket == 0 && r->options.first_bucket_bytes < r->options.bucket_bytes
                      ? r->options.first_bucket_bytes
                      : r->options.bucket_bytes;
    return cap < 0 ? 0 : (size_t)cap;
}

/* Whether `param` opens a new bucket after one that holds `used` bytes of `dtype`. */
static bool opens_bucket(const ls_reducer *r, const ls__bucket *bucket, int bucket_index,
                         const ls__bucket_param *param, ls_dtype dtype)
{
    if (bucket->count == 0) {
        return false;
    }
    return param->dtype != dtype || bucket->bytes + param->bytes > cap_of(r, bucket_index);
}

static void name_bucket(const ls_reducer *r, const ls__plan *plan, int index)
{
    ls__bucket *bucket = &plan->buckets[index];
    size_t used = (size_t)snprintf(bucket->tag, sizeof bucket->tag, "bucket %d:", index);
    for (int i = 0; i < bucket->count; i++) {
        const char *name = r->params[plan->order[bucket->first + i]].name;
        if (used + strlen(name) + sizeof " (+1000000)" >= sizeof bucket->tag) {
            (void)snprintf(bucket->tag + used, sizeof bucket->tag - used, " (+%d)",
                           bucket->count - i);
            return;
        }
        used += (size_t)snprintf(bucket->tag + used, sizeof bucket->tag - used, " %s", name);
    }
}

/* Fills buckets in `plan->order`; sizes only. */
static void fill_buckets(ls_reducer *r, ls__plan *plan)
{
    ls_dtype dtype = LS_FLOAT32;
    plan->count = 0;
    for (int i = 0; i < r->param_count; i++) {
        ls__bucket_param *param = &r->params[plan->order[i]];
        ls__bucket *bucket = plan->count ? &plan->buckets[plan->count - 1] : NULL;
        if (!bucket || opens_bucket(r, bucket, plan->count - 1, param, dtype)) {
            bucket = &plan->buckets[plan->count++];
            bucket->first = i;
        }
        dtype = param->dtype;
        param->bucket = plan->count - 1;
        param->offset = bucket->bytes;
        bucket->bytes += ls__round_up(param->bytes, LS__PARAM_ALIGN);
        bucket->count++;
    }
}

ls_status ls__plan_make(ls_reducer *r, const int *order, uint32_t version, ls__plan *out)
{
    ls__plan plan = {.version = version};
    size_t n = (size_t)r->param_count;
    plan.order = ls__arena_alloc(&r->arena, n * sizeof *plan.order);
    plan.buckets = ls__arena_alloc(&r->arena, n * sizeof *plan.buckets);
    if (!plan.order || !plan.buckets) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory for the plan of %d parameters",
                        r->name, r->param_count);
    }
    memcpy(plan.order, order, n * sizeof *order);
    fill_buckets(r, &plan);
    for (int i = 0; i < plan.count; i++) {
        name_bucket(r, &plan, i);
        void *memory = NULL;
        ls_status status = ls_group_alloc(r->group, plan.buckets[i].bytes, &memory);
        if (status < 0) {
            ls__plan_release(r, &plan);
            return ls__fail_within(status, "reducer \"%s\", %s", r->name, plan.buckets[i].tag);
        }
        plan.buckets[i].memory = memory;
    }
    *out = plan;
    return LS_OK;
}

void ls__plan_release(ls_reducer *r, ls__plan *plan)
{
    const ls__env *env = r->runtime->env;
    for (int i = 0; i < plan->count; i++) {
        ls__bucket *bucket = &plan->buckets[i];
        if (bucket->memory) {
            (void)ls_group_dealloc(r->group, bucket->memory);
        }
        if (bucket->carry) {
            env->release(env, bucket->carry, bucket->bytes);
        }
    }
    plan->count = 0;
}

void *ls__reducer_grad(const ls_reducer *r, int param)
{
    const ls__bucket_param *p = &r->params[param];
    return p->user ? p->user : r->plan.buckets[p->bucket].memory + p->offset;
}

ls__place ls__reducer_place(const ls_reducer *r, int param)
{
    return (ls__place){r->params[param].bucket, r->params[param].offset};
}

int ls__reducer_buckets(const ls_reducer *r)
{
    return r->plan.count;
}

size_t ls__reducer_bucket_bytes(const ls_reducer *r, int bucket)
{
    return r->plan.buckets[bucket].bytes;
}

/* Rank 0's ready order on every rank; parameters that were never ready follow in the old order. */
static ls_status agree_order(ls_reducer *r, int *order)
{
    bool *seen = ls__arena_alloc(&r->arena, (size_t)r->param_count * sizeof *seen);
    if (!seen) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory to lay buckets out", r->name);
    }
    int n = 0;
    for (int i = 0; i < r->ready_count; i++) {
        order[n++] = r->ready_order[i];
        seen[r->ready_order[i]] = true;
    }
    for (int i = 0; i < r->param_count; i++) {
        int param = r->plan.order[i];
        if (!seen[param]) {
            order[n++] = param;
        }
    }
    LS_ASSERT(n == r->param_count);
    return ls_broadcast(r->group, order, n, LS_INT32, 0, NULL, NULL);
}

ls_status ls__reducer_replan(ls_reducer *r, void (*moved)(void *arg, int param, void *memory),
                             void *arg)
{
    int *order = ls__arena_alloc(&r->arena, (size_t)r->param_count * sizeof *order);
    if (!order) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory to lay buckets out", r->name);
    }
    LS_TRY(agree_order(r, order));
    if (memcmp(order, r->plan.order, (size_t)r->param_count * sizeof *order) == 0) {
        return LS_OK;
    }
    ls__plan old = r->plan;
    ls__plan plan;
    LS_TRY(ls__plan_make(r, order, old.version + 1, &plan));
    for (int i = 0; i < plan.count; i++) {
        plan.buckets[i].state = old.buckets[0].state;
    }
    r->plan = plan;
    for (int i = 0; i < r->param_count; i++) {
        moved(arg, i, ls__reducer_grad(r, i));
    }
    ls__plan_release(r, &old);
    return LS_OK;
}
