/* SPDX-License-Identifier: Apache-2.0 */
/* The copies are complete when the calls return, since the reducer reads buckets on the host. */
#include "ddp/apart.h"

#include <string.h>

#include "autograd/param.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/round_robin.h"
#include "comm/group/make.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"
#include "tensor/tensor.h"

bool ls__ddp_is_apart(const ls_tensor *param)
{
    ls__pool *on = NULL;
    return ls__tensor_place((ls_tensor *)(uintptr_t)param, &on) != NULL && on->device->apart;
}

/* ---- the backend of gradients --------------------------------------------------------------- */

/* Of the device on which all parameters lie; NULL: it has none, or there is no such device. */
static const char *backend_of_device(const ls__ddp *d)
{
    const ls__device *device = NULL;
    for (int i = 0; i < d->param_count; i++) {
        ls__pool *on = NULL;
        (void)ls__tensor_place(d->params[i].value, &on);
        if (on == NULL || (device != NULL && on->device != device)) {
            return NULL;
        }
        device = on->device;
    }
    return device != NULL ? device->backend : NULL;
}

/* Where the host computes with averages, they stay in its memory. */
static const char *default_backend(const ls__ddp *d, const ls_ddp_options *options)
{
    const bool on_host = options->shards > 0 || options->wire_dtype != LS_FLOAT32;
    return on_host || !ls__group_on_host(d->group) ? NULL : backend_of_device(d);
}

static ls_status find_plugin(const ls__ddp *d, const char *backend, ls__plugin **out)
{
    return ls__plugin_of(ls__round_robin_at(d->group, 0)->comm, backend, out);
}

/* Whether the groups of the wrapper can use memory of this device. `plugin` NULL: they have the
 * backend of the program's group. */
static bool reaches(const ls__ddp *d, const ls__plugin *plugin, const ls__device *device,
                    const void *at)
{
    return plugin != NULL
               ? device->backend != NULL && strcmp(device->backend, plugin->table->name) == 0
               : !device->host && ls__group_reaches(d->group, at);
}

static ls_status check_memory(const ls__ddp *d, const ls__plugin *plugin)
{
    for (int i = 0; i < d->param_count && !d->on_host; i++) {
        ls__pool *on = NULL;
        const void *at = ls__tensor_place(d->params[i].value, &on);
        if (at == NULL) {
            return ls__self.status;
        }
        if (!reaches(d, plugin, on->device, at)) {
            return ls__fail(LS_ERR_UNSUPPORTED,
                            "parameter %.200s is on device \"%s\", whose memory backend \"%s\" of "
                            "group \"%s\" does not carry; move the module to the backend's device "
                            "before it is wrapped (ls_module_to), or give a group of backend "
                            "\"native\"",
                            d->params[i].name, on->device->name,
                            plugin != NULL ? plugin->table->name : ls_group_backend(d->group),
                            ls_group_name(d->group));
        }
    }
    return LS_OK;
}

ls_status ls__ddp_ask_backend(ls__ddp *d, const ls_ddp_options *options)
{
    ls__plugin *plugin = NULL;
    d->backend = options->backend != NULL ? options->backend : default_backend(d, options);
    d->on_host = ls__group_on_host(d->group);
    if (options->backend != NULL && ls__backend_is_native(options->backend)) {
        d->on_host = true;
    } else if (options->backend != NULL) {
        LS_TRY(find_plugin(d, options->backend, &plugin));
        d->on_host = (plugin->can.memory & LS_BACKEND_HOST) != 0;
    }
    return check_memory(d, plugin);
}

ls_status ls__ddp_settle_backend(ls__ddp *d, const ls_ddp_options *options)
{
    ls__plugin *plugin = NULL;
    if (options->backend != NULL || d->backend == NULL) {
        return LS_OK;
    }
    LS_TRY(ls__backend_everywhere(d->group, d->backend, &plugin));
    d->backend = plugin != NULL ? d->backend : NULL;
    d->on_host = plugin == NULL || (plugin->can.memory & LS_BACKEND_HOST) != 0;
    return LS_OK;
}

/* ---- gradients ------------------------------------------------------------------------------ */

ls_stream *ls__ddp_stream(const ls__ddp *d)
{
    ls__pool *on = NULL;
    if (d->param_count == 0 || d->on_host) {
        return NULL; /* a module lies on one device */
    }
    return ls__tensor_place(d->params[0].value, &on) != NULL ? on->stream : NULL;
}

bool ls__ddp_copies(const ls__ddp *d, const ls_tensor *param)
{
    return d->on_host && ls__ddp_is_apart(param);
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

static ls_status scale_on_device(ls_tensor *param, float factor)
{
    ls__pool *on = NULL;
    size_t bytes = 0;
    void *grad = gradient(param, &on, &bytes);
    if (grad == NULL) {
        return ls__self.status;
    }
    if (ls_dtype_of(param) == LS_BFLOAT16) {
        on->k->axpby_bf16(grad, grad, ls_numel(param), factor, 0.0f, on->stream);
    } else {
        on->k->axpby(grad, grad, ls_numel(param), factor, 0.0f, on->stream);
    }
    return LS_OK;
}

/* Backward adds to what is there, and an average that stayed would be reduced once more. It is
 * read, since it may have been clipped. */
ls_status ls__ddp_carry_averages(const ls__ddp *d)
{
    const bool copies = d->param_count > 0 && ls__ddp_copies(d, d->params[0].value);
    for (int i = 0; i < d->param_count && copies; i++) {
        if (ls__reducer_sets_aside(d->reducer, i)) {
            LS_TRY(ls__ddp_carry_out(d, i));
            LS_TRY(ls__tensor_zero(ls_grad(d->params[i].value)));
        }
    }
    return LS_OK;
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

static ls_status scale_all_on_device(const ls__ddp *d, double factor)
{
    for (int i = 0; i < d->param_count && factor != 1.0; i++) {
        if (ls__reducer_is_local(d->reducer, i)) {
            LS_TRY(scale_on_device(d->params[i].value, (float)factor));
        }
    }
    return LS_OK;
}

/* Gradients are read first, since they may have been clipped since the last backward. */
ls_status ls__ddp_scale_local(const ls__ddp *d, double factor)
{
    if (!d->on_host) {
        return scale_all_on_device(d, factor);
    }
    for (int i = 0; i < d->param_count && factor != 1.0; i++) {
        LS_TRY(ls__ddp_carry_out(d, i));
    }
    ls__reducer_scale_local(d->reducer, factor);
    return factor != 1.0 ? ls__ddp_carry_back(d, NULL, d->param_count) : LS_OK;
}
