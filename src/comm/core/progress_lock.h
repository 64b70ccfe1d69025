/* SPDX-License-Identifier: Apache-2.0 */
/* The progress lock: its holder drives all operations of this rank. */
#ifndef LS_COMM_CORE_PROGRESS_LOCK_H
#define LS_COMM_CORE_PROGRESS_LOCK_H

#include "comm/core/comm.h"

/* Note [Aside]
 * While a caller drives, the engine's thread is away. Between ranks that share memory nothing needs
 * it when the caller leaves and nothing is pending. Connections do: what was sent may still wait
 * here for the network, and messages that peers send in advance must be read, or they wait. So with
 * remote ranks the thread is called back, but not after every short operation: at first it is away
 * for a short time, which it ends by itself, and only a caller that leaves after that calls it. */
enum { LS__THREAD_HERE, LS__THREAD_AWAY_SHORT, LS__THREAD_AWAY };

bool ls__progress_try(ls__comm *comm);
void ls__progress_take(ls__comm *comm); /* waits for it; never from a callback */
void ls__progress_release(ls__comm *comm);
/* Parks until the lock is free or `work` (may be NULL) has ended, or for a while. */
void ls__progress_park(ls__comm *comm, const ls_work *work, uint64_t until_ns);
/* A while from now, but no later than `until_ns` (0: that does not matter). */
uint64_t ls__sleep_end(const ls__comm *comm, uint64_t until_ns);
void ls__engine_call_thread(ls__comm *comm);
/* A work was submitted that no caller drives; `ready`: there is something to do right now. */
void ls__engine_notify(ls__comm *comm, bool ready);

/* plugin_watch.c: calls into a plug-in that do not return. */
/* By a thread that waits for the progress lock, every LS__CHECK_NS: ends the process if the job has
 * failed and the holder's call has not returned since then. */
void ls__plugin_watch_call(ls__comm *comm);

#endif
