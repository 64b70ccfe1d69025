/* SPDX-License-Identifier: Apache-2.0 */
/* The checker's parts: values as interned expressions, memory that notices races, and the
 * interpreter over both (check.c). Internal to ls__program_check. */
#ifndef LS_COMM_PROGRAM_CHECK_H
#define LS_COMM_PROGRAM_CHECK_H

#include "base/arena.h"
#include "comm/program/program.h"

const char *ls__step_kind_name(ls__step_kind kind);     /* "peer_reduce" … */
const char *ls__buffer_name(ls__program_buffer buffer); /* "input" … */

/* ---- values ---------------------------------------------------------------------------------- */

/* The contents of a chunk: 0 is undefined, else a node. Equal expressions are one node, so values
 * are compared as numbers, and a node's operands have smaller numbers than the node. */
typedef int32_t ls__value;

typedef enum ls__node_kind { LS__NODE_LEAF, LS__NODE_SUM, LS__NODE_ROUND } ls__node_kind;

typedef struct ls__check_node {
    int32_t kind;
    int32_t a, b;   /* LEAF: rank and place (slice * chunks + chunk); SUM: operands; ROUND: of a */
    ls__value next; /* of the same hash */
} ls__check_node;

typedef struct ls__values {
    const ls__env *env;
    ls__check_node *node; /* [1, count) */
    int32_t count, room;
    ls__value *bucket; /* [buckets], a power of two */
    int32_t buckets;
    int32_t *scratch; /* [room], for walks over nodes */
    bool failed;      /* out of memory: values are 0 from then on */
} ls__values;

void ls__values_init(ls__values *values, const ls__env *env);
void ls__values_fini(ls__values *values);
ls__value ls__value_leaf(ls__values *values, int rank, int place);
/* The canonical tree over operands in order; no rounding. 0 when an operand is undefined. */
ls__value ls__value_tree(ls__values *values, const ls__value *operands, int count);
/* Whether it is a sum that was rounded. */
bool ls__value_is_rounded(const ls__values *values, ls__value value);
/* The place of its first contribution; -1 when undefined. */
int ls__value_place(const ls__values *values, ls__value value);
/* A sum that was stored in memory, and so rounded to the element type. Leaves stay as they are. */
ls__value ls__value_round(ls__values *values, ls__value value);
/* The same sum as if it had been rounded nowhere. */
ls__value ls__value_unrounded(ls__values *values, ls__value value);
/* How often each rank's leaf of `place` occurs in value (saturating), into times[size]; returns
 * the number of leaves of other places. */
int ls__value_count(ls__values *values, ls__value value, int place, int size, int *times);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Vector clocks (Lamport 1978; Fidge 1988; FastTrack, Flanagan & Freund 2009): a thread is a lane
 * of a rank; clock[t] counts the steps of thread t that are known to have happened before. */
typedef struct ls__access ls__access;
struct ls__access {
    int32_t thread; /* -1: none */
    uint32_t clock;
    ls__access *next;
};

typedef struct ls__cell { /* one chunk of one buffer of one rank */
    ls__value value;
    ls__access write;  /* the last one */
    ls__access *reads; /* since then */
} ls__cell;

typedef struct ls__memory_model {
    ls__arena *arena;
    ls__access *spare;
    int threads;
    bool failed;
} ls__memory_model;

/* Each records an access by `thread`, whose clock is given, and returns the thread of an earlier
 * access with which it races; -1 without a race. */
int ls__cell_read(ls__memory_model *model, ls__cell *cell, int thread, const uint32_t *clock);
int ls__cell_write(ls__memory_model *model, ls__cell *cell, int thread, const uint32_t *clock);

#endif
