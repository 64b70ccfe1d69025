/* SPDX-License-Identifier: Apache-2.0 */
/* Joints: nodes of the graph with any number of inputs and outputs; see joint.c. */
#ifndef LS_AUTOGRAD_JOINT_H
#define LS_AUTOGRAD_JOINT_H

#include "autograd/pass.h"

/* The slots in which nodes of such operations save (op->run != NULL). */
enum { LS__JOINT_LINKS, LS__JOINT_OUTPUTS, LS__JOINT_OWN };

typedef struct ls__joint_link { /* as an edge, but of any number */
    ls__edge edge;              /* holds a reference to a leaf */
    uint32_t version;           /* of a leaf's numbers, when the link was made */
} ls__joint_link;

typedef struct ls__joint_links {
    int64_t count;
    ls__joint_link at[];
} ls__joint_links;

typedef struct ls__joint_output { /* as it arrives */
    ls__storage *grad;            /* NULL: the loss does not depend on it */
    ls__storage *links;           /* of its node; NULL: none, or no gradient came */
    bool skipped;                 /* in a backward of weight 0 no gradient comes */
} ls__joint_output;

typedef struct ls__joint_outputs {
    int count;
    bool gathers; /* other ranks' losses depend on its inputs: it runs in a pass of weight 0 */
    ls__joint_output at[];
} ls__joint_outputs;

static inline const ls__joint_links *ls__links_of(const ls__tensor_node *node) /* NULL: none */
{
    const ls__storage *links = node->op->run != NULL ? node->saved[LS__JOINT_LINKS].storage : NULL;
    return links != NULL ? links->data : NULL;
}

static inline ls__joint_outputs *ls__joint_outputs_of(const ls__tensor_node *joint)
{
    return joint->saved[LS__JOINT_OUTPUTS].storage->data;
}

/* The name of the operation that made a node. A joint's is that of its context, whose first member
 * is a `const char *`. */
const char *ls__node_name(const ls__tensor_node *node);

/* Room for `count` links, which are zero. NULL with the error set. */
ls__storage *ls__links_new(ls__tensors *tensors, int64_t count);

/* No gradient comes to the links (NULL: none): ls__accumulate_nothing for each. */
ls_status ls__links_skip(ls__autograd_pass *pass, const ls__joint_links *links);

/* Whether the loss depends on any output. */
bool ls__joint_any_grad(const ls__tensor_node *joint);
/* Drops what has come to a joint (of other nodes nothing): a pass may go through it again. */
void ls__joint_reset(const ls__tensor_node *node);
/* Whether the joint settles what the links of this node announced: it is an output, and has run. */
bool ls__joint_has_links_of(const ls__tensor_node *node);
/* Whether a gradient has come to a joint, or to the node of an output. */
bool ls__joint_has_grad(const ls__tensor_node *node);

/* A node of `op` with so many outputs and a zeroed context, in the innermost scope. Takes `links`
 * and `own` (NULL: none), also when it fails. NULL with the error set. */
ls__tensor_node *ls__joint_new(ls__tensors *tensors, const ls__op *op, int outputs,
                               ls__storage *links, ls__storage *own, size_t context_bytes);
/* Makes `record` output i of the joint: its gradient, that of the base of numel elements at offset,
 * goes there. Takes `links` (NULL: none): what the graph leads to through this output alone. NULL
 * with the error set. */
ls__tensor_node *ls__joint_add_output(ls__tensors *tensors, ls__tensor_node *joint, int i,
                                      ls__record *record, ls__storage *links);

#endif
