/* SPDX-License-Identifier: Apache-2.0 */
/* The state of an optimizer: its memory, and the visitor.
 *
 * State is allocated at the first step (docs/design.md, D9: addresses of gradients are final by
 * then), in one piece, every tensor of it starting on a cache line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/param.h"
#include "base/assert.h"
#include "base/hash.h"
#include "base/options.h"
#include "base/size.h"
#include "base/text.h"
#include "nn/module.h"
#include "optim/optim.h"
#include "tensor/fill.h"
#include "tensor/tensor.h"

#define STATE_ALIGN 64 /* a cache line; what env's allocate promises */
#define STATE_NAME_MAX 4352

/* The bytes of one state tensor, rounded up to whole cache lines. Nothing overflows: its parameter
 * lies in memory, with at least half as many bytes. */
static size_t state_bytes(const ls__optim_param *param)
{
    return ls__round_up((size_t)param->own * sizeof(float), STATE_ALIGN);
}

/* How many such tensors a parameter has. */
static int tensors_of(const ls_optim *o, const ls__optim_param *param)
{
    return o->state_count + (param->half ? 1 : 0);
}

/* For sorting parameters by where they lie. */
typedef struct placed {
    const void *address; /* of the parameter's elements that are this rank's */
    ls__optim_param *param;
} placed;

/* Compares as integers would, without a difference that could overflow. */
static int by_address(const void *a, const void *b)
{
    const placed *x = a, *y = b;
    return (x->address > y->address) - (x->address < y->address);
}

/* State lies in the order of the parameters' addresses: with data parallelism this is the order of
 * the buckets, so one bucket's parameters, gradients and state are each in one piece. */
static ls_status place_state(ls_optim *o, uint8_t *at)
{
    placed *order = calloc((size_t)o->count, sizeof *order);
    if (order == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory to lay its state out", o->cls->name);
    }
    for (int i = 0; i < o->count; i++) {
        ls__pool *on = NULL;
        ls__optim_param *param = &o->params[i];
        const char *value = ls__tensor_place(param->value, &on);
        const size_t element = param->half ? sizeof(ls__bfloat16) : sizeof(float);
        order[i] = (placed){value != NULL ? value + (size_t)param->from * element : NULL, param};
    }
    qsort(order, (size_t)o->count, sizeof *order, by_address);
    for (int s = 0; s <= o->state_count; s++) {
        for (int i = 0; i < o->count; i++) {
            ls__optim_param *param = order[i].param;
            if (s >= tensors_of(o, param)) {
                continue;
            }
            *(s < o->state_count ? &param->state[s] : &param->master) = (float *)(void *)at;
            at += state_bytes(param);
        }
    }
    LS_ASSERT(at <= (uint8_t *)o->memory + o->memory_bytes);
    free(order);
    return LS_OK;
}

/* 0 for SGD without momentum and without bfloat16 parameters. */
static size_t total_bytes(const ls_optim *o)
{
    size_t total = 0;
    for (int i = 0; i < o->count; i++) {
        total += (size_t)tensors_of(o, &o->params[i]) * state_bytes(&o->params[i]);
    }
    return total;
}

/* Where the first parameter lies. If it was freed, the step will say so. */
static ls_status find_device(ls_optim *o)
{
    ls__tensors *tensors = ls__tensors_get("optimizer");
    if (tensors == NULL) {
        return ls__self.status;
    }
    if (o->count == 0 || ls__tensor_place(o->params[0].value, &o->on) == NULL) {
        o->on = &tensors->host;
    }
    return LS_OK;
}

/* The optimizer may outlive the runtime, and with it the table that counts its allocations. */
static const ls__env *env_of(const ls_optim *o)
{
    return o->on->device->host ? o->env : o->on->device->memory;
}

/* Zeros are the initial state of every class; a master copy of zeros becomes its parameter. */
static ls_status allocate(ls_optim *o)
{
    const size_t total = total_bytes(o);
    if (total == 0) {
        return LS_OK;
    }
    const ls__env *env = env_of(o);
    uint8_t *at = env->allocate(env, total);
    if (at == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for %zu bytes of state", o->cls->name, total);
    }
    o->memory = at;
    o->memory_of = env;
    o->memory_bytes = total;
    o->on->k->zero(at, total, o->on->stream);
    return place_state(o, at);
}

/* Which elements are this rank's. A wrapper divides them once, when its buckets are final; state
 * that was loaded before is whole. True: they have become fewer. */
static ls_status find_owned(ls_optim *o, bool *fewer)
{
    *fewer = false;
    for (int i = 0; i < o->count; i++) {
        ls__optim_param *param = &o->params[i];
        int64_t from = param->from, own = param->own;
        if (ls_tensor_status(param->value) < 0 || !ls_requires_grad(param->value)) {
            continue; /* the step says so; frozen */
        }
        ls__param_owned(param->value, &from, &own);
        if (from < param->from || from + own > param->from + param->own) {
            return ls__fail(LS_ERR_STATE,
                            "%s: this rank keeps the state of elements %lld to %lld of %s, and its "
                            "wrapper, which divided them among the ranks (zero), is another now; "
                            "save a checkpoint before the wrapper is taken off, make a new "
                            "optimizer, and load it",
                            o->cls->name, (long long)param->from,
                            (long long)(param->from + param->own), param->name);
        }
        *fewer = *fewer || own < param->own;
    }
    return LS_OK;
}

/* Copies what is kept of the state tensor of one parameter. */
static void keep(const ls_optim *o, const ls__optim_param *now, const ls__optim_param *before)
{
    for (int s = 0; s <= o->state_count; s++) {
        const bool master = s == o->state_count;
        float *to = master ? now->master : now->state[s];
        const float *from = master ? before->master : before->state[s];
        if (from != NULL && to != NULL && now->own > 0) {
            o->on->k->copy(to, from + (now->from - before->from), (size_t)now->own * sizeof *to,
                           o->on->stream);
        }
    }
}

/* Memory for fewer elements. */
static ls_status shrink(ls_optim *o)
{
    void *memory = o->memory;
    const ls__env *memory_of = o->memory_of;
    const size_t bytes = o->memory_bytes;
    ls__optim_param *before = calloc((size_t)o->count, sizeof *before);
    if (before == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory to lay its state out", o->cls->name);
    }
    memcpy(before, o->params, (size_t)o->count * sizeof *before);
    for (int i = 0; i < o->count; i++) {
        ls__optim_param *param = &o->params[i];
        if (ls_tensor_status(param->value) == LS_OK && ls_requires_grad(param->value)) {
            ls__param_owned(param->value, &param->from, &param->own);
        }
        memset(param->state, 0, sizeof param->state);
        param->master = NULL;
    }
    o->memory = NULL;
    o->memory_bytes = 0;
    const ls_status status = memory != NULL ? allocate(o) : LS_OK;
    if (status < 0) { /* as it was */
        memcpy(o->params, before, (size_t)o->count * sizeof *before);
        o->memory = memory;
        o->memory_bytes = bytes;
    } else if (memory != NULL) {
        for (int i = 0; i < o->count; i++) {
            keep(o, &o->params[i], &before[i]);
        }
        ls__device_wait(o->on->device);
        memory_of->release(memory_of, memory, bytes);
    }
    free(before);
    return status;
}

ls_status ls__optim_allocate_state(ls_optim *o)
{
    bool fewer = false;
    LS_TRY(find_device(o));
    if (o->memory != NULL && o->memory_of != env_of(o)) {
        return ls__fail(LS_ERR_STATE,
                        "%s: its parameters were moved to device \"%s\" after its first step, and "
                        "its state was not; move the module before, or save a checkpoint, make a "
                        "new optimizer and load it",
                        o->cls->name, o->on->device->name);
    }
    LS_TRY(find_owned(o, &fewer));
    if (fewer) {
        LS_TRY(shrink(o));
    }
    return o->memory == NULL ? allocate(o) : LS_OK;
}

/* ---- the visitor ---------------------------------------------------------------------------- */

/* Names are PyTorch's: "exp_avg.layers.0.weight" below the prefix. */
static ls_status visit_tensor(const ls_optim *o, const ls__optim_param *param, const char *kind,
                              float *data, const char *prefix, const ls_state_visitor *visitor)
{
    char name[STATE_NAME_MAX];
    LS_TRY(ls__state_name(name, sizeof name, prefix, kind, param->name));
    ls__host_view view;
    LS_TRY(ls__host_view_open(o->on, data, (size_t)param->own * sizeof *data, &view));
    const ls_status status = ls__fill_visit_range(param->value, LS_FLOAT32, view.data, param->from,
                                                  param->own, name, visitor);
    ls__host_view_close(&view, true);
    return status;
}

/* The parameter's own step count, its state, and the master copy of a bfloat16 parameter. */
static ls_status visit_param(const ls_optim *o, ls__optim_param *param, const char *prefix,
                             const ls_state_visitor *visitor)
{
    char name[STATE_NAME_MAX];
    LS_TRY(ls__state_name(name, sizeof name, prefix, "step", param->name));
    LS_TRY(ls__visit_int64(visitor, name, &param->steps));
    for (int s = 0; s < o->state_count; s++) {
        LS_TRY(visit_tensor(o, param, o->cls->state_name[s], param->state[s], prefix, visitor));
    }
    return param->half ? visit_tensor(o, param, "master", param->master, prefix, visitor) : LS_OK;
}

/* "group.1.lr_scale", "group.1.weight_decay". Optional: checkpoints of versions without groups. */
static ls_status visit_group(ls_optim *o, int group, const char *prefix,
                             const ls_state_visitor *visitor)
{
    char part[64], name[STATE_NAME_MAX];
    ls__optim_group *g = &o->groups[group];
    (void)snprintf(part, sizeof part, "group.%d.lr_scale", group + 1);
    LS_TRY(ls__state_name(name, sizeof name, prefix, "", part));
    LS_TRY(ls__visit_optional(visitor, name, &g->lr_scale));
    (void)snprintf(part, sizeof part, "group.%d.weight_decay", group + 1);
    LS_TRY(ls__state_name(name, sizeof name, prefix, "", part));
    return ls__visit_optional(visitor, name, &g->weight_decay);
}

/* All of it but the learning rate and the steps, which a replay of a captured step reads. */
static uint64_t settings_of(const ls_optim *o)
{
    const uint64_t hyper =
        ls__hash_bytes(LS__HASH_START, o->hyper + 1, sizeof o->hyper - sizeof *o->hyper);
    return ls__hash_bytes(hyper, o->groups, (size_t)o->group_count * sizeof *o->groups);
}

static ls_status visit_all(ls_optim *o, const char *prefix, const ls_state_visitor *visitor)
{
    char name[STATE_NAME_MAX];
    for (int i = 0; i < o->cls->hyper_count; i++) {
        LS_TRY(ls__state_name(name, sizeof name, prefix, "", o->cls->hyper_name[i]));
        LS_TRY(ls__visit_float64(visitor, name, &o->hyper[i]));
    }
    for (int i = 0; i < o->group_count; i++) {
        LS_TRY(visit_group(o, i, prefix, visitor));
    }
    for (int i = 0; i < o->count; i++) {
        LS_TRY(visit_param(o, &o->params[i], prefix, visitor));
    }
    return LS_OK;
}

/* State that no step has made yet is shown as zeros with step 0, which means the same, so that a
 * loading visitor finds the memory it needs. */
ls_status ls_optim_state(ls_optim *o, const char *prefix, const ls_state_visitor *visitor)
{
    if (o == NULL) {
        return ls__optim_missing("ls_optim_state");
    }
    LS_TRY(ls__visitor_check(visitor, __func__));
    LS_TRY(ls__optim_allocate_state(o));
    const uint64_t before = settings_of(o);
    const ls_status status = visit_all(o, prefix, visitor);
    if (settings_of(o) != before) {
        ls__storages_moved(o->on->tensors);
    }
    return status;
}
