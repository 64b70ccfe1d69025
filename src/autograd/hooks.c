/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks on gradients. A hook lives in a storage of the runtime, linked to its node: to a leaf,
 * which drops it when it dies, or to that of an operation, which dies with its scope. So neither
 * outlives the other, and ls_finalize leaves nothing behind. */
#include "autograd/hooks.h"

#include <string.h>

#include "autograd/accumulate.h"
#include "autograd/joint.h"
#include "autograd/mode.h"
#include "base/assert.h"
#include "tensor/shape.h"

typedef struct grad_hook {
    ls_hook base;
    ls__node_hook entry;
    ls__tensor_node *node;
    ls_tensor *tensor; /* as the user gave it … */
    ls__record seen;   /* … and how its elements lie; never linked, holds no references */
    ls_grad_hook_fn fn;
    void *arg;
} grad_hook;

/* From the list's entry to the hook around it. */
static grad_hook *hook_of(ls__node_hook *entry)
{
    return (grad_hook *)(void *)((char *)entry - offsetof(grad_hook, entry));
}

void ls_hook_free(ls_hook *hook)
{
    if (hook != NULL) {
        hook->remove(hook);
    }
}

/* The place in the node's list that points at `entry`, which must be in it. NULL finds the end of
 * the list. */
static ls__node_hook **place_of(ls__tensor_node *node, const ls__node_hook *entry)
{
    ls__node_hook **at = &node->hooks;
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
    *place_of(hook->node, &hook->entry) = hook->entry.next;
    ls__storage_unref(hook->entry.self);
}

/* A node has one gradient, that of its whole output: a view of all of it has the same, in another
 * order, and one of a part has none of its own. */
static ls_status check_hooked(const ls__record *record, bool has_fn)
{
    const ls__tensor_node *node = record->node;
    if (!has_fn || node == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "grad_hook: %s%s; give a function and a parameter, a result that was "
                        "computed from one, or a tensor after ls_set_requires_grad",
                        has_fn ? ls__record_print(record).text : "the function",
                        has_fn ? " requires no gradients" : " is NULL");
    }
    if (node->released) {
        return ls__fail(LS_ERR_STATE,
                        "grad_hook: a backward has released the graph of %s; add the hook before "
                        "it",
                        ls__record_print(record).text);
    }
    const bool own = ls__node_is_leaf(node) ? (record->flags & LS__RECORD_LEAF) != 0
                                            : record->numel == node->numel;
    if (!own) {
        return ls__fail(LS_ERR_INVALID,
                        "grad_hook: %s is a view, of a leaf or of a part of %lld elements, and has "
                        "no gradient of its own; give that tensor, or use ls_clone of the view",
                        ls__record_print(record).text, (long long)node->numel);
    }
    return ls__graph_open(record) ? LS_OK : ls__fail_within(ls__self.status, "grad_hook");
}

/* The hook lives as long as its node, unless ls_hook_free removes it earlier. */
ls_hook *ls_grad_hook_new(ls_tensor *t, ls_grad_hook_fn fn, void *arg)
{
    ls__tensors *tensors = ls__tensors_get("grad_hook");
    const ls__record *record = tensors != NULL ? ls__record_sound(tensors, t, "grad_hook") : NULL;
    if (record == NULL || check_hooked(record, fn != NULL) < 0) {
        return NULL;
    }
    ls__storage *storage = ls__storage_new(&tensors->host, sizeof(grad_hook));
    if (storage == NULL) {
        return NULL;
    }
    grad_hook *hook = storage->data;
    *hook = (grad_hook){.base.remove = grad_hook_remove,
                        .entry.self = storage,
                        .node = record->node,
                        .tensor = t,
                        .seen = *record,
                        .fn = fn,
                        .arg = arg};
    *place_of(hook->node, NULL) = &hook->entry;
    return &hook->base;
}

/* The gradient that the hook may change: a leaf's, or a tensor of the innermost scope over that of
 * an operation's output. NULL: there is none, or, with the error set, no memory. */
static ls_tensor *gradient_of(const grad_hook *hook, ls_status *status)
{
    if (ls__node_is_leaf(hook->node)) {
        return ls_grad(hook->tensor);
    }
    ls__tensors *tensors = hook->node->grad->pool->tensors;
    ls__record *record = ls__record_new(tensors);
    *status = record != NULL ? ls__gradient_own(hook->node) : ls__self.status;
    if (*status < 0) {
        return NULL;
    }
    record->ndim = hook->seen.ndim;
    record->dtype = hook->seen.dtype;
    record->numel = hook->seen.numel;
    memcpy(record->dim, hook->seen.dim, sizeof record->dim);
    memcpy(record->stride, hook->seen.stride, sizeof record->stride);
    record->storage = ls__storage_ref(hook->node->grad);
    return ls__handle(record);
}

/* "fc1.weight", or the operation that made the tensor. */
static const char *name_of(ls__tensor_node *node)
{
    if (!ls__node_is_leaf(node)) {
        return ls__node_name(node);
    }
    const char *name = ls__leaf_of(node)->name;
    return name != NULL ? name : "a leaf";
}

/* Runs one hook in a scope of its own and without recording a graph. An absent gradient means that
 * no rule behind the leaf had one to give; the hook is then not called. */
static ls_status run_hook(const grad_hook *hook)
{
    const ls__autograd_mode before = ls__autograd_mode_get();
    ls__self.no_grad = true;
    ls_scope *scope = ls_scope_enter();
    ls_status status = LS_OK;
    ls_tensor *grad = gradient_of(hook, &status);
    if (grad != NULL) {
        const ls__user_call user = ls__user_call_begin();
        status = hook->fn(hook->arg, hook->tensor, grad);
        status = ls__user_call_end(&user, status, "gradient hook of %s", name_of(hook->node));
    }
    ls_scope_leave(scope);
    ls__autograd_mode_set(&before);
    return status;
}

/* Hooks run in the order in which they were added; the first failure ends the pass. */
ls_status ls__grad_hooks_run(ls__tensor_node *node)
{
    ls__node_hook *next = NULL;
    for (ls__node_hook *at = node->hooks; at != NULL; at = next) {
        ls__storage *held = ls__storage_ref(at->self); /* it may free itself */
        const ls_status status = run_hook(hook_of(at));
        next = at->next;
        ls__storage_unref(held);
        LS_TRY(status);
    }
    return LS_OK;
}
