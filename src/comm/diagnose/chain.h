/* The chain of waits: from a rank that does not come to the one that keeps it. */
#ifndef LS_COMM_DIAGNOSE_CHAIN_H
#define LS_COMM_DIAGNOSE_CHAIN_H

#include "comm/core/group.h"

#define LS__CHAIN_NAMED 4 /* ranks of a chain that are named, besides its last one */

/* Ranks of the world, of which each waits for the next one; the last one waits for none. */
typedef struct ls__wait_chain {
    int length; /* 0: nothing is known */
    int last;
    int rank[LS__CHAIN_NAMED]; /* the first ones; at most length - 1 of them */
} ls__wait_chain;

/* The shortest chain that begins with one of these ranks, for which this rank waits. The caller
 * holds the progress lock. */
ls__wait_chain ls__wait_chain_find(ls__comm *comm, const int *first, int count);
/* Whether a rank has left, died, fallen silent or (only if `closely`, which costs a system call) is
 * stopped: others may be waiting for it. */
bool ls__rank_is_unwell(const ls__comm *comm, int world_rank, bool closely);
/* Whether it waits for no other rank, as far as is known here. */
bool ls__rank_waits_for_none(ls__comm *comm, int world_rank);
/* "; it waits for rank 1, which waits for rank 0", of a chain longer than one. */
void ls__wait_chain_text(const ls__wait_chain *chain, char *out, size_t bytes);

#endif
