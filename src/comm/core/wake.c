/* SPDX-License-Identifier: Apache-2.0 */
/* Waking ranks that sleep, and sleeping where one can be woken: on the doorbell in the board, or,
 * with ranks on other hosts, in the transport's poller, which an event beside the doorbell
 * wakes. */
#include "comm/core/wake.h"
#include "comm/core/group.h"
#include "comm/core/remote_rank.h"
#include "comm/transport/mpi.h"
#include "comm/transport/tcp.h"

void ls__ring(ls__comm *comm, int local)
{
    /* Sync: seq_cst, after the store that the sleeper waits for; Note [Last arriver]. */
    if (atomic_load_explicit(&comm->board->rank[local].sleepers, memory_order_seq_cst) == 0) {
        return;
    }
    if (comm->remote != NULL) {
        ls__remote_ring(comm, local);
    } else {
        ls__board_ring(comm->board, comm->env, local);
    }
}

void ls__ring_members(ls_group *group)
{
    for (int r = 0; r < group->size; r++) {
        if (r != group->rank && !group->member[r].remote) {
            ls__ring(group->comm, group->member[r].local);
        }
    }
}

void ls__remote_ring(ls__comm *comm, int local)
{
    ls__board_rank *rank = &comm->board->rank[local];
    /* Sync: as ls__board_ring; the event stays set until a sleeper has seen it. */
    atomic_fetch_add_explicit(&rank->doorbell, 1, memory_order_seq_cst);
    if (comm->remote->bell[local] >= 0) {
        comm->env->event_set(comm->env, comm->remote->bell[local]);
    }
}

/* MPI works only while it is called, so the sleep is short as long as operations are in flight. */
void ls__remote_sleep(ls__comm *comm, uint32_t bell, uint64_t deadline_ns)
{
    const ls__transport *mpi = comm->remote->mpi;
    if (mpi != NULL) {
        const bool pending = atomic_load_explicit(&comm->pending, memory_order_seq_cst) > 0;
        const uint64_t end = comm->env->now_ns(comm->env) + ls__mpi_sleep_ns(mpi, pending);
        deadline_ns = end < deadline_ns ? end : deadline_ns;
    }
    if (atomic_load_explicit(&comm->me->doorbell, memory_order_seq_cst) == bell) {
        ls__tcp_sleep(comm->remote->net, deadline_ns);
    }
}
