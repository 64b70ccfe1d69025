/* Blocks of unequal lengths: the v-variants' counts. */
#ifndef LS_COMM_OPERATION_V_COUNTS_H
#define LS_COMM_OPERATION_V_COUNTS_H

#include "comm/core/group.h"

/* Arguments of a v-variant on this rank. */
ls_status ls__counts_check(const char *what, const ls_group *group, const ls__collective *args);
/* Memory for the work's table; false: no memory. The caller holds comm->lock. */
bool ls__counts_room(ls__comm *comm, ls_work *work);
/* Copies counts and offsets, and sets the work's and the descriptor's counts. The caller holds
 * comm->lock. */
void ls__counts_fill(const ls_group *group, const ls__collective *args, ls_work *work);
/* ": counts[2] is 7 on rank 0 and 9 on rank 1", if this rank can prove it; else "" */
void ls__counts_difference(const ls_group *group, const ls__descriptor *a, int rank_a,
                           const ls__descriptor *b, int rank_b, char *out, size_t bytes);
/* The descriptor of the operation in progress. The caller holds the progress lock. */
const ls__descriptor *ls__counts_descriptor(const ls_group *group);

#endif
