/* SPDX-License-Identifier: Apache-2.0 */
/* The list of what was put off. It owns gradients, references to leaves, and the scopes of
 * recomputed segments. */
#include "autograd/later.h"

#include "autograd/walk.h"
#include "base/log.h"

/* Runs when the scope ends or the weight part has run. Items first: an edge of theirs may lead into
 * a held scope; and an inner scope before the one around it. */
static void later_fini(ls__storage *storage)
{
    const ls__later *later = storage->data;
    if (!later->taken) {
        LS__WARN(
            "a scope ends before the weight part of the backward at %s:%d, so its gradients are "
            "missing; call ls_backward_weight_part in the scope",
            later->file != NULL ? later->file : "?", later->line);
    }
    for (int64_t i = 0; i < later->count; i++) {
        const ls__put_off *item = &ls__later_items(later)[i];
        ls__storage_unref(item->grad);
        ls__node_unref(item->edge.to);
    }
    ls__storage_unref(later->memory);
    for (ls_scope *scope = later->first, *next = NULL; scope != NULL; scope = next) {
        next = scope == later->last ? NULL : scope->parent;
        ls__scope_end(scope);
    }
}

/* `taken` until a scope has it. */
ls__later *ls__later_new(ls__tensors *tensors, bool weighted, double weight)
{
    ls__storage *self = ls__storage_new(&tensors->host, sizeof(ls__later));
    if (self == NULL) {
        return NULL;
    }
    ls__later *later = self->data;
    *later = (ls__later){.self = self,
                         .weighted = weighted,
                         .weight = weight,
                         .taken = true,
                         .file = ls__self.file,
                         .line = ls__self.line};
    self->fini = later_fini;
    return later;
}

void ls__later_free(ls__later *later)
{
    ls__storage_unref(later != NULL ? later->self : NULL);
}

ls_status ls__later_put(ls__tensors *tensors, ls__later *later, const ls__put_off *item)
{
    const ls_status status =
        ls__pile_grow(tensors, &later->memory, later->count, &later->room, sizeof *item);
    if (status < 0) {
        ls__storage_unref(item->grad);
        ls__node_unref(item->edge.to);
        return status;
    }
    ls__later_items(later)[later->count++] = *item;
    return LS_OK;
}

/* Behind those that are held: an inner scope comes before the one around it. */
void ls__later_hold(ls__later *later, ls_scope *scope)
{
    ls__scope_take(scope);
    if (later->first == NULL) {
        later->first = scope;
    } else {
        later->last->parent = scope;
    }
    later->last = scope;
}
