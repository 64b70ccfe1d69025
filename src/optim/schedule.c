/* Learning rates as a function of the step: no state, so nothing to save and nothing to get out of
 * step. The half cosine is Loshchilov & Hutter's (2017, equation 5) without restarts.
 */
#include <lockstep/optim.h>

#include <math.h>

#define PI 3.14159265358979323846

/* Warm-up begins above zero: the first step has lr / warmup. */
double ls_schedule_lr(const ls_schedule *schedule, int64_t step)
{
    if (step < schedule->warmup) {
        return schedule->lr * (double)(step + 1) / (double)schedule->warmup;
    }
    if (schedule->kind == LS_SCHEDULE_CONSTANT) {
        return schedule->lr;
    }
    if (step >= schedule->total) {
        return schedule->min_lr;
    }
    double progress =
        (double)(step - schedule->warmup) / (double)(schedule->total - schedule->warmup);
    double left =
        schedule->kind == LS_SCHEDULE_LINEAR ? 1.0 - progress : 0.5 * (1.0 + cos(PI * progress));
    return schedule->min_lr + (schedule->lr - schedule->min_lr) * left;
}
