/* A message transport: for every ordered pair of ranks a stream of bounded messages in order, with
 * credits, so that a receiver is never made to hold more than it offered. What travels is built
 * and understood above (letters.c, stream.c); a transport only moves slots.
 *
 *     sender    reserve ▸ fill header and payload in place ▸ commit
 *               reserve ▸ fill header ▸ lend the payload where it lies
 *     receiver  peek ▸ use in place ▸ release
 *
 * A transport may ask, when it has a message's head only, where its payload will be wanted, and
 * put it there. What was lent to it, and where it was told to put something, it touches until the
 * message has gone or come, or until let_go: after that never (docs/design.md, D6).
 *
 * All calls are made by the holder of the progress token. None blocks. Peers are world ranks.
 */
#ifndef LS_COMM_TRANSPORT_TRANSPORT_H
#define LS_COMM_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "job/descriptor.h"

typedef enum ls__message_kind {
    LS__MESSAGE_STEP = 1, /* a piece of a SEND step of a program */
    LS__MESSAGE_CREDIT,   /* the receiver of steps has consumed `total` pieces of a stream */
    LS__MESSAGE_ANNOUNCE, /* a send wants to be received; with all its bytes if they fit */
    LS__MESSAGE_ACCEPT,   /* its receive is there: send the bytes */
    LS__MESSAGE_DATA,     /* some of them */
    LS__MESSAGE_DONE,     /* all are received */
    /* Between hosts; see far.h. */
    LS__MESSAGE_POST,     /* what a member has announced, with its part of a small operation */
    LS__MESSAGE_FINISHED, /* operations that a member has finished */
    LS__MESSAGE_CLAIM,    /* a member asks member 0 to make its failure the group's first cause */
    LS__MESSAGE_FAILED,   /* the group's first cause */
    LS__MESSAGE_QUIET,    /* the group has failed there, and no memory is touched for it any more */
    LS__MESSAGE_LEFT,     /* a member has freed the group */
    LS__MESSAGE_BEAT,     /* what a rank is doing */
    LS__MESSAGE_BYE,      /* a rank leaves the job; answered, so that it knows all has arrived */
    LS__MESSAGE_BYE_SEEN,
    LS__MESSAGE_BLOCKED /* what a rank waits for; blocked.h */
} ls__message_kind;

typedef struct ls__message {
    uint32_t kind;             /* ls__message_kind */
    uint32_t lane;             /* STEP, CREDIT */
    uint32_t group;            /* id */
    uint32_t bytes;            /* of the payload */
    uint64_t letter;           /* the sender's number of a send */
    uint64_t total;            /* bytes of the whole step or send; CREDIT: pieces */
    uint64_t offset;           /* of the payload in it */
    ls__descriptor descriptor; /* STEP, ANNOUNCE */
    unsigned char payload[];
} ls__message;

typedef struct ls__transport ls__transport;
struct ls__transport {
    const char *name;
    size_t (*payload_max)(ls__transport *t, int peer); /* bytes */
    /* Room for one message to `peer`, or NULL while it has no credit. */
    ls__message *(*reserve)(ls__transport *t, int peer);
    void (*commit)(ls__transport *t, int peer);
    /* Commits a message whose payload, message->bytes, stays at `payload`. It is read until *left,
     * which is raised by one here, is lowered again; perhaps it is already when this returns. */
    void (*lend)(ls__transport *t, int peer, const void *payload, uint32_t *left);
    /* The oldest message from `peer`, or NULL. Its payload lies at *payload. */
    const ls__message *(*peek)(ls__transport *t, int peer, const void **payload);
    void (*release)(ls__transport *t, int peer);
    /* Touches no memory but its own for a group any more. NULL: it never does. */
    void (*let_go)(ls__transport *t, uint32_t group);
    /* Takes in what has come and sends what is left; called once a turn. Whether anything was sent.
     * NULL: nothing to do. */
    bool (*turn)(ls__transport *t);
    /* Why no message can come from `peer` any more; NULL while one can, or where this is not the
     * transport's to know. */
    const char *(*broken)(ls__transport *t, int peer);
    void (*close)(ls__transport *t);
    /* Set by who uses it; NULL: payloads stay behind their heads. Where the payload of the message
     * is to be put, for which there is room; NULL: nowhere yet. The head is not checked yet. */
    void *(*place)(void *arg, int peer, const ls__message *head);
    void *place_arg;
};

#endif
