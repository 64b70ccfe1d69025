/* Sizes of buckets that Lockstep chooses; see automatic.c. */
#ifndef LS_REDUCE_AUTOMATIC_H
#define LS_REDUCE_AUTOMATIC_H

#include <lockstep/reducer.h>

#include "reduce/boundaries.h"
#include "reduce/turns.h"

#define LS__START_BYTES                                                                            \
    ((size_t)25 << 20) /* PyTorch's cap: a bucket before anything was measured */

/* A domain's all-reduces of the tried divisions. */
typedef struct ls__tried {
    int buckets[LS__TRIED];
    float seconds[LS__TRIED][LS__DIVISION_SAMPLES]; /* for which one of them had the wire */
} ls__tried;

/* A cell in the order in which the cells of its domain become ready. */
typedef struct ls__cell_place {
    int last, cell;
} ls__cell_place;

/* The arrays lie in the reducer's arena. The thread that trains owns it. */
typedef struct ls__automatic {
    bool on;      /* Lockstep chooses */
    int division; /* in use: a tried one, or from LS__TRIED on one that was found */
    ls__turns turns;
    ls__tried *tried;                     /* [domain_count] */
    float (*ready)[LS__DIVISION_SAMPLES]; /* [cell_count] seconds since ls_reducer_begin */
    bool *ends[LS__FOUND];                /* [cell_count] of the divisions that were found */
    ls__cell_place *places;               /* scratch of the search, all for each cell: … */
    ls__boundary_cell *cells;
    bool *place_ends;
    int *latest;
    float *shared;          /* and what a domain shares beside it */
    ls__boundary_cost cost; /* domain 0's */
} ls__automatic;

/* Begins to measure the plan's layout; nothing is measured where the caller chose. LS_ERR_MEMORY */
ls_status ls__automatic_start(ls_reducer *r);
/* A synchronised backward begins, or has ended; the second may be collective. */
void ls__automatic_divide(ls_reducer *r);
ls_status ls__automatic_measure(ls_reducer *r);

#endif
