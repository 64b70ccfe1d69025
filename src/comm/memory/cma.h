/* Reading the private memory of a rank of this host (process_vm_readv): one copy by the kernel
 * where staging makes two and two trips between caches.
 *
 * Note [Only reading]
 * Peers' private buffers are read and never written. A rank that gives up returns the buffer to its
 * user, who may free it or use it again while a slower peer is still at work. Memory of the shared
 * heap is kept back until all peers have stopped using it (docs/design.md, D6), which cannot be done
 * with private memory. A late read is harmless: its bytes are thrown away, because the reader cannot
 * complete the operation. The reader's last fence comes after its last read. A rank that gave up
 * before reaching that fence never reaches it, and a rank that gave up afterwards has claimed the
 * group's failure before it returned, which the reader checks before it completes (exec.c).
 *
 * Whether it is allowed (Yama, containers, other namespaces) is found out once, at start: each rank
 * publishes a number in its shared heap and keeps a copy in private memory, which the others try to
 * read. A rank offers its buffer in the operation's descriptor; if one rank does not, all stage.
 */
#ifndef LS_COMM_MEMORY_CMA_H
#define LS_COMM_MEMORY_CMA_H

#include "comm/group/group.h"

#define LS__CMA_BOUNCE_BYTES ((size_t)256 << 10) /* read at a time for reducing: fits in L2 */

/* At start, when the heaps of all ranks of this host are mapped: sets comm->has_cma. */
void ls__cma_find_out(ls__comm *comm);
/* Whether peers can read this memory; device memory mapped into the process, for example, is not
 * readable. */
bool ls__cma_can_show(const ls__comm *comm, const void *at, size_t bytes);
/* Copies from the address `from` of a member. False: the member has ended, and the group will fail
 * when the launcher declares that; or the read failed, and so has the group. */
bool ls__cma_read(ls_group *group, int member, const void *from, void *to, size_t bytes);

#endif
