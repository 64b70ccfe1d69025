/* SPDX-License-Identifier: Apache-2.0 */
/* Handles over several groups: collective k runs on groups[k % count]. */
#ifndef LS_COMM_CORE_ROUND_ROBIN_H
#define LS_COMM_CORE_ROUND_ROBIN_H

#include "comm/core/group.h"

/* The group on which the next operation runs: `group` itself, unless it is such a handle. */
ls_group *ls__round_robin_group(ls_group *group, bool p2p);
void ls__round_robin_pass(ls_group *group, bool p2p); /* that operation has started */
int ls__round_robin_count(const ls_group *group);
ls_group *ls__round_robin_at(const ls_group *group, int i);
void ls__round_robin_free(ls_group *handle);

#endif
