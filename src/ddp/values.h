/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of parameters, laid out like their gradients; see values.c. */
#ifndef LS_DDP_VALUES_H
#define LS_DDP_VALUES_H

#include <lockstep/comm.h>
#include <lockstep/nn.h>
#include <lockstep/reducer.h>

#include "base/env.h"
#include "reduce/reducer.h"

/* All zero is a valid state: nothing was moved. */
typedef struct ls__ddp_values {
    const ls__env *env;
    char **memory; /* [regions] registered; NULL: nothing was moved */
    int regions;   /* of which memory was obtained */
    int parts;     /* 1: the memory is that of whole buckets. Else of each one's equal parts … */
    int part;      /* … it has this one */
    size_t table_bytes;
} ls__ddp_values;

/* Moves params[count], which are the reducer's in its order, into memory of their own layout, which
 * is the device's where gradients lie there. Collective in that all ranks do it. After a failure
 * ls__ddp_values_free undoes it. */
ls_status ls__ddp_values_move(ls__ddp_values *v, const ls__env *env, const ls_reducer *reducer,
                              const ls_param *params, int count);
/* Memory for this rank's part of each bucket; parameters stay where they are. */
ls_status ls__ddp_values_divide(ls__ddp_values *v, const ls__env *env, const ls_reducer *reducer,
                                const ls_group *group);
/* Where parameter i lies in the layout; whether it does, and is no part of a larger tensor. */
void *ls__ddp_values_place(const ls__ddp_values *v, const ls_reducer *reducer, int i);
bool ls__ddp_values_has(const ls__ddp_values *v, const ls_reducer *reducer, const ls_tensor *param,
                        int i);
/* The memory of a bucket. Where that has one part only, the address is one from which the part is
 * at its place, and nothing else may be read or written there. */
char *ls__ddp_values_bucket(const ls__ddp_values *v, const ls__bucket_place *bucket);
/* A bucket of which each rank of the group has an equal part, this one at its place in `from`,
 * which may be `to`. */
typedef struct ls__values_gathering {
    const ls__bucket_place *bucket;
    ls_group *group;
    const char *from;
    char *to;
    ls_stream *stream; /* of the device whose memory this is; NULL: the host's */
} ls__values_gathering;
ls_status ls__ddp_values_gather(const ls__values_gathering *g, ls_work **work); /* begins it */
/* The elements of other ranks in it are undefined from now on, and their pages go. */
void ls__ddp_values_discard(const ls__ddp_values *v, const ls__bucket_place *bucket,
                            ls_group *group);
/* Moves the parameters back to memory of their own, because the module outlives the wrapper. Where
 * this has parts only, they were moved there before. */
void ls__ddp_values_free(ls__ddp_values *v, const ls_reducer *reducer, const ls_param *params,
                         int count);
/* Frees the table only, after the runtime has ended. */
void ls__ddp_values_drop(ls__ddp_values *v);

#endif
