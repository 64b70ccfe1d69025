/* Clipping by the global norm (Pascanu et al. 2013), torch.nn.utils.clip_grad_norm_.
 *
 *     total = sqrt(sum over all gradients of g^2);   g <- g * max_norm / (total + 1e-6) if that is < 1
 *
 * The squares are added in float64, parameter by parameter in order of addition, so every rank of a
 * replicated model computes the same norm and the replicas stay equal.
 */
#include <math.h>

#include "base/config.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#define NORM_EPS 1e-6 /* PyTorch's */

/* NULL and 0 for a buffer, and for a parameter whose gradient is absent. */
static float *gradient(const ls__module_item *item, int64_t *count)
{
    ls_tensor *grad = item->buffer ? NULL : ls_grad(item->value);
    *count = grad != NULL ? ls_numel(grad) : 0;
    return grad != NULL ? ls_data(grad) : NULL;
}

/* The error for a norm that is not finite: names the first parameter whose gradient made it so. */
static ls_status fail_norm(const ls__kernels *kernels, const ls__module_item *item, int items,
                           double norm)
{
    const char *first = NULL;
    int odd = 0;
    int64_t count;
    for (int i = 0; i < items; i++) {
        float *grad = gradient(&item[i], &count);
        if (grad != NULL && !isfinite(kernels->sum_squares(grad, count))) {
            first = first != NULL ? first : item[i].name;
            odd++;
        }
    }
    return ls__fail(
        LS_ERR_INVALID,
        "clip_grad_norm: the gradients' norm is %g (not finite in %d of the parameters, "
        "first in %.200s); look for a division by zero, or lower the learning rate",
        norm, odd, first != NULL ? first : "");
}

/* A norm that is not finite changes nothing, so that the caller may skip the step. */
ls_status ls_clip_grad_norm(ls_module *module, double max_norm, double *norm)
{
    const ls__tensors *tensors = ls__tensors_get("clip_grad_norm");
    if (tensors == NULL) {
        return ls__self.status;
    }
    const ls__kernels *kernels = tensors->kernels;
    if (!(max_norm >= 0.0)) {
        return ls__fail(LS_ERR_INVALID, "clip_grad_norm: max_norm is %g; give one >= 0", max_norm);
    }
    if (isfinite(max_norm)) { /* else the caller only wants to know the norm, maybe on one rank */
        ls__config_set("the largest norm of ls_clip_grad_norm", max_norm);
    }
    int items = 0;
    int64_t count;
    double squares = 0.0;
    const ls__module_item *item = ls__module_items(module, &items);
    if (item == NULL) {
        return ls__self.status;
    }
    for (int i = 0; i < items; i++) {
        float *grad = gradient(&item[i], &count);
        squares += grad != NULL ? kernels->sum_squares(grad, count) : 0.0;
    }
    double total = sqrt(squares);
    if (norm != NULL) {
        *norm = total;
    }
    if (!isfinite(total)) {
        return fail_norm(kernels, item, items, total);
    }
    double factor = max_norm / (total + NORM_EPS);
    for (int i = 0; factor < 1.0 && i < items; i++) {
        float *grad = gradient(&item[i], &count);
        if (grad != NULL) {
            kernels->axpby(grad, grad, count, (float)factor, 0.0f, NULL);
        }
    }
    return LS_OK;
}
