/* Where members of one host show each other the blocks of a v-variant. */
#ifndef LS_COMM_ENGINE_V_LAYOUT_H
#define LS_COMM_ENGINE_V_LAYOUT_H

#include "comm/group/group.h"

/* Whether members show each other where their blocks are. All members find the same. */
bool ls__v_layout_can(const ls_group *group, const ls_work *work);
/* Where the input lies, for the descriptor. */
void ls__v_layout_describe(const ls_group *group, ls_work *work);
/* lock; before it is announced. Sets input and offsets anew if they can be packed. */
void ls__v_layout_publish(ls_group *group, ls_work *work);
/* token: when all have announced it: whether a block is not as long as this rank expects; then the
 * group was told so. Sets the count to the longest block of all. */
bool ls__v_layout_differ(ls_group *group, ls_work *work);
/* token: when all have announced it: whether all have packed their blocks. */
bool ls__v_layout_packed(const ls_group *group, const ls_work *work);
/* Where block `chunk` of the member's input starts, in elements. */
int64_t ls__v_layout_offset(const ls_group *group, const ls_work *work, int member, int chunk);

#endif
