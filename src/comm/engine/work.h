/* A work: one operation in flight, and the handle of whoever waits for it. */
#ifndef LS_COMM_ENGINE_WORK_H
#define LS_COMM_ENGINE_WORK_H

#include "base/list.h"
#include "comm/api/collective.h"
#include "kernel/reduce/reduce.h"

#define LS__WORKS_PER_CHUNK 32

typedef struct ls__comm ls__comm;
typedef struct ls__plan ls__plan; /* plan.h */

/* The user's callback (ls_work_on_done). Who brings `state` from NONE to SET has written the rest;
 * the engine brings it to ENDED when the operation ends, after it wrote the status. Sync: acquire
 * and release both ways. */
typedef enum ls__told_state { LS__TOLD_NONE, LS__TOLD_SET, LS__TOLD_ENDED } ls__told_state;
typedef struct ls__told {
    _Atomic uint32_t state;
    _Atomic uint32_t asked; /* somebody has called ls_work_on_done */
    ls_status status;
    void (*done)(void *arg, ls_status status);
    void *arg;
} ls__told;

struct ls_work {
    ls__list link; /* in the pool or a group's queue: lock; in a letter list: token */
    ls__list turn; /* of a letter, in a list of ls__p2p; token */
    ls_group *group;
    _Atomic int32_t status; /* LS_IN_PROGRESS until the engine's release store; waiters acquire */
    bool detached;          /* const; nobody waits: the engine takes the handle back */
    bool by_message;        /* const; needs the message transport */
    _Atomic bool posted;    /* fence 0 is announced: release under lock, acquire */
    bool warned;            /* token */
    bool announced;         /* token: posted to far members because it has stalled */
    bool monitored;         /* const; at the deadline all who have not come are named */
    bool told_stopped;      /* token: a warning has named a stopped process */
    bool shown;             /* const; unequal blocks that peers of this host read: v_layout.c */
    uint8_t channels;       /* slices at the same time, if it runs by messages */
    uint8_t memory;       /* ls__memory; set at submission or by the holder of the progress lock */
    const ls__plan *plan; /* the same; NULL: not chosen yet */
    void (*done)(void *arg, ls_status status);
    void *arg;
    ls__told told; /* the user's callback, if there is one */
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
    uint64_t queued_ns, started_ns, deadline_ns;
    uint64_t gone_seen_ns; /* token: since when its peer is gone; Note [Leaving] in check.c */
    uint64_t flight;       /* number of its record */
    ls__descriptor descriptor;
    /* send and recv; token */
    uint8_t stage;   /* ls__p2p_stage */
    uint64_t letter; /* number that its messages carry */
    size_t moved;    /* bytes */
    int64_t *table;  /* lock: memory of count_of and offset_of, kept; NULL: not needed yet */
};

ls_work *ls__work_take(ls__comm *comm);            /* lock; NULL without memory */
void ls__work_give(ls__comm *comm, ls_work *work); /* lock */
/* When an operation called at this time is given up. */
uint64_t ls__work_deadline(const ls_group *group, const ls_collective_options *options,
                           uint64_t queued_ns);
/* An operation came through that was called then: a failure before it is of the past. */
void ls__work_survived(const ls__comm *comm, uint64_t queued_ns);
/* Ends a work that is in no list any more: record, counters, callback, then its status. token */
void ls__work_end(ls_work *work, ls_status status);
/* LS_ERR_STATE in a callback: what it waited for would wait for it. */
ls_status ls__work_may_wait(const char *what);
/* Calls a user's function, within which waiting is refused. */
void ls__call_back(void (*done)(void *arg, ls_status status), void *arg, ls_status status);

#endif
