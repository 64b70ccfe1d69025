/* SPDX-License-Identifier: Apache-2.0 */
/* The record that a rank publishes when all its threads are blocked. From these records the ranks
 * detect a cycle of ranks that wait for each other (deadlock.c). One writer, the holder of the
 * rank's progress lock; a sequence lock, because the readers are other processes. The record of a
 * remote rank is a cached copy.
 */
#ifndef LS_JOB_BLOCKED_H
#define LS_JOB_BLOCKED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "job/descriptor.h"

#define LS__BLOCKED_WAITS_MAX 4 /* blocked threads; with more, nothing is proven */
#define LS__BLOCKED_GROUPS_MAX 32
#define LS__BLOCKED_MESSAGES_MAX 8
#define LS__BLOCKED_CYCLE_MAX 16
#define LS__BLOCKED_RANK_WORDS 16 /* bitmap of LS__PROGRAM_RANKS_MAX ranks of the world */

/* One wait of a blocked rank, which makes no further call before at least one of its waits ends. */
typedef struct ls__blocked_wait {
    uint8_t operation;
    uint8_t reserved[3];
    uint32_t group;
    /* The sequence number of the operation in its group; of a send, the number of the message. */
    uint64_t number;
    /* Of a recv: the number of calls that its peer had made without a matching send; 0: unknown.
     * Of a recv from any source: a hash of the calls of all ranks in `needs`. */
    uint64_t peer_calls;
    int32_t peer; /* world rank; -1: a collective, or a receive from any source */
    int32_t tag;
    int32_t line;
    uint32_t padding;
    /* Bitmap of the ranks that must still call the operation or, if all have, come through it; of a
     * recv from any source, one of them. */
    uint64_t needs[LS__BLOCKED_RANK_WORDS];
    char group_name[32];
    char file[LS__FILE_MAX];
    char text[LS__TAG_MAX];
} ls__blocked_wait;

/* A point-to-point message that this rank sent, or that arrived here. */
typedef struct ls__blocked_message {
    uint32_t group;
    int32_t peer; /* world rank */
    int32_t tag;
    uint32_t padding;
    uint64_t number;
} ls__blocked_message;

/* The state of a blocked rank. `calls` identifies it: a rank with the same number of calls is still
 * blocked in the same waits. The first five counts are the lengths of the arrays below. */
typedef struct ls__blocked {
    /* 1 + operations this rank has submitted so far. 0: it is not blocked; if there are waits, they
     * are not all, or they have failed a moment ago. */
    uint64_t calls;
    uint32_t wait_count, group_count, send_count, announced_count;
    uint32_t cycle_count;
    uint32_t sends_cut; /* more sends are pending than are listed */
    uint32_t waits_cut, padding;
    ls__blocked_wait wait[LS__BLOCKED_WAITS_MAX];
    struct {
        uint32_t group;
        uint32_t padding;
        uint64_t submitted;
    } group[LS__BLOCKED_GROUPS_MAX];
    /* Sends that are not received yet, and messages that arrived without a matching receive. */
    ls__blocked_message send[LS__BLOCKED_MESSAGES_MAX];
    ls__blocked_message announced[LS__BLOCKED_MESSAGES_MAX];
    /* The cycle for which this rank's wait has failed. Its other members fail as well, if they are
     * still blocked with the same number of calls; `text` is their error message. */
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

/* Publishes a copy of `blocked`; one with calls == 0 withdraws the former record. */
void ls__blocked_write(ls__blocked_record *record, const ls__blocked *blocked);
/* Copies the record. False: it changed meanwhile, and *out must not be used; try again later. */
bool ls__blocked_read(const ls__blocked_record *record, ls__blocked *out);

#endif
