/* SPDX-License-Identifier: Apache-2.0 */
/* The backward pass.
 *
 *   plan    walk from the loss, or the other roots (roots.c), to everything they came from, latest
 *           node first; count for each leaf how many accumulations it will receive; note which
 *           observed parameters are reached
 *   begin   observers learn what will come
 *   run     each node in that order: its gradient is complete, because whatever used its result was
 *           made later and is done; its rule adds to its inputs' gradients; a leaf whose count is
 *           reached is ready
 *   end     observers finish (buckets are reduced); the graph is released as it is walked
 *
 * Memory is given back as the walk goes: what a node saved, and what a module made for itself on
 * the way to its result (Note [Within modules]). Tensors that the user may still look at stay.
 *
 * An input is always older than what uses it, so walk.c finds the order by creation numbers alone.
 * Nothing is recursive but what users nest themselves (recompute.c), and the order of work, and of
 * every addition, is the same in every run. */
#include "autograd/engine.h"

#include <stdio.h>
#include <string.h>

#include "autograd/accumulate.h"
#include "autograd/hooks.h"
#include "autograd/joint.h"
#include "autograd/parts.h"
#include "autograd/roots.h"
#include "base/activity.h"
#include "base/assert.h"
#include "base/options.h"
#include "base/trace.h"
#include "tensor/fill.h"
#include "tensor/meter.h"
#include "tensor/shape.h"

/* ---- plan --------------------------------------------------------------------------------- */

/* Only a wrapper divides by the sum of weights; any other leaf would keep a gradient that is
 * `weight` times too large, which no later check could tell from a right one. */
static ls_status check_divided(const ls__autograd_pass *pass, const ls__leaf *leaf)
{
    if (!pass->divides || leaf->observer != NULL) {
        return LS_OK;
    }
    return ls__fail(LS_ERR_STATE,
                    "%s: the loss depends on a leaf %s (made at %s:%d) that belongs to no "
                    "ls_ddp_new, so nothing would divide its gradient by the sum of weights; wrap "
                    "the module (in a world of one, too), or call ls_backward",
                    pass->name, ls__shape_print(leaf->shape).text,
                    leaf->node.file != NULL ? leaf->node.file : "?", leaf->node.line);
}

/* Walks from the roots; every leaf that it reaches must belong to an observer of a weighted pass,
 * and is reported to its observer. */
static ls_status reach_leaves(ls__autograd_pass *pass, ls__autograd_walk *walk)
{
    for (int i = 0; i < pass->roots; i++) {
        LS_TRY(ls__walk_add(walk, pass->root[i].edge.to));
    }
    LS_TRY(ls__walk_run(walk));
    for (int64_t i = 0; i < walk->outside.count; i++) {
        ls__leaf *leaf = ls__leaf_of(walk->outside.at[i]);
        LS_TRY(check_divided(pass, leaf));
        LS_TRY(pass->part == LS__PART_WHOLE ? ls__observers_reached(pass, leaf) : LS_OK);
    }
    if (pass->part == LS__PART_WHOLE) {
        ls__observers_mark_rows(pass, walk);
    }
    return LS_OK;
}

/* Fills pass->order, and announces every accumulation of a leaf in its `pending`. A failure leaves
 * the counts behind; the next pass resets them (LS__COUNT_ANEW). */
static ls_status plan(ls__autograd_pass *pass)
{
    ls__autograd_walk walk = {.name = pass->name,
                              .tensors = pass->tensors,
                              .number = pass->number,
                              .count = LS__COUNT_ANEW};
    const ls_status status = reach_leaves(pass, &walk);
    pass->order = walk.order;
    walk.order = (ls__autograd_pile){0};
    ls__walk_fini(&walk);
    return status;
}

/* ---- memory ------------------------------------------------------------------------------- */

/* Note [Within modules]
 * A scope holds every tensor until it is left, because the program may still use a handle. In a
 * language that counts references only the graph would hold the activations of a module once its
 * forward returned. So tensors made while a module's forward runs are marked, except the results of
 * the outermost module. When backward has reached the operation that made such a tensor, everything
 * that used it is done, and its elements are freed; its handle then reports that. A program that
 * calls ls_backward from inside a forward still needs these tensors, so then nothing is freed
 * early; nor is it while the graph is retained. */

static const char freed_text[] =
    "ls_backward has freed this tensor, an intermediate result of a module; return it from the "
    "module, or copy it before ls_backward (ls_clone of ls_detach)";

/* Links each tensor that may be freed to the node that made it, for free_within. The links hold no
 * reference: the records belong to their scopes. */
static ls_status find_within(ls__autograd_pass *pass)
{
    if (ls__self.modules > 0 || pass->retains) {
        return LS_OK;
    }
    pass->freed = ls__storage_new(&pass->tensors->host, sizeof freed_text);
    if (pass->freed == NULL) {
        return ls__self.status;
    }
    memcpy(pass->freed->data, freed_text, sizeof freed_text);
    for (ls_scope *scope = ls__self.scope; scope != NULL; scope = scope->parent) {
        LS__LIST_EACH (at, &scope->records) {
            ls__record *record = LS__LIST_ITEM(at, ls__record, link);
            ls__tensor_node *node = record->flags & LS__RECORD_WITHIN ? record->node : NULL;
            if (node != NULL && !ls__node_is_leaf(node) && node->pass == pass->number) {
                record->peer = node->within;
                node->within = record;
            }
        }
    }
    return LS_OK;
}

/* Frees the elements that a module kept for itself, now that everything that used them has been
 * passed. The handles stay and report why they have no data. */
static void free_within(ls__autograd_pass *pass, ls__tensor_node *node)
{
    while (node->within != NULL) {
        ls__record *record = node->within;
        node->within = record->peer;
        record->peer = NULL;
        if (record->node == node) { /* not freed meanwhile, by a function that runs again */
            ls__record_hollow(record, pass->freed);
        }
    }
}

/* ---- run ---------------------------------------------------------------------------------- */

/* Names the parameter or argument, where known, because users know tensors by those and not by
 * nodes. */
ls_status ls__fail_changed(const ls__autograd_pass *pass, const ls__tensor_node *node,
                           const ls__tensor_saved *saved)
{
    char what[160];
    const ls__leaf *leaf = saved->leaf != NULL ? ls__leaf_of(saved->leaf) : NULL;
    if (leaf != NULL && leaf->name != NULL) {
        (void)snprintf(what, sizeof what, "parameter %.100s %.40s", leaf->name,
                       ls__shape_print(leaf->shape).text);
    } else if (saved->argument > 0) {
        (void)snprintf(what, sizeof what, "argument %d", saved->argument);
    } else {
        (void)snprintf(what, sizeof what, "result");
    }
    return ls__fail(LS_ERR_STATE,
                    "%s: %s at %s:%d needs its %s as it was in the forward pass, but it was "
                    "changed in place since; change it after ls_backward, or change a copy "
                    "(ls_clone)",
                    pass->name, ls__node_name(node), node->file != NULL ? node->file : "?",
                    node->line, what);
}

/* Finds the memory of everything the rule will read, and refuses tensors that were changed in place
 * since the forward pass. Parameters are saved by identity, so their memory is looked up now. */
static ls_status resolve_saved(const ls__autograd_pass *pass, const ls__tensor_node *node,
                               ls__tensor_rule *rule)
{
    for (int i = 0; i < LS__SAVED_MAX; i++) {
        const ls__tensor_saved *saved = &node->saved[i];
        ls__storage *storage =
            saved->leaf != NULL ? ls__leaf_of(saved->leaf)->value : saved->storage;
        if (storage == NULL) {
            continue;
        }
        if (ls__storage_version(storage) != saved->version) {
            return ls__fail_changed(pass, node, saved);
        }
        LS_TRY(ls__fill_settle(storage));
        rule->saved[i] = (const char *)storage->data + saved->offset;
    }
    return LS_OK;
}

/* Whether any edge wants a computed gradient; where dy is passed on unchanged, the rule is not
 * called. */
static bool needs_rule(const ls__tensor_node *node)
{
    for (int i = 0; i < LS__EDGES_MAX; i++) {
        if (node->edge[i].to != NULL && !(node->op->passes >> i & 1)) {
            return true;
        }
    }
    return false;
}

/* Runs the rule of one ordinary operation. The node's gradient is taken out first, so that the rule
 * may reuse its memory for a result (dy_is_free) when it is the only holder. */
static ls_status run_node(ls__autograd_pass *pass, ls__tensor_node *node, ls__storage **kept)
{
    ls__tensor_rule rule = {.node = node};
    rule.part = kept != NULL                                   ? LS__PART_INPUT
                : pass->part == LS__PART_WEIGHT && node->leads ? LS__PART_WEIGHT
                                                               : LS__PART_WHOLE;
    ls__autograd_target target[LS__EDGES_MAX] = {{0}};
    LS_ASSERT(node->grad != NULL);
    ls__storage *dy = node->grad;
    node->grad = NULL; /* now this frame's; an edge that passes it on takes a reference */
    rule.on = dy->pool;
    rule.k = rule.on->k;
    rule.stream = rule.on->stream;
    rule.dy = dy->data;
    rule.dy_is_one = dy == pass->one;
    rule.dy_is_free =
        ls__storage_sole(dy) && node->op->passes == 0 && (kept == NULL || node->op->keeps);
    ls_status status = resolve_saved(pass, node, &rule);
    for (int i = 0; i < LS__EDGES_MAX && status == LS_OK; i++) {
        status = ls__target_open(node, i, &rule, &target[i]);
    }
    if (status == LS_OK && needs_rule(node)) {
        status = node->op->backward(&rule);
    }
    for (int i = 0; i < LS__EDGES_MAX; i++) {
        if (status == LS_OK) {
            status = ls__target_close(pass, node, i, &rule, dy, &target[i]);
        }
        ls__storage_unref(rule.in[i].give);
        ls__storage_unref(target[i].aside);
    }
    if (kept != NULL) {
        *kept = rule.kept != NULL ? rule.kept : ls__storage_ref(dy);
    }
    ls__storage_unref(dy);
    return status;
}

/* No gradient flows through the node: either the weight is 0, and the pass must settle every
 * announced accumulation without computing, so that no NaN of an ignored batch enters a gradient;
 * or a function gave no gradient. */
static ls_status skip_node(ls__autograd_pass *pass, ls__tensor_node *node)
{
    if (node->op->skipped != NULL) {
        LS_TRY(node->op->skipped(pass, node));
    }
    for (int i = 0; i < LS__EDGES_MAX; i++) {
        LS_TRY(ls__accumulate_nothing(pass, node->edge[i].to));
    }
    return ls__joint_has_links_of(node) ? LS_OK : ls__links_skip(pass, ls__links_of(node));
}

/* A joint has no gradient of its own: its outputs hold those that arrived. In a pass of weight 0
 * only gathering functions give any. */
static ls_status pass_node(ls__autograd_pass *pass, ls__tensor_node *node, ls__storage **kept)
{
    const bool joint = node->op->run != NULL;
    const bool lit = joint ? pass->weight != 0.0 || ls__joint_has_grad(node) : node->grad != NULL;
    if (!lit && !node->op->gathers) {
        return skip_node(pass, node);
    }
    if (!lit) {
        LS_TRY(ls__give_zeros(pass, node));
    }
    return joint ? node->op->run(pass, node) : run_node(pass, node, kept);
}

/* "fc1.weight" when the node uses a named parameter, else "matmul". */
static const char *detail_of(const ls__tensor_node *node)
{
    for (int i = 0; i < LS__EDGES_MAX; i++) {
        ls__tensor_node *to = node->edge[i].to;
        if (to != NULL && ls__node_is_leaf(to) && ls__leaf_of(to)->name != NULL) {
            return ls__leaf_of(to)->name;
        }
    }
    return ls__node_name(node);
}

/* Before the tensor's elements are freed, which a hook may read. In parts a node that leads has its
 * whole gradient in the input part alone. */
static ls_status run_hooks(const ls__autograd_pass *pass, ls__tensor_node *node)
{
    const bool ran = pass->part == LS__PART_WEIGHT && node->leads;
    return node->hooks != NULL && node->grad != NULL && !ran ? ls__grad_hooks_run(node) : LS_OK;
}

ls_status ls__pass_one(ls__autograd_pass *pass, ls__tensor_node *node, ls__storage **kept)
{
    const char *detail = detail_of(node), *name = ls__node_name(node);
    (void)ls__activity_enter(LS__PHASE_BACKWARD, detail);
    const uint64_t traced = ls__trace_begin();
    ls__meter *meter = ls__self.meter;
    const ls__metered metered = meter != NULL ? ls__meter_enter(meter) : (ls__metered){0};
    ls__self.crossings++;
    LS_TRY(run_hooks(pass, node));
    free_within(pass, node);
    LS_TRY(pass_node(pass, node, kept));
    if (LS__UNLIKELY(meter != NULL)) {
        meter->backward(meter, node, ls__meter_leave(meter, &metered));
    }
    ls__trace_end(traced, LS__TRACE_NODE, name, detail != name ? detail : NULL);
    return LS_OK;
}

/* The order may be that of a recomputed segment inside an outer pass; each node releases what it
 * saved as soon as it has run, unless the program retains the graph. That of a segment is not the
 * program's. */
ls_status ls__pass_run(ls__autograd_pass *pass, const ls__autograd_pile *order)
{
    for (int64_t i = 0; i < order->count; i++) {
        ls__tensor_node *node = order->at[i];
        if (pass->part == LS__PART_INPUT) {
            LS_TRY(ls__parts_input(pass, node));
        } else {
            LS_TRY(ls__pass_one(pass, node, NULL));
            if (pass->retains && order == &pass->order) {
                ls__joint_reset(node);
            } else {
                ls__node_release(node);
            }
        }
    }
    return LS_OK;
}

/* ---- the whole pass ----------------------------------------------------------------------- */

/* After a failure: gradients that arrived half-way would be added to by the next pass through these
 * nodes. */
static void drop_gradients(ls__autograd_pass *pass)
{
    for (int64_t i = 0; i < pass->order.count; i++) {
        ls__storage_unref(pass->order.at[i]->grad);
        pass->order.at[i]->grad = NULL;
        pass->order.at[i]->within = NULL;
        ls__joint_reset(pass->order.at[i]);
    }
}

typedef struct start { /* where a pass begins */
    bool loss;         /* at *ys, a scalar */
    ls_tensor *const *ys, *const *dys;
    int count;
    ls_tensor *const *inputs; /* of an input part */
    int input_count;
} start;

/* Computes nothing yet; a failure here is a mistake of the caller. */
static ls_status prepare(ls__autograd_pass *pass, const start *at)
{
    if (pass->part == LS__PART_INPUT && pass->retains) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "%s: the graph is to be kept (LS_RETAIN_GRAPH), but a backward in two "
                        "parts frees it as it goes; call ls_backward_from",
                        pass->name);
    }
    if (pass->part == LS__PART_WEIGHT) {
        LS_TRY(ls__parts_take(pass));
        LS_TRY(ls__parts_expect(pass));
        return find_within(pass);
    }
    LS_TRY(at->loss ? ls__roots_of_loss(pass, *at->ys)
                    : ls__roots_given(pass, at->ys, at->dys, at->count));
    if (pass->part == LS__PART_INPUT) {
        LS_TRY(ls__parts_begin(pass, at->inputs, at->input_count));
    }
    LS_TRY(plan(pass));
    if (pass->part == LS__PART_INPUT) {
        ls__parts_mark(&pass->order);
    }
    return find_within(pass);
}

/* Observers take part in the second of two parts. From their begin on peers do too: they may have
 * started a collective operation. */
static ls_status run_pass(ls__autograd_pass *pass)
{
    if (pass->part == LS__PART_INPUT) {
        LS_TRY(ls__roots_seed(pass));
        return ls__pass_run(pass, &pass->order);
    }
    LS_TRY(ls__observers_begin(pass));
    if (pass->part == LS__PART_WEIGHT) {
        LS_TRY(ls__parts_run(pass));
    } else {
        LS_TRY(ls__roots_seed(pass));
        LS_TRY(ls__pass_run(pass, &pass->order));
    }
    return ls__observers_end(pass);
}

static _Thread_local bool retains; /* autograd's other mode of this thread */

bool ls_set_retain_graph(bool retain)
{
    const bool before = retains;
    retains = retain;
    return before;
}

/* The whole pass. Errors before `run` are the caller's mistakes and carry the caller's line. Any
 * failure is reported to every observer that has begun or is armed, because its peers wait for
 * it. */
static ls_status backward(ls__autograd_pass *pass, const start *at)
{
    pass->tensors = ls__tensors_get(pass->name);
    pass->autograd = pass->tensors != NULL ? ls__autograd_get(pass->name) : NULL;
    if (pass->autograd == NULL) {
        return ls__self.status;
    }
    pass->number = ls__autograd_number(pass->autograd);
    pass->retains = retains;
    ls__phase former = ls__activity_enter(LS__PHASE_BACKWARD, "");
    const uint64_t traced = ls__trace_begin();
    ls_status status = prepare(pass, at);
    if (status < 0) {
        (void)ls__fail_at_site(status);
    } else {
        status = run_pass(pass);
    }
    if (status < 0) {
        drop_gradients(pass);
        ls__observers_abort(pass, status);
    }
    if (pass->part == LS__PART_INPUT) {
        ls__parts_end(pass, status);
    } else {
        ls__later_free(pass->later);
    }
    ls__observers_drop(pass);
    ls__roots_drop(pass);
    ls__storage_unref(pass->order.memory);
    ls__storage_unref(pass->freed);
    ls__storage_unref(pass->one);
    ls__trace_end(traced, LS__TRACE_BACKWARD, pass->name, NULL);
    ls__activity_leave(former);
    return status;
}

/* The gradient of the loss with respect to itself is 1. */
ls_status ls_backward(ls_tensor *loss)
{
    ls__autograd_pass pass = {.name = "backward", .weight = 1.0};
    return backward(&pass, &(start){.loss = true, .ys = &loss});
}

/* Scales the loss; the observer divides by the sum of weights over all ranks. */
ls_status ls_backward_weighted(ls_tensor *loss, double weight)
{
    ls__autograd_pass pass = {
        .name = "backward_weighted", .weighted = true, .weight = weight, .divides = true};
    return backward(&pass, &(start){.loss = true, .ys = &loss});
}

ls_status ls_backward_from(ls_tensor *const *ys, ls_tensor *const *dys, int n)
{
    ls__autograd_pass pass = {.name = "backward_from", .weight = 1.0, .cut = true};
    return backward(&pass, &(start){.ys = ys, .dys = dys, .count = n});
}

/* The given gradients contain the weight already; it is announced, and nothing is scaled. */
ls_status ls_backward_from_weighted(ls_tensor *const *ys, ls_tensor *const *dys, int n,
                                    double weight)
{
    ls__autograd_pass pass = {
        .name = "backward_from_weighted", .weighted = true, .weight = weight, .cut = true};
    return backward(&pass, &(start){.ys = ys, .dys = dys, .count = n});
}

ls_status ls_backward_input_part(ls_tensor *const *ys, ls_tensor *const *dys, int n,
                                 const ls_backward_part_options *options)
{
    LS__OPTIONS(ls_backward_part_options, given, options);
    ls__autograd_pass pass = {.name = "backward_input_part",
                              .part = LS__PART_INPUT,
                              .weighted = given.weighted,
                              .weight = given.weighted ? given.weight : 1.0,
                              .cut = true};
    return backward(&pass, &(start){.ys = ys,
                                    .dys = dys,
                                    .count = n,
                                    .inputs = given.inputs,
                                    .input_count = given.input_count});
}

ls_status ls_backward_weight_part(void)
{
    ls__autograd_pass pass = {.name = "backward_weight_part", .part = LS__PART_WEIGHT, .cut = true};
    return backward(&pass, &(start){0});
}
