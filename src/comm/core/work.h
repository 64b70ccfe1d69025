/* SPDX-License-Identifier: Apache-2.0 */
/* A work: one operation in flight, and the handle of the thread that waits for it. Beside a field
 * stands by whom it may be touched: lock, progress (the holder of the progress lock) or const, as
 * in comm.h. */
#ifndef LS_COMM_CORE_WORK_H
#define LS_COMM_CORE_WORK_H

#include <lockstep/comm.h>

#include "base/list.h"
#include "comm/program/program.h"
#include "job/descriptor.h"
#include "kernel/reduce/reduce.h"

#define LS__WORKS_PER_CHUNK 32

typedef struct ls__comm ls__comm;
typedef struct ls__plan ls__plan; /* plan.h */

/* The user's callback (ls_work_on_done). The thread that brings `state` from NONE to SET has
 * written the rest; the engine brings it to ENDED when the operation ends, after it wrote the
 * status. If the thread comes too late, it calls the function itself. Sync: acquire and release
 * both ways. */
typedef enum ls__callback_state {
    LS__CALLBACK_NONE,
    LS__CALLBACK_SET,
    LS__CALLBACK_ENDED
} ls__callback_state;
typedef struct ls__user_callback {
    _Atomic uint32_t state;
    _Atomic uint32_t asked; /* ls_work_on_done was called: once only */
    ls_status status;
    void (*done)(void *arg, ls_status status);
    void *arg;
} ls__user_callback;

/* How a collective runs: where its data lies and by which kind of plan. select.c chooses it, and
 * nothing else does. */
typedef enum ls__work_path {
    LS__PATH_OPEN,       /* not chosen before all members have announced it */
    LS__PATH_MESSAGES,   /* a program over messages */
    LS__PATH_REGISTERED, /* a program on the users' buffers, in the heaps of all members */
    LS__PATH_PACKED,     /* the same on packed blocks of a v-variant: v_layout.c */
    LS__PATH_STAGED,     /* a program over slices in STAGE slots: Note [Slices] in exec.c */
    LS__PATH_ONE_SHOT,   /* the data goes with the announcement: one_shot.c */
    LS__PATH_OFFER,      /* the same if all members make the offer: Note [Offers] in select.c */
    LS__PATH_BACKEND     /* the group's plug-in moves the data */
} ls__work_path;

/* Of send and receive (p2p/). Progress. */
typedef struct ls__work_message {
    uint8_t stage;   /* ls__p2p_stage */
    bool up_to;      /* const; a receive of `count` elements at most; then of what came */
    uint64_t number; /* that its messages carry */
    size_t moved;    /* bytes */
} ls__work_message;

/* Of groups with a plug-in (backend/). */
typedef struct ls__work_plugin {
    bool control;  /* const; the library's own: no plug-in moves its data */
    bool replay;   /* const; a barrier behind a graph (ls__collective.replay) */
    bool carried;  /* progress; a plug-in has its bytes in flight (send and recv) */
    bool divides;  /* progress; the library divides the sum at the end */
    bool followed; /* lock and progress; a stream waits for it, and no handle is left */
    ls_stream *stream;
    double factor; /* const; by which the plug-in multiplies the input */
    void *place;   /* progress; in streams, after which it may begin; NULL: none, or given away */
    void *request; /* progress; of the plug-in; NULL: not started */
} ls__work_plugin;

/* What the checks of a stalled operation have done (diagnose/check.c). Progress. */
typedef struct ls__work_watch {
    bool warned;      /* a warning has named the missing members, or none is wanted (idle) */
    bool stopped;     /* a warning has named a stopped process */
    bool announced;   /* announced to remote members because it has stalled */
    uint64_t gone_ns; /* since when its peer is gone; Note [Leaving] in check.c */
} ls__work_watch;

struct ls_work {
    ls__list link; /* in the pool or a group's queue: lock; in a list of ls__p2p: progress */
    ls__list turn; /* progress; of a send or receive, in a list of ls__p2p */
    ls_group *group;
    _Atomic int32_t status; /* LS_IN_PROGRESS until the engine's release store; waiters acquire */
    bool detached;          /* const; nobody waits: the engine takes the handle back */
    bool held;              /* lock; the user has the handle and has not waited yet */
    bool by_message;        /* const; needs the message transport */
    _Atomic bool posted;    /* fence 0 is announced: release under lock, acquire */
    bool monitored;         /* const; the report at the deadline names all missing members */
    bool has_layout;        /* const; unequal blocks with a published layout: v_layout.c */
    uint8_t channels;       /* slices at the same time, if it runs by messages */
    ls__work_path path;     /* set at submission or by the holder of the progress lock */
    const ls__plan *plan;   /* the same; NULL: not chosen yet */
    void (*done)(void *arg, ls_status status);
    void *arg;
    ls__user_callback callback; /* the user's callback, if there is one */
    ls__operation operation;
    const ls__algorithm *algorithm; /* asked for by name; NULL: chosen */
    const void *input;
    void *output;
    int64_t count;
    size_t element; /* bytes of one */
    /* v-variants: elements and places of the blocks of INPUT [0] and OUTPUT [1], each [size]; else
     * NULL. `count` is the longest one. */
    int64_t *count_of[2], *offset_of[2];
    ls_dtype dtype;
    ls_reduce_op op; /* AVG has become SUM with a divisor, PREMUL_SUM and the user's SUM */
    ls__reduce_user user;
    double divisor;
    struct ls__pack *pack; /* holds the input, premultiplied; NULL: there is none */
    uint64_t queued_ns, deadline_ns;
    uint64_t flight; /* number of its record */
    ls__work_watch watch;
    ls__work_plugin plugin;
    ls__descriptor descriptor;
    ls__work_message message;
    int64_t *table; /* lock: memory of count_of and offset_of, kept; NULL: not needed yet */
};

/* A thread that sleeps until a work ends, for the detection of deadlocks; on its stack. */
typedef struct ls__sleeper {
    ls__list link;
    const ls_work *work;
    uint64_t since_ns;
} ls__sleeper;

/* Whether its data goes with its announcement, by a one-shot plan. */
static inline bool ls__is_one_shot(const ls_work *work)
{
    return work->path == LS__PATH_ONE_SHOT || work->path == LS__PATH_OFFER;
}

/* Whether peers read and write each other's heaps in place. */
static inline bool ls__is_in_heaps(const ls_work *work)
{
    return work->path == LS__PATH_REGISTERED || work->path == LS__PATH_PACKED;
}

ls_work *ls__work_take(ls__comm *comm);            /* lock; NULL without memory */
void ls__work_give(ls__comm *comm, ls_work *work); /* lock */
/* When an operation called at this time is given up. */
uint64_t ls__work_deadline(const ls_group *group, const ls_collective_options *options,
                           uint64_t queued_ns);
/* An operation that was called at this time has succeeded: the program has survived any failure
 * before it, so that failure will not be reported as the reason of its end. */
void ls__work_survived(const ls__comm *comm, uint64_t queued_ns);
/* progress lock; ends a work that is in no list any more: flight record, counters, callback, then
 * its status. A waiter may free the work from then on. */
void ls__work_end(ls_work *work, ls_status status);
/* LS_ERR_STATE in a callback: a wait there would wait for itself. */
ls_status ls__work_may_wait(const char *what);
/* Calls a user's function, within which waiting is refused. */
void ls__call_back(void (*done)(void *arg, ls_status status), void *arg, ls_status status);

#endif
