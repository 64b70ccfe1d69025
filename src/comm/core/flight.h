/* SPDX-License-Identifier: Apache-2.0 */
/* The flight recorder: the last operations of this rank, on the board. */
#ifndef LS_COMM_CORE_FLIGHT_H
#define LS_COMM_CORE_FLIGHT_H

#include "comm/core/group.h"

/* Opens the record of a submitted operation and returns its number. The caller holds comm->lock. */
uint64_t ls__flight_open(ls__comm *comm, const ls_group *group, const ls__descriptor *descriptor,
                         uint64_t queued_ns);
/* Closes the record of a small operation that was opened just before; it has no separate start. */
void ls__flight_end(ls__comm *comm, uint64_t number, ls_status status, uint64_t now_ns);
/* The number of the arrow in a trace that leaves or reaches this operation; 0: none. */
uint64_t ls__flight_flow(const ls_work *work);
void ls__flight_start(ls__comm *comm, const ls_work *work);
void ls__flight_close(ls__comm *comm, const ls_work *work, ls_status status, uint64_t now_ns);

#endif
