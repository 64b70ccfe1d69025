/* How gradients are laid out in buckets.
 *
 *   registration order:   embed  fc1.w fc1.b   fc2.w fc2.b
 *   backward finishes:    fc2.b  fc2.w fc1.b   fc1.w embed
 *   buckets:            [ fc2.b | fc2.w fc1.b fc1.w | embed ]     the first is small, so that the
 *                                                                 first reduction starts early
 *
 * A bucket holds gradients of one type; where there are several, one bucket of each is open while
 * they are filled, and buckets stand in the order of their last parameters, which is that in which
 * they can be reduced.
 *
 * The order is the reverse of registration (VLDB 2020, section 3.2.3) until one synchronised
 * backward has shown the real one. Parameters start on 64-byte borders; the gaps hold zeros and
 * stay zero.
 */
#include "reduce/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"

/* The tag that error messages and traces show: "bucket 3:" and as many names as fit. */
static void name_bucket(const ls_reducer *r, const ls__reduce_plan *plan, int index)
{
    ls__reduce_bucket *bucket = &plan->buckets[index];
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

/* ---- which bucket a gradient goes to ------------------------------------------------------- */

/* A bucket that is being filled. One is open for each type; the position of its last parameter
 * decides when it can be reduced. */
typedef struct draft_bucket {
    ls__reduce_bucket made;
    int last, index, placed;
} draft_bucket;

typedef struct draft {
    draft_bucket *bucket; /* in order of opening */
    int count;
    int open[LS__REDUCE_DTYPES]; /* by type; -1: none is */
} draft;

/* Only bucket 0 may be smaller, so that the first reduction starts early. */
static size_t cap_of(const ls_reducer *r, int bucket)
{
    return bucket == 0 && r->options.first_bucket_bytes < r->options.bucket_bytes
               ? r->options.first_bucket_bytes
               : r->options.bucket_bytes;
}

/* Returns the open bucket of the parameter's type, or opens a new one when it is full. A parameter
 * larger than the cap gets a bucket of its own. */
static draft_bucket *bucket_for(const ls_reducer *r, draft *d, const ls__reduce_param *param)
{
    LS_ASSERT(param->dtype < LS__REDUCE_DTYPES);
    const int open = d->open[param->dtype];
    if (open >= 0 && d->bucket[open].made.bytes + param->bytes <= cap_of(r, open)) {
        return &d->bucket[open];
    }
    d->open[param->dtype] = d->count;
    d->bucket[d->count].made.dtype = param->dtype;
    return &d->bucket[d->count++];
}

/* Assigns every parameter a draft bucket and an offset. `last` ends up as the position at which the
 * bucket becomes complete. */
static void fill_draft(ls_reducer *r, const int *sequence, draft *d)
{
    for (int i = 0; i < r->param_count; i++) {
        ls__reduce_param *param = &r->params[sequence[i]];
        draft_bucket *bucket = bucket_for(r, d, param);
        param->bucket = (int)(bucket - d->bucket);
        param->offset = bucket->made.bytes;
        bucket->made.bytes += ls__round_up(param->bytes, LS__PARAM_ALIGN);
        bucket->made.count++;
        bucket->last = i;
    }
}

/* Numbers the buckets in the order in which they can be reduced, and lists the parameters of each
 * side by side in plan->order. Launching strictly in this order needs no agreement between
 * ranks. */
static void sort_draft(ls_reducer *r, draft *d, ls__reduce_plan *plan)
{
    int first = 0;
    for (int i = 0; i < r->param_count; i++) {
        draft_bucket *bucket = &d->bucket[r->params[plan->sequence[i]].bucket];
        if (bucket->last == i) {
            bucket->index = plan->count;
            bucket->made.first = first;
            first += bucket->made.count;
            plan->buckets[plan->count++] = bucket->made;
        }
    }
    LS_ASSERT(first == r->param_count && plan->count == d->count);
    for (int i = 0; i < r->param_count; i++) {
        ls__reduce_param *param = &r->params[plan->sequence[i]];
        draft_bucket *bucket = &d->bucket[param->bucket];
        param->bucket = bucket->index;
        plan->order[bucket->made.first + bucket->placed++] = plan->sequence[i];
    }
}

/* ---- the plan ------------------------------------------------------------------------------ */

/* All arrays lie in the arena: a reducer makes two plans at most. */
static ls_status alloc_plan(ls_reducer *r, ls__reduce_plan *plan, draft *d)
{
    const size_t n = (size_t)r->param_count;
    plan->sequence = ls__arena_alloc(&r->arena, n * sizeof *plan->sequence);
    plan->order = ls__arena_alloc(&r->arena, n * sizeof *plan->order);
    plan->buckets = ls__arena_alloc(&r->arena, n * sizeof *plan->buckets);
    d->bucket = ls__arena_alloc(&r->arena, n * sizeof *d->bucket);
    if (plan->sequence == NULL || plan->order == NULL || plan->buckets == NULL ||
        d->bucket == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory for the plan of %d parameters",
                        r->name, r->param_count);
    }
    return LS_OK;
}

/* Collective in effect: memory is registered with the group. A failure half-way is undone by
 * ls__plan_release. */
static ls_status alloc_buckets(ls_reducer *r, ls__reduce_plan *plan)
{
    for (int i = 0; i < plan->count; i++) {
        name_bucket(r, plan, i);
        void *memory = NULL;
        const ls_status status = ls_group_alloc(r->group, plan->buckets[i].bytes, &memory);
        if (status < 0) {
            return ls__fail_within(status, "reducer \"%s\", %s", r->name, plan->buckets[i].tag);
        }
        plan->buckets[i].memory = memory;
    }
    return LS_OK;
}

/* `out` is written only on success. params[].bucket and .offset are overwritten in any case, so a
 * failure leaves the old plan unusable. */
ls_status ls__plan_make(ls_reducer *r, const int *order, uint32_t version, ls__reduce_plan *out)
{
    ls__reduce_plan plan = {.version = version};
    draft d = {.open = {-1, -1, -1, -1}};
    LS_TRY(alloc_plan(r, &plan, &d));
    memcpy(plan.sequence, order, (size_t)r->param_count * sizeof *order);
    fill_draft(r, plan.sequence, &d);
    sort_draft(r, &d, &plan);
    const ls_status status = alloc_buckets(r, &plan);
    if (status < 0) {
        ls__plan_release(r, &plan);
        return status;
    }
    *out = plan;
    return LS_OK;
}

/* The old plan's arrays stay in the arena until the reducer dies. */
void ls__plan_release(ls_reducer *r, ls__reduce_plan *plan)
{
    const ls__env *env = r->runtime->env;
    for (int i = 0; i < plan->count; i++) {
        ls__reduce_bucket *bucket = &plan->buckets[i];
        if (bucket->memory != NULL) {
            (void)ls_group_dealloc(r->group, bucket->memory);
        }
        if (bucket->carry != NULL) {
            env->release(env, bucket->carry, bucket->bytes);
        }
    }
    plan->count = 0;
}

/* The caller's own memory takes precedence; its numbers are then copied into the bucket and
 * back. */
void *ls__reducer_grad(const ls_reducer *r, int param)
{
    LS_ASSERT(param >= 0 && param < r->param_count);
    const ls__reduce_param *p = &r->params[param];
    return p->user != NULL ? p->user : r->plan.buckets[p->bucket].memory + p->offset;
}

/* Where ddp lays the parameter itself, in memory of the same layout. */
ls__reduce_place ls__reducer_place(const ls_reducer *r, int param)
{
    return (ls__reduce_place){r->params[param].bucket, r->params[param].offset};
}

int ls__reducer_buckets(const ls_reducer *r)
{
    return r->plan.count;
}

size_t ls__reducer_bucket_bytes(const ls_reducer *r, int bucket)
{
    return r->plan.buckets[bucket].bytes;
}

/* Fills `order` with rank 0's ready order on every rank; parameters that never became ready follow
 * in the old order. Collective. */
static ls_status agree_order(ls_reducer *r, int *order)
{
    bool *seen = ls__arena_alloc(&r->arena, (size_t)r->param_count * sizeof *seen);
    if (seen == NULL) {
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

/* Only between backwards, and collective. Returns early on all ranks alike when the order is the
 * one in use. `moved` is called while both layouts exist, so that gradients can be copied. */
ls_status ls__reducer_replan(ls_reducer *r, void (*moved)(void *arg, int param, void *memory),
                             void *arg)
{
    int *order = ls__arena_alloc(&r->arena, (size_t)r->param_count * sizeof *order);
    if (order == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory to lay buckets out", r->name);
    }
    LS_TRY(agree_order(r, order));
    if (memcmp(order, r->plan.sequence, (size_t)r->param_count * sizeof *order) == 0) {
        return LS_OK;
    }
    ls__reduce_plan old = r->plan;
    ls__reduce_plan plan;
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
