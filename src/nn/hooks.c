/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks on the forward of modules. Each module has a list of them, in order of addition, and owns
 * it. A hook may remove itself or others while it runs: a running hook is only marked, and its
 * memory is freed when the outermost call of it has returned. */
#include "nn/hooks.h"

#include <stdlib.h>

#include "autograd/hooks.h"
#include "base/assert.h"

struct ls__module_hook {
    ls_hook base;
    ls__module_hook *next;
    ls_module *module;
    ls_forward_hook_fn fn;
    void *arg;
    bool before;
    bool running, removed; /* a hook that frees itself goes when it has returned */
};

/* The place in the list that points at `hook`, which must be in it. NULL finds the end of the
 * list. */
static ls__module_hook **place_of(ls_module *module, const ls__module_hook *hook)
{
    ls__module_hook **at = &module->entries->hooks;
    while (*at != hook) {
        LS_ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    return at;
}

/* Safe inside the hook itself: its memory then goes when ls__module_hooks_run is back from it. */
static void hook_remove(ls_hook *self)
{
    ls__module_hook *hook = (ls__module_hook *)(void *)self; /* its first member */
    hook->removed = true;
    if (!hook->running) {
        *place_of(hook->module, hook) = hook->next;
        free(hook);
    }
}

/* The module owns the hook from here on; a hook that is never removed dies with it. */
static ls_hook *hook_new(ls_module *module, ls_forward_hook_fn fn, void *arg, bool before)
{
    ls__module_hook *hook = NULL;
    if (module == NULL || fn == NULL) {
        (void)ls__fail(LS_ERR_INVALID, "forward_hook: the %s is NULL; give a module and a function",
                       module == NULL ? "module" : "function");
        return NULL;
    }
    hook = calloc(1, sizeof *hook);
    if (hook == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "module: no memory for %s", "hook");
        return NULL;
    }
    *hook = (ls__module_hook){
        .base.remove = hook_remove, .module = module, .fn = fn, .arg = arg, .before = before};
    *place_of(module, NULL) = hook;
    return &hook->base;
}

/* Runs before the forward and may replace the inputs. */
ls_hook *ls_forward_pre_hook_new(ls_module *module, ls_forward_hook_fn fn, void *arg)
{
    return hook_new(module, fn, arg, true);
}

/* Runs after the forward and may replace the outputs. */
ls_hook *ls_forward_hook_new(ls_module *module, ls_forward_hook_fn fn, void *arg)
{
    return hook_new(module, fn, arg, false);
}

/* Runs the hooks before the forward when `outputs` is NULL, else those after it. `next` is read
 * after each call, because a hook may add or remove others. */
ls_status ls__module_hooks_run(ls_module *module, ls_tensor **inputs, int input_count,
                               ls_tensor **outputs, int output_count)
{
    ls_status status = LS_OK;
    ls__module_hook *next = NULL;
    for (ls__module_hook *at = module->entries->hooks; at != NULL && status == LS_OK; at = next) {
        if (at->before == (outputs == NULL) && !at->removed) {
            const bool outer = at->running; /* a forward within this hook's */
            at->running = true;
            const ls__user_call user = ls__user_call_begin();
            status = at->fn(at->arg, module, inputs, input_count, outputs, output_count);
            status =
                ls__user_call_end(&user, status, "forward hook of %s", ls__module_name(module));
            at->running = outer;
        }
        next = at->next;
        if (at->removed && !at->running) {
            hook_remove(&at->base);
        }
    }
    return status;
}

/* Called while the module dies; handles of its hooks are invalid afterwards. */
void ls__module_hooks_free(ls_module *module)
{
    while (module->entries->hooks != NULL) {
        ls__module_hook *hook = module->entries->hooks;
        module->entries->hooks = hook->next;
        free(hook);
    }
}
