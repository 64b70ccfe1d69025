/* SPDX-License-Identifier: Apache-2.0 */
/* A message transport: for every ordered pair of ranks a stream of bounded messages in order, with
 * credits, so that a receiver never has to hold more than it has offered. The layer above (p2p.c,
 * program_stream.c) defines the contents of messages; a transport only moves slots.
 *
 *     sender    reserve ▸ fill header and payload in place ▸ commit
 *               reserve ▸ fill header ▸ commit_borrowed, with the payload where it lies
 *     receiver  peek ▸ use in place ▸ release
 *
 * A transport that has only the head of a message may ask for the place of its payload and put it
 * there. It touches borrowed payloads and such places until the message has been sent or received,
 * or until return_buffers, and never afterwards (docs/design.md, D6).
 *
 * All calls are made by the holder of the progress lock. None blocks. Peers are world ranks.
 */
#ifndef LS_COMM_TRANSPORT_TRANSPORT_H
#define LS_COMM_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/env.h"
#include "base/error.h"
#include "comm/memory/heap.h"
#include "job/descriptor.h"

typedef enum ls__message_kind {
    LS__MESSAGE_STEP = 1, /* a piece of a SEND step of a program */
    LS__MESSAGE_CREDIT,   /* the receiver of steps has consumed `total` pieces of a stream */
    LS__MESSAGE_ANNOUNCE, /* a send looks for its receive; with all its bytes if they fit */
    LS__MESSAGE_ACCEPT,   /* the receive is posted: send the bytes */
    LS__MESSAGE_DATA,     /* some of the bytes */
    LS__MESSAGE_DONE,     /* all bytes are received */
    /* Between hosts; see remote.h. */
    LS__MESSAGE_POST,     /* a member's announcement, with its part of a small operation */
    LS__MESSAGE_FINISHED, /* how many operations a member has finished */
    LS__MESSAGE_CLAIM,    /* a member asks member 0 to make its failure the group's root cause */
    LS__MESSAGE_FAILED,   /* the group's root cause */
    LS__MESSAGE_QUIET,    /* the group has failed there, and no memory is touched for it any more */
    LS__MESSAGE_LEFT,     /* a member has freed the group */
    LS__MESSAGE_BEAT,     /* the activity of a rank */
    LS__MESSAGE_BYE,      /* a rank leaves the job; answered, so that it knows all has arrived */
    LS__MESSAGE_BYE_SEEN,
    LS__MESSAGE_BLOCKED /* the operations for which a rank waits; job/blocked.h */
} ls__message_kind;

typedef struct ls__message {
    uint32_t kind;             /* ls__message_kind */
    uint32_t lane;             /* STEP, CREDIT */
    uint32_t group;            /* id */
    uint32_t bytes;            /* of the payload */
    uint64_t number;           /* of the send, counted by the sender; STEP: of the step */
    uint64_t total;            /* bytes of the whole step or send; CREDIT: pieces */
    uint64_t offset;           /* of the payload in it */
    ls__descriptor descriptor; /* STEP, ANNOUNCE */
    unsigned char payload[];
} ls__message;

typedef struct ls__transport ls__transport;
struct ls__transport {
    size_t (*payload_max)(ls__transport *t, int peer); /* bytes */
    /* Room for one message to `peer`, or NULL while it gives no credit. Reserving again without a
     * commit returns room for the same message. */
    ls__message *(*reserve)(ls__transport *t, int peer);
    void (*commit)(ls__transport *t, int peer);
    /* Commits a message whose payload, message->bytes, stays at `payload`. Raises *in_use by one
     * and lowers it when the payload has been read, perhaps before this returns. */
    void (*commit_borrowed)(ls__transport *t, int peer, const void *payload, uint32_t *in_use);
    /* The oldest message from `peer`, or NULL. Its payload lies at *payload. */
    const ls__message *(*peek)(ls__transport *t, int peer, const void **payload);
    void (*release)(ls__transport *t, int peer);
    /* From now on touches only its own memory for this group, whose buffers belong to their users
     * again. NULL: this transport never keeps a pointer to a buffer. */
    void (*return_buffers)(ls__transport *t, uint32_t group);
    /* Looks for readiness and sends frames that wait; called once a turn. Whether anything was
     * sent. NULL: nothing to do. */
    bool (*turn)(ls__transport *t);
    /* The reason why no message can come from `peer` any more; NULL while one can, and in a
     * transport that cannot know. The function may be NULL. */
    const char *(*broken)(ls__transport *t, int peer);
    void (*close)(ls__transport *t);
    /* Set by the transport's user; NULL: payloads stay behind their heads. Returns the place for
     * the payload of a message, or NULL if it is not known yet. The head is not verified yet. */
    void *(*place)(void *arg, int peer, const ls__message *head);
    void *place_arg;
};

/* mixed.c: shared memory for ranks of this host, TCP for the others. */
/* Owns both from then on and closes them with itself; on failure the caller keeps them. `remote`
 * [size]: whether the rank is reached by `net`. */
ls_status ls__mixed_transport_new(const ls__env *env, ls__transport *host, ls__transport *net,
                                  const bool *remote, int size, ls__transport **out);

/* shm.c: a ring of slots per ordered pair, in the sender's heap. */
size_t ls__shm_ring_bytes(int ranks); /* of the rings' area in each heap */
/* `ring(arg, peer)` wakes a peer that sleeps. The heap's peers must be mapped. */
ls_status ls__shm_transport_new(ls__heap *heap, void (*ring)(void *arg, int peer), void *arg,
                                ls__transport **out);

#endif
