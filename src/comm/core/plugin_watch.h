/* Calls into a plug-in that do not return; see plugin_watch.c. */
#ifndef LS_COMM_CORE_PLUGIN_WATCH_H
#define LS_COMM_CORE_PLUGIN_WATCH_H

#include "comm/core/comm.h"

/* By a thread that waits for the progress lock, every LS__CHECK_NS: ends the process if the job has
 * failed and the holder's call has not returned since then. */
void ls__plugin_watch_call(ls__comm *comm);

#endif
