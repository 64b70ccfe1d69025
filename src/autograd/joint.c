/* SPDX-License-Identifier: Apache-2.0 */
/* Joints: how an operation with several inputs and outputs stands in the graph.
 *
 *      x   w   b                      inputs: the joint's links, as edges but of any number
 *       \  |  /
 *        joint ─────── own            what the operation keeps for its backward
 *        /   \
 *     out 0  out 1                    one node for each output, younger than the joint
 *
 * An output's node hands its gradient to the joint when a pass comes to it. As the joint is older
 * than all of them, it has every gradient it will get when its turn comes; outputs on which the
 * loss does not depend give none.
 *
 * A function's links hang on the joint. A recomputed piece leads to different places through each
 * of its outputs, so its links hang on the output nodes, and a pass reaches only what it would
 * without recomputation. */
#include "autograd/joint.h"

#include <string.h>

#include "autograd/accumulate.h"
#include "base/assert.h"
#include "tensor/op.h"

typedef struct output_context {
    const char *name; /* the joint's */
    ls__tensor_node *joint;
    int index;
} output_context;

/* A joint's context begins with the name, because one op serves all functions of users. */
const char *ls__node_name(const ls__tensor_node *node)
{
    return node->op->run != NULL ? *(const char *const *)node->context : node->op->name;
}

/* ---- links -------------------------------------------------------------------------------- */

/* Runs when the storage of the links dies; drops the references to the nodes. */
static void links_fini(ls__storage *storage)
{
    const ls__joint_links *links = storage->data;
    for (int64_t i = 0; i < links->count; i++) {
        ls__node_unref(links->at[i].edge.to);
    }
}

/* A storage, so that a node can hold the links as it holds what it saved. */
ls__storage *ls__links_new(ls__tensors *tensors, int64_t count)
{
    LS_ASSERT(count >= 0);
    const size_t bytes = sizeof(ls__joint_links) + (size_t)count * sizeof(ls__joint_link);
    ls__storage *storage = ls__storage_new(&tensors->host, bytes);
    if (storage == NULL) {
        return NULL;
    }
    memset(storage->data, 0, bytes);
    ((ls__joint_links *)storage->data)->count = count;
    storage->fini = links_fini;
    return storage;
}

/* ---- the joint and its outputs ------------------------------------------------------------ */

/* Also runs when the joint has released what it saved, or when its graph dies without a pass. */
static void outputs_clear(ls__storage *storage)
{
    ls__joint_outputs *outputs = storage->data;
    for (int i = 0; i < outputs->count; i++) {
        ls__storage_unref(outputs->at[i].grad);
        ls__storage_unref(outputs->at[i].links);
        outputs->at[i] = (ls__joint_output){0};
    }
}

void ls__joint_reset(const ls__tensor_node *node)
{
    ls__storage *outputs = node->op->run != NULL ? node->saved[LS__JOINT_OUTPUTS].storage
                                                 : NULL; /* outputs have none */
    if (outputs != NULL) {
        outputs_clear(outputs);
    }
}

/* Zeroed: no output has a gradient yet. */
static ls__storage *outputs_new(ls__tensors *tensors, int count)
{
    const size_t bytes = sizeof(ls__joint_outputs) + (size_t)count * sizeof(ls__joint_output);
    ls__storage *storage = ls__storage_new(&tensors->host, bytes);
    if (storage == NULL) {
        return NULL;
    }
    memset(storage->data, 0, bytes);
    ((ls__joint_outputs *)storage->data)->count = count;
    storage->fini = outputs_clear;
    return storage;
}

/* Without one, the joint's operation need not run: no output matters to the loss. */
bool ls__joint_any_grad(const ls__tensor_node *joint)
{
    const ls__joint_outputs *outputs = ls__joint_outputs_of(joint);
    for (int i = 0; i < outputs->count; i++) {
        if (outputs->at[i].grad != NULL) {
            return true;
        }
    }
    return false;
}

/* A node without edges; `shape` says what its output is. */
static ls__tensor_node *node_new(ls__tensors *tensors, const ls__op *op, ls__record *shape,
                                 size_t context_bytes)
{
    ls__call call = {.name = op->name, .tensors = tensors, .grad = true};
    return ls__call_record(&call, op, shape, context_bytes);
}

/* The node carries the caller's line but no shape: a joint has no elements of its own. */
ls__tensor_node *ls__joint_new(ls__tensors *tensors, const ls__op *op, int outputs,
                               ls__storage *links, ls__storage *own, size_t context_bytes)
{
    LS_ASSERT(op->run != NULL && outputs > 0 && context_bytes >= sizeof(const char *));
    ls__record shapeless = {.file = ls__self.file, .line = ls__self.line};
    ls__storage *arriving = outputs_new(tensors, outputs);
    ls__tensor_node *node =
        arriving != NULL ? node_new(tensors, op, &shapeless, context_bytes) : NULL;
    if (node == NULL) {
        ls__storage_unref(arriving);
        ls__storage_unref(links);
        ls__storage_unref(own);
        return NULL;
    }
    node->saved[LS__JOINT_LINKS].storage = links;
    node->saved[LS__JOINT_OUTPUTS].storage = arriving;
    node->saved[LS__JOINT_OWN].storage = own;
    return node;
}

/* Each link announced one accumulation, which must be settled although none will come. */
ls_status ls__links_skip(ls__autograd_pass *pass, const ls__joint_links *links)
{
    for (int64_t i = 0; links != NULL && i < links->count; i++) {
        LS_TRY(ls__contribute(pass, &links->at[i].edge, NULL));
    }
    return LS_OK;
}

/* Hands the gradient to the joint, together with the links: the joint now has to settle what they
 * announced. Without a gradient, because a rule behind this output gave none, they are settled
 * here. */
static ls_status output_run(ls__autograd_pass *pass, ls__tensor_node *node)
{
    const output_context *c = node->context;
    ls__joint_outputs *outputs = ls__joint_outputs_of(c->joint);
    LS_ASSERT(c->index < outputs->count && outputs->at[c->index].grad == NULL);
    if (node->grad == NULL) {
        return ls__links_skip(pass, ls__links_of(node));
    }
    ls__storage *links = node->saved[LS__JOINT_LINKS].storage;
    outputs->at[c->index] = (ls__joint_output){
        .grad = node->grad, .links = links != NULL ? ls__storage_ref(links) : NULL};
    node->grad = NULL;
    return LS_OK;
}

/* A joint that gathers runs, with a gradient of zeros. */
static ls_status output_skipped(ls__autograd_pass *pass, ls__tensor_node *node)
{
    const output_context *c = node->context;
    ls__joint_outputs *outputs = ls__joint_outputs_of(c->joint);
    outputs->at[c->index].skipped = true;
    if (pass->weight != 0.0 || !outputs->gathers) {
        return LS_OK;
    }
    LS_TRY(ls__give_zeros(pass, node));
    return output_run(pass, node);
}

static const ls__op output_op = {.name = "output", .run = output_run, .skipped = output_skipped};

bool ls__joint_has_links_of(const ls__tensor_node *node)
{
    const output_context *c = node->context;
    return node->op == &output_op && ls__joint_outputs_of(c->joint)->at[c->index].links != NULL;
}

bool ls__joint_has_grad(const ls__tensor_node *node)
{
    return node->op == &output_op ? node->grad != NULL : ls__joint_any_grad(node);
}

/* The new node is younger than the joint, so a pass reaches it first. */
ls__tensor_node *ls__joint_add_output(ls__tensors *tensors, ls__tensor_node *joint, int i,
                                      ls__record *record, ls__storage *links)
{
    LS_ASSERT(record->node == NULL && i >= 0 && i < ls__joint_outputs_of(joint)->count);
    /* A view may be an output: its node has the elements of its base, which the caller says. */
    ls__record base = {.numel = record->numel,
                       .offset = record->offset,
                       .dtype = record->dtype,
                       .file = record->file,
                       .line = record->line};
    ls__tensor_node *node = node_new(tensors, &output_op, &base, sizeof(output_context));
    if (node == NULL) {
        ls__storage_unref(links);
        return NULL;
    }
    *(output_context *)node->context =
        (output_context){.name = *(const char **)joint->context, .joint = joint, .index = i};
    record->node = node;
    node->edge[0].to = joint;
    node->saved[LS__JOINT_LINKS].storage = links;
    return node;
}
