/* SPDX-License-Identifier: Apache-2.0 */
/* ls_init on a given env table: for simulations, and tests that count or fail what it does. */
#ifndef LS_COMM_RUNTIME_INIT_H
#define LS_COMM_RUNTIME_INIT_H

#include <lockstep/runtime.h>

#include "base/env.h"
#include "comm/core/comm.h"

ls_status ls__init_with(const ls__env *env, const ls_init_options *options);

/* ---- remote_connect.c: the ranks on other hosts, in ls_init and ls_finalize ------------------ */

/* Called after the own heap is made and before the peers' are mapped: finds the
 * remote ranks and allocates their cached state. comm->remote stays NULL if all ranks are local. */
ls_status ls__remote_open(ls__comm *comm);
/* Connects, and makes comm->transport, which owns `host` from then on (closed on failure, too). */
ls_status ls__remote_connect(ls__comm *comm, ls__transport *host);
void ls__remote_leave(ls__comm *comm); /* says BYE; takes the progress lock itself */
void ls__remote_close(ls__comm *comm);

/* ---- trace.c: the trace of this rank (base/trace.h) as part of its job's --------------------- */

/* The trace is handed to the host agent, and ranks of other hosts than rank 0's compare clocks with
 * rank 0 and send it their events. */

/* Before the engine starts. Does nothing unless LOCKSTEP_TRACE is set, which all ranks have alike
 * (ls__comm_config). */
ls_status ls__comm_trace_open(ls__comm *comm);
/* After ls_init; collective where ranks are on several hosts. */
void ls__comm_trace_begin(ls__comm *comm);
/* In ls_finalize, while groups still work; collective in the same case. */
void ls__comm_trace_leave(ls__comm *comm);
void ls__comm_trace_close(ls__comm *comm); /* after the engine has stopped */

#endif
