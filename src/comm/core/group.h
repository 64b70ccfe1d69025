/* SPDX-License-Identifier: Apache-2.0 */
/* A group: its members, its queues of operations and messages, and the memory that it keeps for
 * them. Who may touch a field stands beside it, as in comm.h. */
#ifndef LS_COMM_CORE_GROUP_H
#define LS_COMM_CORE_GROUP_H

#include <lockstep/backend.h>

#include "comm/core/backend.h"
#include "comm/core/comm.h"
#include "comm/core/work.h"
#include "comm/memory/control.h"
#include "comm/program/program.h"

#define LS__GROUP_NAME_MAX 32

typedef struct ls__exec ls__exec;
typedef struct ls__plugin_group ls__plugin_group; /* backend/plugin_group.h */
typedef struct ls__p2p ls__p2p;
typedef struct ls__round_robin ls__round_robin; /* round_robin.c */
typedef struct ls__tune_table ls__tune_table;   /* tune/tune.h */

typedef struct ls__group_member {
    int world_rank;
    int local;   /* index on the board; -1: remote */
    bool remote; /* on another host: control and record are cached (remote.h) */
    ls__control_block *control;
    ls__board_rank *record;
    ls__control_block *cache; /* `control` of a remote member if the group owns it; else NULL */
    unsigned char *base;      /* of its heap, in our address space; NULL: remote */
} ls__group_member;

/* Objects that borrow groups until they are freed themselves. */
typedef enum ls__group_user {
    LS__USER_REDUCER, /* also a DDP wrapper's */
    LS__USER_ROUND_ROBIN,
    LS__USER_MESH, /* also of the groups along its axes, which are its own */
    LS__GROUP_USERS
} ls__group_user;

/* Sends and receives that the engine has not taken yet (p2p/). */
typedef struct ls__group_inbox {
    ls__list works; /* lock */
    _Atomic uint32_t length;
    uint64_t submitted; /* lock: so far */
} ls__group_inbox;

/* Which slices have used the slots of STAGE (engine/). */
typedef struct ls__group_stage {
    uint64_t slices;                      /* progress: STAGE slices used so far */
    uint64_t slot_slice[LS__SLICE_SLOTS]; /* progress: the last one of each slot; 0: none */
} ls__group_stage;

/* The root cause (diagnose/fail.c). Text first, then the status with release; readers acquire. */
typedef struct ls__group_root_cause {
    _Atomic int32_t status; /* 0 or an ls_status */
    char text[LS__FAILURE_MAX];
    int by;           /* the rank of the world that caused it, -1: unknown; set before the status */
    uint64_t seen_ns; /* progress: time at which a claim without a text was seen */
} ls__group_root_cause;

/* A failure that this rank has detected in a group with remote members. NONE ▸ WRITING (any thread,
 * by compare-and-swap) ▸ READY (the same thread) ▸ SENT (the holder of the progress lock). */
typedef enum ls__claim_state {
    LS__CLAIM_NONE,
    LS__CLAIM_WRITING, /* a thread fills in status and text */
    LS__CLAIM_READY,   /* to be sent */
    LS__CLAIM_SENT
} ls__claim_state;

/* That failure, which must be sent to remote members. Sync: see cause.c, remote.c. */
typedef struct ls__group_claim {
    _Atomic uint32_t state; /* ls__claim_state */
    ls_status status;
    int by;
    uint64_t ns;
    char text[LS__FAILURE_MAX];
} ls__group_claim;

/* Written by the holder of the progress lock, read by any thread, relaxed. */
typedef struct ls__group_counts {
    _Atomic uint64_t operations, messages, bytes_sent, bytes_received, wait_ns;
} ls__group_counts;

struct ls_group {
    ls__list link; /* in comm->groups. Changed with lock and progress lock, read with either */
    ls__comm *comm;
    /* Objects that borrow it. Sync: relaxed; the caller of ls_group_free orders it after their
     * end. */
    _Atomic int users[LS__GROUP_USERS];
    const ls__backend *backend;
    char name[LS__GROUP_NAME_MAX];
    uint32_t id;
    int rank, size;
    bool has_remote;          /* const */
    int channels;             /* lock */
    ls__group_member *member; /* [size], const */
    ls__control_block *own;   /* member[rank].control */
    uint64_t sequence;        /* lock: operations submitted */
    _Atomic uint64_t posted;  /* the last one announced: release under lock, acquire */
    uint64_t remote_posted;   /* progress: the last one announced to remote members */
    ls__list queue;           /* lock: collectives not ended, in order */
    ls_work *next_post;       /* lock: the first of them that is not announced; NULL: none */
    ls__group_inbox inbox;
    _Atomic uint32_t pending; /* works not ended, sends and receives included */
    uint32_t handles;         /* lock: works whose user has not given the handle back */
    bool closed;              /* lock: freed except this struct, which the last handle frees */
    uint64_t room_until;      /* lock: every member has finished this one (a lower bound) */
    uint64_t finished_seen;   /* progress: every member has finished this one (reported) */
    ls__group_stage stage;
    ls__exec *exec;         /* progress */
    ls__p2p *p2p;           /* progress */
    ls__round_robin *turns; /* const; not NULL: this is only a handle over several groups */
    ls__tune_table *tuning; /* lock until the first operation, then const; NULL: not tuned */
    ls__list packs;         /* lock: memory of operations on many buffers, not in use */
    ls__plan *plans;        /* lock: [ls__select_plans]; program NULL: not made yet */
    ls__group_root_cause failure;
    ls__group_claim claim;
    ls__group_counts counts;
    /* Behind what the fast path of small operations touches. */
    ls__plugin_group *plugin;           /* moves the data of operations; NULL: the library does. */
    const ls_backend_capabilities *can; /* what its backend promises. Both const from the first
                                           operation of the user's on */
    ls_group *beside; /* for memory of a device (group/beside.c), and whether it was asked for; the
                         thread that trains has both */
    bool sought;
};

int ls__member_of(const ls_group *group, int world_rank); /* comm.c; -1: not a member */
uint64_t ls__group_agreement(const ls_group *group);      /* its key, base/runtime.h; comm.c */

/* An object borrows the group (change 1), or gives it back (-1). */
void ls__group_use(ls_group *group, ls__group_user user, int change);
/* The error of freeing a group that something still uses. Both in users.c. */
ls_status ls__group_check_unused(const ls_group *group, const char *caller);

/* Note [Changing places] */
static inline bool ls__changes_places(const ls_group *group, const ls__program *program)
{
    const ls__operation_traits *traits = ls__operation_traits_of(program->operation);
    return group->size == 2 && !group->has_remote && program->fences == 1 && !traits->has_root &&
           !traits->scans;
}

/* Adds to a counter of the group. */
static inline void ls__count(_Atomic uint64_t *counter, uint64_t amount)
{
    /* One writer at a time (the holder of the progress lock): no read-modify-write is needed. */
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + amount,
                          memory_order_relaxed);
}

#endif
