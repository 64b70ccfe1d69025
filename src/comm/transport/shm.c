/* SPDX-License-Identifier: Apache-2.0 */
/* Rings in shared memory. For the pair a ▸ b:
 *
 *     in a's heap:  sent (written by a)      slot 0 … 7 (written by a)
 *     in b's heap:  consumed (written by b)
 *
 * A slot is free for message i when consumed > i - RING_SLOTS. Each counter has one writer.
 *
 * Waking: a sender rings its peer after every message, if the peer sleeps. A receiver rings after
 * releasing a slot of a ring that was full. Both store first and look for sleepers afterwards, and
 * sleepers count themselves before they look at the rings (Note [Last arriver] in control.h); all
 * of these accesses are sequentially consistent. By the same argument the receiver sees that the
 * ring was full: a sender found no room, so its last `sent` precedes the receiver's store.
 */
#include "comm/transport/transport.h"

#include <string.h>

#include "base/assert.h"
#include "base/copy.h"
#include "base/size.h"

#define RING_SLOTS 8
#define SLOT_BYTES ((size_t)32 << 10)

typedef struct ring {
    LS__ALIGNED(LS__CACHE_LINE) _Atomic uint64_t sent;     /* to the peer */
    LS__ALIGNED(LS__CACHE_LINE) _Atomic uint64_t consumed; /* of the peer's ring to this rank */
    LS__ALIGNED(LS__CACHE_LINE) unsigned char slot[RING_SLOTS][SLOT_BYTES];
} ring;

typedef struct shm_transport {
    ls__transport base;
    ls__heap *heap;
    void (*ring)(void *arg, int peer);
    void *arg;
} shm_transport;

/* One ring per peer, each on pages of its own so that it lies with its writer. */
size_t ls__shm_ring_bytes(int ranks)
{
    return (size_t)ranks * ls__round_up(sizeof(ring), LS__PAGE_ALIGN);
}

/* The ring in `owner`'s heap that belongs to its traffic with `other`. */
static ring *ring_of(const ls__heap *heap, int owner, int other)
{
    const size_t start = (size_t)ls__heap_header_of(heap, owner)->rings;
    return (ring *)(void *)(heap->peer[owner].base + start +
                            (size_t)other * ls__round_up(sizeof(ring), LS__PAGE_ALIGN));
}

/* Reserving twice without a commit returns the same slot. */
static ls__message *shm_reserve(ls__transport *t, int peer)
{
    const ls__heap *heap = ((shm_transport *)t)->heap;
    ring *own = ring_of(heap, heap->rank, peer);
    const uint64_t sent = atomic_load_explicit(&own->sent, memory_order_relaxed);
    /* Sync: pairs with the store in shm_release: the slot is no longer read. */
    const uint64_t consumed =
        atomic_load_explicit(&ring_of(heap, peer, heap->rank)->consumed, memory_order_seq_cst);
    return sent - consumed >= RING_SLOTS ? NULL
                                         : (ls__message *)(void *)own->slot[sent % RING_SLOTS];
}

/* The caller has filled the reserved slot. */
static void shm_commit(ls__transport *t, int peer)
{
    shm_transport *self = (shm_transport *)t;
    ring *own = ring_of(self->heap, self->heap->rank, peer);
    const uint64_t sent = atomic_load_explicit(&own->sent, memory_order_relaxed);
    LS_ASSERT(sent - atomic_load_explicit(&ring_of(self->heap, peer, self->heap->rank)->consumed,
                                          memory_order_relaxed) <
              RING_SLOTS);
    /* Sync: pairs with the load in shm_peek. */
    atomic_store_explicit(&own->sent, sent + 1, memory_order_seq_cst);
    self->ring(self->arg, peer);
}

/* The peer reads the slot, not the caller's buffer, so the payload is copied and nothing stays
 * borrowed. */
static void shm_commit_borrowed(ls__transport *t, int peer, const void *payload, uint32_t *in_use)
{
    (void)in_use;
    ls__message *message = shm_reserve(t, peer); /* the slot that the caller has reserved */
    LS_ASSERT(message != NULL);
    memcpy(message->payload, payload, message->bytes);
    shm_commit(t, peer);
}

/* The message lies in the sender's heap; its slot stays occupied until shm_release. */
static const ls__message *shm_peek(ls__transport *t, int peer, const void **payload)
{
    const ls__heap *heap = ((shm_transport *)t)->heap;
    const uint64_t consumed =
        atomic_load_explicit(&ring_of(heap, heap->rank, peer)->consumed, memory_order_relaxed);
    ring *from = ring_of(heap, peer, heap->rank);
    /* Sync: pairs with the store in shm_commit. */
    if (atomic_load_explicit(&from->sent, memory_order_seq_cst) == consumed) {
        return NULL;
    }
    const ls__message *message =
        (const ls__message *)(const void *)from->slot[consumed % RING_SLOTS];
    *payload = message->payload;
    return message;
}

/* Rings only if the ring was full: otherwise the sender had room and cannot be asleep because of
 * it. */
static void shm_release(ls__transport *t, int peer)
{
    shm_transport *self = (shm_transport *)t;
    ring *from = ring_of(self->heap, peer, self->heap->rank);
    _Atomic uint64_t *consumed = &ring_of(self->heap, self->heap->rank, peer)->consumed;
    const uint64_t before = atomic_load_explicit(consumed, memory_order_relaxed);
    const unsigned char *slot = from->slot[before % RING_SLOTS];
    ls__claim_lines(slot, sizeof(ls__message) + ((const ls__message *)(const void *)slot)->bytes);
    atomic_store_explicit(consumed, before + 1, memory_order_seq_cst);
    const uint64_t sent = atomic_load_explicit(&from->sent, memory_order_seq_cst);
    if (sent - before >= RING_SLOTS) {
        self->ring(self->arg, peer);
    }
}

/* A slot holds the head and the payload. */
static size_t shm_payload_max(ls__transport *t, int peer)
{
    (void)t;
    (void)peer;
    return SLOT_BYTES - sizeof(ls__message);
}

static void shm_close(ls__transport *t)
{
    const ls__env *env = ((shm_transport *)t)->heap->env;
    env->release(env, t, sizeof(shm_transport));
}

/* The rings lie in the heaps, zeroed, so the transport itself has no state. */
ls_status ls__shm_transport_new(ls__heap *heap, void (*wake)(void *arg, int peer), void *arg,
                                ls__transport **out)
{
    shm_transport *self = heap->env->allocate(heap->env, sizeof *self);
    if (self == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for the shared-memory transport");
    }
    *self = (shm_transport){.base = {.payload_max = shm_payload_max,
                                     .reserve = shm_reserve,
                                     .commit = shm_commit,
                                     .commit_borrowed = shm_commit_borrowed,
                                     .peek = shm_peek,
                                     .release = shm_release,
                                     .close = shm_close},
                            .heap = heap,
                            .ring = wake,
                            .arg = arg};
    *out = &self->base;
    return LS_OK;
}
