/* SPDX-License-Identifier: Apache-2.0 */
/* Stragglers: the members that keep an operation waiting. */
#ifndef LS_COMM_DIAGNOSE_STRAGGLER_H
#define LS_COMM_DIAGNOSE_STRAGGLER_H

#include "comm/core/group.h"

#define LS__STRAGGLER_NAMED 3

/* The members that keep a work waiting, at most LS__STRAGGLER_NAMED of them. */
typedef struct ls__straggler {
    int member[LS__STRAGGLER_NAMED];
    int count;
    const char *what; /* "has not …": the predicate for each of them */
} ls__straggler;

static inline bool ls__is_p2p(const ls_work *work)
{
    return work->operation == LS__OP_SEND || work->operation == LS__OP_RECV;
}

ls__life ls__life_of(const ls_group *group, int member);
bool ls__takes_any(const ls_work *work); /* a receive from any source without a sender yet */
bool ls__has_called(const ls_group *group, int r, const ls_work *work);
/* Whether a member has not reached a fence of the operation that this rank has reached. */
bool ls__is_behind(const ls_group *group, int r, const ls_work *work);
/* `closely`: also whether processes are stopped, which costs a system call each. */
ls__straggler ls__straggler_find(const ls_group *group, const ls_work *work, bool closely);
bool ls__straggler_stopped(const ls_group *group, const ls_work *work);
void ls__straggler_warn(ls_group *group, ls_work *work, uint64_t now_ns);
/* Fails the group because the operation's time is over. */
void ls__straggler_fail(ls_group *group, const ls_work *work, uint64_t now_ns);

/* ---- chain.c: from a rank that does not come to the one that keeps it ------------------------ */

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
