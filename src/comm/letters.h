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
 * A stream is the sequence of a program's messages on one lane to one peer. At most STREAM_CREDIT
 * pieces are under way beyond what the receiver has consumed; early ones are kept in notes, too.
 */
#ifndef LS_COMM_LETTERS_H
#define LS_COMM_LETTERS_H

#include "comm/exec.h"

#define LS__STREAM_CREDIT 4

typedef enum ls__letter_stage {
    LS__SEND_ANNOUNCE, /* needs a slot to announce itself */
    LS__SEND_WAIT,     /* for ACCEPT, or DONE where all bytes went with the announcement */
    LS__SEND_STREAM,   /* needs slots for its bytes */
    LS__RECV_MATCH,    /* no announcement yet */
    LS__RECV_ACCEPT,   /* needs a slot to accept */
    LS__RECV_DATA,     /* bytes are coming */
    LS__RECV_DONE      /* needs a slot to say so */
} ls__letter_stage;

typedef struct ls__note { /* a message kept until somebody wants it */
    ls__list link;
    int from;             /* group rank; of orphans and streams the world rank */
    size_t room;          /* bytes behind this struct */
    ls__message *message; /* stands there */
} ls__note;

typedef struct ls__stream {
    uint32_t under_way; /* pieces sent and not credited */
    uint32_t owed;      /* pieces consumed whose credit was not returned */
    ls__list early;     /* notes */
    bool ready;         /* memory for all that can be early is there */
} ls__stream;

struct ls__letters {
    ls__list sends, recvs; /* works, in order of submission */
    ls__list announced;    /* notes, in order of arrival */
    uint64_t next;         /* number of the next send */
    bool *full;            /* [size] this pass found no slot for the peer: keep the order */
    ls__stream *streams;   /* [size * LS__PROGRAM_LANES_MAX]; NULL until a program uses messages */
};

/* Makes `count` notes of one size ready, as far as there is memory. */
void ls__notes_prepare(ls__comm *comm, int count, size_t bytes);
/* A copy of the message; notes are used again, so that a steady state allocates nothing. */
ls__note *ls__note_keep(ls__comm *comm, int from, const ls__message *message);
/* The same, in a note of the size of the transport's largest message. */
ls__note *ls__note_keep_large(ls__comm *comm, int from, const ls__message *message);
/* The same of a head and its payload. */
ls__note *ls__note_keep_parts(ls__comm *comm, int from, const ls__message *head,
                              const void *payload);
void ls__note_drop(ls__comm *comm, ls__note *note);
void ls__notes_release(ls__comm *comm); /* frees those not in use, and orphans */

/* stream.c */
bool ls__stream_take(ls_group *group, int from, const ls__message *message); /* false: no memory */
void ls__stream_credit(ls_group *group, int from, const ls__message *message);
bool ls__stream_flush(ls_group *group); /* returns credits; whether any went out */
int ls__member_of(const ls_group *group, int world_rank); /* -1: none */

#endif
