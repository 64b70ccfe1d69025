/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses an option for each node of a graph such that the sum of all costs, of nodes and edges, is
 * least.
 *
 * Exact, by bucket elimination (Dechter, Artificial Intelligence 113, 1999). A node is left out,
 * and a table over its neighbours takes its place:
 *
 *     a - v - b        t(a, b) = min over v of  cost(v) + cost(a, v) + cost(v, b)
 *
 * With no node left, the nodes choose in the opposite order. Time and memory grow exponentially
 * with the neighbours that a node has when it is left out, which is two or three in a transformer,
 * however many layers it has.
 */
#ifndef LS_PLAN_INTRA_ELIMINATE_H
#define LS_PLAN_INTRA_ELIMINATE_H

#include <lockstep/status.h>

#include "base/env.h"

#define LS__CHOICE_OPTIONS_MAX 4096
#define LS__CHOICE_TABLE_MAX (1 << 24) /* entries of a table: 128 MB */

typedef struct ls__choice_edge {
    int a, b;           /* different nodes; any number of edges between two */
    const double *cost; /* [options of a][options of b]; INFINITY: impossible */
} ls__choice_edge;

typedef struct ls__choice_problem {
    int nodes, edges;
    const int *options;        /* [nodes] 1 to LS__CHOICE_OPTIONS_MAX */
    const double *const *node; /* [nodes][options] */
    const ls__choice_edge *edge;
} ls__choice_problem;

/* choice[nodes]; of equal choices always the same. *cost is INFINITY, and choice[] of no meaning,
 * where none is possible. LS_ERR_LIMIT: a table would be larger than LS__CHOICE_TABLE_MAX;
 * LS_ERR_MEMORY. */
ls_status ls__choose(const ls__env *env, const ls__choice_problem *problem, int *choice,
                     double *cost);

#endif
