/* SPDX-License-Identifier: Apache-2.0 */
/* One contender of `make compare-collectives`: a program of some ranks that measures what it is
 * told.
 *
 * All contenders are alive at once and asleep, each rank in a read of its own pipe, so that none
 * disturbs the one whose turn it is. compare.py writes one command to every rank,
 *
 *     OPERATION BYTES registered|private WARMUPS SAMPLES MILLISECONDS
 *
 * and rank 0 answers "ok CALLS" and the samples in milliseconds, or "error" and why. The rules are
 * here, once for all contenders in C (gloo.py has the same in Python):
 *
 * - The samples follow WARMUPS operations, and as many more as 40 ms hold: the ranks have just been
 *   woken, and the system needs some milliseconds until each runs on a core of its own.
 * - A sample runs from the first rank's start to the last one's end, on the host's monotonic clock,
 *   and holds CALLS operations back to back; samples end when MILLISECONDS are over, but not before
 *   the third.
 * - Data are random whole numbers, no zeros, written anew before every sample; every element of
 *   every sample's result is checked.
 */
#ifndef LS_BENCH_PEERS_CONTENDER_H
#define LS_BENCH_PEERS_CONTENDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum contender_op {
    CONTENDER_ALL_REDUCE,     /* out[count], in place */
    CONTENDER_ALL_GATHER,     /* in[count] to out[ranks*count] */
    CONTENDER_BROADCAST,      /* out[count] of rank 0 */
    CONTENDER_REDUCE_SCATTER, /* in[ranks*count] to out[count] */
    CONTENDER_ALL_TO_ALL,     /* in[ranks*count] to out[ranks*count] */
} contender_op;

/* What a library gives for it; float32 everywhere. What fails ends the process. */
typedef struct contender {
    int rank, ranks;
    void *(*allocate)(size_t bytes, bool registered);
    void (*release)(void *memory, bool registered);
    void (*barrier)(void);
    void (*maximum)(double *x, int count); /* over ranks, in place */
    void (*operate)(contender_op op, const float *in, float *out, int64_t count);
} contender;

/* Answers commands from folder/in.RANK into folder/out until "quit"; the exit status. */
int contender_serve(const contender *self, const char *folder);

/* Launch to first result: one small sum, then rank 0 prints when the last rank had it (monotonic
 * clock, nanoseconds). */
int contender_once(const contender *self);

#endif
