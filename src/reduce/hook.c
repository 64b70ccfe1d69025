/* SPDX-License-Identifier: Apache-2.0 */
/* Communication hooks (lockstep/comm_hook.h) as a kind of exchange. Before the first phase the
 * bucket is scaled so that the mean over the ranks is the average that backward wants: with weights
 * the divisor is another than the number of ranks, and a hook's residuals must not depend on it. */
#include "reduce/hook.h"

#include <lockstep/comm_hook.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "base/text.h"
#include "comm/backend/plugin_group.h"
#include "kernel/reduce/reduce.h"
#include "reduce/bucket.h"
#include "reduce/compare.h"
#include "reduce/domain.h"
#include "reduce/exchange.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"

/* ---- what a hook sees of a bucket ----------------------------------------------------------- */

/* ls_bucket is ls__reduce_bucket under its public name. */
static ls__reduce_bucket *inner(const ls_bucket *bucket)
{
    return (ls__reduce_bucket *)(uintptr_t)bucket;
}

static const ls__reduce_domain *domain_of(const ls__reduce_bucket *bucket)
{
    const ls_reducer *r = bucket->reducer;
    return &r->domains[r->plan.regions[bucket->region].key.domain];
}

void *ls_bucket_memory(ls_bucket *bucket)
{
    return ls__bucket_memory(inner(bucket)->reducer, inner(bucket));
}

int64_t ls_bucket_numel(const ls_bucket *bucket)
{
    return ls__bucket_elements(inner(bucket)->reducer, inner(bucket));
}

ls_dtype ls_bucket_dtype(const ls_bucket *bucket)
{
    return inner(bucket)->reducer->plan.regions[inner(bucket)->region].key.dtype;
}

int ls_bucket_index(const ls_bucket *bucket)
{
    return (int)(inner(bucket) - inner(bucket)->reducer->plan.buckets);
}

int ls_bucket_rank(const ls_bucket *bucket)
{
    return domain_of(inner(bucket))->rank;
}

int ls_bucket_ranks(const ls_bucket *bucket)
{
    return domain_of(inner(bucket))->size;
}

uint64_t ls_bucket_step(const ls_bucket *bucket)
{
    return inner(bucket)->reducer->hook.steps;
}

int ls_bucket_params(const ls_bucket *bucket)
{
    return inner(bucket)->count;
}

/* "[64,10]" as numbers; one dimension where the text is none, or another count. */
static int read_shape(const ls__reduce_param *param, int64_t shape[LS_DIMS_MAX])
{
    const char *at = param->shape != NULL ? param->shape : "";
    int64_t product = 1;
    int ndim = 0;
    while ((*at == '[' || *at == ',') && ndim < LS_DIMS_MAX) {
        char *end = NULL;
        shape[ndim] = strtoll(at + 1, &end, 10);
        product *= shape[ndim++];
        at = end;
    }
    if (ndim == 0 || strcmp(at, "]") != 0 || product != param->count) {
        ndim = 1;
        shape[0] = param->count;
    }
    return ndim;
}

static ls_bucket_param shown_param(const ls_reducer *r, int index)
{
    const ls__reduce_param *param = &r->params[index];
    ls_bucket_param shown = {.size = sizeof shown,
                             .name = param->name,
                             .index = index,
                             .count = param->count,
                             .dtype = param->key.dtype,
                             .used = param->used};
    shown.ndim = read_shape(param, shown.shape);
    return shown;
}

ls_status ls_bucket_get_param(const ls_bucket *bucket, int i, ls_bucket_param *out)
{
    const ls__reduce_bucket *b = inner(bucket);
    if (bucket == NULL) {
        return ls__fail(LS_ERR_INVALID, "ls_bucket_get_param: the bucket is NULL; give a hook's");
    }
    const ls_reducer *r = b->reducer;
    if (i < 0 || i >= b->count) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_bucket_get_param: parameter %d of a bucket with %d; give 0 to %d", i,
                        b->count, b->count - 1);
    }
    const int index = r->plan.order[b->first + i];
    const ls__reduce_param *param = &r->params[index];
    ls_bucket_param shown = shown_param(r, index);
    shown.grad = r->plan.regions[param->region].memory + param->offset;
    return ls__struct_fill(out, &shown, sizeof shown, "ls_bucket_param", "ls_bucket_get_param");
}

void *ls_bucket_scratch(ls_bucket *bucket, int slot, size_t bytes)
{
    ls__reduce_bucket *b = inner(bucket);
    ls_group *group = domain_of(b)->group;
    if (slot < 0 || slot >= LS_BUCKET_SLOTS) {
        (void)ls__fail(LS_ERR_INVALID, "ls_bucket_scratch: slot %d; give 0 to %d", slot,
                       LS_BUCKET_SLOTS - 1);
        return NULL;
    }
    ls__bucket_scratch *scratch = &b->scratch[slot];
    const size_t room = bytes > 0 ? bytes : 1; /* a bucket may have no elements */
    if (room > scratch->bytes) {
        void *memory = NULL;
        if (ls__group_memory(group, room, &memory) < 0) {
            return NULL;
        }
        (void)ls_group_dealloc(group, scratch->memory);
        memset(memory, 0, room);
        *scratch = (ls__bucket_scratch){memory, room};
    }
    return scratch->memory;
}

/* ---- the kind of exchange -------------------------------------------------------------------- */

/* So that the mean over the ranks is the average. */
static void scale(const ls_reducer *r, const ls__reduce_bucket *bucket)
{
    const double factor = domain_of(bucket)->size / ls__bucket_divisor(r, bucket);
    if (factor != 1.0) {
        void *memory = ls__bucket_memory(r, bucket);
        ls__scale(memory, memory, ls__bucket_elements(r, bucket),
                  r->plan.regions[bucket->region].key.dtype, factor);
    }
}

static ls_status fail_exchange(const ls_reducer *r, int phase, const ls_exchange *asked)
{
    return ls__fail(LS_ERR_INVALID,
                    "reducer \"%s\": phase %d of hook \"%s\" asks for exchange %d of %lld elements "
                    "of type %d, input %p, output %p; give an ls_exchange_kind, a count >= 0, a "
                    "dtype and memory",
                    r->name, phase, r->hook.given->name, (int)asked->kind, (long long)asked->count,
                    (int)asked->dtype, asked->input, asked->output);
}

static ls_status hook_before(ls_reducer *r, ls__reduce_bucket *bucket, int phase,
                             ls__reduce_exchange *out)
{
    static const ls__operation operations[] = {[LS_EXCHANGE_ALL_REDUCE] = LS__OP_ALL_REDUCE,
                                               [LS_EXCHANGE_REDUCE_SCATTER] = LS__OP_REDUCE_SCATTER,
                                               [LS_EXCHANGE_ALL_GATHER] = LS__OP_ALL_GATHER,
                                               [LS_EXCHANGE_ALL_TO_ALL] = LS__OP_ALL_TO_ALL};
    const ls_comm_hook *hook = r->hook.given;
    ls_exchange asked = {.size = sizeof asked};
    if (phase == 0) {
        scale(r, bucket);
    }
    const ls__user_call user = ls__user_call_begin();
    const ls_status status =
        hook->before(hook->state, (ls_bucket *)(void *)bucket, phase, &asked, NULL);
    LS_TRY(ls__user_call_check(&user, status, "hook \"%s\", phase %d", r->hook.given->name, phase));
    if (asked.kind == LS_EXCHANGE_NONE) {
        out->none = true;
        return LS_OK;
    }
    if ((unsigned)asked.kind > LS_EXCHANGE_ALL_TO_ALL || asked.count < 0 ||
        ls_dtype_size(asked.dtype) == 0 ||
        (asked.count > 0 && (asked.input == NULL || asked.output == NULL))) {
        return fail_exchange(r, phase, &asked);
    }
    *out = (ls__reduce_exchange){.operation = operations[asked.kind],
                                 .input = asked.input,
                                 .output = asked.output,
                                 .count = asked.count,
                                 .dtype = asked.dtype,
                                 .divisor = asked.mean ? domain_of(bucket)->size : 0.0};
    return LS_OK;
}

static ls_status hook_after(ls_reducer *r, ls__reduce_bucket *bucket, int phase)
{
    const ls_comm_hook *hook = r->hook.given;
    if (hook->after == NULL) {
        return LS_OK;
    }
    const ls__user_call user = ls__user_call_begin();
    const ls_status status = hook->after(hook->state, (ls_bucket *)(void *)bucket, phase, NULL);
    return ls__user_call_check(&user, status, "hook \"%s\", phase %d", r->hook.given->name, phase);
}

/* ---- setting it ------------------------------------------------------------------------------ */

static ls_status check_hook(const ls_reducer *r, const ls_comm_hook *hook)
{
    if (hook->name == NULL || hook->before == NULL || hook->phases < 1 ||
        hook->phases > LS__PHASES_MAX) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_reducer_set_hook: name %s, before %s, %d phases; give a name, a "
                        "function and 1 to %d phases",
                        hook->name != NULL ? hook->name : "NULL",
                        hook->before != NULL ? "given" : "NULL", hook->phases, LS__PHASES_MAX);
    }
    if (r->shards.of_rank > 0) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "hook \"%s\" and shards: what a hook sends depends on the number of ranks, "
                        "so the bits would; leave one of them out",
                        hook->name);
    }
    if (r->keeps_parts) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "hook \"%s\" and zero: a hook gives every rank the averages of a whole "
                        "bucket, and with zero a rank gets those of its part; leave one of them "
                        "out",
                        hook->name);
    }
    if (r->domain_count > 1) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "hook \"%s\", and some gradients are added over a part of the group "
                        "(place, or batch_axes of a mesh): parameters of one name differ between "
                        "ranks then, and so would what the hook keeps for them; leave the hook out",
                        hook->name);
    }
    if (r->options.wire_dtype != LS_FLOAT32) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "hook \"%s\" and wire_dtype: a hook says itself what is sent; leave one of "
                        "them out",
                        hook->name);
    }
    return LS_OK;
}

static void list_hook(ls__facts *to, const void *arg)
{
    const ls_comm_hook *hook = arg;
    ls__facts_text(to, "the communication hook", hook != NULL ? hook->name : "none",
                   "set the same on all ranks");
    ls__facts_text(to, "the settings of the communication hook", hook != NULL ? hook->about : "",
                   "give every rank the same");
    ls__facts_number(to, "the phases of the communication hook", hook != NULL ? hook->phases : 0,
                     "give every rank the same");
}

void ls__hook_free(ls_reducer *r)
{
    ls_comm_hook *hook = r->hook.given;
    if (hook != NULL && hook->free != NULL) {
        hook->free(hook->state);
    }
    const ls__env *env = r->arena.env;
    if (hook != NULL) {
        env->release(env, hook, sizeof *hook + r->hook.text_bytes);
    }
    r->hook = (ls__reduce_hook){0};
    r->phases = 1;
}

/* A copy, followed by its texts. */
static ls_status copy_hook(ls_reducer *r, const ls_comm_hook *from)
{
    const ls__env *env = r->arena.env;
    const size_t name = strlen(from->name) + 1, about = strlen(from->about) + 1;
    ls_comm_hook *hook = env->allocate(env, sizeof *hook + name + about);
    if (hook == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_reducer_set_hook: no memory");
    }
    char *text = (char *)(hook + 1);
    *hook = *from;
    hook->name = memcpy(text, from->name, name);
    hook->about = memcpy(text + name, from->about, about);
    static const ls__exchange_kind kinds[LS__PHASES_MAX] = {{1, hook_before, hook_after},
                                                            {2, hook_before, hook_after},
                                                            {3, hook_before, hook_after},
                                                            {4, hook_before, hook_after}};
    r->hook = (ls__reduce_hook){
        .given = hook, .kind = &kinds[hook->phases - 1], .text_bytes = name + about};
    r->phases = hook->phases;
    return LS_OK;
}

static ls_status open_hook(ls_reducer *r)
{
    const ls_comm_hook *hook = r->hook.given;
    if (hook->open == NULL) {
        return LS_OK;
    }
    const ls__env *env = r->arena.env;
    const size_t bytes = ((size_t)r->param_count + 1) * sizeof(ls_bucket_param);
    ls_bucket_param *params = env->allocate(env, bytes);
    if (params == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_reducer_set_hook: no memory");
    }
    for (int i = 0; i < r->param_count; i++) {
        params[i] = shown_param(r, i);
    }
    const ls__user_call user = ls__user_call_begin();
    ls_status status = hook->open(hook->state, params, r->param_count, r->rank, r->size);
    status = ls__user_call_check(&user, status, "hook \"%s\"", r->hook.given->name);
    env->release(env, params, bytes);
    return status;
}

static ls_status set_hook(ls_reducer *r, const ls_comm_hook *hook)
{
    for (int d = 0; d < r->domain_count; d++) {
        const ls__agree_peers peers = ls__domain_peers(r, &r->domains[d]);
        LS_TRY(ls__agree(&peers, list_hook, hook));
    }
    ls__hook_free(r);
    ls__plan_forget_scratch(r, &r->plan);
    if (hook == NULL) {
        return LS_OK;
    }
    LS_TRY(copy_hook(r, hook));
    LS_TRY(open_hook(r));
    return ls__domains_add_phases(r, hook->phases);
}

/* The peers wait for this rank, so a failure is reported to them. */
static ls_status set_or_abort(ls_reducer *r, const ls_comm_hook *hook)
{
    ls_status status = hook != NULL ? check_hook(r, hook) : LS_OK;
    status = status < 0 ? status : set_hook(r, hook);
    if (status < 0) {
        ls__reducer_abort(r, status, ls_error_message());
    }
    return status;
}

static ls_status check_reducer(ls_reducer *r)
{
    return r != NULL && ls__reducer_is_idle(r)
               ? LS_OK
               : ls__fail(LS_ERR_STATE, "ls_reducer_set_hook: %s",
                          r ? "a synchronising backward is under way; call ls_reducer_wait first"
                            : "the reducer is NULL; check what ls_reducer_new returned");
}

/* As ls_comm_hook_parse gives it. */
static bool is_plain(const ls_comm_hook *hook)
{
    return hook->name != NULL && strcmp(hook->name, "plain") == 0 && hook->before == NULL;
}

ls_status ls_reducer_set_hook(ls_reducer *r, const ls_comm_hook *hook)
{
    if (hook == NULL) {
        LS_TRY(check_reducer(r));
        return set_or_abort(r, NULL);
    }
    LS__OPTIONS(ls_comm_hook, given, hook);
    given.about = given.about != NULL ? given.about : "";
    if (r != NULL && r->hook.given != NULL && given.state != NULL &&
        given.state == r->hook.given->state) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_reducer_set_hook: the state of hook \"%s\" is in use already; make a "
                        "new one",
                        r->hook.given->name);
    }
    ls_status status = check_reducer(r);
    if (status == LS_OK && !is_plain(&given)) {
        status = ls__promise_host("ls_reducer_set_hook", r->group);
    }
    status = status < 0 ? status : set_or_abort(r, is_plain(&given) ? NULL : &given);
    const bool owned = r != NULL && r->hook.given != NULL && r->hook.given->state == given.state;
    if (status < 0 && !owned && given.free != NULL) {
        given.free(given.state);
    }
    return status;
}

ls_status ls__reducer_hook_state(ls_reducer *r, const char *prefix, const ls_state_visitor *visitor)
{
    const ls_comm_hook *hook = r->hook.given;
    if (hook == NULL || hook->visit == NULL) {
        return LS_OK;
    }
    char name[512];
    int64_t steps = (int64_t)r->hook.steps;
    LS_TRY(ls__state_name(name, sizeof name, prefix, "", "steps"));
    LS_TRY(visitor->int64(visitor->self, name, &steps));
    r->hook.steps = (uint64_t)steps;
    const ls__user_call user = ls__user_call_begin();
    const ls_status status = hook->visit(hook->state, prefix, visitor);
    return ls__user_call_check(&user, status, "state of hook \"%s\"", hook->name);
}
