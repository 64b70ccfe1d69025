/* The tuner: which algorithm an operation of a group with ranks on several hosts uses, by size.
 *
 *   override   LOCKSTEP_ALGORITHM=all_reduce=0-4k:recursive_doubling,4k-:direct rules.c
 *   count      what the program of an algorithm costs in messages and bytes     count.c
 *   time       all exact programs of all_reduce at four sizes                   `lockstep tune`
 *   fit        what a message and a byte cost here, from what was timed         fit.c
 *   decide     for each operation and size the cheapest admitted program        decide.c
 *   keep       figures of this machine in a file, so that they are fitted once  cache.c
 *   carry out  what rank 0 has in its file is shared; every rank decides        choice.c
 *
 * Ranks of one host need none of it: in shared memory `one_shot` and `direct` are the best admitted
 * programs at every size measured (select.c).
 *
 * Note [Model]
 * The time of an operation of b bytes is taken as
 *
 *     alpha * steps + overhead * messages of a rank + work * messages of all
 *       + (beta * busiest link + share * bytes of all + near * bytes inside a host
 *          + gamma * summed) * b
 *
 * alpha, beta, gamma are the classical model (Hockney; Thakur, Rabenseifner and Gropp 2005). A host
 * with more ranks than cores pays for what all of its ranks do and not for what one does: hence
 * `work` and `share`. Counts come from the programs themselves (D1), so a new algorithm is chosen
 * from without a line here. Figures are never negative. All programs of all_reduce are timed at
 * four sizes; where the model is off there, its prediction around that size is corrected by as
 * much (ls__tune_excess).
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

#define LS__TUNE_RANKS_MAX 32 /* groups of more ranks are decided as if they had so many */
#define LS__TUNE_RANGES_MAX 8

/* ---- count.c ------------------------------------------------------------------------------ */

typedef enum ls__cost { /* of Note [Model]; units: one, or the operation's bytes */
                        LS__COST_STEPS,
                        LS__COST_RANK_MESSAGES,
                        LS__COST_ALL_MESSAGES,
                        LS__COST_LINK,
                        LS__COST_ALL,
                        LS__COST_NEAR,
                        LS__COST_SUM,
                        LS__COST_COUNT
} ls__cost;
#define LS__COST_BYTES LS__COST_LINK /* those from here on are multiplied with the bytes */

typedef struct ls__layout {
    int size; /* 2 … LS__TUNE_RANKS_MAX */
    int host[LS__TUNE_RANKS_MAX];
} ls__layout;

typedef struct ls__counts {
    double of[LS__COST_COUNT];
    bool exact; /* the program with this layout is (D5) */
} ls__counts;

/* LS_ERR_UNSUPPORTED where the algorithm has no program by messages; LS_ERR_MEMORY. */
ls_status ls__tune_count(const ls__algorithm *algorithm, const ls__layout *layout,
                         const ls__env *env, ls__counts *out);

/* ---- fit.c -------------------------------------------------------------------------------- */

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

/* Which there are for the layout; nothing timed yet. LS_ERR_MEMORY */
ls_status ls__timings_init(ls__timings *timings, const ls__layout *layout, const ls__env *env);

double ls__tune_ns(const ls__figures *figures, const ls__counts *counts, double bytes);
/* Of a network of 10 Gbit/s between hosts of which nothing was timed. */
extern const ls__figures ls__tune_default_figures;
/* Figures, none negative, with the least sum of squared relative errors. */
void ls__tune_fit(const ls__timings *timings, ls__figures *out);
/* How much longer than the figures say all_reduce by this program was found to take around this
 * size; of one that was not timed, as the others on average. */
double ls__tune_excess(const ls__timings *timings, const ls__figures *figures,
                       const ls__algorithm *algorithm, double bytes);

/* ---- decide.c ----------------------------------------------------------------------------- */

typedef struct ls__range {
    int64_t below; /* bytes of the larger buffer of a rank */
    int algorithm; /* index in the registry */
} ls__range;

/* What all ranks of a group use. */
typedef struct ls__tune_table {
    int32_t one_shot; /* bytes up to which data travels with the announcement; -1: never */
    ls__figures figures;
    struct {
        int count; /* 0: the default */
        ls__range range[LS__TUNE_RANGES_MAX];
    } of[LS__OP_COUNT];
} ls__tune_table;

/* The cheapest exact program by messages for every operation and size. */
ls_status ls__tune_decide(const ls__layout *layout, const ls__timings *timings,
                          const ls__figures *figures, const ls__env *env, ls__tune_table *out);
/* NULL: the default */
const ls__algorithm *ls__tune_find(const ls__tune_table *table, ls__operation operation,
                                   int64_t bytes);
/* A line an operation: "all_reduce  0-64Ki:root,64Ki-:direct". */
void ls__tune_print(const ls__tune_table *table, ls__text *out);

#endif
