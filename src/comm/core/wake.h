/* SPDX-License-Identifier: Apache-2.0 */
/* Waking ranks that sleep, and sleeping where one can be woken. */
#ifndef LS_COMM_CORE_WAKE_H
#define LS_COMM_CORE_WAKE_H

#include "comm/core/group.h"

void ls__ring(ls__comm *comm, int local); /* wakes a rank that sleeps on its doorbell */
void ls__ring_members(ls_group *group);   /* those of this host, but for this rank */

/* Sleeps instead of parking on the doorbell; any thread. */
void ls__remote_sleep(ls__comm *comm, uint32_t bell, uint64_t deadline_ns);
void ls__remote_ring(ls__comm *comm, int local); /* any thread */

#endif
