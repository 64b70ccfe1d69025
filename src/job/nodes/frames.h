/* SPDX-License-Identifier: Apache-2.0 */
/* Frames over a link between two nodes. Types below LS__NODE_FIRST are requests and replies of the
 * store (job/store/wire.h); the others are the nodes' own, and their payload is a JSON object or
 * empty. Both directions are buffered and bounded; nothing blocks. */
#ifndef LS_JOB_NODES_FRAMES_H
#define LS_JOB_NODES_FRAMES_H

#include <jansson.h>

#include "job/link/link.h"
#include "job/store/buffer.h"
#include "job/store/wire.h"

#define LS__NODES_PROTOCOL 2 /* of the nodes' own frames; compared in HELLO */
#define LS__NODE_FIRST 32

typedef enum ls__node_type {
    LS__NODE_HELLO = LS__NODE_FIRST, /* to node 0: the node that connects, and its job */
    LS__NODE_WELCOME,   /* from node 0: all nodes have joined; the layout of the world */
    LS__NODE_REFUSED,   /* from node 0: the reason */
    LS__NODE_HEARTBEAT, /* in both directions */
    LS__NODE_STOP,      /* a stop request of the user, in both directions */
    LS__NODE_FAILURE,   /* to node 0: a failure record of this host */
    LS__NODE_CAUSE,     /* from node 0: the root cause of the job's failure */
    LS__NODE_DONE,      /* to node 0: no rank of this host runs any more */
    LS__NODE_END        /* from node 0: no rank of the job runs any more */
} ls__node_type;

/* One end of a link. It is open once both ends have proved the secret, and ended once the other
 * side closed it or it failed; frames that arrived before the end are still handed out. */
typedef struct ls__frames {
    const ls__env *env;
    ls__link *link; /* owned; NULL: none */
    int poller;
    bool open;   /* both ends have proved the secret */
    bool broken; /* the other side violated the protocol */
    ls__store_buffer in, out;
    bool ended;     /* the link can neither send nor receive … */
    ssize_t reason; /* … because the other side closed it (0), or of an error (-errno) */
    size_t taken;   /* bytes at the start of `in`: the frame that was handed out last */
    uint64_t received_ns, sent_ns; /* times of the last bytes received and the last frame queued */
} ls__frames;

/* Takes the link and adds it to the poller. */
void ls__frames_init(ls__frames *f, const ls__env *env, ls__link *link, int poller);
/* Allowed more than once, and on zeroed memory. */
void ls__frames_close(ls__frames *f);
/* Drives the handshake, reads and writes as far as possible. LS_IN_PROGRESS: the handshake is not
 * complete. Below 0: the link cannot be used any more; this thread's message says why. After LS_OK
 * take frames with ls__frames_next and call again, until no frame arrives. */
ls_status ls__frames_turn(ls__frames *f);
/* The next whole frame; its payload is valid until the next call of any function here. */
bool ls__frames_next(ls__frames *f, ls__wire_header *header, const uint8_t **payload);
/* Queue a whole frame, or a reply of the store. False: too much is queued, or there is no
 * memory. */
bool ls__frames_put(ls__frames *f, const uint8_t *frame, size_t bytes);
bool ls__frames_put_reply(ls__frames *f, uint64_t id, const struct ls__wire_reply *reply);
/* Queues a frame of the nodes' own; takes the object, NULL for an empty payload. */
bool ls__frames_send(ls__frames *f, ls__node_type type, json_t *object);
/* Writes queued frames as far as the link accepts them now. */
void ls__frames_write(ls__frames *f);

#endif
