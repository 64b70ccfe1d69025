/* SPDX-License-Identifier: Apache-2.0 */
/* State of the hooks for each parameter, and buckets that they send whole. */
#ifndef LS_COMPRESS_STATE_H
#define LS_COMPRESS_STATE_H

#include <lockstep/compression.h>

#include "base/env.h"

/* The residual of each parameter that a hook compresses: [count] of its dtype, zero at first. */
typedef struct ls__residuals {
    const ls__env *env;
    int count; /* parameters of the reducer */
    int rank, ranks;
    struct ls__residual {
        char *name;
        char *memory; /* NULL: the parameter is not compressed, or nothing is kept */
        int64_t count;
        ls_dtype dtype;
    } * params; /* [count] */
} ls__residuals;

/* `wanted(arg, param)`: whether this parameter has one; `keep` false: none has. */
ls_status ls__residuals_open(ls__residuals *to, const ls_bucket_param *params, int count, int rank,
                             int ranks, bool keep,
                             bool (*wanted)(const void *arg, const ls_bucket_param *param),
                             const void *arg);
void ls__residuals_close(ls__residuals *of);
/* Shows those of this rank as row `rank` of [ranks, count], "PREFIX.residual.NAME". */
ls_status ls__residuals_visit(const ls__residuals *of, const char *prefix,
                              const ls_state_visitor *visitor);
/* Fills in the caller's hook; if that cannot be, the state of the new one is freed. */
ls_status ls__hook_give(const ls_comm_hook *hook, ls_comm_hook *out, const char *caller);

/* grad += residual, where there is one. */
void ls__residual_add(const ls__residuals *of, const ls_bucket_param *param);

/* The whole bucket is averaged as it is. */
void ls__exchange_whole(ls_bucket *bucket, ls_exchange *out);

/* Whether hooks compress it. */
bool ls__compress_takes(const ls_bucket_param *param);

#endif
