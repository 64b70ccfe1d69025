/* The runtime of collectives: one per process and job. Its ranks, memory, transport, groups. Who may
 * touch a field stands beside it: lock = under comm->lock; token = by the holder of the progress lock;
 * const = set before the object is shared; atomic = see its orders. */
#ifndef LS_COMM_COMM_H
#define LS_COMM_COMM_H

#include "base/arena.h"
#include "base/list.h"
#include "base/runtime.h"
#include "comm/api/collective.h"
#include "comm/engine/lock.h"
#include "comm/memory/heap.h"
#include "comm/transport/transport.h"
#include "comm/tune/rules.h"
#include "job/bootstrap/bootstrap.h"
#include "kernel/reduce/reduce.h"

#define LS__BEAT_NS 500000000u   /* the engine's thread wakes at least this often */
#define LS__CHECK_NS 100000000u  /* a waiting driver looks at deadlines and peers this often */
#define LS__STALL_NS 1000000000u /* from here on descriptors are compared without a full fence */
#define LS__WARN_NS 5000000000u  /* one warning names who is missing */
#define LS__GRACE_NS 1000000000u /* a dead peer without a verdict is believed after this */
#define LS__FAILURE_MAX 1024     /* bytes of a group's first cause */
#define LS__CHANNELS_MAX 4
#define LS__OPERATORS_MAX (LS_REDUCE_OP_USER_LAST - LS_REDUCE_OP_USER + 1)

typedef struct ls__comm ls__comm;
typedef struct ls__remote ls__remote;     /* remote/remote.h */
typedef struct ls__deadlock ls__deadlock; /* diagnose/deadlock.h */

struct ls__comm {
    ls_runtime *runtime;
    const ls__env *env;
    ls__boot boot;
    ls__board *board;
    ls__board_rank *me; /* this rank's record on the board */
    ls__heap heap;
    const ls__reduce_table *kernels;
    ls__transport *transport;
    ls__remote *remote; /* NULL: all ranks share memory */
    ls_group *world;
    bool may_spin;                             /* ranks of this host do not outnumber its cores */
    int channels;                              /* of a new group */
    ls__operator operators[LS__OPERATORS_MAX]; /* lock */
    bool strict;        /* LOCKSTEP_CHECK=strict: call sites are compared too */
    int forced;         /* ls__way, for tests; 0: none */
    ls__rules rules;    /* const */
    ls__tune_mode tune; /* const */
    char *timed;        /* const: what rank 0 has of links, as text; NULL: not tuned */

    ls__lock lock;
    bool making; /* lock: a thread is in ls_group_new */
    bool frozen; /* lock: no memory for a note of the past: nothing is used again */
    ls__list groups;
    ls__list pool;          /* lock: works not in use */
    ls__arena works;        /* lock: where they come from */
    uint64_t works_made;    /* lock: for the test that steady state allocates nothing */
    uint32_t next_group;    /* changed with lock and token, read with either; known ids are below */
    ls__list sleepers;      /* lock: threads that wait, but for the library's own */
    ls__deadlock *deadlock; /* token: memory for looking; NULL until somebody waits for long */
    ls__list held; /* lock: groups of the past that a member may still touch (ls__reclaim) */

    _Atomic uint32_t progress_lock; /* acquire by exchange, released seq_cst */
    _Atomic uint32_t pending;       /* works not ended, of all groups */
    _Atomic uint32_t by_message;    /* of these, those that need the message transport */
    _Atomic uint32_t waiter_word, waiters;
    _Atomic uint32_t thread_word, thread_away;
    _Atomic uint32_t stop;
    ls__env_thread *thread;
    uint64_t next_check_ns;   /* token */
    _Atomic uint32_t spin_ns; /* relaxed; see Note [Patience]. 0: it does not help */
    _Atomic uint32_t waits;   /* relaxed: of those without spinning */
    bool verdict_logged;      /* token */
    ls__list orphans;         /* token: messages for groups this rank does not know yet */
    ls__list notes;           /* token: memory for such messages, not in use */
    int first_peer;           /* token: whose messages are looked at first */
};

ls__comm *ls__comm_get(const char *what); /* of the current runtime; NULL with the error set */
/* What ranks must agree on, as text. */
void ls__comm_config(const ls__comm *comm, char *out, size_t bytes);
ls__board_rank *ls__comm_record(const ls__comm *comm, int world_rank); /* far: its mirror */
/* "rank 2 (host h, pid 12)", near or far */
void ls__comm_name(const ls__comm *comm, int world_rank, char *out, size_t bytes);
/* The same with "… in the backward pass …" */
void ls__comm_describe(const ls__comm *comm, int world_rank, char *out, size_t bytes);
/* The lowest rank on the host of a rank, near or remote: the same number on all ranks. Only with
 * ranks on other hosts. */
int ls__comm_host_of(const ls__comm *comm, int world_rank);

#endif
