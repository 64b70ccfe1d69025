/* SPDX-License-Identifier: Apache-2.0 */
/* Recording the graph: leaves, edges and saved operands. See graph.h for the structs and Note
 * [Views make no nodes]. Nodes live in their scope's arena and die with it; a leaf is counted,
 * because a graph, a module and the gradient's reader may each be the last to use it. */
#include "tensor/graph.h"

#include <string.h>

#include "base/assert.h"

void ls__node_hooks_free(ls__tensor_node *node)
{
    while (node->hooks != NULL) {
        ls__node_hook *hook = node->hooks;
        node->hooks = hook->next;
        ls__storage_unref(hook->self);
    }
}

void ls__leaf_release_grad(ls__leaf *leaf)
{
    if (leaf->grad == NULL || leaf->grad->size_class == LS__STORAGE_BORROWED) {
        return;
    }
    if (leaf->grad_record != NULL) {
        ls__record_free(leaf->self->pool->tensors, leaf->grad_record);
        leaf->grad_record = NULL;
    }
    ls__storage_unref(leaf->grad);
    leaf->grad = NULL;
}

/* Gives back what a leaf owns: hooks, gradient, its record, the parameter's elements. Runs when
 * the last reference to the leaf goes, which may be a node's and not the parameter's. */
static void leaf_fini(ls__storage *storage)
{
    ls__leaf *leaf = storage->data;
    ls__node_hooks_free(&leaf->node);
    if (leaf->grad_record != NULL) {
        ls__record_free(storage->pool->tensors, leaf->grad_record);
    }
    ls__storage_unref(leaf->grad);
    ls__storage_unref(leaf->value);
}

/* Makes `record` a leaf with a gradient of its own shape to come. The leaf is a storage of its
 * own, counted like one, so that a graph may outlive the parameter's handle; it holds the
 * elements. */
ls_status ls__leaf_new(ls__tensors *tensors, ls__record *record)
{
    ls__storage *self = ls__storage_new(&tensors->host, sizeof(ls__leaf));
    if (self == NULL) {
        return ls__self.status;
    }
    ls__leaf *leaf = self->data;
    memset(leaf, 0, sizeof *leaf);
    self->fini = leaf_fini;
    leaf->self = self;
    leaf->present = &leaf->own_present;
    leaf->value = ls__storage_ref(record->storage);
    leaf->node.number =
        atomic_fetch_add_explicit(&tensors->nodes_made, 1, memory_order_relaxed) + 1;
    leaf->node.numel = record->numel;
    leaf->node.dtype = record->dtype;
    leaf->node.offset = record->offset;
    leaf->node.file = record->file;
    leaf->node.line = record->line;
    leaf->notes = record->notes;
    leaf->shape.ndim = record->ndim;
    memcpy(leaf->shape.dim, record->dim, sizeof leaf->shape.dim);
    record->node = &leaf->node;
    record->flags |= LS__RECORD_LEAF;
    return LS_OK;
}

/* Drops what a node holds: saved operands, edges, its gradient. Called after a node was walked
 * and, for those that never were, by the scope's end; the node itself stays in the arena,
 * marked. */
void ls__node_release(ls__tensor_node *node)
{
    for (int i = 0; i < LS__SAVED_MAX; i++) {
        ls__storage_unref(node->saved[i].storage);
        ls__node_unref(node->saved[i].leaf);
        node->saved[i] = (ls__tensor_saved){0};
    }
    for (int i = 0; i < LS__EDGES_MAX; i++) {
        ls__node_unref(node->edge[i].to);
        node->edge[i] = (ls__edge){0};
    }
    ls__storage_unref(node->grad);
    node->grad = NULL;
    node->released = true;
}

/* The edge to `record`'s node, with a reference to it if that is a leaf. Only a view of part of
 * a base, or one in another order, needs a geometry. */
bool ls__edge_to(ls__tensors *tensors, const ls__record *record, ls__edge *out)
{
    *out = (ls__edge){0};
    if (record->node == NULL) {
        return true;
    }
    if (!ls__graph_open(record)) {
        return false;
    }
    bool whole = record->numel == record->node->numel && record->offset == record->node->offset &&
                 ls__record_contiguous(record);
    if (!whole) {
        ls__geometry *geometry = ls__scope_alloc(tensors, sizeof *geometry);
        if (geometry == NULL) {
            return false;
        }
        geometry->ndim = record->ndim;
        memcpy(geometry->dim, record->dim, sizeof geometry->dim);
        geometry->stride = ls__record_strided(record);
        geometry->offset = record->offset - record->node->offset;
        geometry->numel = record->numel;
        LS_ASSERT(geometry->offset >= 0);
        out->geometry = geometry;
    }
    out->to = ls__node_ref(record->node);
    return true;
}
