/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of every operation before and after its kernel: decode handles, pass poison on, check
 * dtypes, make the output, record a node.
 *
 *     ls__call call;
 *     if (!ls__call_begin(&call, "relu", 1, (ls_tensor *[]){a}) || !ls__call_float32(&call)) {
 *         return call.failed;
 *     }
 *     ls__record *out = ls__call_output(&call, shape, LS_FLOAT32);
 *     … kernel, ls__call_record, ls__node_save …
 *     return ls__call_finish(&call, out);
 *
 * After a failure `failed` holds the poisoned result and every further step does nothing.
 *
 * Note [bfloat16]
 * Arithmetic is float32, and each result is rounded once. So an operation whose kernel reads
 * float32 takes bfloat16 by three steps of the frame: ls__call_floats (ls__call_float32) replaces a
 * bfloat16 input by a float32 copy, the operation runs as ever, ls__call_finish narrows the
 * result. Both are casts in the graph, so its rule sees float32 only and gradients have the types
 * of their tensors. `narrow` says whether the result is bfloat16: where all inputs were
 * (PyTorch's promotion), unless the operation decides otherwise before it finishes:
 *
 *     call.narrow = false;            a loss
 *     call.narrow = call.halves & 1;  a norm: the type of input 0
 *
 * An operation with kernels for bfloat16 does not call ls__call_floats for them, makes its output
 * with the dtype it has, and its rule minds the types (graph.h, Note [Types of gradients]).
 */
#ifndef LS_TENSOR_OP_H
#define LS_TENSOR_OP_H

#include "tensor/graph.h"
#include "tensor/meter.h"
#include "tensor/placement.h"
#include "tensor/shape.h"

#define LS__INPUTS_MAX 4

typedef struct ls__call {
    const char *name;
    ls__tensors *tensors;
    ls__pool *on; /* the device of its inputs; its two fields, at hand: */
    const ls__kernels *k;
    ls_stream *stream;
    ls__record *in[LS__INPUTS_MAX]; /* NULL: an optional input that was not given */
    int count;
    ls__record seen[LS__INPUTS_MAX]; /* in[i] in another order of dimensions, where asked for */
    bool channels_last;              /* the output is made as [N,H,W,C], too */
    bool grad; /* a node is due: grad mode is on and an input requires gradients */
    ls__record *widened[LS__INPUTS_MAX]; /* in[i] where it is a cast copy; dies in the end */
    unsigned halves;                     /* bit i: input i came as bfloat16 and was widened */
    bool narrow;                         /* the result is to be bfloat16 */
    ls_tensor *failed;
    ls__follows follows; /* how placements pass from inputs to the result (placement.h) */
    int across;          /* 1 + the axis along which the ranks compute the result together … */
    int across_place;    /* … and what it is there, whatever the inputs are; 0: no axis */
    uint64_t node;       /* number of its node; 0: none */
    ls__meter *meter;    /* NULL: not measured */
    ls__metered metered;
    uint64_t traced; /* begin of its span in a trace; 0: none */
} ls__call;

/* `optional` inputs (bit i) may be NULL. */
bool ls__call_begin(ls__call *call, const char *name, int count, ls_tensor *const *inputs);
bool ls__call_begin_optional(ls__call *call, const char *name, int count, ls_tensor *const *inputs,
                             unsigned optional);
/* For an operation that does not read its input's elements. */
bool ls__call_begin_unread(ls__call *call, const char *name, ls_tensor *input);
/* The poisoned result of an operation whose options were refused, with the error that is set. */
ls_tensor *ls__call_refused(void);
/* Poisons the result: "FILE:LINE: name: …". Returns it. */
ls_tensor *ls__call_fail(ls__call *call, ls_status status, const char *format, ...)
    LS__PRINTF(3, 4);
/* Inputs of `which` (bit i) that are bfloat16 become float32, in call->in; the others are left as
 * they are. See Note [bfloat16]. */
bool ls__call_floats(ls__call *call, unsigned which);
/* All inputs must be float32 or bfloat16. They are left as they are. */
bool ls__call_float_types(ls__call *call);
/* All inputs must be float32, or bfloat16, which become so. */
bool ls__call_float32(ls__call *call);
/* The elements of `in` as a new record of another type, row-major, with a cast in the graph where
 * both types carry gradients (float32, bfloat16). NULL after a failure. */
ls__record *ls__call_cast(ls__call *call, ls__record *in, ls_dtype dtype);
/* Input i must be an index: int32 or int64. */
bool ls__call_index(ls__call *call, int i);
bool ls__call_dim(ls__call *call, int dim, int *out); /* of input 0 */
/* Inputs 0 and 1 must have the same shape. */
bool ls__call_alike(ls__call *call);
/* The shape that inputs 0 and 1 broadcast to. */
bool ls__call_broadcast(ls__call *call, ls_shape *out);

ls__record *ls__call_output(ls__call *call, ls_shape shape, ls_dtype dtype);
/* A view of `of`: the same storage and node; the caller changes shape and strides. */
ls__record *ls__call_view(ls__call *call, const ls__record *of);
/* Records a node for `out` whose edges lead to the inputs, with zeroed context. NULL when no
 * gradient is wanted, or memory is out. */
ls__tensor_node *ls__call_record(ls__call *call, const ls__op *op, ls__record *out,
                                 size_t context_bytes);
/* The handle of `out`; after a failure frees it and returns the poison. */
ls_tensor *ls__call_finish(ls__call *call, ls__record *out);

/* Note [Channels last]
 * To the user images are [N,C,H,W]; the results of operations on images lie in memory as [N,H,W,C],
 * the order their kernels are fast in, as a view whose strides say so. Inside, such an operation
 * sees its input as the row-major [N,H,W,C] that it is, makes an output of that shape, and
 * ls__call_finish turns it back into a view [N,C,H,W]. So gradients lie the same way (a base's lies
 * as the base), nothing is copied from layer to layer, and operations that know nothing of it take
 * the view as they take any: row-major copies in, gradients scattered back. */

/* Sees input i, [N,C,H,W] or [N,C,..], as [N,H,W,C] from now on (a copy, where it does not lie
 * so). */
void ls__call_see_channels_last(ls__call *call, int i);
/* For operations that go element by element: sees all inputs so, if they are images of one shape
 * that lie so. */
void ls__call_as_stored(ls__call *call);

/* Row-major elements of an input: its own when it is contiguous, else a copy. */
typedef struct ls__dense {
    ls__storage *storage; /* holds a reference; NULL: failed */
    int64_t offset;       /* bytes */
    void *data;
    ls__tensor_node *leaf; /* its parameter, when it is (a view of) one and no copy */
    int argument;
} ls__dense;

ls__dense ls__call_dense(ls__call *call, int i);
ls__dense ls__call_memory(ls__call *call, size_t bytes); /* fresh workspace */
ls__dense ls__dense_of_output(const ls__record *out);    /* to save a result */
void ls__dense_drop(ls__dense *dense);
/* For the few results that the program itself computes: memory where it may write them, the
 * result's own on the host. ls__call_staged drops it, and brings them to the device. Of no data
 * after a failure. */
ls__dense ls__call_stage(ls__call *call, const ls__record *out);
void ls__call_staged(ls__call *call, const ls__record *out, ls__dense *stage);
/* Saves for the gradient rule; node NULL does nothing. */
void ls__node_save(ls__tensor_node *node, int slot, const ls__dense *dense);

#endif
