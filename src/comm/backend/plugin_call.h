/* Calls into a plug-in that do not return; see plugin_call.c. */
#ifndef LS_COMM_BACKEND_PLUGIN_CALL_H
#define LS_COMM_BACKEND_PLUGIN_CALL_H

#include <stdatomic.h>
#include <stdint.h>

#include "comm/comm.h"

/* progress lock; before and after a call, so the count is odd during one. */
static inline void ls__plugin_count_call(_Atomic uint32_t *calls)
{
    const uint32_t count = atomic_load_explicit(calls, memory_order_relaxed);
    atomic_store_explicit(calls, count + 1, memory_order_relaxed);
}

/* By a thread that waits for the progress lock, every LS__CHECK_NS: ends the process if the job has
 * failed and the holder's call has not returned since then. */
void ls__plugin_watch_call(ls__comm *comm);

#endif
