/* Learning rates as a function of the step: no state, so nothing to save and nothing to get out of
 * step. The half cosine is Loshchilov & Hutter's (2017, equation 5) without restarts.
 */
#include <lockstep/optim.h>

#include <math.h>

#include "base/options.h"

#define PI 3.14159265358979323846

/* Warm-up begins above zero: the first step has lr / warmup. */
double ls_schedule_lr(int64_t step, const ls_schedule_options *options)
{
    LS__OPTIONS_OR(NAN, ls_schedule_options, o, options);
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
