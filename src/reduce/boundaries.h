/* Where buckets end, chosen from times; see boundaries.c. */
#ifndef LS_REDUCE_BOUNDARIES_H
#define LS_REDUCE_BOUNDARIES_H

#include <stdbool.h>
#include <stddef.h>

/* A cell, or a parameter: buckets end behind it or do not. */
typedef struct ls__boundary_cell {
    double ready; /* seconds; that of an earlier cell counts if it is later */
    double bytes;
} ls__boundary_cell;

/* An all-reduce of b bytes takes each + b * byte seconds. */
typedef struct ls__boundary_cost {
    double each, byte;
} ls__boundary_cost;

/* When the last bucket ends if a bucket ends behind each cell with ends[i], and behind the last
 * cell. */
double ls__boundaries_end(const ls__boundary_cell *cells, int count, const ls__boundary_cost *cost,
                          const bool *ends);

/* Sets ends[count]: of all divisions whose last bucket ends within (1 + slack) of the earliest
 * possible end one with the fewest buckets. With more than 512 cells some neighbours stay together.
 * Returns the earliest possible end. */
double ls__boundaries_find(const ls__boundary_cell *cells, int count, const ls__boundary_cost *cost,
                           double slack, bool *ends);

/* Fits a cost to `count` divisions of the same bytes: buckets[t] all-reduces took seconds[t]. An all-reduce
 * costs at least `each`, which was measured by itself. */
ls__boundary_cost ls__boundaries_fit(const double *buckets, const double *seconds, int count,
                                     double bytes, double each);

#endif
