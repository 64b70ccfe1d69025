/* SPDX-License-Identifier: Apache-2.0 */
/* The states of gradients' memory (docs/design.md, D8).
 *
 *     absent ──(a backward)──▶ local ──(reduction)──▶ reduced        present: local or reduced
 *
 * zero_grad makes gradients absent. A backward that finds one reduced, because zero_grad was not
 * called, sets the average aside (carried) and collects only this rank's new part; the average is
 * added to the new one after the reduction.
 *
 * Only local sums may be reduced: averages that took part a second time would be counted once for
 * each rank.
 *
 * `present` of a parameter is the only record of whether its gradient is there. Autograd sets it
 * when it writes the first part, and zero_grad clears it; a caller without autograd says so by
 * ls_reducer_ready and ls_reducer_zero. */
#include "reduce/bucket.h"

#include "base/assert.h"
#include "comm/backend/plugin_group.h"
#include "kernel/reduce/reduce.h"
#include "reduce/internal.h"
#include "reduce/plan.h"
#include "reduce/pool.h"
#include "reduce/reducer.h"
#include "reduce/shards.h"
#include "reduce/table.h"

/* ---- a backward begins -------------------------------------------------------------------- */

static bool is_reduced(const ls__reduce_param *param)
{
    return param->present && !param->local && !param->carried;
}

bool ls__reducer_sets_aside(const ls_reducer *r, int param)
{
    return is_reduced(&r->params[param]);
}

/* Puts a reduced gradient aside and clears its place; ls__buckets_settle adds it back. */
static ls_status set_aside(ls_reducer *r, int index)
{
    const ls__env *env = r->runtime->env;
    ls__reduce_param *param = &r->params[index];
    ls__reduce_region *region = &r->plan.regions[param->region];
    if (region->carry == NULL) {
        region->carry = env->allocate(env, region->bytes);
        if (region->carry == NULL) {
            return ls__fail(LS_ERR_MEMORY,
                            "reducer \"%s\", %s: no memory to keep the reduced"
                            " gradients; call zero_grad after each step",
                            r->name, param->name);
        }
    }
    void *grad = ls__reducer_grad(r, index);
    ls__elements_copy(region->carry + param->offset, grad, param->bytes);
    ls__elements_zero(grad, param->bytes);
    ls__elements_zero(region->memory + param->offset,
                      param->bytes); /* where `grad` is the caller's */
    param->carried = true;
    return LS_OK;
}

/* Where absent gradients are overwritten and none is local, a new step begins, and the weights of
 * the micro-batches start from zero. Otherwise ls_reducer_zero and the end of a synchronised
 * backward begin it: a micro-batch that reached no parameter counts as well. */
ls_status ls__buckets_begin(ls_reducer *r)
{
    bool any_local = false;
    for (int i = 0; i < r->param_count; i++) {
        ls__reduce_param *param = &r->params[i];
        if (!param->present) {
            param->local = false;
            param->carried = false;
        } else if (is_reduced(param)) {
            LS_TRY(set_aside(r, i));
        }
        any_local = any_local || param->local;
    }
    if (!any_local && r->overwrites) {
        r->weight = 0.0;
    }
    return LS_OK;
}

/* The rows of a local backward are found when they are reduced; sums of shards may hold any. A
 * parameter that is ready from the start is not reached. */
void ls__buckets_mark_rows(ls_reducer *r, bool local)
{
    for (int i = 0; i < r->param_count; i++) {
        const ls__reduce_param *param = &r->params[i];
        if (param->table != NULL && (local || r->shards.of_rank > 0)) {
            param->table->rows.some = false;
        } else if (param->table != NULL) {
            ls__table_begin(param->table, !param->ready,
                            param->local ? ls__reducer_grad(r, i) : NULL);
        }
    }
}

/* ---- where gradients lie ------------------------------------------------------------------ */

char *ls__bucket_memory(const ls_reducer *r, const ls__reduce_bucket *bucket)
{
    return bucket->block != NULL ? bucket->block
                                 : r->plan.regions[bucket->region].memory + bucket->offset;
}

char *ls__bucket_gradient(const ls_reducer *r, const ls__reduce_param *param)
{
    const ls__reduce_bucket *bucket = &r->plan.buckets[param->bucket];
    return ls__bucket_memory(r, bucket) + (param->offset - bucket->offset);
}

/* Says where the gradients lie now. */
static void show(ls_reducer *r, const ls__reduce_bucket *bucket)
{
    for (int i = 0; i < bucket->count && r->moved != NULL; i++) {
        const int param = r->plan.order[bucket->first + i];
        r->moved(r->moved_arg, param, ls__reducer_grad(r, param));
    }
}

/* Gradients that are present come along, and the gaps between gradients are zero. */
static void move_in(const ls_reducer *r, const ls__reduce_bucket *bucket, char *block)
{
    for (int i = 0; i < bucket->count; i++) {
        const int *order = &r->plan.order[bucket->first + i];
        const ls__reduce_param *param = &r->params[*order];
        const size_t at = param->offset - bucket->offset, end = at + param->bytes;
        const size_t next =
            i + 1 < bucket->count ? r->params[order[1]].offset - bucket->offset : bucket->bytes;
        LS_ASSERT(end <= next);
        if (param->present) {
            ls__elements_copy(block + at, ls__bucket_gradient(r, param), param->bytes);
        }
        ls__elements_zero(block + end, next - end);
    }
}

ls_status ls__bucket_enter(ls_reducer *r, ls__reduce_bucket *bucket)
{
    char *block = NULL;
    if (bucket->block == NULL && ls__pool_has(r, bucket)) {
        LS_TRY(ls__pool_take(r, bucket, &block));
        move_in(r, bucket, block);
        bucket->block = block;
    }
    return LS_OK;
}

void ls__bucket_leave(ls_reducer *r, ls__reduce_bucket *bucket)
{
    char *block = bucket->block;
    if (block != NULL) {
        bucket->block = NULL;
        show(r, bucket);
        ls__pool_give(r, bucket, block);
    }
}

ls_status ls__reducer_write(ls_reducer *r, int param)
{
    ls__reduce_bucket *bucket = &r->plan.buckets[r->params[param].bucket];
    if (bucket->block != NULL || !ls__pool_has(r, bucket)) {
        return LS_OK;
    }
    LS_TRY(ls__bucket_enter(r, bucket));
    show(r, bucket);
    return LS_OK;
}

void ls__reducer_on_moved(ls_reducer *r, void (*moved)(void *arg, int param, void *memory),
                          void *arg)
{
    r->moved = moved;
    r->moved_arg = arg;
}

/* ---- a bucket is launched ----------------------------------------------------------------- */

/* Makes the bucket's memory hold exactly this rank's contribution: parameters without one are zero,
 * also when an old average lies there. */
ls_status ls__bucket_fill(ls_reducer *r, ls__reduce_bucket *bucket)
{
    if (r->scattered) {
        LS_TRY(ls__bucket_enter(r, bucket)); /* this rank may have nothing for it */
    }
    for (int i = 0; i < bucket->count; i++) {
        const ls__reduce_param *param = &r->params[r->plan.order[bucket->first + i]];
        char *place = ls__bucket_gradient(r, param);
        if (!param->local) {
            ls__elements_zero(place, param->bytes);
        } else if (param->user != NULL) {
            ls__elements_copy(place, param->user, param->bytes);
        } else {
            ls__shards_add(r, r->plan.order[bucket->first + i], place);
        }
    }
    return LS_OK;
}

/* The gaps between parameters are reduced too; they hold zeros. */
int64_t ls__bucket_elements(const ls_reducer *r, const ls__reduce_bucket *bucket)
{
    return (int64_t)(bucket->bytes / ls_dtype_size(r->plan.regions[bucket->region].key.dtype));
}

ls__bucket_part ls__bucket_own(const ls_reducer *r, const ls__reduce_bucket *bucket)
{
    LS_ASSERT(r->division.size > 0);
    const ls__reduce_domain *domain = &r->domains[r->plan.regions[bucket->region].key.domain];
    const bool hybrid = ls__division_is_hybrid(r);
    const int size = hybrid ? r->division.size : domain->size;
    const int rank = hybrid ? r->division.rank : domain->rank;
    const size_t bytes = bucket->bytes / (size_t)size; /* a multiple of 64 */
    return (ls__bucket_part){bucket->offset + bytes * (size_t)rank, bytes};
}

void ls__bucket_own_elements(const ls_reducer *r, const ls__reduce_param *param, int64_t *from,
                             int64_t *to)
{
    const ls__bucket_part own = ls__bucket_own(r, &r->plan.buckets[param->bucket]);
    const size_t end = param->offset + param->bytes, own_end = own.offset + own.bytes;
    const size_t first = own.offset > param->offset ? own.offset : param->offset;
    const size_t last = own_end < end ? own_end : end, unit = ls_dtype_size(param->key.dtype);
    *from = first < last ? (int64_t)((first - param->offset) / unit) : 0;
    *to = first < last ? (int64_t)((last - param->offset) / unit) : 0;
}

void ls__bucket_release(ls_reducer *r, ls__reduce_bucket *bucket)
{
    ls__bucket_leave(r, bucket);
    const ls__reduce_region *region = &r->plan.regions[bucket->region];
    const ls__bucket_part own = ls__bucket_own(r, bucket);
    ls_group *group = r->domains[region->key.domain].group;
    ls__group_discard(group, region->memory + bucket->offset, own.offset - bucket->offset);
    ls__group_discard(group, region->memory + own.offset + own.bytes,
                      bucket->offset + bucket->bytes - own.offset - own.bytes);
}

/* Whether any rank has something for the bucket. The bitmaps are the same everywhere, so all ranks
 * skip the same buckets. */
bool ls__bucket_used(const ls_reducer *r, const ls__reduce_bucket *bucket)
{
    for (int i = 0; i < bucket->count; i++) {
        if (r->params[r->plan.order[bucket->first + i]].used) {
            return true;
        }
    }
    return false;
}

/* ---- the backward ends -------------------------------------------------------------------- */

/* The bucket holds averages. Adds back what was set aside, copies to gradients that live in the
 * caller's memory. A gradient to which only other ranks contributed is present as well: every
 * rank's optimizer must step the same parameters. */
void ls__bucket_settle(ls_reducer *r, const ls__reduce_bucket *bucket)
{
    const ls__reduce_region *region = &r->plan.regions[bucket->region];
    LS_ASSERT(bucket->work == NULL && bucket->pending == 0);
    for (int i = 0; i < bucket->count; i++) {
        ls__reduce_param *param = &r->params[r->plan.order[bucket->first + i]];
        char *place = region->memory + param->offset;
        LS_ASSERT(param->ready);
        if (param->carried) {
            ls__reduce_into(place, region->carry + param->offset, param->count, param->key.dtype,
                            LS_SUM);
        }
        if (param->user != NULL && (param->used || param->carried)) {
            ls__elements_copy(param->user, place, param->bytes);
        }
        param->present = param->present || param->used;
        param->carried = false;
        param->local = false;
    }
}

/* A new step begins. */
void ls__buckets_settle(ls_reducer *r)
{
    LS_ASSERT(r->phase == LS__REDUCER_RUNNING && r->pass.next[r->phases] == r->plan.count &&
              r->pass.next_end == r->plan.count);
    ls__shards_forget(r);
    r->weight = 0.0;
    r->hook.steps++;
}

/* The memory itself is overwritten or zeroed by whoever puts the next gradient there. */
void ls__buckets_forget(ls_reducer *r)
{
    for (int i = 0; i < r->param_count; i++) {
        r->params[i].present = false;
        r->params[i].carried = false;
        r->params[i].local = false;
    }
    r->weight = 0.0;
}

/* ---- scattered averages --------------------------------------------------------------------- */

void ls__reducer_own(const ls_reducer *r, int param, int64_t *from, int64_t *count)
{
    int64_t to;
    ls__bucket_own_elements(r, &r->params[param], from, &to);
    *count = to - *from;
}

int ls__reducer_bucket_count(const ls_reducer *r)
{
    return r->plan.count;
}

ls__bucket_place ls__reducer_bucket_place(const ls_reducer *r, int bucket)
{
    const ls__reduce_bucket *b = &r->plan.buckets[bucket];
    const ls__reduce_key *key = &r->plan.regions[b->region].key;
    return (ls__bucket_place){.region = b->region,
                              .offset = b->offset,
                              .bytes = b->bytes,
                              .dtype = key->dtype,
                              .group = ls__division_is_hybrid(r) ? r->division.group[0]
                                                                 : r->domains[key->domain].group,
                              .tag = b->tag};
}

int ls__reducer_bucket_of(const ls_reducer *r, int param)
{
    return r->params[param].bucket;
}

bool ls__reducer_bucket_is_ready(const ls_reducer *r, int bucket)
{
    return r->plan.buckets[bucket].pending == 0;
}

bool ls__reducer_bucket_is_reached(const ls_reducer *r, int bucket)
{
    return r->plan.buckets[bucket].pending == r->plan.buckets[bucket].count;
}

/* ---- micro-batches without a backward ------------------------------------------------------ */

void ls__reducer_count_idle(ls_reducer *r, double weight)
{
    r->idle += weight;
}

double ls__buckets_idle(ls_reducer *r)
{
    const double idle = r->idle;
    r->idle = 0.0;
    return idle;
}

/* ---- local steps --------------------------------------------------------------------------- */

double ls__reducer_weights(const ls_reducer *r)
{
    return r->weighted ? r->weight : 0.0;
}

bool ls__reducer_is_local(const ls_reducer *r, int param)
{
    return r->params[param].local && r->params[param].present;
}

void ls__reducer_scale_local(ls_reducer *r, double factor)
{
    LS_ASSERT(r->phase != LS__REDUCER_CONTROL && r->phase != LS__REDUCER_RUNNING);
    for (int i = 0; i < r->param_count && factor != 1.0; i++) {
        const ls__reduce_param *param = &r->params[i];
        if (ls__reducer_is_local(r, i)) {
            void *grad = ls__reducer_grad(r, i);
            ls__scale(grad, grad, param->count, param->key.dtype, factor);
        }
    }
}

double ls__bucket_divisor(const ls_reducer *r, const ls__reduce_bucket *bucket)
{
    const ls__reduce_key *key = &r->plan.regions[bucket->region].key;
    return key->divisor != 0 ? key->divisor : r->batches[key->batch].divisor;
}
