/* SPDX-License-Identifier: Apache-2.0 */
/* Group normalisation (Wu & He 2018): x [N,C,..] is cut into groups of C/groups channels; each
 * group of each sample is normalised by its own mean and variance, then one weight and bias a
 * channel, [C] each. Composed of reshape, layer norm, mul and add, which bring the gradients. */
#include <lockstep/ops.h>

#include "tensor/op.h"

enum { EDGE_X, EDGE_W, EDGE_B };

/* False with call->failed set. */
static bool check_shapes(ls__call *call, int64_t groups)
{
    const ls__record *x = call->in[EDGE_X];
    const int64_t channels = x->ndim >= 2 ? x->dim[1] : 0;
    if (groups < 1 || channels < 1 || channels % groups != 0 ||
        ls__shape_product(x, 2, x->ndim) == 0) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "x %s in %lld groups; x must be [N,C,..] with elements for each "
                            "channel, and the groups divide C",
                            ls__record_print(x).text, (long long)groups);
        return false;
    }
    for (int i = EDGE_W; i <= EDGE_B; i++) {
        const ls__record *p = call->in[i];
        if (p != NULL && (p->ndim != 1 || p->dim[0] != channels)) {
            (void)ls__call_fail(call, LS_ERR_INVALID,
                                "x %s with %s %s: it must be [%lld], one for each channel",
                                ls__record_print(x).text, i == EDGE_W ? "weight" : "bias",
                                ls__record_print(p).text, (long long)channels);
            return false;
        }
    }
    return true;
}

/* [C] as [C,1,..], which broadcasts to [N,C,..] of `ndim` dimensions. */
static ls_tensor *by_channel(ls_tensor *p, int64_t channels, int ndim)
{
    ls_shape shape = {.ndim = ndim - 1, .dim = {channels}};
    for (int d = 1; d < shape.ndim; d++) {
        shape.dim[d] = 1;
    }
    return ls_reshape(p, shape);
}

/* A layer norm over each group's elements, composed of other operations, so it has no backward
 * of its own. The call only checks; each of the operations begins one of its own. */
ls_tensor *ls_group_norm(ls_tensor *x, int64_t groups, ls_tensor *weight, ls_tensor *bias,
                         double eps)
{
    ls__call call;
    if (!ls__call_begin_optional(&call, "group_norm", 3, (ls_tensor *[]){x, weight, bias},
                                 1u << EDGE_W | 1u << EDGE_B) ||
        !ls__call_float_types(&call) || !check_shapes(&call, groups)) {
        return call.failed;
    }
    const ls_shape shape = ls__record_shape(call.in[EDGE_X]);
    const ls_dtype dtype = (ls_dtype)call.in[EDGE_X]->dtype;
    const int64_t channels = shape.dim[1];
    const int64_t group = channels / groups * ls__shape_product(call.in[EDGE_X], 2, shape.ndim);
    ls_tensor *rows = ls_reshape(x, LS_SHAPE(shape.dim[0] * groups, group));
    ls_tensor *y = ls_reshape(ls_layer_norm(rows, NULL, NULL, eps), shape);
    if (weight != NULL) {
        y = ls_mul(y, by_channel(weight, channels, shape.ndim));
    }
    if (bias != NULL) {
        y = ls_add(y, by_channel(bias, channels, shape.ndim));
    }
    return ls_dtype_of(y) == dtype ? y : ls_cast(y, dtype); /* norms give the type of x */
}
