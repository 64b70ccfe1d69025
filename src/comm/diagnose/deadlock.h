/* SPDX-License-Identifier: Apache-2.0 */
/* Deadlock detection: deadlock.c finds cycles, deadlock_self.c publishes this rank's own waits. */
#ifndef LS_COMM_DIAGNOSE_DEADLOCK_H
#define LS_COMM_DIAGNOSE_DEADLOCK_H

#include "comm/core/group.h"

#define LS__DEADLOCK_PUBLISH_NS 500000000u /* a wait this long is published */

struct ls__deadlock {
    ls__blocked published, next; /* the published record, and the one to be published */
    uint64_t frozen_until_ns;    /* until then a published cycle stays on the board */
    bool *stuck;                 /* [world size] */
    ls__blocked view[];          /* [world size]: copies of the published records */
};

/* Sets of ranks are arrays of 64-bit words. */
static inline bool ls__has_bit(const uint64_t *words, int bit)
{
    return words[bit / 64] >> (bit % 64) & 1;
}

static inline void ls__set_bit(uint64_t *words, int bit)
{
    words[bit / 64] |= UINT64_C(1) << (bit % 64);
}

/* A receive from any source. */
static inline bool ls__blocked_any(const ls__blocked_wait *wait)
{
    return wait->operation == LS__OP_RECV && wait->peer < 0;
}

/* A hash of the calls of all ranks that a wait needs. */
uint64_t ls__deadlock_calls(const ls__deadlock *d, const ls__blocked_wait *wait, int world_size);
/* The record that this rank would publish now; all zero if one of its threads is not blocked. */
void ls__deadlock_look(ls__comm *comm, uint64_t now_ns, ls__blocked *out);

/* Publishes the operations for which this rank waits, and fails their groups if it is in a cycle.
 * The caller holds the progress lock. */
void ls__deadlock_check(ls__comm *comm, uint64_t now_ns);
/* Whether that rank has just given up in a cycle; `out` is the text that describes it. */
bool ls__deadlock_left(const ls__comm *comm, int world_rank, char *out, size_t bytes);
void ls__deadlock_close(ls__comm *comm);

#endif
