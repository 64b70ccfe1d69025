/* SPDX-License-Identifier: Apache-2.0 */
/* Note [Calls that do not return]
 * No function of a plug-in waits for another rank, but the engine below it may lock itself when a
 * rank dies. Open MPI 4.1.4 does in MPI_Test, if its connection breaks while it sends:
 * mca_btl_tcp_endpoint_close takes a mutex that its caller holds. The thread is lost, and the
 * progress lock with it, so neither ls_finalize nor an error can end the rank. Another thread of
 * the library that waits for the lock then reports the root cause and ends the process, as a
 * launcher would. */
#include "comm/core/progress_lock.h"

#include <unistd.h>

#include "base/log.h"

#define STUCK_NS 2000000000u /* far more than a call takes, and soon enough for who waits */

void ls__plugin_watch_call(ls__comm *comm)
{
    const uint32_t call = atomic_load_explicit(&comm->plugins.calls, memory_order_relaxed);
    if (call % 2 == 0 || !ls__board_has_cause(comm->board)) {
        return;
    }
    const uint64_t now = comm->env->now_ns(comm->env);
    if (atomic_load_explicit(&comm->plugins.stuck_call, memory_order_acquire) != call) {
        atomic_store_explicit(&comm->plugins.stuck_ns, now, memory_order_relaxed);
        atomic_store_explicit(&comm->plugins.stuck_call, call, memory_order_release);
    } else if (now - atomic_load_explicit(&comm->plugins.stuck_ns, memory_order_relaxed) >
               STUCK_NS) {
        LS__ERROR(
            "%s; a call of this rank's backend has not returned for %.0f s since then, so the "
            "process ends",
            comm->board->root_cause_text, STUCK_NS * 1e-9);
        _exit(1);
    }
}
