/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/gradients.h"

#include <stdlib.h>

#include "base/compiler.h"
#include "tensor/tensor.h"

/* Storages are counted: their memory is nobody else's while the step is. */
struct ls__captured_gradient {
    ls__leaf *leaf; /* counted */
    bool needed;    /* it matters what the step finds */
    bool found, left;
    ls__storage *at_first, *at_end; /* NULL: none */
};

/* ---- the recorded run ------------------------------------------------------------------------ */

static bool make_room(ls__captured *c)
{
    if (c->gradient_count < c->gradient_room) {
        return true;
    }
    const int room = c->gradient_room > 0 ? 2 * c->gradient_room : 64;
    ls__captured_gradient *grown = realloc(c->gradients, (size_t)room * sizeof *grown);
    if (grown == NULL) {
        ls__captured_refuse("no memory");
        return false;
    }
    c->gradients = grown;
    c->gradient_room = room;
    return true;
}

static ls__storage *counted(ls__storage *storage)
{
    return storage != NULL ? ls__storage_ref(storage) : NULL;
}

void ls__captured_met(ls__leaf *leaf, ls__gradient_use use)
{
    ls__captured *c = ls__self.captured;
    if (!c->records || leaf->met == c->run || !make_room(c)) {
        return;
    }
    leaf->met = c->run;
    (void)ls__node_ref(&leaf->node);
    c->gradients[c->gradient_count++] =
        (ls__captured_gradient){.leaf = leaf,
                                .needed = use != LS__GRADIENT_ZEROED,
                                .found = *leaf->present,
                                .at_first = *leaf->present ? counted(leaf->grad) : NULL};
}

void ls__captured_gradients_left(ls__captured *c)
{
    for (int i = 0; i < c->gradient_count; i++) {
        ls__captured_gradient *g = &c->gradients[i];
        g->left = *g->leaf->present;
        g->at_end = g->left ? counted(g->leaf->grad) : NULL;
    }
}

void ls__captured_gradients_forget(ls__captured *c)
{
    for (int i = 0; i < c->gradient_count; i++) {
        ls__captured_gradient *g = &c->gradients[i];
        ls__storage_unref(g->at_first);
        ls__storage_unref(g->at_end);
        ls__node_unref(&g->leaf->node);
    }
    free(c->gradients);
    c->gradients = NULL;
    c->gradient_count = c->gradient_room = 0;
}

/* ---- replays --------------------------------------------------------------------------------- */

bool ls__captured_gradients_fit(const ls__captured *c)
{
    for (int i = 0; i < c->gradient_count; i++) {
        const ls__captured_gradient *g = &c->gradients[i];
        if (g->needed && *g->leaf->present != g->found) {
            return false;
        }
    }
    return true;
}

/* The gradient lies at `to` from now on, and so does the tensor that ls_grad has returned. */
static void move_gradient(ls__leaf *leaf, ls__storage *to)
{
    ls__storage_unref(leaf->grad);
    leaf->grad = ls__storage_ref(to);
    if (leaf->grad_record != NULL) {
        ls__storage_unref(leaf->grad_record->storage);
        leaf->grad_record->storage = ls__storage_ref(to);
    }
}

void ls__captured_gradients_enter(const ls__captured *c)
{
    for (int i = 0; i < c->gradient_count; i++) {
        const ls__captured_gradient *g = &c->gradients[i];
        const ls__pool *on = g->at_first != NULL ? g->at_first->pool : NULL;
        if (g->needed && on != NULL && g->at_first->data != g->leaf->grad->data) {
            on->k->copy(g->at_first->data, g->leaf->grad->data, g->at_first->bytes, on->stream);
            move_gradient(g->leaf, g->at_first);
        }
    }
}

void ls__captured_gradients_leave(const ls__captured *c)
{
    for (int i = 0; i < c->gradient_count; i++) {
        const ls__captured_gradient *g = &c->gradients[i];
        *g->leaf->present = g->left;
        if (!g->left) {
            ls__leaf_release_grad(g->leaf);
        } else if (g->at_end != NULL && g->leaf->grad != g->at_end) {
            move_gradient(g->leaf, g->at_end);
        }
    }
}
