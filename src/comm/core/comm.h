/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime of collectives: one per process and job. Its ranks, memory, transport, groups. Who
 * may touch a field stands beside it: lock = under comm->lock; progress = by the holder of the
 * progress lock; const = set before the object is shared; atomic = see its orders. */
#ifndef LS_COMM_CORE_COMM_H
#define LS_COMM_CORE_COMM_H

#include "base/arena.h"
#include "base/list.h"
#include "base/lock.h"
#include "base/runtime.h"
#include "comm/algorithm/rules.h"
#include "comm/core/collective.h"
#include "comm/memory/heap.h"
#include "comm/transport/transport.h"
#include "job/bootstrap/bootstrap.h"
#include "kernel/reduce/reduce.h"

#define LS__BEAT_NS 500000000u   /* the engine's thread wakes at least this often */
#define LS__CHECK_NS 100000000u  /* a waiting driver looks at deadlines and peers this often */
#define LS__STALL_NS 1000000000u /* after this a waiting rank compares the descriptors that exist */
#define LS__WARN_NS 5000000000u  /* after this one warning names the missing ranks */
#define LS__GRACE_NS 1000000000u /* wait for the launcher's root cause of a death */
#define LS__FAILURE_MAX 1024     /* bytes of a group's root cause */
#define LS__CHANNELS_MAX 4
#define LS__OPERATORS_MAX (LS_REDUCE_OP_USER_LAST - LS_REDUCE_OP_USER + 1)

typedef struct ls__comm ls__comm;
typedef struct ls__remote ls__remote;     /* remote_rank.h */
typedef struct ls__deadlock ls__deadlock; /* diagnose/deadlock.h */

/* Works that are not in use, and the memory of all (work.c). Lock. */
typedef struct ls__work_pool {
    ls__list free;
    ls__arena memory;
    uint64_t made; /* for the test that steady state allocates nothing */
} ls__work_pool;

/* The operations that run inline, one after the other (one_shot.c). Lock. */
typedef struct ls__inline_call {
    ls_work *work;
    uint64_t key; /* of the last one */
} ls__inline_call;

/* Who drives the operations of this rank, and who sleeps (progress_lock.c, engine.c). */
typedef struct ls__drive {
    _Atomic uint32_t lock; /* the progress lock: acquire by exchange, released seq_cst */
    _Atomic uint32_t waiter_word, waiters;
    _Atomic uint32_t thread_word, thread_away;
    _Atomic uint32_t stop;
    ls__env_thread *thread;
    uint64_t next_check_ns;   /* progress */
    _Atomic uint32_t spin_ns; /* relaxed; Note [Back-off]. 0: spinning does not help */
    _Atomic uint32_t waits;   /* relaxed: of those without spinning */
} ls__drive;

/* The plug-ins and their calls (backend/, plugin_watch.c). */
typedef struct ls__plugins {
    ls__list list;               /* lock-free: only the thread that makes a group; ls__plugin */
    _Atomic uint32_t requests;   /* progress, read by any: operations that they have in flight */
    _Atomic uint64_t poll_ns;    /* relaxed: how often they want to be tested; 0: there is none */
    _Atomic uint32_t calls;      /* progress, read by any: Note [Calls that do not return] */
    _Atomic uint32_t stuck_call; /* release: the value of `calls` since stuck_ns */
    _Atomic uint64_t stuck_ns;
} ls__plugins;

/* Messages that have come before they can be taken (unexpected.c, p2p/). Progress. */
typedef struct ls__comm_inbox {
    ls__list orphans; /* for groups that this rank does not know yet */
    ls__list unused;  /* memory of unexpected messages */
    int first_peer;   /* the peer whose messages are read first */
} ls__comm_inbox;

/* What the processor does best. Const. */
typedef struct ls__machine {
    bool may_spin;       /* ranks of this host do not outnumber its cores */
    bool short_pause;    /* Note [Bare looks] in one_shot.c */
    int64_t past_caches; /* bytes: operation/exec.h */
} ls__machine;

struct ls__comm {
    ls_runtime *runtime;
    const ls__env *env;
    ls__boot boot;
    ls__arrival arrival; /* in ls_init: the wait for the other ranks */
    ls__board *board;
    ls__board_rank *me; /* this rank's record on the board */
    ls__heap heap;
    const ls__reduce_kernels *kernels;
    ls__transport *transport;
    ls__remote *remote; /* NULL: all ranks share memory */
    ls_group *world;
    ls__machine machine;
    int channels;                              /* of a new group */
    ls__operator operators[LS__OPERATORS_MAX]; /* lock */
    bool strict;        /* LOCKSTEP_CHECK=strict: call sites are compared too */
    int forced;         /* ls__memory, for tests */
    ls__rules rules;    /* const */
    ls__tune_mode tune; /* const */
    char *timed;        /* const: times of links, shared by rank 0, as text; NULL: not tuned */

    ls__lock lock;
    bool making; /* lock: a thread is in ls_group_new */
    bool frozen; /* lock: a reclaim record found no memory: freed memory is not reused */
    ls__list groups;
    ls__work_pool pool;
    ls__inline_call inline_call;
    uint32_t next_group;    /* changed with both locks, read with either; known ids are lower */
    ls__list sleepers;      /* lock: waiting threads, except the library's own */
    ls__deadlock *deadlock; /* progress: memory of the detection; NULL until a wait is long */
    ls__list held;          /* lock: freed groups that a member may still touch (ls__reclaim) */

    ls__drive drive;
    _Atomic uint32_t pending;    /* works not ended, of all groups */
    _Atomic uint32_t by_message; /* of these, those that need the message transport */
    ls__plugins plugins;
    bool root_cause_logged; /* progress */
    ls__comm_inbox inbox;
};

/* Whether the ranks of this host outnumber the cores of one of them. Unlike may_spin it is the same
 * on all of them. */
static inline bool ls__is_crowded(const ls__comm *comm)
{
    return comm->boot.local_size > comm->heap.cores;
}

ls__comm *ls__comm_get(const char *what); /* of the current runtime; NULL with the error set */
/* What ranks must agree on, as text. */
void ls__comm_config(const ls__comm *comm, char *out, size_t bytes);
ls__board_rank *ls__comm_record(const ls__comm *comm, int world_rank); /* remote: the cached one */
/* "rank 2 (host h, pid 12)", local or remote */
void ls__comm_name(const ls__comm *comm, int world_rank, char *out, size_t bytes);
/* The same with "… in the backward pass …" */
void ls__comm_describe(const ls__comm *comm, int world_rank, char *out, size_t bytes);
/* The lowest rank on the host of a rank: the same number on all ranks. Only if the job has remote
 * ranks. */
int ls__comm_host_of(const ls__comm *comm, int world_rank);

#endif
