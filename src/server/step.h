/* SPDX-License-Identifier: Apache-2.0 */
/* One version of a shard: the mean of some pushes, and the optimizer's step on it. Servers make
 * versions from received pushes, a replay from computed ones (replay.c), with the same bits. */
#ifndef LS_SERVER_STEP_H
#define LS_SERVER_STEP_H

#include "optim/optim.h"
#include "server/layout.h"
#include "trace/replay_log.h"

/* A request of a worker. The bitmap of the parameters that its gradient reaches follows it. */
typedef struct ls__server_head {
    int32_t kind;
    uint32_t weighted, stop;
    int64_t step, read; /* of a push: the worker's step, the version it was computed with */
    double weight, lr;
    ls__replay_event event;
} ls__server_head;

/* A gradient of a worker. */
typedef struct ls__server_push {
    int worker;
    const ls__server_head *head;
    const char *gradient; /* packed: the ranges of the shard */
} ls__server_push;

/* Adds the squares of the other shards' ranges, [params], to those of this one, in the order of the
 * shards. */
typedef ls_status (*ls__server_squares_fn)(void *arg, int shard, double *squares);

/* The memory of a shard's steps. */
typedef struct ls__server_stepper {
    const ls__server_layout *layout;
    int shard;
    ls_optim *optim;         /* whose state is that of the shard's ranges, or more */
    const int *optim_param;  /* the optimizer's number of each parameter */
    char *parameters;        /* packed: of the newest version, stepped in place */
    char *gradient;          /* packed: scratch */
    const void **operands;   /* [as many as there are workers] scratch */
    ls__optim_place *places; /* [layout->part_count] scratch */
    int64_t *steps;          /* [layout->part_count] of the optimizer, of the shard's parts */
    /* The largest norm of a mean, 0: none; then squares[params], of the gradient of each. */
    double clip_norm;
    int params;
    double *squares;
    ls__server_squares_fn add_squares;
    void *arg;
} ls__server_stepper;

/* Bytes of a request with its bitmap. */
size_t ls__server_head_bytes(const ls__ddp *d);
/* Notes which gradients are present. */
void ls__server_mark(const ls__ddp *d, ls__server_head *head);
/* Zeroes those that are absent, of a bucket or of all. */
#define LS__SERVER_ALL_BUCKETS (-1)
void ls__server_zero_absent(const ls__ddp *d, int bucket);
/* Finds the optimizer's number of each parameter. */
ls_status ls__server_find_params(const ls__ddp *d, const ls_optim *optim, const char *caller,
                                 int *optim_param);
/* The steps of the optimizer's parameters become those of the parts, and the other way round. */
void ls__server_steps_begin(const ls__server_stepper *to);
void ls__server_steps_end(const ls__server_stepper *to);
/* The mean of the pushes, and to->squares of it. */
void ls__server_mean(const ls__server_stepper *to, const ls__server_push *pushes, int count);
/* The pushes are added in their order, and divided once. */
ls_status ls__server_step(const ls__server_stepper *to, const ls__server_push *pushes, int count);

#endif
