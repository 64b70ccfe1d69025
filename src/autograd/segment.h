/* SPDX-License-Identifier: Apache-2.0 */
/* A recomputed segment: what its two runs, recompute.c and replay.c, have in common. */
#ifndef LS_AUTOGRAD_SEGMENT_H
#define LS_AUTOGRAD_SEGMENT_H

#include <lockstep/autograd.h>

#include "tensor/graph.h"
#include "tensor/rng_stream.h"

typedef struct ls__segment_callee { /* one of the two functions */
    ls_recompute_fn one;
    ls_recompute_many_fn many;
    void *arg;
} ls__segment_callee;

typedef struct ls__segment_result { /* what came out: a view, it may be, of an operation's output */
    ls_shape shape;
    int64_t stride[LS_DIMS_MAX];
    int64_t offset;                  /* in storage */
    int64_t base_numel, base_offset; /* of the operation's output */
    int dtype;
} ls__segment_result;

typedef struct ls__segment_argument {
    ls__record record; /* as it was; never linked. Holds a reference to its storage */
    uint32_t version;
    bool given;
} ls__segment_argument;

typedef struct ls__segment_outcome { /* of the first run, after its scope was left */
    ls__record y;       /* never linked; holds references to its storage and, outside, its node */
    ls__storage *links; /* NULL: this result leads nowhere */
    ls__segment_result result; /* with links */
} ls__segment_outcome;

typedef struct ls__segment { /* in a storage, which the joint owns */
    ls__segment_callee callee;
    ls__draw_log log; /* what the first run drew */
    bool autocast;
    bool exchanges; /* the function ran what other ranks wait for */
    bool gathers;   /* and what they have of it reaches their losses */
    int input_count, output_count;
    ls__segment_argument *input;
    ls__segment_outcome *output; /* once recorded, only `result` counts */
} ls__segment;

/* Of a joint for a recomputed segment, which owns it. */
static inline ls__segment *ls__segment_of(const ls__storage *own)
{
    return own->data;
}

static inline uint64_t ls__nodes_made(ls__tensors *tensors)
{
    return atomic_load_explicit(&tensors->nodes_made, memory_order_relaxed);
}

/* Whether an operation after the first `border` nodes made it. */
static inline bool ls__node_inside(const ls__tensor_node *node, uint64_t border)
{
    return node != NULL && !ls__node_is_leaf(node) && node->number > border;
}

/* Room for a segment without inputs and results yet. NULL with the error set. */
ls__storage *ls__segment_new(ls__tensors *tensors, const ls__segment_callee *f, int input_count,
                             int output_count);
ls__segment_result ls__segment_result_of(const ls__record *y);
/* Runs the user's function; its results are sound afterwards. */
ls_status ls__segment_call(ls__tensors *tensors, const ls__segment *p, ls_tensor *const *inputs,
                           ls__record **y);

extern const ls__op ls__recompute_op; /* replay.c */

#endif
