/* SPDX-License-Identifier: Apache-2.0 */
/* The second run of a recomputed segment, in backward; the idea is in recompute.c. */
#include <string.h>

#include "autograd/accumulate.h"
#include "autograd/engine.h"
#include "autograd/joint.h"
#include "autograd/mode.h"
#include "autograd/parts.h"
#include "autograd/segment.h"

/* `how` completes "the function … than in the forward pass". */
static ls_status fail_differs(const ls__autograd_pass *pass, const ls__tensor_node *node,
                              const char *how)
{
    return ls__fail(LS_ERR_STATE,
                    "%s: recompute at %s:%d: when ls_backward ran the function again, it %s than "
                    "in the forward pass; it must do the same both times (call ls_module_train "
                    "after ls_backward, and do not change data that the function reads)",
                    pass->name, node->file != NULL ? node->file : "?", node->line, how);
}

/* Parameters that changed in place since the first run would give gradients of another function. */
static ls_status check_leaves(const ls__autograd_pass *pass, const ls__tensor_node *node,
                              const ls__joint_links *links)
{
    for (int64_t i = 0; links != NULL && i < links->count; i++) {
        ls__tensor_node *to = links->at[i].edge.to;
        if (ls__node_is_leaf(to) &&
            ls__storage_version(ls__leaf_of(to)->value) != links->at[i].version) {
            return ls__fail_changed(pass, node, &(ls__tensor_saved){.leaf = to});
        }
    }
    return LS_OK;
}

/* The links of output i, or NULL when it received no gradient. */
static const ls__joint_links *links_at(const ls__joint_outputs *outputs, int i)
{
    const ls__storage *links = outputs->at[i].grad != NULL ? outputs->at[i].links : NULL;
    return links != NULL ? links->data : NULL;
}

/* Checks inputs, and the parameters behind those outputs that received a gradient. */
static ls_status check_unchanged(const ls__autograd_pass *pass, const ls__tensor_node *node,
                                 const ls__segment *p)
{
    for (int i = 0; i < p->input_count; i++) {
        const ls__segment_argument *x = &p->input[i];
        if (x->given && ls__storage_version(x->record.storage) != x->version) {
            return ls__fail_changed(pass, node, &(ls__tensor_saved){.argument = i + 1});
        }
    }
    for (int i = 0; i < p->output_count; i++) {
        LS_TRY(check_leaves(pass, node, links_at(ls__joint_outputs_of(node), i)));
    }
    return LS_OK;
}

/* Makes the inputs tensors of the present scope, over the memory and with the nodes of the first
 * run. */
static ls_status wrap_inputs(ls__tensors *tensors, const ls__segment *p, ls_tensor **inputs)
{
    for (int i = 0; i < p->input_count; i++) {
        ls__record *record =
            p->input[i].given ? ls__record_alias(tensors, &p->input[i].record) : NULL;
        if (p->input[i].given && record == NULL) {
            return ls__self.status;
        }
        inputs[i] = record != NULL ? ls__handle(record) : NULL;
    }
    return LS_OK;
}

/* Calls the function as in the first run: with the same mode, random numbers and line. The thread's
 * mode is restored on every path. */
static ls_status call_again(ls__autograd_pass *pass, const ls__tensor_node *node,
                            const ls__segment *p, ls__draw_log *log, ls__record **y)
{
    ls_tensor *inputs[LS_CALL_TENSORS_MAX];
    const ls__autograd_mode before = ls__autograd_mode_get();
    *log = p->log;
    log->next = 0;
    ls__self.no_grad = false;
    ls__self.autocast = p->autocast;
    ls__self.record = NULL;
    ls__self.replay = log;
    ls__self.file = node->file;
    ls__self.line = node->line;
    ls_status status = wrap_inputs(pass->tensors, p, inputs);
    if (status == LS_OK) {
        status = ls__segment_call(pass->tensors, p, inputs, y);
    }
    ls__autograd_mode_set(&before);
    return status;
}

/* Whether a result lies as it did in the first run, both in its storage and in its operation's
 * output: otherwise the arrived gradient would not fit. */
static bool same_result(const ls__record *y, const ls__segment_result *r)
{
    const ls__segment_result now = ls__segment_result_of(y);
    const size_t bytes = (size_t)r->shape.ndim * sizeof r->stride[0];
    return now.shape.ndim == r->shape.ndim && now.offset == r->offset &&
           now.base_numel == r->base_numel && now.dtype == r->dtype &&
           now.base_offset == r->base_offset && memcmp(now.shape.dim, r->shape.dim, bytes) == 0 &&
           memcmp(now.stride, r->stride, bytes) == 0;
}

/* Counts the places the links of all outputs lead to, each once, and marks them with `mark`.
 * Returns -1 when the walk missed one. */
static int64_t count_announced(const ls__joint_outputs *outputs, const ls__autograd_walk *walk,
                               uint64_t mark)
{
    int64_t count = 0;
    for (int i = 0; i < outputs->count; i++) {
        const ls__joint_links *links = links_at(outputs, i);
        for (int64_t k = 0; links != NULL && k < links->count; k++) {
            ls__tensor_node *to = links->at[k].edge.to;
            if (to->pass != walk->number && to->pass != mark) {
                return -1;
            }
            count += to->pass != mark;
            to->pass = mark;
        }
    }
    return count;
}

/* The walk must have met every announced place and no other. Then the announcements are taken back,
 * because the walk has counted the actual accumulations. */
static ls_status settle_links(ls__autograd_pass *pass, ls__tensor_node *node,
                              const ls__autograd_walk *walk)
{
    const ls__joint_outputs *outputs = ls__joint_outputs_of(node);
    const uint64_t mark = ls__autograd_number(pass->autograd);
    if (count_announced(outputs, walk, mark) != walk->outside.count) {
        return fail_differs(pass, node, "used other parameters or tensors");
    }
    for (int i = 0; i < outputs->count; i++) {
        const ls__joint_links *links = links_at(outputs, i);
        for (int64_t k = 0; links != NULL && k < links->count; k++) {
            links->at[k].edge.to->pending--; /* read only where it is a leaf */
        }
    }
    return LS_OK;
}

/* Starts the walk at every result whose gradient arrived. */
static ls_status find_roots(ls__autograd_pass *pass, ls__tensor_node *node, const ls__segment *p,
                            ls__record *const *y, ls__autograd_walk *walk, ls__edge *roots)
{
    for (int i = 0; i < p->output_count; i++) {
        if (links_at(ls__joint_outputs_of(node), i) == NULL) {
            continue;
        }
        if (!ls__node_inside(y[i]->node, walk->border)) {
            return fail_differs(pass, node, "used other parameters or tensors");
        }
        if (!same_result(y[i], &p->output[i].result)) {
            return fail_differs(pass, node, "gave another shape or type");
        }
        LS_TRY(ls__walk_add(walk, y[i]->node));
        roots[i].to = y[i]->node; /* whole: the gradient lies as that of y's operation does */
    }
    return LS_OK;
}

/* Makes the second graph in `scope`, which in the end holds only what its rules will read. On
 * return `walk->order` lists that graph in the order of backward, and `roots` the nodes where the
 * arrived gradients go. */
static ls_status make_graph(ls__autograd_pass *pass, ls__tensor_node *node, ls_scope *scope,
                            ls__autograd_walk *walk, ls__edge *roots)
{
    const ls__segment *p = node->saved[LS__JOINT_OWN].storage->data;
    ls__record *y[LS_CALL_TENSORS_MAX];
    ls__draw_log log;
    LS_TRY(check_unchanged(pass, node, p));
    walk->border = ls__nodes_made(pass->tensors);
    LS_TRY(call_again(pass, node, p, &log, y));
    if (log.next != log.count) {
        return fail_differs(pass, node, "drew other random numbers");
    }
    LS_TRY(find_roots(pass, node, p, y, walk, roots));
    LS_TRY(ls__walk_run(walk));
    LS_TRY(settle_links(pass, node, walk));
    ls__scope_forget(scope);
    return LS_OK;
}

/* Moves the gradients that arrived at the joint to the results of the second graph. */
static ls_status seed(const ls__tensor_node *node, const ls__edge *roots)
{
    ls__joint_outputs *outputs = ls__joint_outputs_of(node);
    for (int i = 0; i < outputs->count; i++) {
        ls__storage *dy = outputs->at[i].grad;
        outputs->at[i].grad = NULL;
        const ls_status status = roots[i].to != NULL ? ls__accumulate(&roots[i], dy) : LS_OK;
        ls__storage_unref(dy);
        LS_TRY(status);
    }
    return LS_OK;
}

/* The second forward, and the backward through it. */
static ls_status run_again(ls__autograd_pass *pass, ls__tensor_node *node, ls_scope *scope,
                           ls__autograd_walk *walk)
{
    ls__edge roots[LS_CALL_TENSORS_MAX] = {{0}};
    LS_TRY(make_graph(pass, node, scope, walk, roots));
    if (pass->part == LS__PART_INPUT) {
        ls__parts_mark(&walk->order);
    }
    LS_TRY(seed(node, roots));
    return ls__pass_run(pass, &walk->order);
}

/* Without a gradient there is nothing to do: the outputs' own nodes have settled the links. The
 * scope is left on every path, but in an input part, which puts off nodes of it. */
static ls_status recompute_run(ls__autograd_pass *pass, ls__tensor_node *node)
{
    if (!ls__joint_any_grad(node)) {
        return LS_OK;
    }
    ls__autograd_walk walk = {.name = pass->name,
                              .tensors = pass->tensors,
                              .number = ls__autograd_number(pass->autograd),
                              .count = LS__COUNT_ON};
    ls_scope *scope = ls_scope_enter();
    const ls_status status =
        ls__self.scope == scope ? run_again(pass, node, scope, &walk) : ls__self.status;
    ls__walk_fini(&walk);
    if (pass->part == LS__PART_INPUT && ls__self.scope == scope) {
        ls__later_hold(pass->later, scope);
    } else {
        ls_scope_leave(scope);
    }
    return status;
}

/* The exchanges of the second run, and of the backward through it, without gradients. */
static ls_status exchange_again(ls__autograd_pass *pass, const ls__tensor_node *node,
                                ls__autograd_walk *walk)
{
    const ls__segment *p = node->saved[LS__JOINT_OWN].storage->data;
    ls__record *y[LS_CALL_TENSORS_MAX];
    ls__draw_log log;
    walk->border = ls__nodes_made(pass->tensors);
    LS_TRY(call_again(pass, node, p, &log, y));
    for (int i = 0; i < p->output_count; i++) {
        if (ls__joint_outputs_of(node)->at[i].skipped &&
            ls__node_inside(y[i]->node, walk->border)) {
            LS_TRY(ls__walk_add(walk, y[i]->node));
        }
    }
    LS_TRY(ls__walk_run(walk));
    for (int64_t i = 0; i < walk->order.count; i++) {
        const ls__op *op = walk->order.at[i]->op;
        LS_TRY(op->skipped != NULL ? op->skipped(pass, walk->order.at[i]) : LS_OK);
    }
    return LS_OK;
}

/* With weight 0 there is nothing to compute, but the other ranks run the function again, and where
 * it has a user's collective function they wait for this one. */
static ls_status recompute_skipped(ls__autograd_pass *pass, ls__tensor_node *node)
{
    const ls__segment *p = node->saved[LS__JOINT_OWN].storage->data;
    if (!p->exchanges) {
        return LS_OK;
    }
    ls__autograd_walk walk = {.name = pass->name,
                              .tensors = pass->tensors,
                              .number = ls__autograd_number(pass->autograd)};
    ls_scope *scope = ls_scope_enter();
    const ls_status status =
        ls__self.scope == scope ? exchange_again(pass, node, &walk) : ls__self.status;
    ls__walk_fini(&walk);
    ls_scope_leave(scope);
    return status;
}

const ls__op ls__recompute_op = {
    .name = "recompute", .run = recompute_run, .skipped = recompute_skipped};
