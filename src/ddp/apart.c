/* SPDX-License-Identifier: Apache-2.0 */
/* The copies are complete when the calls return, since the reducer reads buckets on the host. */
#include "ddp/apart.h"

#include "autograd/param.h"
#include "comm/backend/plugin_group.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"
#include "tensor/tensor.h"

bool ls__ddp_is_apart(const ls_tensor *param)
{
    ls__pool *on = NULL;
    return ls__tensor_place((ls_tensor *)(uintptr_t)param, &on) != NULL && on->device->apart;
}

ls_status ls__ddp_check_memory(const ls__ddp *d)
{
    for (int i = 0; i < d->param_count && !ls__group_on_host(d->group); i++) {
        ls__pool *on = NULL;
        const void *at = ls__tensor_place(d->params[i].value, &on);
        if (at == NULL) {
            return ls__self.status;
        }
        if (on->device->host || !ls__group_reaches(d->group, at)) {
            return ls__fail(LS_ERR_UNSUPPORTED,
                            "parameter %.200s is on device \"%s\", whose memory backend \"%s\" of "
                            "group \"%s\" does not carry; move the module to the backend's device "
                            "before it is wrapped (ls_module_to), or give a group of backend "
                            "\"native\"",
                            d->params[i].name, on->device->name, ls_group_backend(d->group),
                            ls_group_name(d->group));
        }
    }
    return LS_OK;
}

ls_stream *ls__ddp_stream(const ls__ddp *d)
{
    ls__pool *on = NULL;
    if (d->param_count == 0 || ls__group_on_host(d->group)) {
        return NULL; /* a module lies on one device */
    }
    return ls__tensor_place(d->params[0].value, &on) != NULL ? on->stream : NULL;
}

bool ls__ddp_copies(const ls__ddp *d, const ls_tensor *param)
{
    return ls__group_on_host(d->group) && ls__ddp_is_apart(param);
}

/* The gradient and its device; NULL: it is absent, or the error is set. */
static void *gradient(ls_tensor *param, ls__pool **on, size_t *bytes)
{
    ls_tensor *grad = ls_grad(param);
    *bytes = grad != NULL ? (size_t)ls_numel(grad) * ls_dtype_size(ls_dtype_of(grad)) : 0;
    return grad != NULL ? ls__tensor_elements(grad, on) : NULL;
}

ls_status ls__ddp_carry_out(const ls__ddp *d, int i)
{
    ls__pool *on = NULL;
    size_t bytes = 0;
    if (!ls__ddp_copies(d, d->params[i].value)) {
        return LS_OK;
    }
    const void *grad = gradient(d->params[i].value, &on, &bytes);
    if (grad != NULL && bytes > 0) {
        ls__device_read(on->device, ls__reducer_grad(d->reducer, i), grad, bytes);
    }
    return on != NULL ? ls__device_status(on->device) : LS_OK;
}

/* One that only other ranks had gets its memory now. */
static ls_status carry_one_back(const ls__ddp *d, int i)
{
    ls__pool *on = NULL;
    size_t bytes = 0;
    ls_tensor *param = d->params[i].value;
    if (!*ls__reducer_present(d->reducer, i)) {
        return LS_OK;
    }
    LS_TRY(ls__param_set_grad_present(param, true));
    void *grad = gradient(param, &on, &bytes);
    if (grad == NULL) {
        return ls__self.status;
    }
    if (bytes > 0) {
        ls__device_write(on->device, grad, ls__reducer_grad(d->reducer, i), bytes);
    }
    return ls__device_status(on->device);
}

ls_status ls__ddp_carry_back(const ls__ddp *d, const int *params, int count)
{
    if (d->param_count == 0 || !ls__ddp_copies(d, d->params[0].value)) {
        return LS_OK;
    }
    for (int i = 0; i < count; i++) {
        LS_TRY(carry_one_back(d, params != NULL ? params[i] : i));
    }
    return LS_OK;
}
