/* What the two halves of looking for deadlocks share: deadlock.c and deadlock_self.c. */
#ifndef LS_COMM_DIAGNOSE_DEADLOCK_H
#define LS_COMM_DIAGNOSE_DEADLOCK_H

#include "comm/group/group.h"

#define LS__DEADLOCK_PUBLISH_NS 500000000u /* a wait so long is worth telling */

struct ls__deadlock {
    ls__blocked said, next; /* what this rank has published, and would now */
    ls__blocked waited;     /* what it waited for when it gave up */
    uint64_t frozen_until_ns;
    bool *stuck;        /* [world size] */
    ls__blocked view[]; /* [world size] */
};

static inline bool ls__has_bit(const uint64_t *words, int bit)
{
    return words[bit / 64] >> (bit % 64) & 1;
}

static inline void ls__set_bit(uint64_t *words, int bit)
{
    words[bit / 64] |= UINT64_C(1) << (bit % 64);
}

static inline bool ls__blocked_any(const ls__blocked_wait *wait)
{
    return wait->operation == LS__OP_RECV && wait->peer < 0;
}

/* One number for the calls of all ranks that a wait needs, of which each only grows: equal numbers,
 * equal calls (but for once in 2^64). */
uint64_t ls__deadlock_calls(const ls__deadlock *d, const ls__blocked_wait *wait, int world_size);
/* What this rank would publish now; all zero if a thread of it is not blocked. */
void ls__deadlock_look(ls__comm *comm, uint64_t now_ns, ls__blocked *out);

/* token: says what this rank waits for, and fails its groups if it is in a circle. */
void ls__deadlock_check(ls__comm *comm, uint64_t now_ns);
/* The rank has just given up in a circle, of which this is the text: why it is no longer there. */
bool ls__deadlock_left(const ls__comm *comm, int world_rank, char *out, size_t bytes);
void ls__deadlock_close(ls__comm *comm);

#endif
