/* The contenders of `lockstep bench ddp`, and its rows. */
#ifndef LS_BENCH_DDP_H
#define LS_BENCH_DDP_H

#include "bench.h"
#include "nets.h"

enum {
    BENCH_DDP_CONTENDERS = 32, /* rows */
    BENCH_DDP_STEPS = 10000,   /* timed ones of a contender */
    BENCH_DDP_PARTS = 6,
    BENCH_DDP_BUCKETS = 1000, /* shown */
};
#define BENCH_DDP_LOCAL (-1) /* as a mode: no communication */

typedef struct ls__bench_ddp_contender {
    int mode;            /* an ls_reduce_mode, or BENCH_DDP_LOCAL */
    ls_dtype wire;       /* in which float32 gradients travel */
    size_t bucket_bytes; /* of bucketed and overlap */
    net_run run;
    int search_steps;                   /* in which automatic buckets were searched for … */
    double search_mean;                 /* … in seconds */
    int steps;                          /* timed so far */
    double (*seconds)[BENCH_DDP_PARTS]; /* [steps] means over the ranks */
    double mean[BENCH_DDP_PARTS], deviation[BENCH_DDP_PARTS];
    double medians[BENCH_DDP_STEPS]; /* [rounds] of a step */
    int buckets;                     /* with their bytes, in the order of launching: */
    uint64_t bytes[BENCH_DDP_BUCKETS];
} ls__bench_ddp_contender;

typedef struct ls__bench_ddp {
    const net *net;
    int ranks, batch, steps, rounds, warmups;
    const char *transport; /* NULL: as the environment says */
    const char *json;
    double parameters;
    int count;
    ls__bench_ddp_contender contender[BENCH_DDP_CONTENDERS];
} ls__bench_ddp;

extern const char *const ls__bench_ddp_parts[BENCH_DDP_PARTS]; /* "step", "forward" … */

/* "overlap", "5", "auto" or "-". */
const char *ls__bench_ddp_mode(const ls__bench_ddp_contender *c);
const char *ls__bench_ddp_size(const ls__bench_ddp_contender *c, char out[32]);

void ls__bench_ddp_print(const ls__bench_ddp *b);
bool ls__bench_ddp_write(const ls__bench_ddp *b); /* false after it printed why */

#endif
