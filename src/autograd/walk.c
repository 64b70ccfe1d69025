/* SPDX-License-Identifier: Apache-2.0 */
/* Walking a graph: from a node to everything it came from, latest first.
 *
 * Creation numbers make the order a plain max-heap: an input is always older than what uses it. A
 * walk ends at leaves, and at nodes that were there before its border: those are outside, met but
 * not entered (recompute.c asks what a piece of the graph leads to). */
#include "autograd/walk.h"

#include "autograd/joint.h"
#include "base/assert.h"

/* ---- a pile of nodes, also used as a heap ------------------------------------------------- */

static ls_status pile_push(ls__autograd_pile *pile, ls__tensors *tensors, ls__tensor_node *node)
{
    LS_TRY(ls__pile_grow(tensors, &pile->memory, pile->count, &pile->room, sizeof *pile->at));
    pile->at = pile->memory->data;
    pile->at[pile->count++] = node;
    return LS_OK;
}

/* Exchanges two places of the heap. */
static void swap(ls__autograd_pile *heap, int64_t i, int64_t j)
{
    ls__tensor_node *node = heap->at[i];
    heap->at[i] = heap->at[j];
    heap->at[j] = node;
}

/* A max-heap by creation number. */
static ls_status heap_push(ls__autograd_pile *heap, ls__tensors *tensors, ls__tensor_node *node)
{
    LS_TRY(pile_push(heap, tensors, node));
    for (int64_t i = heap->count - 1; i > 0; i = (i - 1) / 2) {
        if (heap->at[i]->number < heap->at[(i - 1) / 2]->number) {
            break;
        }
        swap(heap, i, (i - 1) / 2);
    }
    return LS_OK;
}

/* The heap must not be empty. */
static ls__tensor_node *heap_pop(ls__autograd_pile *heap)
{
    LS_ASSERT(heap->count > 0);
    ls__tensor_node *top = heap->at[0];
    heap->at[0] = heap->at[--heap->count];
    for (int64_t i = 0;;) {
        int64_t child = 2 * i + 1;
        if (child >= heap->count) {
            return top;
        }
        if (child + 1 < heap->count && heap->at[child + 1]->number > heap->at[child]->number) {
            child++;
        }
        if (heap->at[child]->number < heap->at[i]->number) {
            return top;
        }
        swap(heap, i, child);
        i = child;
    }
}

/* ---- the walk ----------------------------------------------------------------------------- */

/* Rules free what they saved when they have run, so a second pass through the same graph has
 * nothing to read. */
static ls_status fail_released(const ls__autograd_walk *walk, const ls__tensor_node *node)
{
    return ls__fail(LS_ERR_STATE,
                    "%s: the graph of this loss (%s, made at %s:%d) was released by an earlier "
                    "backward through it; run the forward pass again for each ls_backward, add "
                    "the losses up and call it once, or keep the graph with LS_RETAIN_GRAPH",
                    walk->name, ls__node_name(node), node->file != NULL ? node->file : "?",
                    node->line);
}

/* A leaf met for the first time in this pass has a count left over from an earlier one, unless the
 * walk adds to a pass that is under way. */
static void count_leaf(const ls__autograd_walk *walk, ls__tensor_node *leaf, bool first)
{
    switch (walk->count) {
    case LS__COUNT_NOT:
        return;
    case LS__COUNT_ANEW:
        leaf->pending = first ? 1 : leaf->pending + 1;
        return;
    case LS__COUNT_ON:
        leaf->pending++;
        return;
    }
}

/* An edge leads to `to`: counts it, and notes the nodes that are met for the first time. */
static ls_status reach(ls__autograd_walk *walk, ls__tensor_node *to)
{
    bool leaf = ls__node_is_leaf(to);
    if (leaf && walk->border > 0 && to->number > walk->border) {
        return LS_OK; /* made within: its gradient is invisible outside */
    }
    bool first = to->pass != walk->number;
    to->pass = walk->number;
    if (leaf) {
        count_leaf(walk, to, first);
    }
    if (leaf || to->number <= walk->border) {
        return first ? pile_push(&walk->outside, walk->tensors, to) : LS_OK;
    }
    if (to->released) {
        return fail_released(walk, to);
    }
    return first ? heap_push(&walk->heap, walk->tensors, to) : LS_OK;
}

/* Edges, and the links of a joint or of its outputs, which count as edges. */
static ls_status reach_inputs(ls__autograd_walk *walk, const ls__tensor_node *node)
{
    for (int i = 0; i < LS__EDGES_MAX; i++) {
        if (node->edge[i].to != NULL) {
            LS_TRY(reach(walk, node->edge[i].to));
        }
    }
    const ls__joint_links *links = ls__links_of(node);
    for (int64_t i = 0; links != NULL && i < links->count; i++) {
        if (links->at[i].edge.to != NULL) {
            LS_TRY(reach(walk, links->at[i].edge.to));
        }
    }
    return LS_OK;
}

/* The root counts as reached by one edge: the gradient that the caller puts there. */
ls_status ls__walk_add(ls__autograd_walk *walk, ls__tensor_node *root)
{
    return reach(walk, root);
}

/* A released node reached in the middle fails; nodes stay marked, which harms no later walk. */
ls_status ls__walk_run(ls__autograd_walk *walk)
{
    while (walk->heap.count > 0) {
        ls__tensor_node *node = heap_pop(&walk->heap);
        LS_ASSERT(walk->order.count == 0 ||
                  node->number < walk->order.at[walk->order.count - 1]->number);
        LS_TRY(pile_push(&walk->order, walk->tensors, node));
        LS_TRY(reach_inputs(walk, node));
    }
    return LS_OK;
}

/* The piles hold no references to nodes, only memory of their own. */
void ls__walk_fini(ls__autograd_walk *walk)
{
    ls__storage_unref(walk->heap.memory);
    ls__storage_unref(walk->order.memory);
    ls__storage_unref(walk->outside.memory);
}
