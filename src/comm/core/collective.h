/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of an operation that is started inside the library, as one record (api/collective.h
 * starts it). `input` and `output` follow the public calls:
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
#ifndef LS_COMM_CORE_COLLECTIVE_H
#define LS_COMM_CORE_COLLECTIVE_H

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
    void *place;           /* of the backend's `mark`; the call takes it in any case; NULL: none */
    bool control;          /* what the library exchanges for itself: native on every backend */
    bool anywhere;         /* LOCKSTEP_CHECK=strict does not compare from where it was started */
    bool monitored;        /* barrier: a timeout names all missing ranks; its mark is 1 */
    bool replay;           /* barrier: the end of a graph that was started, in the backend */
    bool idle;             /* the rank has nothing else to do: no warning however long it waits */
    const ls_collective_options *options; /* borrowed for the call; NULL: defaults */
    void (*done)(void *arg, ls_status status);
    void *arg;
} ls__collective;

/* Whether ls_reduce_op_new made it. */
static inline bool ls__reduce_op_is_user(ls_reduce_op op)
{
    return op >= LS_REDUCE_OP_USER && op <= LS_REDUCE_OP_USER_LAST;
}

#endif
