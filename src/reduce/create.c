/* SPDX-License-Identifier: Apache-2.0 */
/* Making and freeing a reducer: copies the registration, compares it over the ranks, lays out the
 * gradients. */
#include <math.h>
#include <string.h>

#include "base/options.h"
#include "base/size.h"
#include "comm/backend/plugin_group.h"
#include "reduce/bucket_size.h"
#include "reduce/compare.h"
#include "reduce/device.h"
#include "reduce/domain.h"
#include "reduce/exchange.h"
#include "reduce/hook.h"
#include "reduce/internal.h"
#include "reduce/plan.h"
#include "reduce/pool.h"
#include "reduce/reducer.h"
#include "reduce/shards.h"

#define PARAM_BYTES_MAX 4096 /* a larger size was never set: the options are uninitialised */

/* Into the arena; NULL without memory. */
static char *copy_text(ls_reducer *r, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = ls__arena_alloc(&r->arena, bytes);
    if (copy != NULL) {
        memcpy(copy, text, bytes);
    }
    return copy;
}

/* The texts go to the arena: the caller may free them. */
static ls_status copy_texts(ls_reducer *r, ls__reduce_param *to, const ls_reducer_param *from)
{
    to->name = copy_text(r, from->name);
    to->shape = from->shape ? copy_text(r, from->shape) : NULL;
    if (to->name == NULL || (from->shape && to->shape == NULL)) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory for parameter names", r->name);
    }
    return LS_OK;
}

/* The caller's buckets: for all parameters or for none. */
static ls_status check_map(const ls_reducer *r, int count, const ls_reducer_param *from)
{
    if (from->bucket < 0 || from->bucket > count) {
        return ls__fail(LS_ERR_INVALID,
                        "reducer \"%s\": parameter %s is in bucket %d; number buckets from 1 to at "
                        "most %d, or give 0 for all parameters and let Lockstep choose",
                        r->name, from->name, from->bucket, count);
    }
    if ((from->bucket > 0) != (r->params[0].map > 0)) {
        return ls__fail(LS_ERR_INVALID,
                        "reducer \"%s\": parameter %s is in bucket %d and parameter %s in bucket "
                        "%d (0: Lockstep chooses); give buckets for all parameters or for none",
                        r->name, r->params[0].name, r->params[0].map, from->name, from->bucket);
    }
    return LS_OK;
}

/* Checks and copies one registered parameter. */
static ls_status copy_param(ls_reducer *r, int i, int count, const ls_reducer_param *from)
{
    ls__reduce_param *to = &r->params[i];
    *to = (ls__reduce_param){.count = from->count,
                             .rows = from->rows,
                             .key = {.dtype = from->dtype, .divisor = from->divisor},
                             .map = from->bucket,
                             .user = from->grad};
    if (from->name == NULL || from->name[0] == '\0') {
        return ls__fail(LS_ERR_INVALID, "reducer \"%s\": parameter %d has no name; give it one",
                        r->name, i);
    }
    if ((unsigned)from->dtype >= LS__REDUCE_DTYPES || from->count < 0 ||
        !ls__bytes_of(from->count, ls_dtype_size(from->dtype), &to->bytes)) {
        return ls__fail(LS_ERR_INVALID,
                        "reducer \"%s\": parameter %s has %lld elements of %s; give 0 or more of"
                        " float32, float64, float16 or bfloat16",
                        r->name, from->name, (long long)from->count, ls_dtype_name(from->dtype));
    }
    if (!isfinite(from->divisor) || from->divisor < 0) {
        return ls__fail(LS_ERR_INVALID,
                        "reducer \"%s\": parameter %s has the divisor %g; give a positive number, "
                        "or 0 for that of its batch group",
                        r->name, from->name, from->divisor);
    }
    if (from->rows < 0 || (from->rows > 0 && from->count % from->rows != 0)) {
        return ls__fail(
            LS_ERR_INVALID,
            "reducer \"%s\": parameter %s has %lld elements in %lld rows; give a number of "
            "rows that divides them, or 0",
            r->name, from->name, (long long)from->count, (long long)from->rows);
    }
    LS_TRY(ls__device_check_param(r, from));
    LS_TRY(copy_texts(r, to, from));
    LS_TRY(check_map(r, count, from));
    LS_TRY(ls__domain_find(r, from->name, from->reduce_group, &to->key.domain));
    return ls__batch_find(r, from->name, from->batch_group, &to->key.batch);
}

/* Allocates what the comparison needs; the regions follow in lay_out. One extra element keeps an
 * empty model from allocating nothing. */
static ls_status alloc_tables(ls_reducer *r, int count)
{
    r->param_count = count;
    r->params = ls__arena_alloc(&r->arena, ((size_t)count + 1) * sizeof *r->params);
    r->ready_order = ls__arena_alloc(&r->arena, ((size_t)count + 1) * sizeof *r->ready_order);
    if (r->params == NULL || r->ready_order == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory for %d parameters", r->name,
                        count);
    }
    return LS_OK;
}

/* Makes the first plan. Peers wait for nothing more at this point, but a rank that fails here will
 * not take part in the first backward. */
static ls_status lay_out(ls_reducer *r, int count)
{
    int *order = ls__arena_alloc(&r->arena, ((size_t)count + 1) * sizeof *order);
    if (order == NULL) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory for %d parameters", r->name,
                        count);
    }
    for (int i = 0; i < count; i++) {
        order[i] = count - 1 - i;
    }
    LS_TRY(ls__bucket_sizes_choose(r));
    return ls__plan_make(r, order, 1, &r->plan);
}

/* Entry i of the caller's array, whose entries may be shorter or longer than this version's. */
static ls_reducer_param *entry_of(const ls_reducer *r, ls_reducer_param *params, int i)
{
    return (ls_reducer_param *)(void *)((char *)params + (size_t)i * r->options.param_bytes);
}

/* Copies the registration, and notes the groups that it names. */
static ls_status enter(ls_reducer *r, ls_reducer_param *params, int count)
{
    LS_TRY(alloc_tables(r, count));
    for (int i = 0; i < count; i++) {
        LS_TRY(copy_param(r, i, count, entry_of(r, params, i)));
    }
    return LS_OK;
}

static ls_status meet(ls_reducer *r)
{
    return ls_barrier(r->group, LS_OPTIONS(ls_collective_options, .tag = "ls_reducer_new"), NULL);
}

/* Registers, compares and lays out; collective. A rank that fails alone (a bad parameter, no
 * memory) fails the groups with the reason before it returns, so that its peers do not wait until
 * the timeout. They learn of it at the barrier at the latest, before groups are made that only some
 * of them take part in. A difference is found by every rank; failing the group then reports it to
 * the launcher as the root cause. */
static ls_status build(ls_reducer *r, ls_reducer_param *params, int count)
{
    ls_status status = enter(r, params, count);
    if (status < 0) {
        ls__reducer_abort(r, status, ls_error_message());
        return status;
    }
    LS_TRY(meet(r));
    status = ls__domains_open(r);
    status = status < 0 ? status : ls__domains_fill(r);
    if (status < 0) {
        ls__reducer_abort(r, status, ls_error_message());
        return status;
    }
    for (int d = 0; d < r->domain_count && status == LS_OK; d++) {
        status = ls__reducer_compare(r, &r->domains[d]);
    }
    if (status < 0) {
        ls__reducer_fail(r, status, ls_error_message());
        return status;
    }
    LS_TRY(meet(r)); /* a difference in another domain fails this rank, too */
    status = lay_out(r, count);
    if (status < 0) {
        ls__reducer_abort(r, status, ls_error_message());
        return status;
    }
    for (int i = 0; i < count; i++) {
        entry_of(r, params, i)->grad = ls__reducer_grad(r, i);
    }
    return LS_OK;
}

/* A mode without buckets of its own is one with the smallest or the largest. */
static ls_status apply_mode(ls_reducer_options *options)
{
    switch (options->mode) {
    case LS_REDUCE_OVERLAP:
    case LS_REDUCE_BUCKETED:
        return LS_OK;
    case LS_REDUCE_FLAT:
        options->bucket_bytes = options->first_bucket_bytes = SIZE_MAX / 2;
        return LS_OK;
    case LS_REDUCE_NAIVE:
        options->bucket_bytes = options->first_bucket_bytes = 0;
        return LS_OK;
    }
    return ls__fail(
        LS_ERR_INVALID,
        "ls_reducer_new: mode is %d; give one of LS_REDUCE_OVERLAP, LS_REDUCE_BUCKETED, "
        "LS_REDUCE_FLAT and LS_REDUCE_NAIVE",
        (int)options->mode);
}

/* The domain of the reducer's group, whose backend says where gradients lie. */
static ls_status open_groups(ls_reducer *r, ls_group *group)
{
    LS_TRY(ls__domains_init(r, group));
    r->on_device = !ls__group_on_host(r->group);
    return r->options.wire_dtype != LS_FLOAT32
               ? ls__promise_host("ls_reducer_new with wire_dtype", r->group)
               : LS_OK;
}

/* A rank that cannot even make the duplicate aborts the user's group: no other group exists yet
 * through which its peers could learn of the failure. */
ls_status ls_reducer_new(ls_group *group, ls_reducer_param *params, int count,
                         const ls_reducer_options *options, ls_reducer **out)
{
    ls_runtime *runtime = ls__runtime_get("ls_reducer_new");
    if (runtime == NULL) {
        return ls__self.status;
    }
    if (group == NULL || out == NULL || count < 0 || count > LS__PARAMS_MAX ||
        (count > 0 && params == NULL)) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_reducer_new: group %p, params %p, count %d; give a group, 0 to %d"
                        " parameters and a place for the result",
                        (void *)group, (void *)params, count, LS__PARAMS_MAX);
    }
    *out = NULL;
    LS__OPTIONS(ls_reducer_options, given, options);
    /* A caller without options has the entry of version 0.2, however long this one becomes. */
    if (given.param_bytes < sizeof *params || given.param_bytes > PARAM_BYTES_MAX) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_reducer_new: param_bytes is %zu; give sizeof(ls_reducer_param), the "
                        "default",
                        given.param_bytes);
    }
    LS_TRY(apply_mode(&given));
    LS_TRY(ls__wire_check(&given));
    ls_reducer *r = runtime->env->allocate(runtime->env, sizeof *r);
    if (r == NULL) {
        (void)ls_group_abort(group, "ls_reducer_new: no memory"); /* the others would wait */
        return ls__fail(LS_ERR_MEMORY, "ls_reducer_new: no memory");
    }
    memset(r, 0, sizeof *r);
    r->runtime = runtime;
    ls__runtime_enter(runtime, &r->guest);
    r->options = given;
    r->phases = 1;
    r->worker.env = runtime->env;
    ls__arena_init(&r->arena, runtime->env, 1 << 14);
    r->name = copy_text(r, r->options.name ? r->options.name : "reducer");
    r->options.backend = given.backend != NULL ? copy_text(r, given.backend) : NULL;
    ls_status status = LS_OK;
    if (r->name != NULL && (r->options.backend != NULL) == (given.backend != NULL)) {
        status = open_groups(r, group);
    } else {
        (void)ls_group_abort(group, "ls_reducer_new: no memory");
        status = ls__fail(LS_ERR_MEMORY, "ls_reducer_new: no memory");
    }
    if (status == LS_OK) {
        status = build(r, params, count);
    }
    status = status < 0 ? status : ls__exchange_open(r);
    if (status < 0) {
        (void)ls_reducer_free(r);
        return status;
    }
    ls__agreement_join(runtime, r->agreement);
    *out = r;
    return LS_OK;
}

/* Of a reducer whose runtime has ended: its groups and regions ended with it, and so did whatever
 * ran in them. */
static ls_status free_after_runtime(ls_reducer *r)
{
    const ls__env *env = r->arena.env;
    for (int i = 0; i < r->plan.region_count; i++) {
        const ls__reduce_region *region = &r->plan.regions[i];
        if (region->carry != NULL) {
            env->release(env, region->carry, region->bytes);
        }
    }
    ls__shards_free(r);
    ls__hook_free(r);
    ls__arena_fini(&r->arena);
    env->release(env, r, sizeof *r);
    return LS_OK;
}

/* A backward under way is aborted first and waited for, because its operations still write to the
 * regions. */
ls_status ls_reducer_free(ls_reducer *r)
{
    if (r == NULL) {
        return LS_OK;
    }
    if (r->guest.runtime == NULL) {
        return free_after_runtime(r);
    }
    if (r->phase == LS__REDUCER_CONTROL || r->phase == LS__REDUCER_RUNNING) {
        ls__reducer_abort(r, LS_ERR_STATE, "the reducer was freed before ls_reducer_wait");
        (void)ls_reducer_wait(r);
    }
    ls__exchange_close(r);
    ls__agreement_leave(r->runtime);
    ls__plan_release(r, &r->plan);
    ls__pool_free(r);
    const ls_status split = ls__division_free(r);
    ls_status status = ls__domains_free(r);
    status = split < 0 ? split : status;
    const ls__env *env = r->arena.env;
    ls__runtime_leave(&r->guest);
    ls__shards_free(r);
    ls__hook_free(r);
    ls__arena_fini(&r->arena);
    env->release(env, r, sizeof *r);
    return status;
}
