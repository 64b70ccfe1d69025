/* SPDX-License-Identifier: Apache-2.0 */
/* The graph, as operations record it and autograd's engine reads it.
 *
 * An operation makes one tensor and, when an input requires gradients, one node. Edges lead from
 * the node to the nodes its inputs came from; a leaf (a parameter) is a node without an operation.
 *
 *      x  w              loss = mean(relu(linear(x, w)))
 *       \ |
 *      linear <- relu <- mean            w: leaf, counted; the others live in their scope's arena
 *
 * Note [Views make no nodes]
 * Reshapes, transposes and slices change strides only, so a view keeps its base's node, and an edge
 * says which elements of the base's gradient it stands for. The gradient of a base lies row-major
 * as the base does (a node's output and a leaf are always contiguous), so element e of a view at
 * storage position p is element p - node->offset of that gradient. Backward of a chain of views is
 * one strided accumulation, and of none at all when the view shows the whole base in order.
 *
 * Note [Gradient rules]
 * A rule gets dy and, for each input that wants one, memory and a beta: 0 overwrite, 1 accumulate.
 * An op that cannot accumulate says so and always gets beta 0. For an op whose gradient is dy
 * itself (`passes`), the engine hands dy on and calls no rule.
 *
 * Note [Types of gradients]
 * A gradient has the type of its tensor: float32, or bfloat16. Most rules see float32 only, because
 * ls__call_float32 put casts around their operation (op.h, Note [bfloat16]); a rule of an operation
 * that takes bfloat16 itself looks at node->dtype for dy and at in[i].dtype, and casts the
 * pointers.
 */
#ifndef LS_TENSOR_GRAPH_H
#define LS_TENSOR_GRAPH_H

#include "base/rows.h"
#include "tensor/tensor.h"

#define LS__EDGES_MAX 4
#define LS__SAVED_MAX 6

typedef struct ls__autograd_pass ls__autograd_pass; /* autograd/pass.h */

typedef struct ls__geometry { /* which elements of the base a view stands for */
    int ndim;
    int64_t dim[LS_DIMS_MAX];
    ls__strided stride;
    int64_t offset, numel; /* of its first element, within the base's gradient */
} ls__geometry;

typedef struct ls__edge {
    ls__tensor_node *to;    /* NULL: the input wants no gradient */
    ls__geometry *geometry; /* NULL: the whole base, in order */
} ls__edge;

typedef struct ls__tensor_saved { /* an operand kept for the rule */
    ls__storage *storage;         /* NULL: nothing */
    int64_t offset;               /* bytes */
    uint32_t version;
    int argument;          /* from 1: which input it is; 0: a result or an intermediate */
    ls__tensor_node *leaf; /* a parameter is saved as (identity, version); NULL: not one */
} ls__tensor_saved;

typedef struct ls__gradient { /* of one input, as its rule sees it */
    float *data;              /* NULL: not wanted */
    float beta;
    ls_dtype dtype;    /* of the elements at data */
    ls__storage *give; /* out, op->gives: the gradient itself; takes the reference */
} ls__gradient;

/* Note [Parts of a rule]
 * A backward pass in two parts (autograd/parts.c) calls a rule twice: first for the inputs whose
 * gradients are wanted now, then for the others; those that are not wanted have data NULL both
 * times. Most rules need not know. One whose results share an intermediate, as dZ = dY f'(Z) of a
 * linear layer, sets op->keeps: in the input part it leaves that in place of dy, over it or in
 * `kept`, and in the weight part finds it as dy. */
typedef enum ls__part { LS__PART_WHOLE, LS__PART_INPUT, LS__PART_WEIGHT } ls__part;

typedef struct ls__tensor_rule { /* one call of a gradient rule */
    const ls__tensor_node *node;
    ls__pool *on; /* the device of dy; its two fields, at hand: */
    const ls__kernels *k;
    ls_stream *stream;
    const float *dy; /* row-major, of the node's output and its dtype */
    bool dy_is_free; /* no other rule reads dy: this one may write over it */
    bool dy_is_one;  /* the weight of ls_backward, unchanged. Else nobody knows before it is read */
    ls__part part;
    ls__storage *kept; /* out, op->keeps, LS__PART_INPUT: read as dy afterwards; takes the
                          reference */
    ls__gradient in[LS__EDGES_MAX];
    const void *saved[LS__SAVED_MAX];
} ls__tensor_rule;

#define LS__READS(bits) (0x80 | (bits))

typedef struct ls__op {
    const char *name;
    ls_status (*backward)(ls__tensor_rule *rule);
    /* Called instead where no gradient flows through the node, as in a backward of weight 0: the
     * part that other ranks wait for. NULL: there is not one. */
    ls_status (*skipped)(ls__autograd_pass *pass, ls__tensor_node *node);
    uint8_t passes;   /* bit i: the gradient of input i is dy */
    bool accumulates; /* the rule honours beta 1 */
    bool gives;       /* the rule fills in[0].give instead of in[0].data */
    bool keeps;       /* Note [Parts of a rule] */
    bool gathers; /* losses of other ranks reach its input: without a gradient of this rank's the
                         rule runs with zeros */
    /* The saved operands that the rule reads for edge i, after an input part; LS__READS(bits), 0:
     * all. */
    uint8_t reads[LS__EDGES_MAX];
    /* Marks the rows of input 0, a table, that its gradient will reach. NULL: any. */
    void (*rows)(const ls__tensor_node *node, ls__rows *rows);
    /* Autograd's own, with any number of inputs and outputs (autograd/joint.h): called instead of a
     * rule. NULL: every other operation. */
    ls_status (*run)(ls__autograd_pass *pass, ls__tensor_node *node);
} ls__op;

typedef struct ls__node_hook ls__node_hook;
struct ls__node_hook { /* autograd/hooks.c has the rest */
    ls__storage *self; /* this struct's own memory */
    ls__node_hook *next;
};

struct ls__tensor_node {
    const ls__op *op;      /* NULL: a leaf */
    uint64_t number;       /* in order of creation: inputs have smaller ones */
    int64_t numel, offset; /* of the output; offset in its storage, in elements */
    ls__edge edge[LS__EDGES_MAX];
    ls__tensor_saved saved[LS__SAVED_MAX];
    void *context; /* the operation's own, in the scope's arena */
    const char *file;
    int line;
    bool released;         /* backward went through it */
    bool leads;            /* in a backward in parts: to an input whose gradient is wanted first */
    uint8_t dtype;         /* of the output, and so of its gradient */
    ls__tensor_node *next; /* of its scope */
    ls__node_hook *hooks;  /* on its gradient, in order of addition */
    /* the engine's, during a backward pass */
    uint64_t pass;      /* the pass that reached it last */
    int32_t pending;    /* accumulations still to come */
    ls__storage *grad;  /* row-major, from offset 0; a leaf's is in ls__leaf */
    ls__record *within; /* tensors over its output that a module made for itself; linked by peer */
};

typedef struct ls__leaf {
    ls__tensor_node node;
    ls__storage *self;  /* this struct's own memory: its count is the leaf's */
    ls__storage *value; /* the parameter's numbers, at node.offset; borrowed: the record owns it */
    ls__storage *grad;  /* NULL: none yet */
    bool *present; /* whether grad holds a gradient: own_present, or where a reducer keeps it */
    bool own_present;
    uint32_t met;            /* by the run of a captured step that has this number (gradients.h) */
    ls__record *grad_record; /* returned by ls_grad; made at first use */
    ls_shape shape;
    void *observer; /* ls__observer */
    int observer_index;
    ls__param_notes notes;
    const char *name; /* of the parameter; NULL: none. Borrowed from its module */
} ls__leaf;

/* The types that take part in autograd; an operation that makes any other ends the graph. */
static inline bool ls__carries_gradients(ls_dtype dtype)
{
    return dtype == LS_FLOAT32 || dtype == LS_BFLOAT16;
}

static inline bool ls__node_is_leaf(const ls__tensor_node *node)
{
    return node->op == NULL;
}

static inline ls__leaf *ls__leaf_of(ls__tensor_node *node)
{
    return (ls__leaf *)(void *)node; /* its first member */
}

/* Leaves are counted; other nodes live as long as their scope. */
static inline ls__tensor_node *ls__node_ref(ls__tensor_node *node)
{
    if (node != NULL && ls__node_is_leaf(node)) {
        ls__storage_ref(ls__leaf_of(node)->self);
    }
    return node;
}

static inline void ls__node_unref(ls__tensor_node *node)
{
    if (node != NULL && ls__node_is_leaf(node)) {
        ls__storage_unref(ls__leaf_of(node)->self);
    }
}

/* Makes `record` a leaf. */
ls_status ls__leaf_new(ls__tensors *tensors, ls__record *record);
/* Memory of the gradient's own returns to the allocator while the gradient is absent. Borrowed
 * memory (a bucket's) stays bound. */
void ls__leaf_release_grad(ls__leaf *leaf);
/* to = from + beta to between bfloat16 and float32, whichever of them `to_dtype` is (cast.c). */
void ls__cast_gradient(ls__pool *on, void *to, ls_dtype to_dtype, const void *from, int64_t numel,
                       float beta);
/* Drops a node's saved operands and its edges; it can never be walked again. */
void ls__node_release(ls__tensor_node *node);
/* Frees its hooks, whose handles the program may use until the node dies. */
void ls__node_hooks_free(ls__tensor_node *node);
/* The edge that leads to where `record`'s gradient flows; `to` is NULL when nowhere. False with the
 * error set without memory, and when its scope is suspended. */
bool ls__edge_to(ls__tensors *tensors, const ls__record *record, ls__edge *out);

#endif
