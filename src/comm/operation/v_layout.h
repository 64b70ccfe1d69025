/* The published layout of a v-variant: where each member's blocks lie. See v_layout.c. */
#ifndef LS_COMM_OPERATION_V_LAYOUT_H
#define LS_COMM_OPERATION_V_LAYOUT_H

#include "comm/core/group.h"

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
