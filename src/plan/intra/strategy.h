/* SPDX-License-Identifier: Apache-2.0 */
/* The strategies of an operator: how its inputs and its result may be placed along an axis, and
 * what it costs on all axes of a mesh. They follow from where dimensions go (tensor/placement.h):
 *
 *     equal        all inputs and the result are invariant, or replicated
 *     sharded(d)   the result along d, inputs along what becomes d, others replicated
 *     partial      of a sum over a dimension that is sharded; and through what is linear
 *     added up     a partial product or lookup, converted at once: the bias comes after
 *
 * The cost of a conversion, forward and backward, follows from the table of
 * placement/redistribute.h, and so does the sum of a parameter's gradient: a parameter that is used
 * as replicated is kept as invariant, and the gradient of that conversion is an all-reduce.
 */
#ifndef LS_PLAN_INTRA_STRATEGY_H
#define LS_PLAN_INTRA_STRATEGY_H

#include "cost/processor.h"
#include "plan/intra/graph.h"

#define LS__INTRA_AXES_MAX 2
#define LS__WAYS_MAX 24 /* of an operator along one axis */
#define LS__STRATEGIES_MAX (LS__WAYS_MAX * LS__WAYS_MAX)

/* Along one axis. Placements are those of tensor/placement.h. */
typedef struct ls__way {
    int8_t in[LS__INPUTS_MAX]; /* of data: without meaning */
    int8_t made, out;          /* before and after the operator's own conversion */
    bool divides;              /* each rank does its part of the work */
    bool reduces;              /* the ranks exchange three numbers of each row: a loss of classes */
} ls__way;

/* On all axes. */
typedef struct ls__strategy {
    ls__way way[LS__INTRA_AXES_MAX];
} ls__strategy;

/* An axis of the mesh: n ranks, and what a message and a byte take on its links. */
typedef struct ls__intra_axis {
    int size;
    double latency, byte; /* seconds */
} ls__intra_axis;

typedef struct ls__intra_mesh {
    ls__intra_axis axis[LS__INTRA_AXES_MAX];
    int axes;
    ls__processor device;
    bool runnable; /* only what ls_tensor_parallel and ls_ddp_new do */
} ls__intra_mesh;

/* Fills out[LS__STRATEGIES_MAX]; returns how many there are, at least one. */
int ls__strategies(const ls__graph_kind *kind, const ls__intra_mesh *mesh, ls__strategy *out);

/* Seconds of the operator with this strategy, with what its parameters cost: forward, backward and
 * the optimizer's step. */
double ls__strategy_seconds(const ls__graph_kind *kind, const ls__strategy *s,
                            const ls__intra_mesh *mesh);
/* Seconds of the conversion from the result of `from` to input i of `to`, forward and backward;
 * INFINITY: there is none. */
double ls__resharding_seconds(const ls__graph_kind *from, const ls__strategy *a,
                              const ls__graph_kind *to, const ls__strategy *b, int i,
                              const ls__intra_mesh *mesh);
/* The placement in which a parameter is kept whose use has the placement `used`. */
int ls__place_kept(int used);

#endif
