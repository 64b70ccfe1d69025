/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for buckets that are whole only for a while (zero 2 and 3); see pool.c. */
#ifndef LS_REDUCE_POOL_H
#define LS_REDUCE_POOL_H

#include "reduce/internal.h"

/* Averages are divided from now on, and other ranks' are given back. Once. */
ls_status ls__pool_open(ls_reducer *r);
/* Whether the bucket's domain has a pool. */
bool ls__pool_has(const ls_reducer *r, const ls__reduce_bucket *bucket);
/* A block of registered memory, whose contents are undefined. From any thread. */
ls_status ls__pool_take(ls_reducer *r, const ls__reduce_bucket *bucket, char **out);
void ls__pool_give(ls_reducer *r, const ls__reduce_bucket *bucket, const char *memory);
void ls__pool_free(ls_reducer *r);

#endif
