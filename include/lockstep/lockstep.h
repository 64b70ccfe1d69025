/* SPDX-License-Identifier: Apache-2.0 */
/* Includes all headers of the framework. The lower levels are comm.h (collectives) and reducer.h
 * (bring your own backward); neither needs the levels above it. docs/api.md has the conventions.
 *
 * How calls report errors:
 *
 *     returns                      failure                        check
 *     ls_status                    a negative status              LS_CHECK(call), LS_TRY(call)
 *     a new object (ls_..._new)    NULL                           LS_CHECK(net = ls_..._new(...))
 *     ls_tensor *, an operation    a poisoned tensor, not NULL    ls_tensor_status; or ls_item,
 *                                                                 ls_backward, which report it
 *     ls_module_add, _add_param    the parent fails               ls_module_status(parent)
 *     bool, ls_loader_next         false, as at an epoch's end    ls_loader_status
 *     void                         cannot fail
 *
 * ls_error_message() returns the text of this thread's last error, ls_error_status() its code.
 */
#ifndef LOCKSTEP_LOCKSTEP_H
#define LOCKSTEP_LOCKSTEP_H

#include <lockstep/autograd.h>
#include <lockstep/backend.h>
#include <lockstep/captured.h>
#include <lockstep/checkpoint.h>
#include <lockstep/comm.h>
#include <lockstep/comm_hook.h>
#include <lockstep/compression.h>
#include <lockstep/context.h>
#include <lockstep/data.h>
#include <lockstep/ddp.h>
#include <lockstep/event_log.h>
#include <lockstep/function.h>
#include <lockstep/memory.h>
#include <lockstep/mesh.h>
#include <lockstep/moe.h>
#include <lockstep/nn.h>
#include <lockstep/ops.h>
#include <lockstep/optim.h>
#include <lockstep/parts.h>
#include <lockstep/pipeline.h>
#include <lockstep/placement.h>
#include <lockstep/plan.h>
#include <lockstep/random.h>
#include <lockstep/reducer.h>
#include <lockstep/runtime.h>
#include <lockstep/server.h>
#include <lockstep/sharded.h>
#include <lockstep/state.h>
#include <lockstep/status.h>
#include <lockstep/store.h>
#include <lockstep/tensor.h>
#include <lockstep/tensor_parallel.h>
#include <lockstep/tokenizer.h>
#include <lockstep/types.h>
#include <lockstep/version.h>
#include <lockstep/vision.h>

/* LS_ITEM("model", net): an ls_checkpoint_item of a module, optimizer, loader or runtime. */
#ifndef __cplusplus
static inline ls_status ls_item_module_(void *m, const char *prefix, const ls_state_visitor *v)
{
    return ls_module_state(m, prefix, v);
}
static inline ls_status ls_item_optim_(void *o, const char *prefix, const ls_state_visitor *v)
{
    return ls_optim_state(o, prefix, v);
}
static inline ls_status ls_item_loader_(void *l, const char *prefix, const ls_state_visitor *v)
{
    return ls_loader_state(l, prefix, v);
}
static inline ls_status ls_item_runtime_(void *r, const char *prefix, const ls_state_visitor *v)
{
    return ls_runtime_state(r, prefix, v);
}
#define LS_ITEM(prefix_, object_)                                                                  \
    {                                                                                              \
        .size = sizeof(ls_checkpoint_item), .prefix = (prefix_), .object = (object_),              \
        .state = _Generic((object_), ls_module *                                                   \
                          : ls_item_module_, ls_optim *                                            \
                          : ls_item_optim_, ls_loader *                                            \
                          : ls_item_loader_, ls_runtime *                                          \
                          : ls_item_runtime_)                                                      \
    }
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Load the tensors of a safetensors file into a module by name, and save them; path, options and
 * errors are those of ls_safetensors_load and ls_safetensors_save (checkpoint.h). Not collective:
 * with DDP every rank loads, and one rank saves. */
LS_API ls_status ls_module_load_safetensors(ls_module *module, const char *path,
                                            const ls_safetensors_options *options);
LS_API ls_status ls_module_save_safetensors(ls_module *module, const char *path,
                                            const ls_safetensors_options *options);

/* A device is where the elements of tensors lie and operations on them run: "cpu", or a GPU of
 * NVIDIA's, "cuda:0" ("cuda": the one with the number of this rank on its host), through the
 * plug-in ls_device_cuda.so (docs/guide/devices.md). A process computes on one GPU; operands lie
 * on one device.
 *
 * From this call on, tensors that are made from nothing, and so modules and their parameters,
 * lie on `device` (torch.set_default_device). LS_ERR_NOT_FOUND without the plug-in,
 * LS_ERR_UNSUPPORTED where the device cannot be used, each with the reason. */
LS_API ls_status ls_device_use(const char *device);
/* A copy of `t` on `device` that is complete on return; NULL: where tensors are made. Gradients go
 * back the same way. A view if `t` lies there already. */
LS_API ls_tensor *ls_to(ls_tensor *t, const char *device);
/* The name of the device on which `t` lies; NULL with the error set. */
LS_API const char *ls_device_of(const ls_tensor *t);
/* Moves parameters and buffers, before the module is wrapped or has gradients; the optimizer is
 * made or first stepped afterwards. Every view follows. */
LS_API ls_status ls_module_to(ls_module *module, const char *device);

/* For bindings of other languages: fills *out, a struct of type `type` ("ls_collective_options",
 * for example), with its defaults. The caller sets its `size` first; fields beyond it are not
 * written. C and C++ call ls_collective_defaults() instead. LS_ERR_NOT_FOUND when `type` is not an
 * option struct of these headers, LS_ERR_INVALID for an impossible size. May be called before
 * ls_init. */
LS_API ls_status ls_options_defaults(const char *type, void *out);

#ifdef __cplusplus
}
#endif

#ifndef LS_NO_SITES
#define ls_device_use(...) LS_AT(ls_device_use(__VA_ARGS__))
#define ls_to(...) LS_AT(ls_to(__VA_ARGS__))
#define ls_module_to(...) LS_AT(ls_module_to(__VA_ARGS__))
#endif

#endif
