/* The record that a rank publishes when all its threads are blocked, so that a cycle of ranks that
 * wait for each other is found (deadlock.c). One writer, the holder of the rank's progress lock; a
 * sequence lock, because readers are other processes. The record of a remote rank is a cached copy.
 */
#ifndef LS_JOB_BLOCKED_H
#define LS_JOB_BLOCKED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "job/descriptor.h"

#define LS__BLOCKED_WAITS_MAX 4 /* blocked threads; with more, nothing is published */
#define LS__BLOCKED_GROUPS_MAX 32
#define LS__BLOCKED_MESSAGES_MAX 8
#define LS__BLOCKED_CYCLE_MAX 16
#define LS__BLOCKED_RANK_WORDS 16 /* bitmap of LS__PROGRAM_RANKS_MAX ranks of the world */

/* One of the waits of which at least one must end before the rank makes another call. */
typedef struct ls__blocked_wait {
    uint8_t operation;
    uint8_t reserved[3];
    uint32_t group;
    uint64_t number;     /* of the operation in its group; of a send the message's */
    uint64_t peer_calls; /* recv: its peer had made so many calls and no fitting send; 0: unknown.
                            From any source: a hash of the calls of all `needs` */
    int32_t peer;        /* world rank; -1: a collective, or a receive from any source */
    int32_t tag;
    int32_t line;
    uint32_t padding;
    uint64_t
        needs[LS__BLOCKED_RANK_WORDS]; /* the ranks that must call it; any source: one of them */
    char group_name[32];
    char file[LS__FILE_MAX];
    char text[LS__TAG_MAX];
} ls__blocked_wait;

typedef struct ls__blocked_message {
    uint32_t group;
    int32_t peer; /* world rank */
    int32_t tag;
    uint32_t padding;
    uint64_t number;
} ls__blocked_message;

typedef struct ls__blocked {
    uint64_t calls; /* 1 + operations this rank has submitted so far; 0: it is not blocked */
    uint32_t wait_count, group_count, send_count, announced_count;
    uint32_t cycle_count;
    uint32_t sends_cut; /* there are more sends than are listed */
    ls__blocked_wait wait[LS__BLOCKED_WAITS_MAX];
    struct {
        uint32_t group;
        uint32_t padding;
        uint64_t submitted;
    } group[LS__BLOCKED_GROUPS_MAX];
    ls__blocked_message send[LS__BLOCKED_MESSAGES_MAX]; /* not received yet */
    ls__blocked_message
        announced[LS__BLOCKED_MESSAGES_MAX]; /* arrived without a matching receive */
    /* A cycle in which this rank has given up: its members that are still blocked with as many
     * calls fail likewise. */
    struct {
        uint64_t calls;
        int32_t rank;
        uint32_t padding;
    } cycle[LS__BLOCKED_CYCLE_MAX];
    char text[1024];
} ls__blocked;

typedef struct ls__blocked_record {
    _Atomic uint32_t version; /* odd while it is written */
    ls__blocked blocked;
} ls__blocked_record;

void ls__blocked_write(ls__blocked_record *record, const ls__blocked *blocked);
/* False: it is just being written. */
bool ls__blocked_read(const ls__blocked_record *record, ls__blocked *out);

#endif
