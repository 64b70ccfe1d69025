/* Making and freeing a reducer: copies the registration, compares it over the ranks, lays out the
 * buckets.
 *
 * Note [An abort reaches one group]
 * The reducer works in a duplicate of the user's group. A poisoned loss fails that duplicate on all
 * ranks, and the user's own group stays usable, for example to report the failure. */
#include <string.h>

#include "base/options.h"
#include "base/size.h"
#include "comm/api/collective.h"
#include "reduce/compare.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"

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

/* Checks one registered parameter and copies its texts into the arena: the caller may free them. */
static ls_status copy_param(ls_reducer *r, int i, const ls_reducer_param *from)
{
    ls__reduce_param *to = &r->params[i];
    *to = (ls__reduce_param){.count = from->count, .dtype = from->dtype, .user = from->grad};
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
    to->name = copy_text(r, from->name);
    to->shape = from->shape ? copy_text(r, from->shape) : NULL;
    if (to->name == NULL || (from->shape && to->shape == NULL)) {
        return ls__fail(LS_ERR_MEMORY, "reducer \"%s\": no memory for parameter names", r->name);
    }
    return LS_OK;
}

/* Allocates what the comparison needs; the buckets follow in lay_out. One extra element keeps an
 * empty model from allocating nothing. */
static ls_status alloc_tables(ls_reducer *r, int count)
{
    r->param_count = count;
    r->params = ls__arena_alloc(&r->arena, ((size_t)count + 1) * sizeof *r->params);
    r->ready_order = ls__arena_alloc(&r->arena, ((size_t)count + 1) * sizeof *r->ready_order);
    r->control_bytes =
        ls__round_up(sizeof(ls__reduce_control) + ((size_t)count + 7) / 8, LS__CACHE_LINE);
    void *control = NULL;
    LS_TRY(ls_group_alloc(r->group, r->control_bytes * (size_t)r->size, &control));
    r->control = control;
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
    return ls__plan_make(r, order, 1, &r->plan);
}

/* Entry i of the caller's array, whose entries may be shorter or longer than this version's. */
static ls_reducer_param *entry_of(const ls_reducer *r, ls_reducer_param *params, int i)
{
    return (ls_reducer_param *)(void *)((char *)params + (size_t)i * r->options.param_bytes);
}

/* Registers, compares and lays out; collective. A rank that fails alone (a bad parameter, no
 * memory) fails the group with the reason before it returns, so that its peers do not wait until the
 * timeout. A difference is found by every rank; failing the group then reports it to the launcher
 * as the root cause. */
static ls_status build(ls_reducer *r, ls_reducer_param *params, int count)
{
    ls_status status = alloc_tables(r, count);
    for (int i = 0; i < count && status == LS_OK; i++) {
        status = copy_param(r, i, entry_of(r, params, i));
    }
    if (status < 0) {
        ls__reducer_abort(r, status, ls_error_message());
        return status;
    }
    status = ls__reducer_compare(r);
    if (status < 0) {
        ls__group_fail(r->group, status, ls_error_message());
        return status;
    }
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
    ls_reducer *r = runtime->env->allocate(runtime->env, sizeof *r);
    if (r == NULL) {
        (void)ls_group_abort(group, "ls_reducer_new: no memory"); /* the others would wait */
        return ls__fail(LS_ERR_MEMORY, "ls_reducer_new: no memory");
    }
    memset(r, 0, sizeof *r);
    r->runtime = runtime;
    ls__runtime_enter(runtime, &r->guest);
    r->options = given;
    ls__arena_init(&r->arena, runtime->env, 1 << 14);
    r->name = copy_text(r, r->options.name ? r->options.name : "reducer");
    ls_status status = LS_OK;
    if (r->name != NULL) {
        status = ls_group_new(group, NULL, 0, r->name, &r->group);
    } else {
        (void)ls_group_abort(group, "ls_reducer_new: no memory");
        status = ls__fail(LS_ERR_MEMORY, "ls_reducer_new: no memory");
    }
    if (status == LS_OK) {
        r->rank = ls_group_rank(r->group);
        r->size = ls_group_size(r->group);
        status = build(r, params, count);
    }
    if (status < 0) {
        (void)ls_reducer_free(r);
        return status;
    }
    r->stats.buckets = r->plan.count;
    *out = r;
    return LS_OK;
}

/* Of a reducer whose runtime has ended: its group and buckets ended with it, and so did whatever ran
 * in them. */
static ls_status free_after_runtime(ls_reducer *r)
{
    const ls__env *env = r->arena.env;
    for (int i = 0; i < r->plan.count; i++) {
        const ls__reduce_bucket *bucket = &r->plan.buckets[i];
        if (bucket->carry != NULL) {
            env->release(env, bucket->carry, bucket->bytes);
        }
    }
    ls__arena_fini(&r->arena);
    env->release(env, r, sizeof *r);
    return LS_OK;
}

/* A backward under way is aborted first and waited for, because its operations still write to the
 * buckets. */
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
    ls__plan_release(r, &r->plan);
    if (r->control != NULL) {
        (void)ls_group_dealloc(r->group, r->control);
    }
    ls_status status = r->group ? ls_group_free(r->group) : LS_OK;
    const ls__env *env = r->arena.env;
    ls__runtime_leave(&r->guest);
    ls__arena_fini(&r->arena);
    env->release(env, r, sizeof *r);
    return status;
}
