/* SPDX-License-Identifier: Apache-2.0 */
/* A backward pass in two parts: what the gradients of some inputs need, and all the rest later (Qi
 * et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2).
 *
 *     x ──▶ linear ──▶ linear ──▶ y      input part    dy ─▶ dz ─▶ dh ─▶ dz' ─▶ dx
 *             │ w'       │ w             weight part         dz, h ─▶ dw   dz', x ─▶ dw'
 *
 * A node *leads* to an input if one of its edges does. The input part walks the nodes in the order
 * of a whole pass. Of a leading node it runs the rule for the edges that lead; the other edges stay
 * in the node and are put off with its gradient. A node that does not lead is put off as a whole.
 * The weight part runs what was put off, in the same order. So each gradient is a sum of the same
 * terms in the same order as in a whole pass, and has its bits. Observers and the hooks of
 * parameters take part in the weight part only.
 *
 * A user's function has one rule for all its inputs, and runs when it leads; gradients that are not
 * wanted yet are put off as they are. A recomputed segment that leads runs again in the input part,
 * and its nodes are put off like others: its scope is held until they have run. */
#include "autograd/parts.h"

#include "autograd/accumulate.h"
#include "autograd/engine.h"
#include "autograd/joint.h"
#include "base/assert.h"
#include "tensor/shape.h"

/* ---- the input part: its begin and end ---------------------------------------------------- */

/* A parameter of a wrapper would be ready before its reducer has begun. */
static ls_status mark_input(const ls__autograd_pass *pass, const ls_tensor *input, int i)
{
    const ls__record *record = ls__record_sound(pass->tensors, input, pass->name);
    if (record == NULL) {
        return ls__self.status;
    }
    if (!(record->flags & LS__RECORD_LEAF) || ls__leaf_of(record->node)->observer != NULL) {
        return ls__fail(LS_ERR_STATE,
                        "%s: input %d, %s, is %s; give leaves that require gradients and belong to "
                        "no ls_ddp_new, such as received activations",
                        pass->name, i, ls__record_print(record).text,
                        record->flags & LS__RECORD_LEAF ? "a parameter of a wrapper" : "no leaf");
    }
    record->node->leads = true;
    pass->later->input[pass->later->inputs++] = ls__node_ref(record->node);
    return LS_OK;
}

ls_status ls__parts_begin(ls__autograd_pass *pass, ls_tensor *const *inputs, int count)
{
    const ls_scope *scope = ls__scope_current(pass->tensors);
    if (scope == NULL) {
        return ls__self.status;
    }
    if (count < 0 || count > LS_CALL_TENSORS_MAX || (inputs == NULL && count > 0)) {
        return ls__fail(LS_ERR_INVALID, "%s: %d inputs%s; give an array of 0 to %d", pass->name,
                        count, inputs == NULL ? ", and their array is NULL" : "",
                        LS_CALL_TENSORS_MAX);
    }
    if (scope->later != NULL) {
        return ls__fail(LS_ERR_STATE,
                        "%s: the innermost scope still has a weight part to run; call "
                        "ls_backward_weight_part first, or use a scope for each micro-batch",
                        pass->name);
    }
    pass->later = ls__later_new(pass->tensors, pass->weighted, pass->weight);
    if (pass->later == NULL) {
        return ls__self.status;
    }
    for (int i = 0; i < count; i++) {
        LS_TRY(mark_input(pass, inputs[i], i));
    }
    return LS_OK;
}

/* Inputs outlive the pass, so they must not stay marked. */
void ls__parts_end(ls__autograd_pass *pass, ls_status status)
{
    ls__later *later = pass->later;
    ls_scope *scope = ls__self.scope;
    for (int i = 0; later != NULL && i < later->inputs; i++) {
        later->input[i]->leads = false;
        ls__node_unref(later->input[i]);
    }
    if (later == NULL || status < 0) {
        ls__later_free(later);
        return;
    }
    later->inputs = 0;
    later->taken = false;
    scope->later = later->self;
}

/* ---- the input part: which nodes lead ----------------------------------------------------- */

/* The joint of an output; NULL for other nodes. */
static ls__tensor_node *joint_of(const ls__tensor_node *node)
{
    return node->op->run != NULL ? node->edge[0].to : NULL;
}

/* Whether the node's own edges or links do. */
static bool leads_on(const ls__tensor_node *node)
{
    bool leads = false;
    for (int i = 0; i < LS__EDGES_MAX; i++) {
        leads = leads || (node->edge[i].to != NULL && node->edge[i].to->leads);
    }
    const ls__joint_links *links = ls__links_of(node);
    for (int64_t i = 0; links != NULL && i < links->count; i++) {
        leads = leads || (links->at[i].edge.to != NULL && links->at[i].edge.to->leads);
    }
    return leads;
}

/* From the oldest node on. A joint runs when it has the gradients of all its outputs, so all of
 * them lead if one does; they stand side by side in the order, behind the joint. */
void ls__parts_mark(const ls__autograd_pile *order)
{
    const ls__tensor_node *last = NULL; /* the joint of the node before */
    for (int64_t i = order->count - 1; i >= 0; i--) {
        ls__tensor_node *node = order->at[i], *joint = joint_of(node);
        const bool first = joint != NULL && joint != last;
        for (int64_t k = i; first && k >= 0 && joint_of(order->at[k]) == joint; k--) {
            joint->leads = joint->leads || leads_on(order->at[k]);
        }
        node->leads = joint != NULL ? joint->leads : leads_on(node);
        last = joint;
    }
}

/* ---- the input part: running -------------------------------------------------------------- */

/* Moves the edges that do not lead from the node to `later`; false when there are none. */
static bool take_edges(ls__tensor_node *node, ls__edge *later)
{
    bool any = false;
    for (int i = 0; i < LS__EDGES_MAX; i++) {
        if (node->edge[i].to != NULL && !node->edge[i].to->leads) {
            later[i] = node->edge[i];
            node->edge[i] = (ls__edge){0};
            any = true;
        }
    }
    return any;
}

/* Drops saved operands that none of the remaining edges reads. */
static void drop_unread(ls__tensor_node *node)
{
    unsigned reads = 0;
    for (int i = 0; i < LS__EDGES_MAX; i++) {
        const unsigned edge = node->edge[i].to != NULL ? node->op->reads[i] : LS__READS(0);
        if (edge == 0) {
            return;
        }
        reads |= edge;
    }
    for (int i = 0; i < LS__SAVED_MAX; i++) {
        if (!(reads >> i & 1u)) {
            ls__storage_unref(node->saved[i].storage);
            ls__node_unref(node->saved[i].leaf);
            node->saved[i] = (ls__tensor_saved){0};
        }
    }
}

/* In place of the edges that have run, the node has those that were taken out. */
static void put_edges(ls__tensor_node *node, const ls__edge *later)
{
    for (int i = 0; i < LS__EDGES_MAX; i++) {
        ls__node_unref(node->edge[i].to);
        node->edge[i] = later[i];
    }
    drop_unread(node);
}

/* A node that was put off cannot be walked again, as one that has run. */
ls_status ls__parts_input(ls__autograd_pass *pass, ls__tensor_node *node)
{
    ls__edge later[LS__EDGES_MAX] = {{0}};
    ls__storage *kept = NULL;
    ls_status status = LS_OK;
    if (node->leads && !take_edges(node, later)) {
        status = ls__pass_one(pass, node, NULL);
        ls__node_release(node);
        return status;
    }
    if (node->leads) {
        status = ls__pass_one(pass, node, &kept);
        put_edges(node, later);
    }
    node->released = true;
    node->within = NULL;
    if (status < 0) {
        ls__storage_unref(kept);
        return status;
    }
    return ls__later_put(pass->tensors, pass->later, &(ls__put_off){.node = node, .grad = kept});
}

/* ---- the weight part ---------------------------------------------------------------------- */

ls_status ls__parts_take(ls__autograd_pass *pass)
{
    ls_scope *scope = ls__self.scope;
    if (scope == NULL || scope->later == NULL) {
        return ls__fail(LS_ERR_STATE,
                        "%s: the innermost scope has no weight part to run; call it once after "
                        "ls_backward_input_part, in the same scope",
                        pass->name);
    }
    pass->later = scope->later->data;
    scope->later = NULL;
    pass->later->taken = true;
    pass->weighted = pass->later->weighted;
    pass->weight = pass->later->weight;
    return LS_OK;
}

/* Other passes may have counted since the input part, so the count begins anew. */
static ls_status expect(ls__autograd_pass *pass, ls__tensor_node *to)
{
    if (to == NULL || !ls__node_is_leaf(to)) {
        return LS_OK;
    }
    const bool first = to->pass != pass->number;
    to->pass = pass->number;
    to->pending = first ? 1 : to->pending + 1;
    return first ? ls__observers_reached(pass, ls__leaf_of(to)) : LS_OK;
}

ls_status ls__parts_expect(ls__autograd_pass *pass)
{
    for (int64_t i = 0; i < pass->later->count; i++) {
        const ls__put_off *item = &ls__later_items(pass->later)[i];
        LS_TRY(expect(pass, item->edge.to));
        if (item->node == NULL) {
            continue;
        }
        item->node->pass = pass->number;
        for (int k = 0; k < LS__EDGES_MAX; k++) {
            LS_TRY(expect(pass, item->node->edge[k].to));
        }
        const ls__joint_links *links = ls__links_of(item->node);
        for (int64_t k = 0; links != NULL && k < links->count; k++) {
            LS_TRY(expect(pass, links->at[k].edge.to));
        }
    }
    return LS_OK;
}

static ls_status run_item(ls__autograd_pass *pass, ls__put_off *item)
{
    ls__tensor_node *node = item->node;
    if (node == NULL) {
        const ls_status status = ls__contribute(pass, &item->edge, item->grad);
        ls__storage_unref(item->grad);
        ls__node_unref(item->edge.to);
        *item = (ls__put_off){0};
        return status;
    }
    if (node->leads) {
        LS_ASSERT(node->grad == NULL);
        node->grad = item->grad;
        item->grad = NULL;
    }
    LS_TRY(ls__pass_one(pass, node, NULL));
    ls__node_release(node);
    return LS_OK;
}

/* Each item gives back its memory when it has run. */
ls_status ls__parts_run(ls__autograd_pass *pass)
{
    for (int64_t i = 0; i < pass->later->count; i++) {
        LS_TRY(run_item(pass, &ls__later_items(pass->later)[i]));
    }
    return LS_OK;
}
