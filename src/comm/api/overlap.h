/* Overlap of input and output. */
#ifndef LS_COMM_API_OVERLAP_H
#define LS_COMM_API_OVERLAP_H

#include "comm/core/group.h"

/* LS_ERR_INVALID if the buffers overlap in any other way than "in place". Both buffers are in use
 * on this rank, and their sizes were checked. */
ls_status ls__overlap_check(const char *what, const ls_group *group, const ls__collective *args);

#endif
