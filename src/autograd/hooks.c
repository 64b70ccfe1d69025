/* Hooks on gradients. A hook lives in a storage of the runtime, linked to its leaf, which drops it
 * when it dies; so neither outlives the other, and ls_finalize leaves nothing behind. */
#include "autograd/hooks.h"

#include <string.h>

#include "autograd/mode.h"
#include "base/assert.h"

typedef struct grad_hook {
    ls_hook base;
    ls__leaf_hook entry;
    ls__leaf *leaf;
    ls_tensor *tensor; /* as the user gave it */
    ls_grad_hook_fn fn;
    void *arg;
} grad_hook;

/* From the list's entry to the hook around it. */
static grad_hook *hook_of(ls__leaf_hook *entry)
{
    return (grad_hook *)(void *)((char *)entry - offsetof(grad_hook, entry));
}

void ls_hook_free(ls_hook *hook)
{
    if (hook != NULL) {
        hook->remove(hook);
    }
}

/* The place in the leaf's list that points at `entry`, which must be in it. NULL finds the end of
 * the list. */
static ls__leaf_hook **place_of(ls__leaf *leaf, const ls__leaf_hook *entry)
{
    ls__leaf_hook **at = &leaf->hooks;
    while (*at != entry) {
        LS_ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    return at;
}

/* May run while the hook itself is being called; ls__grad_hooks_run holds a reference until it
 * returns. */
static void grad_hook_remove(ls_hook *self)
{
    grad_hook *hook = (grad_hook *)(void *)self; /* its first member */
    *place_of(hook->leaf, &hook->entry) = hook->entry.next;
    ls__storage_unref(hook->entry.self);
}

/* The hook lives as long as its leaf, unless ls_hook_free removes it earlier. */
ls_hook *ls_grad_hook_new(ls_tensor *t, ls_grad_hook_fn fn, void *arg)
{
    ls__tensors *tensors = ls__tensors_get("grad_hook");
    const ls__record *record = tensors != NULL ? ls__record_sound(tensors, t, "grad_hook") : NULL;
    if (record == NULL) {
        return NULL;
    }
    if (fn == NULL || !(record->flags & LS__RECORD_LEAF)) {
        (void)ls__fail(LS_ERR_INVALID,
                       "grad_hook: give a function and a leaf that requires gradients (a "
                       "parameter, or ls_set_requires_grad)");
        return NULL;
    }
    ls__storage *storage = ls__storage_new(&tensors->host, sizeof(grad_hook));
    if (storage == NULL) {
        return NULL;
    }
    grad_hook *hook = storage->data;
    *hook = (grad_hook){.base.remove = grad_hook_remove,
                        .entry.self = storage,
                        .leaf = ls__leaf_of(record->node),
                        .tensor = t,
                        .fn = fn,
                        .arg = arg};
    *place_of(hook->leaf, NULL) = &hook->entry;
    return &hook->base;
}

/* Runs one hook in a scope of its own and without recording a graph. An absent gradient means that
 * no rule behind the leaf had one to give; the hook is then not called. */
static ls_status run_hook(const grad_hook *hook)
{
    const ls__autograd_mode before = ls__autograd_mode_get();
    ls__self.no_grad = true;
    ls_scope *scope = ls_scope_enter();
    ls_tensor *grad = ls_grad(hook->tensor);
    ls_status status = LS_OK;
    if (grad != NULL) {
        const char *name = hook->leaf->name;
        const ls__user_call user = ls__user_call_begin();
        status = hook->fn(hook->arg, hook->tensor, grad);
        status =
            ls__user_call_end(&user, status, "gradient hook of %s", name != NULL ? name : "a leaf");
    }
    ls_scope_leave(scope);
    ls__autograd_mode_set(&before);
    return status;
}

/* Hooks run in the order in which they were added; the first failure ends the pass. */
ls_status ls__grad_hooks_run(const ls__leaf *leaf)
{
    ls__leaf_hook *next = NULL;
    for (ls__leaf_hook *at = leaf->hooks; at != NULL; at = next) {
        ls__storage *held = ls__storage_ref(at->self); /* it may free itself */
        const ls_status status = run_hook(hook_of(at));
        next = at->next;
        ls__storage_unref(held);
        LS_TRY(status);
    }
    return LS_OK;
}
