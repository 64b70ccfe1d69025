/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of a group and their traits: whether an operation has a root, has blocks, reduces.
 * Each operation is one row of a table, and code asks the row instead of listing operations.
 *
 * Operations travel in descriptors and stand in flight records, which the launcher reads, so they
 * belong to the job, not to the layer that runs them.
 */
#ifndef LS_JOB_OPERATION_H
#define LS_JOB_OPERATION_H

#include <stdbool.h>

typedef enum ls__operation { /* pinned: travels in descriptors */
                             LS__OP_ALL_REDUCE = 0,
                             LS__OP_REDUCE_SCATTER = 1,
                             LS__OP_ALL_GATHER = 2,
                             LS__OP_BROADCAST = 3,
                             LS__OP_BARRIER = 4,
                             LS__OP_SEND = 5, /* the engine's second primitive, not a program */
                             LS__OP_RECV = 6,
                             LS__OP_REDUCE = 7,
                             LS__OP_GATHER = 8,
                             LS__OP_SCATTER = 9,
                             LS__OP_ALL_TO_ALL = 10,
                             LS__OP_SCAN = 11,
                             LS__OP_EXSCAN = 12,
                             LS__OP_ALL_TO_ALL_V = 13,
                             LS__OP_ALL_GATHER_V = 14,
                             LS__OP_REDUCE_SCATTER_V = 15,
                             LS__OP_GATHER_V = 16,
                             LS__OP_SCATTER_V = 17,
                             LS__OP_COUNT = 18
} ls__operation;

/* The ranks on which an operation has its input, or its output. */
typedef enum ls__operation_side {
    LS__SIDE_ALL,
    LS__SIDE_ROOT,
    LS__SIDE_NOT_FIRST, /* all but rank 0 (exscan) */
} ls__operation_side;

typedef struct ls__operation_traits {
    const char *name;
    ls__operation plain; /* of a v-variant, the operation with blocks of equal length; else
                            itself */
    bool reduces, scans; /* scans: rank r's result is that of ranks 0 … r (exscan: … r-1) */
    bool has_root;
    bool in_blocks, out_blocks; /* INPUT, OUTPUT consists of one block of `count` for each rank */
    bool counts_known; /* a v-variant in which every rank gives all block lengths: comparable */
    ls__operation_side input, output; /* the ranks that have them */
} ls__operation_traits;

extern const ls__operation_traits ls__operations[LS__OP_COUNT];

const char *ls__operation_name(ls__operation operation); /* "all_reduce" …; "invalid" */

/* The row of an operation. An invalid number, which the memory of a peer may hold, gets the row of
 * the barrier, the operation without any buffer. */
static inline const ls__operation_traits *ls__operation_traits_of(ls__operation operation)
{
    return &ls__operations[(unsigned)operation < LS__OP_COUNT ? operation : LS__OP_BARRIER];
}

static inline ls__operation ls__operation_plain(ls__operation operation)
{
    return ls__operation_traits_of(operation)->plain;
}

static inline bool ls__operation_is_v(ls__operation operation)
{
    return ls__operation_traits_of(operation)->plain != operation;
}

static inline bool ls__operation_counts_known(ls__operation operation)
{
    return ls__operation_traits_of(operation)->counts_known;
}

static inline bool ls__operation_scans(ls__operation operation)
{
    return ls__operation_traits_of(operation)->scans;
}

static inline bool ls__operation_reduces(ls__operation operation)
{
    return ls__operation_traits_of(operation)->reduces;
}

/* Point-to-point messages: the engine's second primitive, which is not a program. */
static inline bool ls__operation_is_p2p(ls__operation operation)
{
    return operation == LS__OP_SEND || operation == LS__OP_RECV;
}

/* False for send and recv: they have a peer. */
static inline bool ls__operation_has_root(ls__operation operation)
{
    return ls__operation_traits_of(operation)->has_root;
}

static inline bool ls__operation_has_blocks(ls__operation operation, bool input)
{
    const ls__operation_traits *traits = ls__operation_traits_of(operation);
    return input ? traits->in_blocks : traits->out_blocks;
}

/* Whether INPUT (else OUTPUT) is a single block while the other buffer has one block for each rank:
 * the input of all_gather, the output of reduce_scatter. */
static inline bool ls__operation_is_short(ls__operation operation, bool input)
{
    return ls__operation_has_blocks(operation, !input) &&
           !ls__operation_has_blocks(operation, input);
}

/* Whether INPUT (else OUTPUT) exists on every rank. */
static inline bool ls__operation_on_all(ls__operation operation, bool input)
{
    const ls__operation_traits *traits = ls__operation_traits_of(operation);
    return (input ? traits->input : traits->output) == LS__SIDE_ALL;
}

/* Whether INPUT (else OUTPUT) exists on this rank. */
static inline bool ls__operation_uses(ls__operation operation, bool input, int rank, int root)
{
    const ls__operation_traits *traits = ls__operation_traits_of(operation);
    switch (input ? traits->input : traits->output) {
    case LS__SIDE_ROOT:
        return rank == root;
    case LS__SIDE_NOT_FIRST:
        return rank > 0;
    default:
        return true;
    }
}

/* Whether peers still read a rank's INPUT while the rank writes OUTPUT at the same positions. Such
 * an operation cannot run in place in registered memory; its input is staged. */
static inline bool ls__operation_reads_ahead(ls__operation operation)
{
    const ls__operation_traits *traits = ls__operation_traits_of(operation);
    return (traits->in_blocks && traits->out_blocks) || traits->scans;
}

#endif
