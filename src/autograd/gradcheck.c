/* SPDX-License-Identifier: Apache-2.0 */
/* The numeric gradient check. f(x) = sum(fn(x) * r), r fixed and random; the sum is taken in
 * float64, fn itself computes in float32. The derivative in each element is a central difference of
 * fourth order,
 *     f' = (8 (f(x+h) - f(x-h)) - (f(x+2h) - f(x-2h))) / 12h,
 * whose error h^4 f'''''/30 lets h be large enough (1e-2) that float32 rounding of f, about
 * 1e-7 |f| / h, stays well below the tolerance. */
#include <math.h>
#include <stdio.h>

#include <lockstep/random.h>

#include "autograd/param.h"
#include "base/options.h"
#include "tensor/op.h"

typedef struct check {
    ls__tensors *tensors;
    ls_gradcheck_fn fn;
    ls_tensor **inputs;
    int count;
    void *arg;
    ls_gradcheck_options options;
    uint64_t calls; /* random operations draw the same numbers in every evaluation */
    double worst;   /* how far the worst element lies beyond its tolerance */
    char report[256];
} check;

/* Element i of r. A fixed stream, so that every evaluation and the backward pass use the same
 * weights. */
static double weight_of(int64_t i)
{
    return 2.0 * (double)ls_random_uniform(UINT64_C(0x67726164), 0, (uint64_t)i) - 1.0;
}

/* Every place counts its draws anew, so dropout draws the same mask in every evaluation. */
static ls_tensor *call_fn(check *c)
{
    ls__draws_restart(c->tensors->runtime, c->calls);
    return c->fn(c->inputs, c->arg);
}

/* f(x), in a scope that the caller opened. */
static ls_status weighted_sum(check *c, double *out)
{
    ls_tensor *y = call_fn(c);
    ls__record *record = ls__record_sound(c->tensors, y, "gradcheck");
    if (record == NULL) {
        return ls__self.status;
    }
    const float *values = ls_data(ls_contiguous(y));
    *out = 0.0;
    for (int64_t i = 0; values != NULL && i < record->numel; i++) {
        *out += (double)values[i] * weight_of(i);
    }
    return values != NULL ? LS_OK : ls__self.status;
}

/* f with one element replaced; the element is restored before the function returns. */
static ls_status evaluate(check *c, float *element, float value, double *out)
{
    const float before = *element;
    *element = value;
    const bool mode = ls_set_grad_mode(false);
    ls_scope *scope = ls_scope_enter();
    const ls_status status = weighted_sum(c, out);
    ls_scope_leave(scope);
    (void)ls_set_grad_mode(mode);
    *element = before;
    return status;
}

/* The central difference for one element. Both quotients divide by the step that float32 really
 * made, not by h. */
static ls_status numeric(check *c, float *element, double *out)
{
    double h = c->options.step, f[4];
    float x = *element;
    float at[4] = {(float)((double)x + h), (float)((double)x - h), (float)((double)x + 2.0 * h),
                   (float)((double)x - 2.0 * h)};
    for (int i = 0; i < 4; i++) {
        LS_TRY(evaluate(c, element, at[i], &f[i]));
    }
    /* Richardson: the error of second order cancels. */
    double near = (f[0] - f[1]) / ((double)at[0] - (double)at[1]);
    double far = (f[2] - f[3]) / ((double)at[2] - (double)at[3]);
    *out = (4.0 * near - far) / 3.0;
    return LS_OK;
}

/* Runs backward once; the gradients stay in the inputs. */
static ls_status analytic(check *c)
{
    ls_scope *scope = ls_scope_enter();
    ls_tensor *y = call_fn(c);
    const ls__record *record = ls__record_sound(c->tensors, y, "gradcheck");
    ls_status status = record != NULL ? LS_OK : ls__self.status;
    if (record != NULL) {
        ls_tensor *r = ls_empty(ls_shape_of(y), LS_FLOAT32);
        float *weights = ls_data(r);
        for (int64_t i = 0; weights != NULL && i < record->numel; i++) {
            weights[i] = (float)weight_of(i);
        }
        status = ls_backward(ls_sum(ls_mul(y, r)));
    }
    ls_scope_leave(scope);
    return status;
}

/* Remembers the element furthest beyond its tolerance. A NaN counts as infinitely far. */
static void compare(check *c, int input, int64_t i, double got, double wanted)
{
    double excess = fabs(got - wanted) - c->options.atol - c->options.rtol * fabs(wanted);
    if (isnan(excess) || excess > c->worst) {
        c->worst = isnan(excess) ? (double)INFINITY : excess;
        (void)snprintf(c->report, sizeof c->report,
                       "input %d, element %lld: backward gives %.6g, differences give %.6g", input,
                       (long long)i, got, wanted);
    }
}

/* Compares every element of one input; an absent gradient means that fn does not depend on it. */
static ls_status check_input(check *c, int input)
{
    ls_tensor *x = c->inputs[input];
    float *values = ls_data(x);
    if (values == NULL) {
        return ls__self.status;
    }
    ls_tensor *gradient = ls_grad(x); /* absent: the function does not depend on it */
    const float *got = gradient != NULL ? ls_data(gradient) : NULL;
    int64_t numel = ls_numel(x);
    for (int64_t i = 0; i < numel; i++) {
        double wanted = 0.0;
        LS_TRY(numeric(c, &values[i], &wanted));
        compare(c, input, i, got != NULL ? (double)got[i] : 0.0, wanted);
    }
    return LS_OK;
}

/* Gradients that the inputs had before the check are lost, and none remain after it. */
static ls_status run_check(check *c)
{
    for (int i = 0; i < c->count; i++) {
        if (ls_requires_grad(c->inputs[i])) {
            LS_TRY(ls__param_set_grad_present(c->inputs[i], false));
        }
    }
    LS_TRY(analytic(c));
    for (int i = 0; i < c->count; i++) {
        if (ls_requires_grad(c->inputs[i])) {
            LS_TRY(check_input(c, i));
            LS_TRY(ls__param_set_grad_present(c->inputs[i], false));
        }
    }
    return LS_OK;
}

/* Every input is compared before the result is known, so that the report names the worst element of
 * all. */
ls_status ls_gradcheck(ls_gradcheck_fn fn, ls_tensor **inputs, int count, void *arg,
                       const ls_gradcheck_options *options)
{
    LS__OPTIONS(ls_gradcheck_options, read, options);
    check c = {.fn = fn, .inputs = inputs, .count = count, .arg = arg, .options = read};
    c.tensors = ls__tensors_get("gradcheck");
    if (c.tensors == NULL) {
        return ls__self.status;
    }
    c.calls = c.tensors->runtime->calls_in_step;
    LS_TRY(run_check(&c));
    if (c.worst > 0.0) {
        return ls__fail(LS_ERR_MISMATCH, "gradcheck: %s (beyond rtol %g and atol %g)", c.report,
                        c.options.rtol, c.options.atol);
    }
    return LS_OK;
}
