/* SPDX-License-Identifier: Apache-2.0 */
/* Losses of two tensors element by element, made of operations, which bring the gradients:
 *
 *     l1         mean |x - y|
 *     huber      mean h(x - y), h(d) = d^2/2 where |d| <= delta, else delta (|d| - delta/2)
 *     smooth l1  huber with delta = beta, over beta; l1 for beta 0
 *     kl_div     y (log y - x), reduced as asked; x holds log-probabilities
 *
 * Like all losses they compute in float32 and give float32. */
#include <math.h>

#include <lockstep/ops.h>

#include "base/options.h"
#include "tensor/elementwise.h"
#include "tensor/op.h"

/* Checks types and shapes under the loss' own name and replaces bfloat16 operands by float32
 * casts, which are nodes of the graph. False with call->failed set. */
static bool begin_loss(ls__call *call, const char *name, ls_tensor **x, ls_tensor **y)
{
    if (!ls__call_begin(call, name, 2, (ls_tensor *[]){*x, *y}) || !ls__call_float_types(call) ||
        !ls__call_alike(call)) {
        return false;
    }
    *x = call->in[0]->dtype == LS_BFLOAT16 ? ls_cast(*x, LS_FLOAT32) : *x;
    *y = call->in[1]->dtype == LS_BFLOAT16 ? ls_cast(*y, LS_FLOAT32) : *y;
    return true;
}

/* Composed of operations that have gradients; the check comes first, so that a message names the
 * loss. */
ls_tensor *ls_l1_loss(ls_tensor *x, ls_tensor *y)
{
    ls__call call;
    return begin_loss(&call, "l1_loss", &x, &y) ? ls_mean(ls_abs(ls_sub(x, y))) : call.failed;
}

/* The comparison is written so that NaN fails it. */
ls_tensor *ls_huber_loss(ls_tensor *x, ls_tensor *y, double delta)
{
    ls__call call;
    if (!begin_loss(&call, "huber_loss", &x, &y)) {
        return call.failed;
    }
    if (!(delta > 0.0)) {
        return ls__call_fail(&call, LS_ERR_INVALID, "delta is %g; it must be above 0", delta);
    }
    return ls_mean(ls__huber(ls_sub(x, y), delta));
}

/* Huber's loss over beta; without a beta the absolute values alone. */
ls_tensor *ls_smooth_l1_loss(ls_tensor *x, ls_tensor *y, double beta)
{
    ls__call call;
    if (!begin_loss(&call, "smooth_l1_loss", &x, &y)) {
        return call.failed;
    }
    if (!(beta >= 0.0) || isinf(beta)) {
        return ls__call_fail(&call, LS_ERR_INVALID, "beta is %g; it must be 0 or above", beta);
    }
    return beta == 0.0 ? ls_l1_loss(x, y) : ls_scale(ls_huber_loss(x, y, beta), 1.0 / beta);
}

/* BATCHMEAN divides by the first dimension only, as PyTorch's kl_div. */
static ls_tensor *reduced(ls_tensor *terms, ls_reduction reduction)
{
    const ls_shape shape = ls_shape_of(terms);
    switch (reduction) {
    case LS_REDUCTION_MEAN:
        return ls_mean(terms);
    case LS_REDUCTION_SUM:
        return ls_sum(terms);
    case LS_REDUCTION_BATCHMEAN:
        return ls_scale(ls_sum(terms), shape.ndim > 0 ? 1.0 / (double)shape.dim[0] : 1.0);
    case LS_REDUCTION_NONE:
        break;
    }
    return terms;
}

/* target (log target - x), or with the target's logarithm t: exp(t) (t - x) */
ls_tensor *ls_kl_div(ls_tensor *x, ls_tensor *target, const ls_kl_div_options *options)
{
    LS__OPTIONS_OR(ls__call_refused(), ls_kl_div_options, o, options);
    ls__call call;
    if (!begin_loss(&call, "kl_div", &x, &target)) {
        return call.failed;
    }
    if (o.reduction < LS_REDUCTION_MEAN || o.reduction > LS_REDUCTION_BATCHMEAN) {
        return ls__call_fail(&call, LS_ERR_INVALID,
                             "reduction %d; give LS_REDUCTION_MEAN, _SUM, _NONE or _BATCHMEAN",
                             (int)o.reduction);
    }
    ls_tensor *terms = o.log_target ? ls_mul(ls_exp(target), ls_sub(target, x))
                                    : ls_sub(ls__xlogx(target), ls_mul(target, x));
    return reduced(terms, o.reduction);
}
