/* SPDX-License-Identifier: Apache-2.0 */
/* The backend `loop`: threads move the data between the processes of one host, with random delays.
 *
 * It is for tests, and it is what a plug-in looks like: loop.c has the table, loop_work.c the
 * threads. It promises less than the native backend: its sums have another order, it has no scans,
 * four dtypes and four operators. LOOP_PROMISES, some of "abort registered streams", makes it
 * promise more. From `start` until an operation has ended, its output holds poison (bytes 0xff:
 * NaN, -1), so whoever reads a result without waiting for it does not get the right one by luck.
 *
 * Every rank has an outbox, a memfd that its peers map through /proc/PID/fd:
 *
 *     finished · two slots of collectives, in turns ── sequence, where each rank's block is, bytes
 *              · slots of messages ── receiver and number, bytes
 *
 * A collective: put my input into my slot, wait until the slots of all peers have this sequence,
 * compute my output from them, count it as finished. A slot is used again when all have finished
 * the collective that used it before.
 *
 * LOOP_SEED seeds the delays, LOOP_DELAY_US is the longest one. LOOP_FAULT=KIND:RANK:SEQUENCE makes
 * one rank misbehave from that collective on: hang, error, early (it says that the operation has
 * ended before its result is there). LOOP_BROKEN makes the plug-in unusable; the words are
 * below. */
#ifndef TEST_LOOP_H
#define TEST_LOOP_H

#include <lockstep/backend.h>

#include <pthread.h>
#include <stdatomic.h>

#define RANKS_MAX 32
#define SLOT_BYTES ((size_t)64 << 20)
#define MESSAGE_SLOTS 32
#define MESSAGE_BYTES ((size_t)4 << 20)
#define POISON 0xff

typedef struct slot { /* of a collective */
    _Atomic uint64_t sequence;
    int64_t at[RANKS_MAX]; /* bytes: the block for each rank */
    _Alignas(64) unsigned char data[SLOT_BYTES];
} slot;

typedef struct message_slot {
    _Atomic uint64_t number; /* 0: free */
    int to;
    _Alignas(64) unsigned char data[MESSAGE_BYTES];
} message_slot;

typedef struct outbox {
    _Atomic uint64_t finished;
    slot slot[2];
    message_slot message[MESSAGE_SLOTS];
} outbox;

typedef struct address {
    int pid, fd;
} address;

typedef struct request {
    struct request *next;
    struct request *newer, *older; /* of all that were started and not released */
    ls_backend_operation op;
    int64_t table[4][RANKS_MAX]; /* copies of counts and offsets */
    unsigned char *input;        /* a copy */
    uint64_t number;             /* of the collective, from 1 */
    _Atomic int awaited;
    _Atomic int32_t status;
} request;

typedef struct loop_group {
    int rank, ranks, fd;
    outbox *box[RANKS_MAX];
    pthread_t thread[2]; /* of collectives, of messages */
    pthread_mutex_t lock;
    request *first[2], *last[2]; /* lock */
    _Atomic int stop;
    int threads;
    request *newest;
    uint64_t begun; /* collectives */
    uint64_t seed;
    unsigned delay_us;
    char fault[16];
    int fault_rank;
    uint64_t fault_from;
} loop_group;

/* What a test may look at: dlsym(plug-in, "loop_counters"). */
typedef struct loop_counts {
    _Atomic int started;     /* operations */
    int allocated;           /* blocks that were not freed */
    int aborted;             /* calls of `abort` */
    int unmarked;            /* calls of `unmark` */
    const ls_stream *stream; /* of the last operation … */
    const void *after;       /* … and its place */
} loop_counts;

/* loop_work.c */
bool loop_is_message(const ls_backend_operation *op);
/* Where block r of one side is, and how many elements it has. */
int64_t loop_block(const ls_backend_operation *op, int side, int r, int64_t *count);
/* Elements from the start of the buffer to the end of its last block. */
int64_t loop_extent(const ls_backend_operation *op, int side, int ranks);
void loop_push(loop_group *g, int queue, request *q);
void *loop_collectives(void *group); /* a thread */
void *loop_messages(void *group);    /* a thread */

#endif
