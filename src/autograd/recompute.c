/* SPDX-License-Identifier: Apache-2.0 */
/* Recomputation: a segment of the graph that is thrown away and made anew when backward needs it.
 *
 *     forward                          ls_backward
 *     x ─▶ [ a ─▶ b ─▶ c ] ─▶ y        … ─▶ (recompute): run the function again, x' over x's memory
 *     x ─────(recompute)────▶ y                          c ─▶ b ─▶ a ─▶ what lies before x
 *              └──▶ parameters
 *
 * The first run records its graph in a scope of its own. Before the scope is left the graph is
 * walked from each result to find the nodes to which it leads: leaves, and older operations (x's,
 * most often). These become the *links* of that result's node (joint.c): a plan that reaches the
 * result reaches them, each leaf with one accumulation still to come, so no leaf is ready before
 * the segment has run.
 *
 * In backward the second graph leads to the very same nodes as the first did, for x' has x's node
 * and geometry, and y has those of its operation's output. Its operations run at the place in the
 * order where the first ones would have been (everything outside is older than all of them, or
 * younger), so every sum is made in the same order and has the same bits. The one accumulation
 * announced by a link is replaced by those of the second graph; a leaf without any would never
 * become ready, so the two sets are compared first. */
#include "autograd/arrays.h"
#include "autograd/function_call.h"
#include "autograd/joint.h"
#include "autograd/mode.h"
#include "autograd/segment.h"
#include "base/assert.h"
#include "tensor/batch_norm.h"
#include "tensor/op.h"

typedef struct context {
    const char *name;
} context;

/* Copies each input's record and version: replay passes the same memory to the function again, and
 * fails if it has changed. */
static ls_status take_inputs(ls__tensors *tensors, ls__segment *p, ls_tensor *const *inputs)
{
    for (int i = 0; i < p->input_count; i++) {
        ls__record *record = NULL;
        LS_TRY(ls__arrays_input(tensors, "recompute", inputs, i, p->input_count,
                                p->callee.many != NULL, &record));
        if (record != NULL) {
            p->input[i] = (ls__segment_argument){
                .record = *record, .version = ls__storage_version(record->storage), .given = true};
            p->input[i].record.storage = ls__storage_ref(record->storage);
        }
    }
    return LS_OK;
}

/* ---- the first run ------------------------------------------------------------------------ */

/* One link for each place outside. Each announces one accumulation, whatever the number the second
 * run will make; leaves keep their version, so that a changed parameter is noticed. */
static ls__storage *make_links(ls__tensors *tensors, const ls__autograd_pile *outside)
{
    ls__storage *storage = ls__links_new(tensors, outside->count);
    if (storage == NULL) {
        return NULL;
    }
    ls__joint_links *links = storage->data;
    for (int64_t i = 0; i < outside->count; i++) {
        ls__tensor_node *node = outside->at[i];
        const bool leaf = ls__node_is_leaf(node);
        links->at[i].edge.to = ls__node_ref(node);
        links->at[i].version = leaf ? ls__storage_version(ls__leaf_of(node)->value) : 0;
    }
    return storage;
}

/* Marks the inputs that the walk reached. Only they keep their node; the others need no
 * gradient. */
static void note_reached(const ls__segment *p, const ls__autograd_walk *walk, bool *reached)
{
    for (int i = 0; i < p->input_count; i++) {
        const ls__tensor_node *node = p->input[i].record.node;
        reached[i] = reached[i] || (node != NULL && node->pass == walk->number);
    }
}

/* Walks the graph of one result and stores the places it leads to as the links of `out`. */
static ls_status find_links(ls__tensors *tensors, const ls__segment *p, uint64_t border,
                            ls__record *y, ls__segment_outcome *out, bool *reached)
{
    ls__autograd *autograd = ls__autograd_get("recompute");
    if (autograd == NULL) {
        return ls__self.status;
    }
    ls__autograd_walk walk = {.name = "recompute",
                              .tensors = tensors,
                              .number = ls__autograd_number(autograd),
                              .border = border};
    ls_status status = ls__walk_add(&walk, y->node);
    if (status == LS_OK) {
        status = ls__walk_run(&walk);
    }
    if (status == LS_OK && walk.outside.count > 0) {
        out->links = make_links(tensors, &walk.outside);
        status = out->links != NULL ? LS_OK : ls__self.status;
    }
    note_reached(p, &walk, reached);
    ls__walk_fini(&walk);
    return status;
}

/* Runs inside the segment's scope and copies all that must outlive it. A result that was not made
 * inside (x itself, say) keeps its node and needs no link. */
static ls_status run_first(ls__tensors *tensors, ls__segment *p, ls_tensor *const *inputs)
{
    ls__record *y[LS_CALL_TENSORS_MAX];
    bool reached[LS_CALL_TENSORS_MAX] = {false};
    const uint64_t border = ls__nodes_made(tensors);
    const uint64_t exchanges = ls__norm_sync_begun() + ls__function_collectives();
    const uint64_t gatherings = ls__norm_sync_begun() + ls__function_gatherings();
    LS_TRY(ls__segment_call(tensors, p, inputs, y));
    p->gathers = ls__norm_sync_begun() + ls__function_gatherings() != gatherings;
    p->exchanges = ls__norm_sync_begun() + ls__function_collectives() != exchanges;
    for (int i = 0; i < p->output_count; i++) {
        ls__segment_outcome *out = &p->output[i];
        const bool made = ls__node_inside(y[i]->node, border);
        if (made) {
            LS_TRY(find_links(tensors, p, border, y[i], out, reached));
            out->result = ls__segment_result_of(y[i]);
        }
        out->y = *y[i];
        out->y.storage = ls__storage_ref(y[i]->storage);
        out->y.node = made ? NULL : ls__node_ref(y[i]->node); /* x itself, say: done already */
    }
    for (int i = 0; i < p->input_count; i++) {
        p->input[i].record.node = reached[i] ? p->input[i].record.node : NULL;
    }
    return LS_OK;
}

/* Leaving the scope frees the first graph and its activations: here recomputation saves its
 * memory. */
static ls_status run_in_scope(ls__tensors *tensors, ls__segment *p, ls_tensor *const *inputs)
{
    const ls__autograd_mode before = ls__autograd_mode_get();
    ls_scope *scope = ls_scope_enter();
    p->log.outer = before.record;
    ls__self.record = &p->log;
    const ls_status status = run_first(tensors, p, inputs);
    ls_scope_leave(scope);
    p->log.outer = NULL;
    ls__autograd_mode_set(&before);
    return status < 0 ? status : p->log.status;
}

/* ---- recording it ------------------------------------------------------------------------- */

/* Whether any result requires gradients; without one, nothing is recorded and the segment is
 * dropped. */
static bool any_links(const ls__segment *p)
{
    for (int i = 0; i < p->output_count; i++) {
        if (p->output[i].links != NULL) {
            return true;
        }
    }
    return false;
}

/* Makes a node for each result that leads somewhere. The node stands for the operation's output of
 * which the result is a view, so it has that output's size and offset. */
static ls_status record_segment(ls__tensors *tensors, ls__storage *own, ls__record **y)
{
    ls__segment *p = ls__segment_of(own);
    ls__tensor_node *joint = ls__joint_new(tensors, &ls__recompute_op, p->output_count, NULL,
                                           ls__storage_ref(own), sizeof(context));
    if (joint == NULL) {
        return ls__self.status;
    }
    ((context *)joint->context)->name = ls__recompute_op.name;
    ls__joint_outputs_of(joint)->gathers = p->gathers;
    for (int i = 0; i < p->output_count; i++) {
        ls__segment_outcome *out = &p->output[i];
        ls__storage *links = out->links;
        out->links = NULL; /* the node takes them */
        if (links == NULL) {
            continue;
        }
        ls__tensor_node *node = ls__joint_add_output(tensors, joint, i, y[i], links);
        if (node == NULL) {
            return ls__self.status;
        }
        node->numel = out->result.base_numel;
        node->offset = out->result.base_offset;
    }
    return LS_OK;
}

/* Makes the results tensors of the surrounding scope. The segment drops its references to them:
 * kept, they would hold the activations that recomputation is to free. */
static ls_status wrap_results(ls__tensors *tensors, ls__storage *own, ls__record **y)
{
    ls__segment *p = ls__segment_of(own);
    for (int i = 0; i < p->output_count; i++) {
        y[i] = ls__record_alias(tensors, &p->output[i].y);
        if (y[i] == NULL) {
            return ls__self.status;
        }
        ls__storage_unref(p->output[i].y.storage);
        ls__node_unref(p->output[i].y.node);
        p->output[i].y.storage = NULL;
        p->output[i].y.node = NULL;
    }
    return any_links(p) ? record_segment(tensors, own, y) : LS_OK;
}

/* y[i] are records of the present scope. The joint, if one was made, keeps the segment alive. */
static ls_status recompute(ls__tensors *tensors, const ls__segment_callee *f,
                           ls_tensor *const *inputs, int input_count, ls__record **y,
                           int output_count)
{
    ls__storage *own = ls__segment_new(tensors, f, input_count, output_count);
    if (own == NULL) {
        return ls__self.status;
    }
    ls_status status = take_inputs(tensors, ls__segment_of(own), inputs);
    if (status == LS_OK) {
        status = run_in_scope(tensors, ls__segment_of(own), inputs);
    }
    if (status == LS_OK) {
        status = wrap_results(tensors, own, y);
    }
    ls__storage_unref(own);
    return status;
}

static ls_status check_call(const ls__segment_callee *f, ls_tensor *const *inputs, int input_count,
                            ls_tensor *const *outputs, int output_count)
{
    if (f->one == NULL && f->many == NULL) {
        return ls__fail(LS_ERR_INVALID, "recompute: the function is NULL; give the one to run");
    }
    return ls__arrays_check("recompute", inputs, input_count, outputs, output_count);
}

/* Serves both public calls. On failure every output is a tensor that carries the error. */
static ls_status call_recompute(const ls__segment_callee *f, ls_tensor *const *inputs,
                                int input_count, ls_tensor **outputs, int output_count)
{
    ls__call call;
    ls__record *y[LS_CALL_TENSORS_MAX];
    ls_status status = check_call(f, inputs, input_count, outputs, output_count);
    if (status < 0) {
        (void)ls__fail_at_site(status);
    } else if (!ls__call_begin(&call, "recompute", 0, NULL)) {
        status = ls__self.status;
    } else {
        status = recompute(call.tensors, f, inputs, input_count, y, output_count);
    }
    return ls__arrays_finish(&call, status, y, outputs, output_count);
}

ls_tensor *ls_recompute_call(ls_recompute_fn fn, ls_tensor *x, void *arg)
{
    ls_tensor *y = NULL;
    (void)call_recompute(&(ls__segment_callee){.one = fn, .arg = arg}, &x, 1, &y, 1);
    return y;
}

ls_status ls_recompute_call_many(ls_recompute_many_fn fn, ls_tensor *const *inputs, int input_count,
                                 ls_tensor **outputs, int output_count, void *arg)
{
    return call_recompute(&(ls__segment_callee){.many = fn, .arg = arg}, inputs, input_count,
                          outputs, output_count);
}

/* Set by replay.c for the duration of the second run, on the thread that runs backward. */
bool ls_recomputing(void)
{
    return ls__self.replay != NULL;
}
