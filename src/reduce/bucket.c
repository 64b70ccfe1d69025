/* What the memory of the buckets holds (docs/design.md, D8).
 *
 *     EMPTY ──(a backward)──▶ LOCAL ──(reduction)──▶ REDUCED
 *
 * zero_grad makes a bucket EMPTY. A backward that finds it REDUCED, because zero_grad was not
 * called, sets the averages aside (carry) and makes it LOCAL; they are added to the new averages
 * after the reduction.
 *
 * Only LOCAL sums may be reduced: averages that took part a second time would be counted once for
 * each rank. */
#include "reduce/bucket.h"

#include <string.h>

#include "base/assert.h"
#include "kernel/reduce/reduce.h"
#include "reduce/plan.h"

/* ---- a backward begins -------------------------------------------------------------------- */

/* Puts reduced gradients aside and clears the bucket, which then collects only this rank's new
 * part; ls__buckets_settle adds them back after the reduction (docs/design.md, D8). */
static ls_status set_aside(ls_reducer *r, ls__reduce_bucket *bucket, const uint8_t *present)
{
    const ls__env *env = r->runtime->env;
    if (bucket->carry == NULL) {
        bucket->carry = env->allocate(env, bucket->bytes);
        if (bucket->carry == NULL) {
            return ls__fail(LS_ERR_MEMORY,
                            "reducer \"%s\", %s: no memory to keep the reduced"
                            " gradients; call zero_grad after each step",
                            r->name, bucket->tag);
        }
    }
    memset(bucket->carry, 0, bucket->bytes);
    for (int i = 0; i < bucket->count; i++) {
        int index = r->plan.order[bucket->first + i];
        const ls__reduce_param *param = &r->params[index];
        void *grad = ls__reducer_grad(r, index);
        if (present == NULL || present[index]) {
            memcpy((char *)bucket->carry + param->offset, grad, param->bytes);
        }
        memset(grad, 0, param->bytes);
    }
    LS_ASSERT(bucket->state == LS__BUCKET_REDUCED && !bucket->carried);
    bucket->carried = true;
    bucket->state = LS__BUCKET_LOCAL;
    return LS_OK;
}

/* Where the gradients' owner tells which are present and none is, a new step begins, and the weights
 * of the micro-batches start from zero. Without that knowledge ls_reducer_zero and the end of a
 * synchronised backward begin it: a micro-batch that reached no parameter counts as well. */
ls_status ls__buckets_begin(ls_reducer *r, const uint8_t *present)
{
    bool any_local = false;
    for (int b = 0; b < r->plan.count; b++) {
        ls__reduce_bucket *bucket = &r->plan.buckets[b];
        bool any = present == NULL && bucket->state != LS__BUCKET_EMPTY;
        for (int i = 0; i < bucket->count; i++) {
            int index = r->plan.order[bucket->first + i];
            if (present != NULL) {
                any = any || present[index];
                r->params[index].local = r->params[index].local && present[index];
            }
            any_local = any_local || r->params[index].local;
        }
        if (!any) {
            bucket->state = LS__BUCKET_EMPTY;
            bucket->carried = false;
        } else if (bucket->state == LS__BUCKET_REDUCED) {
            LS_TRY(set_aside(r, bucket, present));
        }
    }
    if (!any_local && present != NULL) {
        r->weight = 0.0;
    }
    return LS_OK;
}

/* ---- a bucket is launched ----------------------------------------------------------------- */

/* Makes the bucket's memory hold exactly this rank's contribution: parameters without one are zero,
 * also when an old average lies there. */
void ls__bucket_fill(ls_reducer *r, ls__reduce_bucket *bucket)
{
    for (int i = 0; i < bucket->count; i++) {
        const ls__reduce_param *param = &r->params[r->plan.order[bucket->first + i]];
        char *place = bucket->memory + param->offset;
        if (!param->local) {
            memset(place, 0, param->bytes);
        } else if (param->user != NULL) {
            memcpy(place, param->user, param->bytes);
        }
    }
}

/* The elements of the whole bucket. The gaps between parameters are reduced too; they hold
 * zeros. */
int64_t ls__bucket_elements(const ls__reduce_bucket *bucket)
{
    return (int64_t)(bucket->bytes / ls_dtype_size(bucket->dtype));
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

/* The buckets hold the averages. Adds back what was set aside, copies to gradients that live in the
 * caller's memory, and marks the buckets as reduced. */
void ls__buckets_settle(ls_reducer *r)
{
    LS_ASSERT(r->phase == LS__REDUCER_RUNNING && r->next_launch == r->plan.count);
    for (int b = 0; b < r->plan.count; b++) {
        ls__reduce_bucket *bucket = &r->plan.buckets[b];
        const bool carried = bucket->carried;
        LS_ASSERT(bucket->pending == 0 && bucket->work == NULL);
        if (carried) {
            ls__reduce_into(bucket->memory, bucket->carry, ls__bucket_elements(bucket),
                            bucket->dtype, LS_SUM);
            bucket->carried = false;
        }
        for (int i = 0; i < bucket->count; i++) {
            ls__reduce_param *param = &r->params[r->plan.order[bucket->first + i]];
            param->local = false;
            if (param->user && (param->used || carried)) {
                memcpy(param->user, bucket->memory + param->offset, param->bytes);
            }
        }
        bucket->state = LS__BUCKET_REDUCED;
    }
    r->weight = 0.0;
}

/* The memory itself is overwritten or zeroed by whoever puts the next gradient there. */
void ls__buckets_forget(ls_reducer *r)
{
    for (int b = 0; b < r->plan.count; b++) {
        r->plan.buckets[b].state = LS__BUCKET_EMPTY;
        r->plan.buckets[b].carried = false;
    }
    for (int i = 0; i < r->param_count; i++) {
        r->params[i].local = false;
    }
    r->weight = 0.0;
}
