/* SPDX-License-Identifier: Apache-2.0 */
/* Message state of a group: sends and receives in flight, and the streams of programs that run over
 * messages. All of it belongs to the holder of the progress lock.
 *
 * A point-to-point message is one send together with its receive:
 *
 *     sender                              receiver
 *     ANNOUNCE (with the bytes, if few)   matched with the oldest receive of that peer and tag
 *                     ◀── ACCEPT          when the receive is posted (only if bytes are to follow)
 *     DATA, DATA …                        straight into the user's buffer
 *                     ◀── DONE            both ends complete
 *
 * So bytes flow only when there is a place for them, whatever the order in which receives are
 * posted, and a send ends only when it was received: a wrong count or dtype is an error on both
 * sides. An announcement without a matching receive is kept as an unexpected message.
 *
 * A stream is the sequence of a program's messages on one lane of one channel to one peer. At most
 * LS__STREAM_CREDIT pieces are in flight beyond those that the receiver has consumed. A piece that
 * arrives before its place may be touched (ls__step.need) is kept as an unexpected message, too.
 */
#ifndef LS_COMM_CORE_MESSAGE_STATE_H
#define LS_COMM_CORE_MESSAGE_STATE_H

#include "comm/core/group.h"

#define LS__STREAM_CREDIT 4
#define LS__TAG_BUCKETS_LOG 6
#define LS__TAG_BUCKETS (1 << LS__TAG_BUCKETS_LOG)

typedef enum ls__p2p_stage {
    LS__SEND_ANNOUNCE, /* needs a slot to announce itself */
    LS__SEND_WAIT,     /* for ACCEPT, or DONE where all bytes went with the announcement */
    LS__SEND_STREAM,   /* needs slots for its bytes */
    LS__RECV_MATCH,    /* no announcement yet */
    LS__RECV_ACCEPT,   /* needs a slot to accept */
    LS__RECV_DATA,     /* bytes are coming */
    LS__RECV_DONE      /* needs a slot for DONE */
} ls__p2p_stage;

typedef struct ls__program_stream {
    uint32_t in_flight;   /* pieces sent and not credited */
    uint32_t borrowed;    /* of these, pieces that the transport still reads in place */
    uint32_t credits_due; /* pieces consumed whose credit was not returned */
    bool ready;           /* memory for every piece that may come early is allocated */
    int32_t step; /* of the program: the next piece belongs to it; -1: to no step of this run */
    uint64_t run; /* number of the run to which `step` belongs */
    size_t moved; /* bytes of that step that have arrived */
    uint64_t sent, received; /* whole steps since the group was made; a piece carries its number */
    ls__list early;          /* unexpected messages, in order */
    ls__list due_link;       /* in p2p->credits_due, once enough credits are due */
} ls__program_stream;

struct ls__p2p {
    ls__list sends, recvs; /* works, in order of submission */
    ls__list announced;    /* unexpected announcements, in order of arrival */
    /* With thousands of messages in flight a search through all of them is too slow. So receives
     * that are not matched and announcements that are kept are hashed by their tags, and works that
     * need a slot are listed by peer, in order. */
    ls__list open[LS__TAG_BUCKETS], kept[LS__TAG_BUCKETS];
    ls__list *ready; /* [size] */
    int ready_count;
    uint64_t next;               /* number of the next send */
    uint64_t warned_ns;          /* time of the last warning about one of the messages */
    ls__list in_plugin;          /* works whose bytes a plug-in has in flight, through `turn` */
    uint32_t carried;            /* how many */
    uint32_t borrowed;           /* of sends: pieces that the transport still reads */
    ls__program_stream *streams; /* [ls__stream_count]; NULL until a program uses messages */
    int early;                   /* unexpected pieces of all streams */
    ls__list credits_due;        /* streams that must return credits */
};

#endif
