/* SPDX-License-Identifier: Apache-2.0 */
/* The outer optimizer: the average of a round is a direction, not a place (Douillard et al. 2023,
 * DiLoCo; Wang et al. 2020, SlowMo, algorithm 1).
 *
 *     x0 ── local steps of rank 0 ──▶ x·
 *      │                                 ╲
 *      │                                  mean     g = x0 - mean
 *      │                                 ╱
 *      └─── local steps of rank 1 ──▶ x·           the next x0 is a step of SGD from x0 along -g
 *
 * All ranks compute the same from the same average, so nothing more is sent. Starts and momenta are
 * in the order of the wrapper's parameters, whatever the layout of gradients is, and stay there
 * while a parameter is frozen. */

#include <math.h>

#include "base/text.h"
#include "ddp/wrapper.h"
#include "kernel/reduce/reduce.h"
#include "tensor/fill.h"
#include "tensor/tensor.h"

ls_status ls__outer_check(const ls_outer_options *o)
{
    if (!(o->lr > 0.0) || isinf(o->lr) || !(o->inner_lr > 0.0) || isinf(o->inner_lr)) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_ddp_average: outer has lr %g and inner_lr %g; give finite numbers "
                        "above 0",
                        o->lr, o->inner_lr);
    }
    if (!(o->momentum >= 0.0) || !(o->momentum < 1.0)) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_ddp_average: outer has momentum %g; give one from 0 to below 1",
                        o->momentum);
    }
    return LS_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static ls_status check_dtypes(const ls__ddp *d)
{
    for (int i = 0; i < d->param_count; i++) {
        const ls_dtype dtype = ls_dtype_of(d->params[i].value);
        if (dtype != LS_FLOAT32) {
            return ls__fail(LS_ERR_UNSUPPORTED,
                            "ls_ddp_average: outer is for parameters in float32, and %.200s is in "
                            "%s; leave outer out",
                            d->params[i].name, ls_dtype_name(dtype));
        }
    }
    return LS_OK;
}

static ls_status allocate(ls__ddp *d)
{
    size_t elements = 0;
    if (d->outer.memory != NULL) {
        return LS_OK;
    }
    LS_TRY(check_dtypes(d));
    for (int i = 0; i < d->param_count; i++) {
        elements += (size_t)ls_numel(d->params[i].value);
    }
    const size_t bytes = 2 * elements * sizeof(float);
    d->outer.memory = d->env->allocate(d->env, bytes);
    if (d->outer.memory == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_ddp_average: no memory for %zu bytes of outer state",
                        bytes);
    }
    d->outer.bytes = bytes;
    ls__elements_zero(d->outer.memory, bytes);
    return LS_OK;
}

void ls__outer_drop(ls__ddp *d)
{
    if (d->outer.memory != NULL) {
        d->env->release(d->env, d->outer.memory, d->outer.bytes);
    }
    d->outer = (ls__ddp_outer){0};
}

/* ---- the step -------------------------------------------------------------------------------- */

/* In float64, rounded once. With x0 = mean + g the new value is mean - (lr inner_lr d - g): with lr
 * 1 and no momentum the bracket is 0, and the average keeps its bits. */
static void step_elements(const ls_outer_options *o, float *start, float *momentum, float *value,
                          int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const double mean = value[i], moved = (double)start[i] - mean, g = moved / o->inner_lr;
        const double u = o->momentum > 0.0 ? o->momentum * (double)momentum[i] + g : g;
        const double along = o->nesterov ? g + o->momentum * u : u;
        const float now = (float)(mean - (o->lr * o->inner_lr * along - moved));
        momentum[i] = o->momentum > 0.0 ? (float)u : momentum[i];
        value[i] = start[i] = now;
    }
}

/* A step can overflow where the average did not. */
static ls_status check_finite(const ls__ddp *d, int i)
{
    int64_t at = -1;
    LS_TRY(ls__tensor_nonfinite(d->params[i].value, &at));
    return at < 0 ? LS_OK
                  : ls__fail(LS_ERR_INVALID,
                             "ls_ddp_average: %.200s is not finite after the outer step (element "
                             "%lld); lower outer's lr or momentum",
                             d->params[i].name, (long long)at);
}

static ls_status step_param(ls__ddp *d, int i, const ls_outer_options *o, float *start)
{
    ls_tensor *value = d->params[i].value;
    const int64_t count = ls_numel(value);
    const bool steps = d->outer.noted && ls_requires_grad(value);
    ls__host_view view;
    LS_TRY(ls__host_view_of(value, &view));
    if (steps) {
        step_elements(o, start, start + count, view.data, count);
    } else {
        ls__elements_copy(start, view.data, (size_t)count * sizeof *start);
    }
    ls__host_view_close(&view, steps);
    ls__tensor_changed(value);
    return steps ? check_finite(d, i) : LS_OK;
}

ls_status ls__outer_step(ls__ddp *d, const ls_outer_options *options)
{
    LS_TRY(allocate(d));
    float *at = d->outer.memory;
    for (int i = 0; i < d->param_count; i++) {
        LS_TRY(step_param(d, i, options, at));
        at += 2 * ls_numel(d->params[i].value);
    }
    d->outer.noted = true;
    return LS_OK;
}

/* ---- the visitor ----------------------------------------------------------------------------- */

static ls_status visit(ls__ddp *d, int i, const char *kind, float *data, const char *prefix,
                       const ls_state_visitor *visitor)
{
    char name[4352];
    LS_TRY(ls__state_name(name, sizeof name, prefix, kind, d->params[i].name));
    const ls_tensor *value = d->params[i].value;
    return ls__fill_visit_range(value, LS_FLOAT32, data, 0, ls_numel(value), name, visitor);
}

ls_status ls__outer_state(ls__ddp *d, const char *prefix, const ls_state_visitor *visitor)
{
    float *at = d->outer.memory;
    for (int i = 0; at != NULL && i < d->param_count; i++) {
        const int64_t count = ls_numel(d->params[i].value);
        LS_TRY(visit(d, i, "start", at, prefix, visitor));
        LS_TRY(visit(d, i, "momentum", at + count, prefix, visitor));
        at += 2 * count;
    }
    return LS_OK;
}
