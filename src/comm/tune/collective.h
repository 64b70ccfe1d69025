/* SPDX-License-Identifier: Apache-2.0 */
/* Costs of collectives for the cost model (cost/collective.h), counted from their programs. */
#ifndef LS_COMM_TUNE_COLLECTIVE_H
#define LS_COMM_TUNE_COLLECTIVE_H

#include "cost/collective.h"

#define LS__COLLECTIVE_COUNTED_MAX 1024 /* ranks; of more the closed forms are taken */

/* An ls__collective_count. False without memory, for more ranks, and where the algorithm has no
 * program for so many. */
bool ls__collective_counted(const ls__env *env, ls__collective_kind kind, int n,
                            ls__collective_cost *out);

#endif
