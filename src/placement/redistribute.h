/* SPDX-License-Identifier: Apache-2.0 */
/* The table of conversions of placements: what each moves, and how many bytes. */
#ifndef LS_PLACEMENT_REDISTRIBUTE_H
#define LS_PLACEMENT_REDISTRIBUTE_H

#include <stdint.h>

#include <lockstep/tensor.h>

#include <lockstep/comm.h>

#include "base/axes.h"
#include "tensor/graph.h"

/* What a conversion does with the elements. */
typedef enum ls__move {
    LS__MOVE_NONE, /* there is no such conversion */
    LS__MOVE_NOTHING,
    LS__MOVE_FIRST, /* rank 0 of the axis keeps them, the others have zeros */
    LS__MOVE_SLICE,
    LS__MOVE_PAD, /* zeros where the other ranks have their parts */
    LS__MOVE_ALL_REDUCE,
    LS__MOVE_ALL_GATHER,
    LS__MOVE_REDUCE_SCATTER,
    LS__MOVE_ALL_TO_ALL,
} ls__move;

/* In ls__axis_in_force.sent; before them collectives, from ALL_REDUCE on. */
enum { LS__SENT_BYTES = 4, LS__SENT_MESSAGES };

/* A row-major view or copy of x without placements: for what is done with elements alone, outside
 * of the graph. */
ls_tensor *ls__unplaced(ls_tensor *x);
/* For rules of gradients that compute with tensors: one over memory that a rule reads. NULL with
 * the error set. */
ls_tensor *ls__tensor_over(ls__pool *on, const void *data, ls_shape shape, ls_dtype dtype);
/* Gives what the rule has computed, row-major, as the gradient of input i (op->gives): its memory,
 * or a copy of memory that is not its own. */
ls_status ls__rule_give(ls__tensor_rule *r, int i, const ls__record *dx);
/* From one placement of tensor/placement.h to another. */
ls__move ls__move_of(int from, int to);
/* Of the gradient of a tensor with this one. */
int ls__place_dual(int place);
/* What each of `ranks` sends, of a tensor that has `whole` bytes on all ranks together, or on each
 * of them for what is not sharded. */
int64_t ls__move_bytes(ls__move move, int ranks, int64_t whole);
/* An axis that backward will need, when the program may have freed its mesh. */
typedef struct ls__axis_kept {
    ls__axis_in_force *axis;
    void *comm; /* ls__comm */
    uint32_t group;
} ls__axis_kept;
ls__axis_kept ls__axis_keep(ls__axis_in_force *axis);
ls_status ls__axis_check(const ls__axis_kept *kept, const char *what);
/* In place, of numbers on the device of `on`, whose backend moves them where it is to be had. */
typedef struct ls__numbers {
    ls__pool *on;
    void *data;
    int64_t count;
    ls_dtype dtype;
} ls__numbers;
ls_status ls__numbers_all_reduce(ls_group *group, const ls__numbers *x, ls_reduce_op op,
                                 const char *tag);
/* The group beside this one that moves memory of the device; NULL: `group` does, in memory of the
 * program. Collective over the group at its first call. */
ls_status ls__group_there(ls_group *group, const ls__pool *on, ls_group **out);
/* One exchange, from x to `out`: in memory of the program, or of the device and in its stream. */
typedef struct ls__operands {
    ls_group *group;
    ls_tensor *x, *out;
    ls_stream *stream; /* NULL: of the program */
} ls__operands;
/* Of x, row-major, and a new tensor of `shape`. Collective as ls__group_there. Poisoned tensors
 * after a failure of their own. */
ls_status ls__operands_find(ls_group *group, ls_tensor *x, ls_shape shape, ls__operands *o);
ls_tensor *ls__operands_result(const ls__operands *o); /* `out`, where x was */
/* ls__numbers_all_reduce of floats along an axis, for operations that move what is no tensor of the
 * program's; counted as a conversion. */
ls_status ls__axis_all_reduce(ls__axis_in_force *axis, ls__pool *on, float *data, int64_t numel,
                              ls_reduce_op op, const char *tag);

#endif
