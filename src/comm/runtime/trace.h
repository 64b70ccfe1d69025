/* The trace of this rank (base/trace.h) as part of its job's: it is handed to the host agent, and
 * ranks of other hosts than rank 0's compare clocks with rank 0 and send it their events. */
#ifndef LS_COMM_RUNTIME_TRACE_H
#define LS_COMM_RUNTIME_TRACE_H

#include "comm/core/comm.h"

/* Before the engine starts. Does nothing unless LOCKSTEP_TRACE is set, which all ranks have alike
 * (ls__comm_config). */
ls_status ls__comm_trace_open(ls__comm *comm);
/* After ls_init; collective where ranks are on several hosts. */
void ls__comm_trace_begin(ls__comm *comm);
/* In ls_finalize, while groups still work; collective in the same case. */
void ls__comm_trace_leave(ls__comm *comm);
void ls__comm_trace_close(ls__comm *comm); /* after the engine has stopped */

#endif
