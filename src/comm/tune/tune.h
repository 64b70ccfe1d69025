/* SPDX-License-Identifier: Apache-2.0 */
/* The tuner: which algorithm an operation of a group with ranks on several hosts uses, by size.
 *
 *   override   LOCKSTEP_ALGORITHM=all_reduce=0-4k:recursive_doubling,4k-:direct rules.c
 *   count      what the program of an algorithm costs in messages and bytes     count.c
 *   time       all exact programs of all_reduce at four sizes                   `lockstep tune`
 *   fit        what a message and a byte cost here, from what was timed         fit.c
 *   decide     for each operation and size the cheapest admitted program        decide.c
 *   keep       figures of this machine in a file, so that they are fitted once  cache.c
 *   apply      rank 0 shares the lines of its file; every rank decides          choice.c
 *
 * Ranks of one host do not need a tuner: in shared memory `one_shot` and `direct` are the best
 * admitted programs at every size measured (select.c).
 *
 * Note [Model]
 * The time of an operation of b bytes is taken as
 *
 *     alpha * steps + overhead * messages of a rank + work * messages of all
 *       + (beta * busiest link + share * bytes of all + local * bytes inside a host
 *          + gamma * summed) * b
 *
 * alpha, beta, gamma are the classical model (Hockney; Thakur, Rabenseifner and Gropp 2005). A host
 * with more ranks than cores takes the time of the work of all its ranks and not of one: hence
 * `work` and `share`. Counts come from the programs themselves (D1), so a new algorithm takes part
 * without a line here. Figures are never negative. All order-preserving programs of all_reduce are
 * timed at four sizes; where a measured time differs from the model, predictions around that size
 * are corrected by the same factor (ls__tune_excess).
 *
 * Note [Deciding]
 * Ranks must choose alike. At start rank 0 shares, through the store, the lines of its file that
 * were timed from its host; from these numbers and the layout of a group alone every rank decides,
 * without a message, by additions, multiplications and divisions in one order, which give the same
 * bits everywhere. A layout that was not timed takes the figures fitted to another one, and a host
 * that was never timed the model's default figures.
 */
#ifndef LS_COMM_TUNE_TUNE_H
#define LS_COMM_TUNE_TUNE_H

#include "base/text.h"
#include "comm/program/program.h"

#define LS__TUNE_RANKS_MAX 32 /* larger groups are decided as if they had so many ranks */
#define LS__TUNE_RANGES_MAX 8

/* ---- count.c --------------------------------------------------------------------------------- */

/* The terms of Note [Model]. Those before LS__COST_BYTES are counts, the others multiples of the
 * operation's bytes. */
typedef enum ls__cost {
    LS__COST_STEPS,         /* alpha: messages in the longest chain */
    LS__COST_RANK_MESSAGES, /* overhead: of the busiest rank */
    LS__COST_ALL_MESSAGES,  /* work: of all ranks */
    LS__COST_LINK,          /* beta: between hosts, of the busiest link */
    LS__COST_ALL,           /* share: between hosts, of all links */
    LS__COST_LOCAL,         /* local: within a host, of the busiest rank */
    LS__COST_SUM,           /* gamma: added or copied, of the busiest rank */
    LS__COST_COUNT
} ls__cost;
#define LS__COST_BYTES LS__COST_LINK

/* Which ranks of a group share a host. */
typedef struct ls__layout {
    int size;                     /* 2 … LS__TUNE_RANKS_MAX */
    int host[LS__TUNE_RANKS_MAX]; /* by rank; numbered by first appearance */
} ls__layout;

typedef struct ls__counts {
    double of[LS__COST_COUNT];
    bool exact; /* the programs for this layout are order-preserving (D5) */
} ls__counts;

/* LS_ERR_UNSUPPORTED if the algorithm has no program by messages; LS_ERR_MEMORY. */
ls_status ls__tune_count(const ls__algorithm *algorithm, const ls__layout *layout,
                         const ls__env *env, ls__counts *out);

/* ---- fit.c ----------------------------------------------------------------------------------- */

#define LS__TUNE_CLASSES 4 /* sizes at which all_reduce is timed */
#define LS__TUNE_TIMED_MAX 12
extern const int64_t ls__tune_bytes[LS__TUNE_CLASSES];

typedef struct ls__figures {
    double of[LS__COST_COUNT]; /* ns, or ns a byte */
} ls__figures;

typedef struct ls__timings { /* of the exact programs of all_reduce by messages */
    int count;
    struct {
        const ls__algorithm *algorithm;
        ls__counts counts;
        double ns[LS__TUNE_CLASSES]; /* 0: not timed */
    } of[LS__TUNE_TIMED_MAX];
} ls__timings;

/* Lists the algorithms for the layout; none is timed yet. LS_ERR_MEMORY */
ls_status ls__timings_init(ls__timings *timings, const ls__layout *layout, const ls__env *env);

double ls__tune_ns(const ls__figures *figures, const ls__counts *counts, double bytes);
/* Figures of a network of 10 Gbit/s, for hosts that were not timed. */
extern const ls__figures ls__tune_default_figures;

/* The model as a line: an all_reduce of b bytes takes latency + byte * b. */
typedef struct ls__tune_link {
    double latency_ns, byte_ns;
} ls__tune_link;
/* Of ranks that share memory. */
extern const ls__tune_link ls__tune_shared_memory;
ls__tune_link ls__tune_line(const ls__figures *figures, const ls__counts *counts);
/* Figures, none negative, with the least sum of squared relative errors. */
void ls__tune_fit(const ls__timings *timings, ls__figures *out);
/* The factor by which the measured time of this all_reduce exceeds the modelled one around this
 * size. For an algorithm that was not timed: the mean of the others. */
double ls__tune_excess(const ls__timings *timings, const ls__figures *figures,
                       const ls__algorithm *algorithm, double bytes);

/* ---- decide.c -------------------------------------------------------------------------------- */

typedef struct ls__range {
    int64_t below; /* bytes of the larger buffer of a rank */
    int algorithm; /* index in the registry */
} ls__range;

/* The choice of a group, equal on all its ranks. */
typedef struct ls__tune_table {
    int32_t one_shot; /* bytes up to which data travels with the announcement; -1: never */
    ls__figures figures;
    struct {
        int count; /* 0: the default algorithm at every size */
        ls__range range[LS__TUNE_RANGES_MAX];
    } of[LS__OP_COUNT];
} ls__tune_table;

/* The cheapest exact program by messages for every operation and size. */
ls_status ls__tune_decide(const ls__layout *layout, const ls__timings *timings,
                          const ls__figures *figures, const ls__env *env, ls__tune_table *out);
/* NULL: the default. */
const ls__algorithm *ls__tune_find(const ls__tune_table *table, ls__operation operation,
                                   int64_t bytes);
/* One line per operation: "all_reduce  0-64Ki:root,64Ki-:direct". */
void ls__tune_print(const ls__tune_table *table, ls__text *out);

#endif
