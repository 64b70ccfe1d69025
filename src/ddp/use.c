/* SPDX-License-Identifier: Apache-2.0 */
/* Using a wrapper: its modes, taking it off, statistics. All of them also take a module without a
 * wrapper, so that one training loop serves both, except those that would have nothing to say. */
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "base/text.h"
#include "ddp/wrapper.h"
#include "reduce/hook.h"
#include "reduce/reducer.h"

ls__ddp *ls__ddp_of(ls_module *module)
{
    return module != NULL && module->cls == &ls__ddp_class ? (ls__ddp *)module : NULL;
}

/* The same for getters. */
static const ls__ddp *ddp_of_const(const ls_module *module)
{
    return module != NULL && module->cls == &ls__ddp_class ? (const ls__ddp *)module : NULL;
}

/* A module without a wrapper is returned as it is. */
ls_module *ls_ddp_module(ls_module *module)
{
    ls__ddp *d = ls__ddp_of(module);
    return d != NULL ? d->inner : module;
}

const char *ls_ddp_backend(const ls_module *module)
{
    const ls__ddp *d = ddp_of_const(module);
    const bool has_groups = d != NULL && d->guest.runtime != NULL;
    return ls_group_backend(has_groups ? ls__reducer_group(d->reducer) : NULL);
}

/* Whether the module is a wrapper or has one. */
static bool has_wrapper(ls_module *module)
{
    bool found = module->cls == &ls__ddp_class;
    for (int i = 0; !found && i < ls_module_child_count(module); i++) {
        found = has_wrapper(ls_module_child_at(module, i));
    }
    return found;
}

static bool is_wrapped(const ls_module *module)
{
    const ls_module *parent = module->entries->parent;
    while (parent != NULL && parent->cls != &ls__ddp_class) {
        parent = parent->entries->parent;
    }
    return parent != NULL;
}

ls_status ls__ddp_refuse_beside(ls_module *module, const char *caller)
{
    if (module == NULL || (!has_wrapper(module) && !is_wrapped(module))) {
        return LS_OK;
    }
    return ls__fail_at_site(ls__fail(
        LS_ERR_INVALID, "%s: the %s is not the ddp, but %s; give what ls_ddp_new returned", caller,
        ls__module_name(module), is_wrapped(module) ? "part of it" : "has one below it"));
}

/* A module without a wrapper is whole. */
ls_status ls_ddp_gather(ls_module *module)
{
    ls__ddp *d = ls__ddp_of(module);
    if (d == NULL) {
        return ls__ddp_refuse_beside(module, "ls_ddp_gather");
    }
    const ls_status status = ls__unshard_pin(d);
    return status < 0 ? ls__fail_at_site(status) : LS_OK;
}

ls_status ls_ddp_release(ls_module *module)
{
    ls__ddp *d = ls__ddp_of(module);
    return d != NULL ? ls__unshard_unpin(d) : ls__ddp_refuse_beside(module, "ls_ddp_release");
}

/* Parameters and gradients move to memory of their own; names that the wrapper gave out stay
 * valid. */
ls_module *ls_ddp_unwrap(ls_module *module)
{
    ls__ddp *d = ls__ddp_of(module);
    if (d == NULL) {
        return module;
    }
    if (module->entries->parent != NULL) {
        (void)ls__fail(
            LS_ERR_STATE,
            "ls_ddp_unwrap: the ddp is part of module %s; only a ddp that is not part of "
            "another module can be taken off",
            ls__module_name(module->entries->parent));
        return NULL;
    }
    return ls_ddp_gather(module) == LS_OK ? ls__module_unwrap(module) : NULL;
}

/* Takes effect at the next backward; a module without a wrapper ignores it. */
ls_status ls_ddp_set_sync(ls_module *module, bool sync)
{
    ls__ddp *d = ls__ddp_of(module);
    if (d == NULL) {
        return ls__ddp_refuse_beside(module, "ls_ddp_set_sync");
    }
    d->sync = sync;
    return LS_OK;
}

ls_status ls_ddp_set_hook(ls_module *module, const ls_comm_hook *hook)
{
    ls__ddp *d = ls__ddp_of(module);
    ls_status status = hook == NULL ? LS_OK
                       : d != NULL  ? ls__ddp_axes_check_hook(d)
                                    : ls__ddp_refuse_beside(module, "ls_ddp_set_hook");
    if (d != NULL && hook != NULL && status == LS_OK) {
        status = ls__ddp_refuse_remote(d, "ls_ddp_set_hook", "gradients are sent as they are");
    }
    if (d != NULL && status == LS_OK) {
        return ls_reducer_set_hook(d->reducer, hook);
    }
    if (hook != NULL) {
        LS__OPTIONS(ls_comm_hook, given, hook);
        if (given.free != NULL) {
            given.free(given.state);
        }
    }
    return status;
}

/* The state of the wrapped module follows. */
ls_status ls__ddp_state(ls_module *self, const char *prefix, const ls_state_visitor *visitor)
{
    char name[256];
    LS_TRY(ls__state_name(name, sizeof name, prefix, "", "comm_hook"));
    LS_TRY(ls__reducer_hook_state(((ls__ddp *)self)->reducer, name, visitor));
    LS_TRY(ls__state_name(name, sizeof name, prefix, "", "outer"));
    return ls__outer_state((ls__ddp *)self, name, visitor);
}

/* A module without a wrapper always counts as synchronised. */
bool ls_ddp_sync(const ls_module *module)
{
    const ls__ddp *d = ddp_of_const(module);
    return d == NULL || d->sync;
}

ls_status ls__ddp_missing(const char *caller)
{
    return ls__fail(LS_ERR_INVALID, "%s: the module is not a ddp; give what ls_ddp_new returned",
                    caller);
}

ls_status ls__ddp_refuse_remote(const ls__ddp *d, const char *caller, const char *instead)
{
    return d->remote == NULL
               ? LS_OK
               : ls__fail_at_site(ls__fail(LS_ERR_UNSUPPORTED,
                                           "%s: servers step the parameters of this module "
                                           "(ls_server_new): %s",
                                           caller, instead));
}

/* The message is copied because failing the groups may set others. */
ls_status ls__ddp_give_up(ls__ddp *d, ls_status status)
{
    char message[LS__MESSAGE_MAX];
    memcpy(message, ls_error_message(), sizeof message);
    ls__reducer_abort(d->reducer, status, message);
    (void)ls__buffers_finish(&d->buffers); /* on its way or not, the group has failed */
    return ls__fail_again(status, message);
}

ls_status ls_ddp_get_stats(const ls_module *module, ls_ddp_stats *out)
{
    const ls__ddp *d = ddp_of_const(module);
    if (d == NULL) {
        return ls__ddp_missing("ls_ddp_get_stats");
    }
    ls_ddp_stats now = d->stats.shown;
    now.reduce.size = sizeof now.reduce;
    LS_TRY(ls_reducer_get_stats(d->reducer, &now.reduce));
    return ls__struct_fill(out, &now, sizeof now, "ls_ddp_stats", "ls_ddp_get_stats");
}

ls_reducer *ls_ddp_reducer(ls_module *module)
{
    const ls__ddp *d = ls__ddp_of(module);
    if (d == NULL) {
        (void)ls__ddp_missing("ls_ddp_reducer");
    }
    return d != NULL ? d->reducer : NULL;
}

ls_status ls_ddp_timeline(ls_module *module, char *out, size_t bytes, size_t *needed)
{
    const ls__ddp *d = ls__ddp_of(module);
    if (d == NULL) {
        return ls__ddp_missing("ls_ddp_timeline");
    }
    return ls__timeline_print(d->reducer, d->param_count, out, bytes, needed);
}
