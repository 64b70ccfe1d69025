/* SPDX-License-Identifier: Apache-2.0 */
/* See clip_axes.h. */
#include "nn/clip_axes.h"

#include <math.h>

#include "autograd/param.h"
#include "base/options.h"
#include "comm/api/control.h"
#include "dist/mesh.h"
#include "tensor/placement.h"

void ls__norm_axes_init(ls__norm_axes *n, const ls_group *group)
{
    const ls__tensors *tensors = ls__tensors_get("clip_grad_norm");
    *n = (ls__norm_axes){.axes = tensors != NULL ? ls__axes_of(tensors) : NULL};
    for (int a = 0; n->axes != NULL && a < n->axes->count; a++) {
        n->outside |= (unsigned)ls__axis_leads_out(&n->axes->axis[a], group) << a;
    }
}

void ls__norm_axes_add(ls__norm_axes *n, const ls_tensor *param, double squares)
{
    const unsigned over =
        n->axes != NULL ? ls__place_parts(n->axes, ls__param_placed(param)) & n->outside : 0;
    n->summed |= over;
    n->sums[over] += squares;
}

/* Adds the sums of the ranks along axis a, of the parameters that are sharded there. */
static void add_gathered(ls__norm_axes *n, int a, const double *all, size_t count)
{
    for (size_t s = 0; s < count; s++) {
        n->sums[s] = s >> a & 1 ? 0.0 : n->sums[s];
        for (int r = 0; s >> a & 1 && r < n->axes->axis[a].size; r++) {
            const double own = all[(size_t)r * count + s];
            n->sums[s] += own;
            if (!isfinite(own) && n->odd == NULL) {
                n->odd = &n->axes->axis[a];
                n->odd_rank = r;
            }
        }
    }
}

static ls_status sum_along(ls__norm_axes *n, int a)
{
    const ls__axis_in_force *axis = &n->axes->axis[a];
    const size_t count = (size_t)1 << n->axes->count;
    ls__tensors *tensors = ls__tensors_get("clip_grad_norm");
    ls__storage *all =
        tensors != NULL
            ? ls__storage_new(&tensors->host, (size_t)axis->size * count * sizeof(double))
            : NULL;
    if (all == NULL) {
        return ls__self.status;
    }
    const ls_status status =
        ls__control_all_gather(axis->group, n->sums, all->data, (int64_t)count, LS_FLOAT64,
                               LS_OPTIONS(ls_collective_options, .tag = "norm of the gradients"));
    if (status == LS_OK) {
        add_gathered(n, a, all->data, count);
    }
    ls__storage_unref(all);
    return status;
}

ls_status ls__norm_axes_sum(ls__norm_axes *n, double *out)
{
    for (int a = 0; n->summed >> a != 0; a++) {
        if (n->summed >> a & 1) {
            LS_TRY(sum_along(n, a));
        }
    }
    *out = 0.0;
    for (unsigned s = 0; s <= n->summed; s++) {
        *out += n->sums[s];
    }
    return LS_OK;
}
