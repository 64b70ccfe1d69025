/* Handles over several groups: collective k runs on groups[k % count]. */
#ifndef LS_COMM_GROUP_ROUND_ROBIN_H
#define LS_COMM_GROUP_ROUND_ROBIN_H

#include "comm/group/group.h"

/* The group that the next operation on `group` runs on: itself, if it is no such handle. */
ls_group *ls__turns_group(ls_group *group, bool letter);
void ls__turns_pass(ls_group *group, bool letter); /* that operation has been called */
int ls__turns_count(const ls_group *group);        /* groups behind it; 1: itself */
ls_group *ls__turns_at(const ls_group *group, int i);
void ls__turns_free(ls_group *handle);

#endif
