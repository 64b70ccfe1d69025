/* Where input and output may lie on each other. */
#ifndef LS_COMM_API_OVERLAP_H
#define LS_COMM_API_OVERLAP_H

#include "comm/group/group.h"

/* LS_ERR_INVALID if buffers lie on each other otherwise than "in place"; both are used, and memory
 * could hold them. */
ls_status ls__overlap_check(const char *what, const ls_group *group, const ls__collective *args);

#endif
