/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer inside backward (torch's _apply_optimizer_in_backward): a bucket's parameters are
 * stepped as soon as its averages are there, while later buckets are still computed and on the way.
 *
 *     backward  head ────▶ body ────▶ embed ──▶
 *     wire           head ──▶  body ──▶   embed ──▶
 *     step                  head     body        embed
 *
 * A parameter whose gradient is final is not read any more by this backward: a graph that still
 * needs it reports that it was changed. Gradients become absent when they were used, so there is
 * nothing to zero. The bits are those of a step afterwards: an update looks at one element at a
 * time. */
#include "autograd/param.h"
#include "base/assert.h"
#include "ddp/apart.h"
#include "optim/optim.h"
#include "reduce/reducer.h"

/* Steps params[count], or all parameters for NULL. */
static ls_status step_params(ls__ddp *d, const int *params, int count)
{
    const uint64_t begun = d->env->now_ns(d->env);
    for (int i = 0; i < count; i++) {
        d->ranges[i] = d->whole[params != NULL ? params[i] : i];
    }
    LS_TRY(ls__optim_step_ranges(d->optim, d->ranges, count));
    for (int i = 0; i < count; i++) {
        const ls_tensor *value = d->params[params != NULL ? params[i] : i].value;
        LS_TRY(ls__param_set_grad_present((ls_tensor *)value, false));
    }
    d->stats.optimizer_ns += d->env->now_ns(d->env) - begun;
    return LS_OK;
}

static ls_status on_reduced(void *arg, const int *params, int count)
{
    LS_TRY(ls__ddp_carry_back(arg, params, count));
    return step_params(arg, params, count);
}

/* Compares settings along the axes of divided parameters first, as ls_optim_step does. */
static ls_status begin_step(ls__ddp *d)
{
    ls_optim *o = d->optim;
    o->observer = &d->observer;
    o->divided = ls__optim_divided(o);
    if (ls_group_size(d->group) > 1 || o->divided != 0) {
        ls__optim_show_lr(o);
    }
    LS_TRY(ls__optim_agree(o));
    return ls__optim_begin(o);
}

/* Until buckets lie in the observed order the optimizer waits: its state lies in the order of the
 * parameters' addresses. */
ls_status ls__in_backward_begin(ls__ddp *d)
{
    const bool waits = !d->planned && ls_group_size(d->group) > 1;
    ls__reducer_on_reduced(d->reducer, d->optim != NULL && !waits ? on_reduced : NULL, d);
    return d->optim == NULL || waits ? LS_OK : begin_step(d);
}

ls_status ls__in_backward_end(ls__ddp *d, bool waited)
{
    if (d->optim == NULL) {
        return LS_OK;
    }
    if (waited) {
        LS_TRY(begin_step(d));
        LS_TRY(step_params(d, NULL, d->param_count));
    }
    LS_TRY(ls__ddp_zero_share(d));
    atomic_store_explicit(&d->runtime->activity->updates, (uint64_t)d->optim->steps_max,
                          memory_order_relaxed);
    return LS_OK;
}

void ls__in_backward_drop(ls__ddp *d)
{
    if (d->whole != NULL) {
        d->env->release(d->env, d->whole, 2 * (size_t)d->param_count * sizeof *d->whole);
    }
    d->whole = d->ranges = NULL;
    d->optim = NULL;
}

/* The range of the optimizer that is the whole parameter i. */
static ls_status find_range(const ls__ddp *d, const ls_optim *optim, int i, ls__optim_range *out)
{
    for (int k = 0; k < optim->count; k++) {
        if (optim->params[k].value == d->params[i].value) {
            *out = (ls__optim_range){.param = k, .count = optim->params[k].count};
            return LS_OK;
        }
    }
    return ls__fail(LS_ERR_INVALID,
                    "ls_ddp_step_in_backward: parameter %s is not one of the optimizer's; give one "
                    "that was made for the whole module",
                    d->params[i].name);
}

static ls_status attach(ls__ddp *d, ls_optim *optim)
{
    const size_t bytes = 2 * (size_t)d->param_count * sizeof *d->whole;
    d->whole = d->env->allocate(d->env, bytes);
    if (d->whole == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for %d parameters", d->param_count);
    }
    d->ranges = d->whole + d->param_count;
    for (int i = 0; i < d->param_count; i++) {
        LS_TRY(find_range(d, optim, i, &d->whole[i]));
    }
    d->optim = optim;
    return LS_OK;
}

ls_status ls_ddp_step_in_backward(ls_module *module, ls_optim *optim)
{
    ls__ddp *d = ls__ddp_of(module);
    if (d == NULL) {
        return ls__fail_at_site(ls__ddp_missing("ls_ddp_step_in_backward"));
    }
    LS_TRY(ls__ddp_refuse_remote(d, "ls_ddp_step_in_backward",
                                 "give the optimizer to "
                                 "ls_server_run"));
    LS_ASSERT(ls__reducer_is_idle(d->reducer));
    ls__in_backward_drop(d);
    const ls_status status = optim != NULL ? attach(d, optim) : LS_OK;
    if (status < 0) {
        ls__in_backward_drop(d);
        return ls__fail_at_site(status);
    }
    return LS_OK;
}
