/* Frames over a link: those of the store (job/store/wire.h) and, from LS__NODE_FIRST on, those of
 * the nodes, whose payload is a JSON object. Bounded in both directions; nothing blocks. */
#ifndef LS_JOB_NODES_FRAMES_H
#define LS_JOB_NODES_FRAMES_H

#include <jansson.h>

#include "job/link/link.h"
#include "job/store/buffer.h"
#include "job/store/wire.h"

#define LS__NODE_FIRST 32

typedef enum ls__node_type {
    LS__NODE_HELLO = LS__NODE_FIRST, /* to node 0: who comes */
    LS__NODE_WELCOME,                /* from it: all are there; the layout of the world */
    LS__NODE_REFUSED,                /* from it: why not */
    LS__NODE_BEAT,
    LS__NODE_STOP,    /* a stop request of the user, in any direction */
    LS__NODE_FAILURE, /* to node 0: a failure was seen here */
    LS__NODE_CAUSE,   /* from it: the job's first failure */
    LS__NODE_DONE,    /* to node 0: nothing runs here any more */
    LS__NODE_END      /* from it: nothing runs anywhere */
} ls__node_type;

typedef struct ls__frames {
    const ls__env *env;
    ls__link *link; /* owned; NULL: none */
    int poller;
    bool open;   /* both ends have proved themselves */
    bool broken; /* something that is no frame came */
    ls__store_buffer in, out;
    bool ended;     /* nothing more will come, or go … */
    ssize_t reason; /* … for this reason: 0, the other side closed; -errno */
    size_t taken;   /* of `in`: the frame that was handed out last */
    uint64_t heard_ns, said_ns;
} ls__frames;

/* Takes the link; the poller reports what happens to it. */
void ls__frames_init(ls__frames *f, const ls__env *env, ls__link *link, int poller);
void ls__frames_close(ls__frames *f);
/* Drives the proof, reads what is there and writes what can be. LS_IN_PROGRESS: the proof is not
 * complete. Below 0: the link is of no more use, with the reason as this thread's message. Call it,
 * then take frames, until no more come. */
ls_status ls__frames_turn(ls__frames *f);
/* The next whole frame; its payload is good until the next call of any function here. */
bool ls__frames_next(ls__frames *f, ls__wire_header *header, const uint8_t **payload);
/* Queues a frame; false: too much is queued, or no memory. */
bool ls__frames_put(ls__frames *f, const uint8_t *frame, size_t bytes);
bool ls__frames_put_reply(ls__frames *f, uint64_t id, const struct ls__wire_reply *reply);
/* Queues {…}; takes the object, NULL being empty. */
bool ls__frames_say(ls__frames *f, ls__node_type type, json_t *object);
void ls__frames_write(ls__frames *f);      /* what can be now */
bool ls__frames_idle(const ls__frames *f); /* nothing is left to write */

#endif
