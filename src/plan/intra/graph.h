/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of a forward pass, and for each of them shapes, where its dimensions go, the
 * parameters that it reads, and its work.
 *
 * A recorder is a meter (tensor/meter.h), so one forward pass with numbers is recorded. Tensors
 * without a gradient are data: every rank has them whole, and taking a part costs nothing.
 */
#ifndef LS_PLAN_INTRA_GRAPH_H
#define LS_PLAN_INTRA_GRAPH_H

#include <lockstep/nn.h>

#include "base/arena.h"
#include "tensor/op.h"

#define LS__GRAPH_OPS_MAX (1 << 15)

enum { LS__GRAPH_DATA = -1, LS__GRAPH_PARAM = -2, LS__GRAPH_ABSENT = -3 };

/* The facts that determine an operator's strategies and costs: operators of one kind share them. */
typedef struct ls__graph_kind {
    char name[24];
    ls_shape shape;                         /* of the result */
    ls_shape in[LS__INPUTS_MAX];            /* [count] */
    int8_t from[LS__INPUTS_MAX];            /* DATA, PARAM, ABSENT, or 0: an operator's result */
    int8_t to[LS__INPUTS_MAX][LS_DIMS_MAX]; /* of ls__place_through */
    uint8_t count, how, linear;
    uint8_t groups;  /* parts one after the other, each of which is sharded: a fused projection */
    bool view;       /* moves no element */
    bool constant;   /* of parameters alone */
    bool last;       /* nothing uses the result: the loss */
    bool shares;     /* it reads a parameter that another operator reads as well */
    double macs;     /* multiplications of its forward, of matrix products */
    int64_t m, n, k; /* … of one product, [m,k] x [k,n]; as often as `macs` says */
} ls__graph_kind;

typedef struct ls__graph_op {
    int from[LS__INPUTS_MAX];  /* operators; DATA, PARAM, ABSENT */
    int param[LS__INPUTS_MAX]; /* of PARAM: which one */
    int kind;
} ls__graph_op;

typedef struct ls__graph {
    ls__arena arena; /* owns all of it, without the parameters' names */
    ls__graph_op *op;
    int count, room;
    ls__graph_kind *kind;
    int kinds, kind_room;
    ls_param *param;
    int params;
} ls__graph;

/* `run` computes a loss; its tensors are freed. LS_ERR_UNSUPPORTED: a result whose operator is not
 * seen; LS_ERR_LIMIT; LS_ERR_MEMORY; errors of `run`. Afterwards free it, also after an error. */
typedef ls_tensor *ls__graph_fn(void *arg);
ls_status ls__graph_record(ls_module *net, ls__graph_fn *run, void *arg, ls__graph *out);
void ls__graph_free(ls__graph *graph);

#endif
