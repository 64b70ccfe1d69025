/* Starting an operation from inside the library: what the public calls of comm.h are made of, and
 * what the reducer uses.
 *
 * One call, one record. Beside the public form it offers a callback: `done` runs exactly once when
 * the operation has ended, on whatever thread drives the engine, with no lock of the engine held.
 * It may start further operations on any group (so "when the control exchange is in, launch the
 * buckets" needs no thread), but it must not wait for one, and it must be short.
 *
 *   work  done   effect
 *   NULL  NULL   blocks until the operation has ended; returns its status
 *   set   -      returns at once; *work is waited for with ls_work_wait
 *   NULL  set    returns at once; the engine keeps the handle: `done` is the only notice
 *
 * A start that fails (bad arguments, a group that failed before) returns the error, never runs
 * `done` and leaves *work NULL. `input` and `output` follow the public calls:
 *
 *   all_reduce, broadcast   output [count], input == output
 *   reduce                  input [count], output [count] on the root
 *   gather                  input [count], output [size*count] on the root
 *   scatter                 input [size*count] on the root, output [count]
 *   reduce_scatter          input [size*count], output [count]
 *   all_gather              input [count], output [size*count]
 *   all_to_all              input [size*count], output [size*count]
 *   the v-variants          the same with counts[side][size], offsets[side][size] on the side that
 *                           has blocks, and count of the other one
 *   scan, exscan            input [count], output [count]; exscan: not on rank 0
 *   send                    input [count];  recv: output [count]
 *   barrier                 none, count 0
 */
#ifndef LS_COMM_API_COLLECTIVE_H
#define LS_COMM_API_COLLECTIVE_H

#include <lockstep/comm.h>

#include "comm/program/program.h"
#include "job/descriptor.h"
#include "kernel/reduce/reduce.h"

typedef struct ls__operator { /* a user-defined one */
    ls__reduce_user user;     /* fn NULL: the slot is free */
    char name[LS__OP_NAME_MAX];
} ls__operator;

typedef struct ls__collective {
    ls__operation operation;
    const void *input;
    void *output;
    int64_t count;
    ls_dtype dtype;
    ls_reduce_op op; /* reductions only */
    int root;        /* broadcast, reduce, gather, scatter; the peer of send and recv */
    /* v-variants: elements and places of the blocks of INPUT [0] and OUTPUT [1]; borrowed for the
     * call. Offsets NULL: one after the other. */
    const int64_t *counts[2], *offsets[2];
    int tag;           /* of send and recv */
    bool up_to;        /* recv: `count` is the most that may come */
    bool own_tag;      /* send and recv: the library's own tag, which no message of the user has */
    int32_t mark;      /* collectives: a number on which ranks must agree as well; 0: none */
    ls__operator made; /* a copy of the operator, if `op` is user-defined */
    struct ls__pack *pack; /* the operation gives it back at its end; NULL: none */
    bool control;          /* what the library exchanges for itself: native on every backend */
    bool monitored;        /* barrier: a timeout names all missing ranks; its mark is 1 */
    const ls_collective_options *options; /* borrowed for the call; NULL: defaults */
    void (*done)(void *arg, ls_status status);
    void *arg;
} ls__collective;

/* Errors: LS_ERR_INVALID for arguments, LS_ERR_STATE / LS_ERR_FORKED without a runtime, the
 * group's root cause when it failed before. */
ls_status ls__collective_start(ls_group *group, const ls__collective *args, ls_work **work);

/* Fails the group on every member with this status and text, unless it has a root cause already. */
void ls__group_fail(ls_group *group, ls_status status, const char *text);
/* Records a failure that this rank detected: the launcher reports it if the rank then ends. The
 * first one counts, unless the program survived it. Any thread. */
void ls__group_record_failure(ls_group *group, ls_status status, const char *text);
/* The same of a gradient of this rank that is not finite. The program goes on: the ranks find out
 * later, when a norm is not finite. */
void ls__group_record_gradient(ls_group *group, const char *text);
/* All ranks of the group return an error because a norm is not finite. The cause is a rank with a
 * gradient that it has recorded lately; without any, the one rank that has `found` the norm. */
void ls__group_record_norm(ls_group *group, bool found, const char *text);
/* The text with which the group of a rank that fails with `message` is to fail: "rank 2 failed: …"
 * if the failure is this rank's own. */
void ls__group_failure_say(const ls_group *group, const char *message, char *out, size_t bytes);

/* The text with which `group` failed, for the status `done` was given; "" while it has not. */
const char *ls__group_failure(const ls_group *group);

/* Whether ls_reduce_op_new made it. */
static inline bool ls__reduce_op_is_user(ls_reduce_op op)
{
    return op >= LS_REDUCE_OP_USER && op <= LS_REDUCE_OP_USER_LAST;
}

/* collective_check.c: the arguments; `what` is the operation's name. */
ls_status ls__collective_check(const char *what, const ls_group *group, const ls__collective *args,
                               const ls_collective_options *options);
/* Bytes of the input and output buffers; false when they overflow. */
bool ls__collective_bytes(const ls_group *group, const ls__collective *args, size_t *input,
                          size_t *output);
/* Whether this rank's input (else output) counts: some exist on the root only. */
bool ls__collective_uses(const ls_group *group, const ls__collective *args, bool input);

/* lock; collective_describe.c: what a work is about, from the call and its options. */
void ls__collective_fill(ls_group *group, const ls__collective *args,
                         const ls_collective_options *options, ls_work *work);
/* lock; the same of a call without options and without any other particular, as if its buffers were
 * not registered. Leaves out the deadline and the time of the call. */
void ls__collective_fill_plain(ls_group *group, const ls__collective *args, ls_work *work);
/* The call site, as the public macros have stored it. */
void ls__descriptor_site(ls__descriptor *d);
/* fail.c: fails the group with LS_ERR_MEMORY, since the peers would wait for this rank. */
ls_status ls__collective_no_memory(ls_group *group, const ls__collective *args);

#endif
