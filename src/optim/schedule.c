/* SPDX-License-Identifier: Apache-2.0 */
/* Learning rates as a function of the step: no state, so nothing to save and nothing to get out of
 * step. The half cosine is Loshchilov & Hutter's (2017, equation 5) without restarts.
 */
#include <lockstep/optim.h>

#include <math.h>

#include "base/error.h"
#include "base/options.h"

#define PI 3.14159265358979323846

/* A total that was left out would be 0, and every step would have min_lr: nothing would be
 * learnt. */
static ls_status check(const ls_schedule_options *o)
{
    const bool falls = o->kind != LS_SCHEDULE_CONSTANT;
    if (o->kind < LS_SCHEDULE_CONSTANT || o->kind > LS_SCHEDULE_LINEAR) {
        return ls__fail(
            LS_ERR_INVALID,
            "ls_schedule_lr: there is no schedule %d; give LS_SCHEDULE_CONSTANT, _COSINE "
            "or _LINEAR",
            (int)o->kind);
    }
    if (o->warmup < 0 || (falls && (o->total <= 0 || o->warmup > o->total))) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_schedule_lr: a warm-up of %lld steps and a total of %lld given; the "
                        "warm-up must be at least 0, and a schedule that falls needs a total of at "
                        "least 1, warm-up included",
                        (long long)o->warmup, (long long)o->total);
    }
    return LS_OK;
}

/* Warm-up begins above zero: the first step has lr / warmup. */
double ls_schedule_lr(int64_t step, const ls_schedule_options *options)
{
    LS__OPTIONS_OR(NAN, ls_schedule_options, o, options);
    if (check(&o) < 0) {
        return NAN;
    }
    step = step < 0 ? 0 : step;
    if (step < o.warmup) {
        return o.lr * (double)(step + 1) / (double)o.warmup;
    }
    if (o.kind == LS_SCHEDULE_CONSTANT) {
        return o.lr;
    }
    if (step >= o.total) {
        return o.min_lr;
    }
    double progress = (double)(step - o.warmup) / (double)(o.total - o.warmup);
    double left = o.kind == LS_SCHEDULE_LINEAR ? 1.0 - progress : 0.5 * (1.0 + cos(PI * progress));
    return o.min_lr + (o.lr - o.min_lr) * left;
}
