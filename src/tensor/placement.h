/* SPDX-License-Identifier: Apache-2.0 */
/* How placements (lockstep/placement.h) pass through operations.
 *
 * Note [Placements in operations]
 * A record carries one word, 4 bits for each axis of the mesh in force. An operation says in its
 * frame how its dimensions and its linearity go from inputs to the result (`call.follows`), once;
 * ls__call_finish finds the result's word from it, or refuses. An operation that says nothing is
 * taken for one that mixes all elements of a rank: equal stays equal, sharded becomes varying.
 *
 *     call.follows = LS__ELEMENTWISE;               relu
 *     call.follows = LS__ROWS(dims);                softmax: needs the whole of these dimensions
 *     call.follows = LS__REDUCES(dims, keep, SUM);  a sum over them
 *
 * Types follow the forward pass alone: the gradient's is the dual of the tensor's (replicated and
 * partial are each other's, the others their own), so a graph that was accepted has right gradients
 * if each rule is the derivative on one rank.
 */
#ifndef LS_TENSOR_PLACEMENT_H
#define LS_TENSOR_PLACEMENT_H

#include <lockstep/placement.h>

#include "base/axes.h"
#include "base/compiler.h"
#include "tensor/graph.h"

struct ls__call;

enum {
    LS__PLACED_UNPLACED = 0,
    LS__PLACED_REPLICATED = 1,
    LS__PLACED_INVARIANT = 2,
    LS__PLACED_PARTIAL = 3,
    LS__PLACED_VARYING = 4,
    LS__PLACED_ZIGZAG = 5,  /* + dimension, below LS__ZIGZAG_DIMS */
    LS__PLACED_SHARDED = 8, /* + dimension */
};

#define LS__ZIGZAG_DIMS 3

/* The dimension along which the ranks have parts, in either order; negative: there is none. */
static inline int ls__place_dim(int place)
{
    return place >= LS__PLACED_SHARDED  ? place - LS__PLACED_SHARDED
           : place >= LS__PLACED_ZIGZAG ? place - LS__PLACED_ZIGZAG
                                        : -1;
}

/* Parts in the order of `place` along another dimension. */
static inline int ls__place_along(int place, int dim)
{
    return place >= LS__PLACED_SHARDED ? LS__PLACED_SHARDED + dim
           : dim < LS__ZIGZAG_DIMS     ? LS__PLACED_ZIGZAG + dim
                                       : LS__PLACED_VARYING;
}

static inline int ls__place_at(uint32_t word, int axis)
{
    return (int)(word >> 4 * axis & 15);
}

static inline uint32_t ls__place_with(uint32_t word, int axis, int place)
{
    return (word & ~(UINT32_C(15) << 4 * axis)) | (uint32_t)place << 4 * axis;
}

/* How dimensions go from the inputs to the result. */
typedef enum ls__follow {
    LS__FOLLOW_UNKNOWN = 0,
    LS__FOLLOW_ELEMENTWISE, /* aligned at the right */
    LS__FOLLOW_ROWS,        /* of input 0 to the same; those of `dims` are needed whole, the other
                               inputs align at the right */
    LS__FOLLOW_REDUCES,     /* those of `dims` go, as `over` says */
    LS__FOLLOW_MOVES,       /* dimension d becomes to[d] */
    LS__FOLLOW_RESHAPES,    /* as the shapes say */
    LS__FOLLOW_MATMUL,      /* [..,m,k] x [..,k,n] */
    LS__FOLLOW_LINEAR,      /* [..,k] x [n,k] + [n] */
    LS__FOLLOW_EMBEDS,      /* rows of [n,..] at an index */
    LS__FOLLOW_ATTENDS,     /* q, k, v [b,h,t,d] -> [b,t,h,d]; over: TO_WHOLE if causal. A mask is
                               input LS__PLACE_MASK, aligned with [b,h,t,s] at the right */
    LS__FOLLOW_CLASSES,     /* a loss of [..,c]: means over all dimensions but the last */
    LS__FOLLOW_SAMPLES,     /* dimension 0 of input 0; everything else is needed whole */
} ls__follow;

#define LS__PLACE_MASK 3

/* Where a dimension goes, if not to one of the result's. */
enum {
    LS__TO_SUM = -1,     /* it is summed over: partial */
    LS__TO_MEAN = -2,    /* a mean of this rank's part: varying */
    LS__TO_WHOLE = -3,   /* it is needed whole: refused */
    LS__TO_VARYING = -4, /* its parts are no longer parts of one dimension */
};

/* Through which inputs a partial sum passes. */
typedef enum ls__linearity {
    LS__LINEAR_NOT,
    LS__LINEAR_FIRST, /* input 0 alone: a scale, a quotient */
    LS__LINEAR_EACH,  /* one of them while the others are equal: a product */
    LS__LINEAR_ALL,   /* all together: a sum */
} ls__linearity;

typedef struct ls__follows {
    uint8_t how, linear;
    uint8_t dims; /* bit d: dimension d of input 0 */
    int8_t over;  /* where these go: one of the above */
    bool keep;    /* reduced dimensions stay, of size 1 */
    int8_t to[LS_DIMS_MAX];
} ls__follows;

#define LS__ELEMENTWISE(linearity)                                                                 \
    ((ls__follows){.how = LS__FOLLOW_ELEMENTWISE, .linear = LS__LINEAR_##linearity})
#define LS__ROWS(mask, linearity)                                                                  \
    ((ls__follows){                                                                                \
        .how = LS__FOLLOW_ROWS, .dims = (uint8_t)(mask), .linear = LS__LINEAR_##linearity})
#define LS__REDUCES(mask, keeps, what)                                                             \
    ((ls__follows){.how = LS__FOLLOW_REDUCES,                                                      \
                   .dims = (uint8_t)(mask),                                                        \
                   .keep = (keeps),                                                                \
                   .over = LS__TO_##what,                                                          \
                   .linear = LS__TO_##what == LS__TO_WHOLE ? LS__LINEAR_NOT : LS__LINEAR_FIRST})
#define LS__CONTRACTS(kind) ((ls__follows){.how = LS__FOLLOW_##kind, .linear = LS__LINEAR_EACH})
/* A mean over all elements of a function of them. */
#define LS__LOSS ((ls__follows){.how = LS__FOLLOW_REDUCES, .dims = 0xff, .over = LS__TO_MEAN})
#define LS__RESHAPES ((ls__follows){.how = LS__FOLLOW_RESHAPES, .linear = LS__LINEAR_FIRST})
#define LS__SAMPLES(linearity)                                                                     \
    ((ls__follows){.how = LS__FOLLOW_SAMPLES, .linear = LS__LINEAR_##linearity})
/* Of the last `n` of `ndim` dimensions. */
#define LS__LAST_DIMS(ndim, n) (((1u << (n)) - 1u) << ((ndim) - (n)))

/* Each dimension stays; the operation changes to[] where one does not. */
ls__follows ls__follows_moves(ls__linearity linear);

static inline ls__axes_in_force *ls__axes_of(const ls__tensors *tensors)
{
    return tensors->runtime->axes;
}

/* What the record is on the axis for an operation: a parameter that is unplaced is invariant, or
 * replicated where a reducer adds its gradient. */
int ls__place_of(const ls__record *record, int axis);
/* The same as a word, for a copy that is no parameter any more. */
uint32_t ls__place_word(const ls__axes_in_force *axes, const ls__record *record);
/* Bit a: the ranks of axis a have parts of their own, by a record's word. */
unsigned ls__place_parts(const ls__axes_in_force *axes, uint32_t word);
/* Sets the placement of a tensor along axis a; a parameter also remembers the mesh. */
void ls__place_set(const ls__axes_in_force *axes, ls__record *record, int a, int place);
/* Sets out->place, or fails the call. ls__call_finish calls it where a mesh is in force. */
void ls__call_place(struct ls__call *call, ls__record *out);
/* "x, which was made at FILE:LINE", "parameter blocks.0.up.weight": of argument i. */
const char *ls__place_subject(const ls__record *record, int argument, char *out, size_t bytes);
ls_placement ls__placement_public(int place);
/* -1: not a placement of a tensor of so many dimensions. */
int ls__place_from_public(ls_placement placement, int ndim);
/* The axis of the mesh in force; -1 with the error set. `what` names the call. */
int ls__axis_find(const char *name, const char *what, ls__axes_in_force **out);

/* The error that ls_tensor_shard would return. */
ls_status ls__tensor_shard_check(ls_tensor *t, const char *axis, int dim, const int64_t *groups,
                                 int count);

/* A loss from which a backward may begin: LS_ERR_PLACEMENT if not. *share: the part of its weight
 * that this rank gives: 1/n for each axis of n ranks along which it is replicated and no reducer
 * divides. */
ls_status ls__place_check_loss(const ls__axes_in_force *axes, const char *name,
                               const ls__record *loss, double *share);

#endif
