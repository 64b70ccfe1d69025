/* SPDX-License-Identifier: Apache-2.0 */
/* Messages over MPI point-to-point. Each ordered pair has SLOTS slots on either side:
 *
 *     sender    slot i % SLOTS: filled ▸ MPI_Isend ▸ … ▸ ended
 *     receiver  slot i % SLOTS: MPI_Irecv ▸ … ▸ ended ▸ peek, release ▸ MPI_Irecv again
 *
 * Messages with one tag between two ranks arrive in order, and receives are posted in the order of
 * the slots, so message i lies in slot i % SLOTS. A payload is copied into its slot and out of it:
 * MPI cannot be made to let go of a buffer, and buffers of a group that has failed belong to their
 * user again. So no pointer of a user is ever given to MPI, and return_buffers has nothing to do.
 */
#include "comm/transport/mpi.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/log.h"
#include "base/size.h"
#include "comm/transport/plugin_call.h"

#define SLOTS 16
/* With its head below 64 KiB, up to which MPIs over TCP send a message at once. Longer ones need
 * answers from a peer that calls MPI only now and then: 256 KiB made an all-reduce at 1 Gbit/s 1.4
 * to 1.6 times as long. */
#define PAYLOAD ((size_t)60 << 10)
#define SLOT_BYTES ((sizeof(ls__message) + PAYLOAD + 63) / 64 * 64)
#define PEER_BYTES (2 * SLOTS * SLOT_BYTES) /* slots to the peer, then slots from it */

typedef struct mpi_peer {
    unsigned char *slots;
    uint64_t queued, sent;   /* messages to the peer; sent: MPI has ended all before */
    uint64_t arrived, taken; /* messages from it */
    bool ended[2 * SLOTS];   /* MPI has ended the slot's request, perhaps before an older one */
    bool from_control;       /* the message that was peeked */
} mpi_peer;

typedef struct mpi_transport {
    ls__transport base;
    ls__mpi_spec with;
    bool abandoned;
    uint64_t messages, bytes;          /* given to MPI: of payloads */
    char broken[LS_BACKEND_ERROR_MAX]; /* what MPI failed with; "": nothing */
    _Atomic uint32_t pause_ns;         /* relaxed: the next sleep, while operations are in flight */
    int *ended;                        /* [requests]: for poll, as the next */
    size_t *received;
    mpi_peer peer[]; /* [size] */
} mpi_transport;

int ls__mpi_requests(int size)
{
    return size * 2 * SLOTS;
}

static mpi_transport *of(ls__transport *t)
{
    return (mpi_transport *)t;
}

static unsigned char *slot_at(mpi_peer *peer, int slot)
{
    return peer->slots + (size_t)slot * SLOT_BYTES;
}

/* The job fails with this reason. */
static void set_broken(mpi_transport *self, const char *why)
{
    if (!self->abandoned) {
        snprintf(self->broken, sizeof self->broken, "%s", why);
        self->abandoned = true;
    }
}

/* The same for a status of one of the plug-in's functions. */
static void set_failed(mpi_transport *self, const char *function, ls_status status, const char *why)
{
    if (ls__user_status(status, "%s", function) != status) {
        set_broken(self, ls_error_message());
    } else if (status != LS_OK) {
        set_broken(self, why[0] != '\0' ? why : ls_status_name(status));
    }
}

/* Posts the receive of a slot again. */
static void post(mpi_transport *self, int rank, int slot)
{
    char error[LS_BACKEND_ERROR_MAX] = "";
    mpi_peer *peer = &self->peer[rank];
    ls__message *message = (ls__message *)(void *)slot_at(peer, slot);
    peer->ended[slot] = false;
    message->bytes = UINT32_MAX; /* so that a receive that ended with no message is found */
    if (!self->abandoned) {
        const ls_status status = self->with.table->receive(
            self->with.mpi, rank * 2 * SLOTS + slot, rank, slot_at(peer, slot), SLOT_BYTES, error);
        set_failed(self, "receive", status, error);
    }
}

/* ---- sending ------------------------------------------------------------------------------ */

static size_t mpi_payload_max(ls__transport *t, int peer)
{
    (void)t;
    (void)peer;
    return PAYLOAD;
}

static ls__message *mpi_reserve(ls__transport *t, int rank)
{
    mpi_transport *self = of(t);
    mpi_peer *peer = &self->peer[rank];
    if (self->abandoned) {
        return self->with.control->reserve(self->with.control, rank);
    }
    return peer->queued - peer->sent < SLOTS
               ? (ls__message *)(void *)slot_at(peer, (int)(peer->queued % SLOTS))
               : NULL;
}

static void mpi_commit(ls__transport *t, int rank)
{
    mpi_transport *self = of(t);
    mpi_peer *peer = &self->peer[rank];
    char error[LS_BACKEND_ERROR_MAX] = "";
    if (self->abandoned) {
        self->with.control->commit(self->with.control, rank);
        return;
    }
    const int slot = (int)(peer->queued % SLOTS);
    const ls__message *message = (const ls__message *)(const void *)slot_at(peer, slot);
    LS_ASSERT(peer->queued - peer->sent < SLOTS && message->bytes <= PAYLOAD);
    peer->ended[slot] = false;
    peer->queued++;
    self->messages++;
    self->bytes += message->bytes;
    ls__plugin_count_call(self->with.calls);
    const ls_status status =
        self->with.table->send(self->with.mpi, rank * 2 * SLOTS + slot, rank, message,
                               sizeof *message + message->bytes, error);
    set_failed(self, "send", status, error);
    ls__plugin_count_call(self->with.calls);
}

/* The head lies in the slot that was reserved, of MPI or of TCP. */
static void mpi_commit_borrowed(ls__transport *t, int rank, const void *payload, uint32_t *in_use)
{
    (void)in_use;
    ls__message *message = mpi_reserve(t, rank);
    LS_ASSERT(message != NULL);
    memcpy(message->payload, payload, message->bytes);
    mpi_commit(t, rank);
}

/* ---- receiving ---------------------------------------------------------------------------- */

/* Control first: it says whether there is anyone left to receive from. */
static const ls__message *mpi_peek(ls__transport *t, int rank, const void **payload)
{
    mpi_transport *self = of(t);
    mpi_peer *peer = &self->peer[rank];
    const ls__message *message = self->with.control->peek(self->with.control, rank, payload);
    peer->from_control = message != NULL;
    if (message != NULL || peer->taken == peer->arrived) {
        return message;
    }
    message = (const ls__message *)(const void *)slot_at(peer, SLOTS + (int)(peer->taken % SLOTS));
    *payload = message->payload;
    return message;
}

static void mpi_release(ls__transport *t, int rank)
{
    mpi_transport *self = of(t);
    mpi_peer *peer = &self->peer[rank];
    if (peer->from_control) {
        self->with.control->release(self->with.control, rank);
        return;
    }
    LS_ASSERT(peer->taken < peer->arrived);
    post(self, rank, SLOTS + (int)(peer->taken++ % SLOTS));
}

/* A message has arrived in this slot, of which MPI says that it has so many bytes. */
static void check_message(mpi_transport *self, int rank, int slot, size_t bytes)
{
    char why[128];
    const ls__message *message =
        (const ls__message *)(const void *)slot_at(&self->peer[rank], slot);
    if (bytes < sizeof *message || bytes != sizeof *message + (size_t)message->bytes) {
        snprintf(why, sizeof why, "MPI delivered a message of %zu bytes, which no rank sends",
                 bytes);
        set_broken(self, why);
    }
}

/* MPI may end requests in any order; messages are taken in theirs. */
static bool poll_mpi(mpi_transport *self)
{
    char error[LS_BACKEND_ERROR_MAX] = "";
    ls__plugin_count_call(self->with.calls);
    const int count = self->with.table->poll(self->with.mpi, self->ended, self->received, error);
    ls__plugin_count_call(self->with.calls);
    if (count < 0) {
        set_broken(self, error);
    }
    for (int i = 0; i < count; i++) {
        const int rank = self->ended[i] / (2 * SLOTS), slot = self->ended[i] % (2 * SLOTS);
        mpi_peer *peer = &self->peer[rank];
        peer->ended[slot] = true;
        if (slot >= SLOTS) {
            check_message(self, rank, slot, self->received[i]);
        }
        while (peer->sent < peer->queued && peer->ended[peer->sent % SLOTS]) {
            peer->sent++;
        }
        while (peer->arrived - peer->taken < SLOTS && peer->ended[SLOTS + peer->arrived % SLOTS]) {
            peer->arrived++;
        }
    }
    return count > 0;
}

/* The time to sleep doubles from one fruitless look to the next. */
static void set_pause(mpi_transport *self, bool moved)
{
    const uint32_t pause = atomic_load_explicit(&self->pause_ns, memory_order_relaxed);
    const uint32_t next = moved                             ? LS__MPI_POLL_MIN_NS
                          : pause * 2 < LS__MPI_POLL_MAX_NS ? pause * 2
                                                            : LS__MPI_POLL_MAX_NS;
    atomic_store_explicit(&self->pause_ns, next, memory_order_relaxed);
}

/* Reads the connections before it calls MPI, which may never return from a call that meets a dead
 * rank, or end this process. */
static bool mpi_turn(ls__transport *t)
{
    mpi_transport *self = of(t);
    ls__transport *control = self->with.control;
    const void *payload = NULL;
    bool moved = control->turn(control);
    for (int r = 0; r < self->with.size && !self->abandoned; r++) {
        if (self->with.remote[r]) {
            (void)control->peek(control, r, &payload);
        }
    }
    if (self->abandoned || self->with.failed(self->with.arg)) {
        self->abandoned = true;
        return moved;
    }
    const bool arrived = poll_mpi(self);
    set_pause(self, arrived);
    return arrived || moved;
}

uint64_t ls__mpi_sleep_ns(const ls__transport *t, bool pending)
{
    const mpi_transport *self = (const mpi_transport *)t;
    return pending ? atomic_load_explicit(&self->pause_ns, memory_order_relaxed) : LS__MPI_IDLE_NS;
}

uint64_t ls__mpi_bytes_sent(const ls__transport *t)
{
    return ((const mpi_transport *)t)->bytes;
}

bool ls__mpi_unsent(const ls__transport *t, int rank)
{
    const mpi_transport *self = (const mpi_transport *)t;
    return !self->abandoned && self->peer[rank].sent < self->peer[rank].queued;
}

/* ---- the rest of the table ---------------------------------------------------------------- */

static void mpi_return_buffers(ls__transport *t, uint32_t group)
{
    ls__transport *control = of(t)->with.control;
    control->return_buffers(control, group);
}

static const char *mpi_broken(ls__transport *t, int rank)
{
    mpi_transport *self = of(t);
    const char *why = self->with.control->broken(self->with.control, rank);
    return why != NULL || self->broken[0] == '\0' ? why : self->broken;
}

static size_t own_bytes(int size)
{
    return sizeof(mpi_transport) + (size_t)size * sizeof(mpi_peer) +
           (size_t)ls__mpi_requests(size) * (sizeof(int) + sizeof(size_t));
}

/* Abandoned, MPI may still write to the slots, so they are never freed; nor are those from which it
 * still sends to a rank that has left before. */
static void release(mpi_transport *self)
{
    const ls__env *env = self->with.env;
    for (int r = 0; r < self->with.size; r++) {
        const mpi_peer *peer = &self->peer[r];
        if (peer->slots != NULL && !self->abandoned && peer->sent == peer->queued) {
            env->release(env, peer->slots, PEER_BYTES);
        }
    }
    env->release(env, self, own_bytes(self->with.size));
}

static void mpi_close(ls__transport *t)
{
    mpi_transport *self = of(t);
    LS__INFO("ls_finalize: %llu messages with %llu bytes were sent over MPI",
             (unsigned long long)self->messages, (unsigned long long)self->bytes);
    self->with.table->close(self->with.mpi, self->abandoned);
    self->with.control->close(self->with.control);
    release(self);
}

/* Posts the receives of all slots. */
static ls_status make_slots(mpi_transport *self)
{
    const ls__env *env = self->with.env;
    for (int r = 0; r < self->with.size; r++) {
        if (!self->with.remote[r]) {
            continue;
        }
        self->peer[r].slots = env->allocate(env, PEER_BYTES);
        if (self->peer[r].slots == NULL) {
            return ls__fail(LS_ERR_MEMORY, "ls_init: no memory for messages from and to rank %d",
                            r);
        }
        for (int s = SLOTS; s < 2 * SLOTS; s++) {
            post(self, r, s);
        }
    }
    return self->broken[0] == '\0' ? LS_OK : ls__fail(LS_ERR_SYSTEM, "ls_init: %s", self->broken);
}

ls_status ls__mpi_transport_new(const ls__mpi_spec *spec, ls__transport **out)
{
    mpi_transport *self = spec->env->allocate(spec->env, own_bytes(spec->size));
    if (self == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_init: no memory for MPI's requests");
    }
    memset(self, 0, own_bytes(spec->size));
    self->base = (ls__transport){.payload_max = mpi_payload_max,
                                 .reserve = mpi_reserve,
                                 .commit = mpi_commit,
                                 .commit_borrowed = mpi_commit_borrowed,
                                 .peek = mpi_peek,
                                 .release = mpi_release,
                                 .return_buffers = mpi_return_buffers,
                                 .turn = mpi_turn,
                                 .broken = mpi_broken,
                                 .close = mpi_close};
    self->with = *spec;
    self->pause_ns = LS__MPI_POLL_MIN_NS;
    self->received = (size_t *)(void *)&self->peer[spec->size];
    self->ended = (int *)(void *)(self->received + ls__mpi_requests(spec->size));
    const ls_status status = make_slots(self);
    if (status != LS_OK) {
        self->abandoned = true; /* receives may be posted already */
        release(self);
        return status;
    }
    *out = &self->base;
    return LS_OK;
}
