/* Cross-memory attach: private memory of ranks of this host, copied by the kernel
 * (process_vm_readv, process_vm_writev): one copy where staging makes two.
 *
 * Whether the system allows it (Yama, seccomp, other users, containers) is found out once, at start: a
 * number that each rank shows in its heap is read from its private memory, and written there. So a
 * process that only has the same number in another namespace is no peer.
 *
 * Note [Leases]
 * A rank that gives up returns its buffers to their user. A peer that is late may still read them: what
 * it brings is thrown away, because it cannot complete the operation (advance_once in exec.c). But it
 * must not write there any more. So who may be written to opens a lease, a word in its control block:
 *
 *     CLOSED ──owner──▶ OPEN ◀──kernel── WRITING
 *                        │ ╰────writer──────▲
 *                        ╰──owner──▶ CLOSED
 *
 * The writer takes it for one call, and the call itself gives it back, behind the bytes: so a writer
 * that is stopped behind the call holds nothing. Who gives up closes the lease, and waits while a call
 * is under way, which ends as soon as the writer has a core or is dead. */
#ifndef LS_COMM_MEMORY_CMA_H
#define LS_COMM_MEMORY_CMA_H

#include "comm/group/group.h"

typedef enum ls__cma_result {
    LS__CMA_DONE,
    LS__CMA_LATER, /* the peer has not opened its lease yet, or has closed it */
    LS__CMA_FAILED /* the group has failed; or the peer has ended, and its end will be reported */
} ls__cma_result;

/* When the heaps of this host are mapped: sets comm->can_cma. */
void ls__cma_find_out(ls__comm *comm);
/* Copies from the address `from` of a member. */
ls__cma_result ls__cma_read(ls_group *group, int member, uint64_t from, void *to, size_t bytes);
/* Copies to the address `to` of a member that has opened its lease for this operation. */
ls__cma_result ls__cma_write(ls_group *group, int member, uint64_t to, const void *from,
                             size_t bytes, uint64_t sequence);
void ls__cma_open(ls_group *group, uint64_t sequence); /* this rank's lease */
/* No peer writes to this rank from now on. `writer`: the only member that may. */
void ls__cma_close(ls_group *group, int writer);

#endif
