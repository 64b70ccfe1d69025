/* SPDX-License-Identifier: Apache-2.0 */
/* How gradients are laid out.
 *
 *   registration order:   embed  fc1.w fc1.b   fc2.w fc2.b
 *   backward finishes:    fc2.b  fc2.w fc1.b   fc1.w embed
 *   region:             | fc2.b fc2.w | fc1.b   fc1.w | embed |
 *   buckets:            [             ][              ][      ]     the first is small, so that the
 *                                                                   first reduction starts early
 *
 * A region holds the gradients of one type that are summed over one group and divided by the same
 * number, in one piece of memory. It is a row of buckets, which are padded to 64 bytes for each
 * rank of the group, so that each rank can reduce an equal part; parameters start on 64-byte
 * borders. All gaps hold zeros and stay zero. Buckets are launched in the order of their last
 * parameters, which is that in which they can be reduced; buckets of one group have the same order
 * on all of its ranks.
 *
 * The order is the reverse of registration (VLDB 2020, section 3.2.3) until one synchronised
 * backward has shown the real one.
 */
#include "reduce/plan.h"
#include "comm/api/control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "comm/backend/plugin_group.h"
#include "reduce/bucket.h"
#include "reduce/internal.h"

/* ---- the order ----------------------------------------------------------------------------- */

static bool same_key(const ls__reduce_key *a, const ls__reduce_key *b)
{
    return a->dtype == b->dtype && a->domain == b->domain && a->batch == b->batch &&
           memcmp(&a->divisor, &b->divisor, sizeof a->divisor) == 0;
}

/* A parameter's place in the layout: region by region, in the caller's buckets if there are any,
 * in the order in which gradients become ready. */
typedef struct ordered {
    int region, mapped, position, param;
} ordered;

static int by_place(const void *a, const void *b)
{
    const ordered *x = a, *y = b;
    if (x->region != y->region) {
        return x->region < y->region ? -1 : 1;
    }
    if (x->mapped != y->mapped) {
        return x->mapped < y->mapped ? -1 : 1;
    }
    return (x->position > y->position) - (x->position < y->position);
}

/* The region of a key; a new one where there is none yet. */
static int region_for(ls__reduce_plan *plan, const ls__reduce_key *key)
{
    for (int i = 0; i < plan->region_count; i++) {
        if (same_key(&plan->regions[i].key, key)) {
            return i;
        }
    }
    plan->regions[plan->region_count].key = *key;
    return plan->region_count++;
}

/* Fills plan->order and params[].region. `places` and `seen` are scratch for each
 * parameter and one more; seen[k] becomes 1 + the position of the first parameter of the caller's
 * bucket k. */
static void order_params(ls_reducer *r, ls__reduce_plan *plan, ordered *places, int *seen)
{
    for (int i = 0; i < r->param_count; i++) {
        ls__reduce_param *param = &r->params[plan->sequence[i]];
        param->region = region_for(plan, &param->key);
        if (param->map > 0 && seen[param->map] == 0) {
            seen[param->map] = 1 + i;
        }
        places[i] =
            (ordered){param->region, param->map > 0 ? seen[param->map] : 0, i, plan->sequence[i]};
    }
    qsort(places, (size_t)r->param_count, sizeof *places, by_place);
    for (int i = 0; i < r->param_count; i++) {
        plan->order[i] = places[i].param;
    }
}

/* ---- buckets ------------------------------------------------------------------------------- */

/* The most bytes of a bucket. The first of a region may be smaller, so that its reduction starts
 * early. */
static size_t cap_of(const ls_reducer *r, const ls__reduce_plan *plan,
                     const ls__reduce_bucket *bucket)
{
    const size_t cap = r->domains[plan->regions[bucket->region].key.domain].bucket_bytes;
    const size_t first = r->options.first_bucket_bytes;
    return bucket->offset == 0 && first < cap ? first : cap;
}

/* Whether a parameter fits into the bucket that is being filled. A table has a bucket of its
 * own. */
static bool fits(const ls_reducer *r, const ls__reduce_plan *plan, const ls__reduce_bucket *bucket,
                 const ls__reduce_param *param)
{
    const ls__reduce_param *first = &r->params[plan->order[bucket->first]];
    if (bucket->region != param->region || first->map != param->map || first->table != NULL ||
        param->table != NULL) {
        return false;
    }
    return param->map > 0 ||
           bucket->bytes + ls__round_up(param->bytes, LS__PARAM_ALIGN) <= cap_of(r, plan, bucket);
}

/* The size of the last bucket becomes final. */
static void close_bucket(ls_reducer *r, ls__reduce_plan *plan)
{
    if (plan->count > 0) {
        ls__reduce_bucket *bucket = &plan->buckets[plan->count - 1];
        ls__reduce_region *region = &plan->regions[bucket->region];
        const size_t unit = LS__CACHE_LINE * (size_t)r->domains[region->key.domain].size;
        bucket->bytes = (bucket->bytes + unit - 1) / unit * unit;
        region->bytes = bucket->offset + bucket->bytes;
    }
}

/* Cuts the regions into buckets, and places the parameters in them. */
static void fill_buckets(ls_reducer *r, ls__reduce_plan *plan)
{
    ls__reduce_bucket *bucket = NULL;
    for (int i = 0; i < r->param_count; i++) {
        ls__reduce_param *param = &r->params[plan->order[i]];
        if (bucket == NULL || !fits(r, plan, bucket, param)) {
            close_bucket(r, plan);
            bucket = &plan->buckets[plan->count++];
            *bucket = (ls__reduce_bucket){
                .region = param->region, .offset = plan->regions[param->region].bytes, .first = i};
        }
        param->offset = bucket->offset + bucket->bytes;
        bucket->bytes += ls__round_up(param->bytes, LS__PARAM_ALIGN);
        bucket->count++;
    }
    close_bucket(r, plan);
}

/* Sets buckets[].last. */
static void find_last(const ls_reducer *r, ls__reduce_plan *plan, int *position)
{
    for (int i = 0; i < r->param_count; i++) {
        position[plan->sequence[i]] = i;
    }
    for (int b = 0; b < plan->count; b++) {
        ls__reduce_bucket *bucket = &plan->buckets[b];
        for (int i = 0; i < bucket->count; i++) {
            const int at = position[plan->order[bucket->first + i]];
            bucket->last = at > bucket->last ? at : bucket->last;
        }
    }
}

/* The tag that error messages and traces show: "bucket 3:" and as many names as fit. `number`:
 * among the buckets of its domain. The ranks of a domain number them alike, although they may
 * launch buckets of other domains in between. */
static void name_bucket(const ls_reducer *r, const ls__reduce_plan *plan, int index, int number)
{
    ls__reduce_bucket *bucket = &plan->buckets[index];
    size_t used = (size_t)snprintf(bucket->tag, sizeof bucket->tag, "bucket %d:", number);
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

static int by_last(const void *a, const void *b)
{
    const ls__reduce_bucket *x = a, *y = b;
    return (x->last > y->last) - (x->last < y->last);
}

/* In the order of launching. */
static void number_buckets(ls_reducer *r, ls__reduce_plan *plan)
{
    if (plan->count > 0) { /* not for an empty model, whose tables are NULL */
        qsort(plan->buckets, (size_t)plan->count, sizeof *plan->buckets, by_last);
    }
    int named[LS__DOMAINS_MAX] = {0};
    for (int b = 0; b < plan->count; b++) {
        name_bucket(r, plan, b, named[plan->regions[plan->buckets[b].region].key.domain]++);
        for (int i = 0; i < plan->buckets[b].count; i++) {
            r->params[plan->order[plan->buckets[b].first + i]].bucket = b;
        }
    }
}

/* ---- the plan ------------------------------------------------------------------------------ */

/* All arrays lie in the arena: a reducer makes two plans at most. */
static ls_status alloc_plan(ls_reducer *r, ls__reduce_plan *plan)
{
    const size_t n = (size_t)r->param_count + 1; /* not nothing for an empty model */
    plan->sequence = ls__arena_alloc(&r->arena, n * sizeof *plan->sequence);
    plan->order = ls__arena_alloc(&r->arena, n * sizeof *plan->order);
    plan->regions = ls__arena_alloc(&r->arena, n * sizeof *plan->regions);
    plan->buckets = ls__arena_alloc(&r->arena, n * sizeof *plan->buckets);
    if (plan->sequence == NULL || plan->order == NULL || plan->regions == NULL ||
        plan->buckets == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory for the plan of %d parameters",
                        r->name, r->param_count);
    }
    return LS_OK;
}

/* Decides where everything lies; no memory for gradients yet. */
static ls_status draw(ls_reducer *r, ls__reduce_plan *plan)
{
    const ls__arena_mark mark = ls__arena_mark_get(&r->arena);
    const size_t n = (size_t)r->param_count + 1;
    ordered *places = ls__arena_alloc(&r->arena, n * sizeof *places);
    int *scratch = ls__arena_alloc(&r->arena, n * sizeof *scratch);
    if (places == NULL || scratch == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory for the plan of %d parameters",
                        r->name, r->param_count);
    }
    order_params(r, plan, places, scratch);
    fill_buckets(r, plan);
    find_last(r, plan, scratch);
    number_buckets(r, plan);
    ls__arena_rewind(&r->arena, mark);
    return LS_OK;
}

/* Collective in effect: memory is registered with the groups. A failure half-way is undone by
 * ls__plan_release. */
static ls_status alloc_regions(ls_reducer *r, ls__reduce_plan *plan)
{
    for (int i = 0; i < plan->region_count; i++) {
        void *memory = NULL;
        const ls_status status = ls__group_buffers(r->domains[plan->regions[i].key.domain].group,
                                                   plan->regions[i].bytes, &memory);
        if (status < 0) {
            return ls__fail_within(status, "reducer \"%s\", %s gradients", r->name,
                                   ls_dtype_name(plan->regions[i].key.dtype));
        }
        plan->regions[i].memory = memory;
        LS_TRY(ls__wire_open(r, &plan->regions[i]));
    }
    return LS_OK;
}

/* `out` is written only on success. The places of the parameters are overwritten in any case, so a
 * failure leaves the old plan unusable. */
ls_status ls__plan_make(ls_reducer *r, const int *order, uint32_t version, ls__reduce_plan *out)
{
    ls__reduce_plan plan = {.version = version};
    LS_TRY(alloc_plan(r, &plan));
    memcpy(plan.sequence, order, (size_t)r->param_count * sizeof *order);
    LS_TRY(draw(r, &plan));
    const ls_status status = alloc_regions(r, &plan);
    if (status < 0) {
        ls__plan_release(r, &plan);
        return status;
    }
    *out = plan;
    return LS_OK;
}

void ls__plan_forget_scratch(ls_reducer *r, ls__reduce_plan *plan)
{
    for (int b = 0; b < plan->count; b++) {
        ls__reduce_bucket *bucket = &plan->buckets[b];
        ls_group *group = r->domains[plan->regions[bucket->region].key.domain].group;
        for (int i = 0; i < LS_BUCKET_SLOTS; i++) {
            (void)ls_group_dealloc(group, bucket->scratch[i].memory);
            bucket->scratch[i] = (ls__bucket_scratch){0};
        }
    }
}

/* The old plan's arrays stay in the arena until the reducer dies. */
void ls__plan_release(ls_reducer *r, ls__reduce_plan *plan)
{
    const ls__env *env = r->runtime->env;
    ls__plan_forget_scratch(r, plan);
    for (int i = 0; i < plan->region_count; i++) {
        ls__reduce_region *region = &plan->regions[i];
        if (region->memory != NULL) {
            (void)ls_group_dealloc(r->domains[region->key.domain].group, region->memory);
        }
        ls__wire_close(r, region);
        if (region->carry != NULL) {
            env->release(env, region->carry, region->bytes);
        }
    }
    plan->region_count = 0;
}

/* The caller's own memory takes precedence; its numbers are then copied into the region and
 * back. */
void *ls__reducer_grad(const ls_reducer *r, int param)
{
    LS_ASSERT(param >= 0 && param < r->param_count);
    const ls__reduce_param *p = &r->params[param];
    return p->user != NULL ? p->user : ls__bucket_gradient(r, p);
}

bool *ls__reducer_present(ls_reducer *r, int param)
{
    LS_ASSERT(param >= 0 && param < r->param_count);
    return &r->params[param].present;
}

/* Where ddp lays the parameter itself, in memory of the same layout. */
ls__reduce_place ls__reducer_place(const ls_reducer *r, int param)
{
    return (ls__reduce_place){r->params[param].region, r->params[param].offset};
}

int ls__reducer_regions(const ls_reducer *r)
{
    return r->plan.region_count;
}

size_t ls__reducer_region_bytes(const ls_reducer *r, int region)
{
    return r->plan.regions[region].bytes;
}

ls_group *ls__reducer_region_group(const ls_reducer *r, int region)
{
    return r->domains[r->plan.regions[region].key.domain].group;
}

ls_dtype ls__reducer_region_dtype(const ls_reducer *r, int region)
{
    return r->plan.regions[region].key.dtype;
}

/* ---- the observed order -------------------------------------------------------------------- */

/* Fills `order` with this rank's ready order; parameters that never became ready follow in the old
 * order. */
static void own_order(const ls_reducer *r, int *order, bool *seen)
{
    int n = 0;
    for (int i = 0; i < r->pass.ready_count; i++) {
        order[n++] = r->ready_order[i];
        seen[r->ready_order[i]] = true;
    }
    for (int i = 0; i < r->param_count; i++) {
        const int param = r->plan.sequence[i];
        if (!seen[param]) {
            order[n++] = param;
        }
    }
    LS_ASSERT(n == r->param_count);
}

/* Gives the domain's parameters, where they stand in `order`, the order of its rank 0. Ranks number
 * the parameters of a domain alike, but not all parameters. `number` and `agreed`: [param_count] of
 * scratch. Collective. */
static ls_status agree_order(ls_reducer *r, int d, int *order, int *number, int *agreed)
{
    const ls__reduce_domain *domain = &r->domains[d];
    int n = 0;
    for (int i = 0; i < domain->param_count; i++) {
        number[domain->params[i]] = i;
    }
    for (int i = 0; i < r->param_count; i++) {
        if (r->params[order[i]].key.domain == d) {
            agreed[n++] = number[order[i]];
        }
    }
    LS_ASSERT(n == domain->param_count);
    LS_TRY(ls__control_broadcast(domain->group, agreed, n, LS_INT32, 0, NULL));
    n = 0;
    for (int i = 0; i < r->param_count; i++) {
        if (r->params[order[i]].key.domain == d) {
            order[i] = domain->params[agreed[n++]];
        }
    }
    return LS_OK;
}

/* Only between backwards, and collective. Where the order is the one in use, nothing moves. `moved`
 * is called while both layouts exist, so that gradients can be copied. */
ls_status ls__reducer_replan(ls_reducer *r, void (*moved)(void *arg, int param, void *memory),
                             void *arg)
{
    const size_t n = (size_t)r->param_count + 1;
    int *order = ls__arena_alloc(&r->arena, 3 * n * sizeof *order);
    bool *seen = ls__arena_alloc(&r->arena, n * sizeof *seen);
    if (order == NULL || seen == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory for the plan of %d parameters",
                        r->name, r->param_count);
    }
    own_order(r, order, seen);
    for (int d = 0; d < r->domain_count; d++) {
        LS_TRY(agree_order(r, d, order, order + n, order + 2 * n));
    }
    if (memcmp(order, r->plan.sequence, (size_t)r->param_count * sizeof *order) == 0) {
        r->plan.version++;
        return LS_OK;
    }
    ls__reduce_plan old = r->plan;
    ls__reduce_plan plan;
    LS_TRY(ls__plan_make(r, order, old.version + 1, &plan));
    r->plan = plan;
    for (int i = 0; i < r->param_count; i++) {
        moved(arg, i, ls__reducer_grad(r, i));
    }
    ls__plan_release(r, &old);
    return LS_OK;
}
