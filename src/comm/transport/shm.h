/* The shared-memory transport: a ring of slots per ordered pair, in the sender's heap. */
#ifndef LS_COMM_TRANSPORT_SHM_H
#define LS_COMM_TRANSPORT_SHM_H

#include "base/error.h"
#include "comm/memory/heap.h"
#include "comm/transport/transport.h"

size_t ls__shm_ring_bytes(int ranks); /* of the rings' area in each heap */
/* `ring(arg, peer)` wakes a peer that sleeps. The heap's peers must be mapped. */
ls_status ls__shm_transport_new(ls__heap *heap, void (*ring)(void *arg, int peer), void *arg,
                                ls__transport **out);

#endif
