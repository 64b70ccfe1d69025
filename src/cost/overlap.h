/* SPDX-License-Identifier: Apache-2.0 */
/* A step of data parallelism whose sums of gradients overlap with backward, from two steps in which
 * they do not: one with a call for each gradient (naive), one with a single call (flat).
 *
 *     naive   [ compute          ][αβ][αβ][αβ][αβ]        α + β n: a call of n bytes
 *     flat    [ compute          ][α  ββββββββ   ]
 *     overlap [ compute  α   α   α  ][βn]                 the last bucket waits for its end
 *                  [βn] [βn] [βn]
 *
 * Three costs stay exposed: α of each call, on the rank that calls; the last bucket, which is sent
 * after computation has ended; and the memory traffic of the sums, because computation needs the
 * memory as well.
 */
#ifndef LS_COST_OVERLAP_H
#define LS_COST_OVERLAP_H

typedef struct ls__overlap {
    double compute;       /* seconds of a step without communication */
    double latency, byte; /* α, β in seconds */
    double bytes;         /* of all gradients */
    double traffic;       /* seconds of memory for a byte's sum; 0: its own device does it */
} ls__overlap;

typedef struct ls__overlap_row { /* seconds of a step, and of the communication in it */
    double step, communication;
} ls__overlap_row;

/* `gradients`: calls of the naive step. */
ls__overlap ls__overlap_of(ls__overlap_row naive, ls__overlap_row flat, int gradients,
                           double bytes);
/* Of a ring of n ranks (Patarasu and Yuan 2009), and a division by n afterwards: each byte is sent,
 * received, and added to another one in n-1 of n parts, sent and received once more, and divided.
 */
double ls__overlap_traffic(int n, double memory);
/* Seconds of a step with `calls` calls, the last of `last` bytes. */
double ls__overlap_step(const ls__overlap *o, double calls, double last);
/* The size of buckets of `bytes` in all that costs least: β n for the last one, and α for each of
 * bytes / n, have their least sum where both are equal. INFINITY: a byte costs nothing. */
double ls__overlap_bucket(double latency, double byte, double bytes);

#endif
