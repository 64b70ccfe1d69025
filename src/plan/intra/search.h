/* SPDX-License-Identifier: Apache-2.0 */
/* The placements of all operators and parameters of a model that take least time together: the
 * intra-operator part of Alpa (Zheng et al., OSDI 2022, section 4), as a choice by elimination
 * instead of an integer program.
 *
 * A node is an operator, its options are its strategies, and an edge is a tensor that may have to
 * be converted. An operator that only follows another one is a node like any, so what it costs to
 * convert before or after it is seen; elimination leaves it out first.
 */
#ifndef LS_PLAN_INTRA_SEARCH_H
#define LS_PLAN_INTRA_SEARCH_H

#include "base/text.h"
#include "plan/intra/strategy.h"

typedef struct ls__intra_plan {
    ls__strategy *op; /* [graph->count] */
    /* [graph->params] how each is kept: way[].in[0]. Unused ones are invariant. */
    ls__strategy *param;
    double seconds;                    /* of a step, all communication exposed */
    double work;                       /* … of which computing */
    bool data[LS__INTRA_AXES_MAX];     /* along the axis the ranks have other samples */
    bool sequence[LS__INTRA_AXES_MAX]; /* … and parts of what lies between the layers */
    bool possible;
} ls__intra_plan;

/* In memory of the graph. LS_ERR_LIMIT, LS_ERR_MEMORY. */
ls_status ls__intra_search(ls__graph *graph, const ls__intra_mesh *mesh, ls__intra_plan *out);
/* The time of given strategies; INFINITY: they do not go together. */
double ls__intra_seconds(const ls__graph *graph, const ls__intra_mesh *mesh,
                         const ls__strategy *op);

/* words.c: the words of ls_tensor_parallel_options.plan along an axis, PATH=ROLE; nothing where no
 * parameter is cut. LS_ERR_MEMORY. */
ls_status ls__intra_words(ls__graph *graph, const ls__intra_plan *plan, int axis, ls__text *out);

#endif
