/* What a group keeps about messages: sends and receives in flight, and the streams of programs that
 * run over messages. All of it belongs to the holder of the progress token.
 *
 * A letter is one send with its receive:
 *
 *     sender                              receiver
 *     ANNOUNCE (with the bytes, if few)   matched with the oldest receive of that peer and tag
 *                     ◀── ACCEPT          when the receive is there (only if bytes are to follow)
 *     DATA, DATA …                        straight into the user's buffer
 *                     ◀── DONE            both ends complete
 *
 * So bytes flow only when there is a place for them, whatever the order in which receives are
 * posted, and a send ends only when it was received: a wrong count or dtype is an error on both
 * sides. Announcements that nobody waits for yet are kept in notes.
 *
 * A stream is the sequence of a program's messages on one lane of one channel to one peer. At most
 * STREAM_CREDIT pieces are under way beyond what the receiver has consumed. What comes before its
 * place may be touched (ls__step.need) is kept in notes, too.
 */
#ifndef LS_COMM_P2P_P2P_H
#define LS_COMM_P2P_P2P_H

#include "comm/engine/exec.h"

#define LS__STREAM_CREDIT 4
#define LS__TAG_SHELVES_LOG 6
#define LS__TAG_SHELVES (1 << LS__TAG_SHELVES_LOG)

typedef enum ls__p2p_stage {
    LS__SEND_ANNOUNCE, /* needs a slot to announce itself */
    LS__SEND_WAIT,     /* for ACCEPT, or DONE where all bytes went with the announcement */
    LS__SEND_STREAM,   /* needs slots for its bytes */
    LS__RECV_MATCH,    /* no announcement yet */
    LS__RECV_ACCEPT,   /* needs a slot to accept */
    LS__RECV_DATA,     /* bytes are coming */
    LS__RECV_DONE      /* needs a slot to say so */
} ls__p2p_stage;

typedef struct ls__unexpected { /* a message kept until somebody wants it */
    ls__list link;
    ls__list same;        /* an announcement: in letters->kept */
    int from;             /* group rank; of orphans and streams the world rank */
    size_t room;          /* bytes behind this struct */
    ls__message *message; /* stands there */
} ls__unexpected;

typedef struct ls__program_stream {
    uint32_t under_way; /* pieces sent and not credited */
    uint32_t lent;      /* of these, what the transport still reads from where it lies */
    uint32_t owed;      /* pieces consumed whose credit was not returned */
    bool ready;         /* memory for all that can be early is there */
    int32_t step;       /* of the program: what comes next is for it; -1: no step of this run */
    uint64_t run;       /* number of the run that `step` is of */
    size_t moved;       /* bytes of it that have come */
    uint64_t sent, received; /* whole steps, ever: a piece says of which one it is */
    ls__list early;          /* notes */
    ls__list owing;          /* in letters->owing, once it owes enough to say so */
} ls__program_stream;

struct ls__p2p {
    ls__list sends, recvs; /* works, in order of submission */
    ls__list announced;    /* notes, in order of arrival */
    /* With thousands in flight nobody is to look at each: by their tags, receives that are not
     * matched and announcements that are kept; and by peer, in order, those that need a slot. */
    ls__list open[LS__TAG_SHELVES], kept[LS__TAG_SHELVES];
    ls__list *ready; /* [size] */
    int ready_count;
    uint64_t next;               /* number of the next send */
    uint64_t warned_ns;          /* when one was last warned about */
    uint32_t lent;               /* of sends: pieces that the transport still reads */
    ls__program_stream *streams; /* [ls__stream_count]; NULL until a program uses messages */
    int early;                   /* notes of all of them */
    ls__list owing;              /* those that owe credits */
};

/* Makes `count` notes of one size ready, as far as there is memory. */
void ls__unexpected_prepare(ls__comm *comm, int count, size_t bytes);
/* A copy of the message; notes are used again, so that a steady state allocates nothing. */
ls__unexpected *ls__unexpected_keep(ls__comm *comm, int from, const ls__message *message);
/* The same, in a note of the size of the transport's largest message. */
ls__unexpected *ls__unexpected_keep_large(ls__comm *comm, int from, const ls__message *message);
/* The same of a head and its payload. */
ls__unexpected *ls__unexpected_keep_parts(ls__comm *comm, int from, const ls__message *head,
                                          const void *payload);
void ls__unexpected_drop(ls__comm *comm, ls__unexpected *note);
void ls__unexpected_drop_all(ls__comm *comm, ls__list *notes); /* a list of them */
void ls__unexpected_release(ls__comm *comm); /* frees those not in use, and orphans */

/* For the transport: where the payload of a message from `from` is wanted; NULL: not known yet. */
void *ls__message_place(void *comm, int from, const ls__message *head);

/* program_stream.c */
size_t ls__stream_count(const ls_group *group);
/* False: no memory. `payload` is where the transport has put it. */
bool ls__stream_take(ls_group *group, int from, const ls__message *message, const void *payload);
void *ls__stream_place(ls_group *group, int peer, const ls__message *head);
void ls__stream_credit(ls_group *group, int from, const ls__message *message);
bool ls__stream_flush(ls_group *group); /* returns credits; whether any went out */

/* p2p.c */
ls_status ls__p2p_open(ls_group *group);
void ls__p2p_close(ls_group *group);
bool ls__p2p_turn(ls__comm *comm); /* token */

#endif
