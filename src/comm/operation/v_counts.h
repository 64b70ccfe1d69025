/* SPDX-License-Identifier: Apache-2.0 */
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

/* ---- v_layout.c: the published layout, where each member's blocks lie ------------------------ */

/* Whether the members publish where their blocks are. Equal on all members. */
bool ls__v_layout_can(const ls_group *group, const ls_work *work);
/* Fills in where the input lies in the descriptor. */
void ls__v_layout_describe(const ls_group *group, ls_work *work);
/* lock; before the announcement. If the blocks can be packed, they become the work's input. */
void ls__v_layout_publish(ls_group *group, ls_work *work);
/* progress lock; when all have announced the operation: whether a block has another length than
 * this rank expects; then the group has failed. Sets the count to the longest block of all. */
bool ls__v_layout_differ(ls_group *group, ls_work *work);
/* progress lock; when all have announced the operation: whether all have packed their blocks. */
bool ls__v_layout_packed(const ls_group *group, const ls_work *work);
/* Where block `chunk` of the member's input starts, in elements. */
int64_t ls__v_layout_offset(const ls_group *group, const ls_work *work, int member, int chunk);

#endif
