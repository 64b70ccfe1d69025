/* Sizes of buckets that Lockstep chooses; see automatic.c. */
#ifndef LS_REDUCE_AUTOMATIC_H
#define LS_REDUCE_AUTOMATIC_H

#include <lockstep/reducer.h>

#include "reduce/boundaries.h"

#define LS__TRIED 3 /* divisions that are measured before others are searched for */
#define LS__FOUND 2 /* divisions that the search finds */
#define LS__DIVISIONS (LS__TRIED + LS__FOUND)
#define LS__DIVISION_SAMPLES 6  /* synchronised backwards with each that count; one more does not */
#define LS__COMPARED_SAMPLES 16 /* as many at most when they are compared; both are even */
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
    bool settled; /* it has chosen */
    int division; /* in use: a tried one, or from LS__TRIED on one that was found */
    int next;     /* that of the next synchronised backward */
    int stage;    /* 0: the tried ones are measured; then those of `kept` are compared … */
    int round;    /* … with one backward each in a round */
    bool kept[LS__DIVISIONS];
    float took[LS__DIVISIONS][LS__COMPARED_SAMPLES];
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
