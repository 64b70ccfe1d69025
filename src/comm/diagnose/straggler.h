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

#endif
