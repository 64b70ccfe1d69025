/* Reading the private memory of a rank of this host (process_vm_readv): one copy by the kernel
 * where staging makes two and two trips between caches.
 *
 * Note [Only reading]
 * Peers' private buffers are read and never written. A rank that gives up returns the buffer to its
 * user, who may free it or use it again while a slower peer is still at work. Memory of the shared
 * heap is kept back until all peers say that they are done (docs/design.md, D6); of private memory
 * that cannot be asked. A late read is harmless: what it brings is thrown away, because the reader
 * cannot complete the operation. Its last fence comes after its last read; who gave up before
 * reaching that fence never does, and who gave up after it has claimed the group's failure before
 * it returned, which the reader looks at before it completes (advance_once in exec.c).
 *
 * Whether it is allowed (Yama, containers, other namespaces) is found out once, at start, by
 * reading a number that each rank shows in its shared heap and keeps a copy of in private memory. A
 * rank offers its buffer in the operation's descriptor; where one does not, all stage.
 */
#ifndef LS_COMM_MEMORY_CMA_H
#define LS_COMM_MEMORY_CMA_H

#include "comm/group/group.h"

#define LS__CMA_BOUNCE_BYTES ((size_t)256 << 10) /* of what is read to be combined: fits in L2 */

/* At start, when the heaps of all ranks of this host are mapped: sets comm->has_cma. */
void ls__cma_find_out(ls__comm *comm);
/* Whether peers can read this memory: a device's, mapped into the process, for example, they
 * cannot. */
bool ls__cma_can_show(const ls__comm *comm, const void *at, size_t bytes);
/* Copies from the address `from` of a member. False: it has ended, and the group will fail when
 * that is declared; or it failed just now. */
bool ls__cma_read(ls_group *group, int member, const void *from, void *to, size_t bytes);

#endif
