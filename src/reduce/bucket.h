/* SPDX-License-Identifier: Apache-2.0 */
/* The contents of the buckets' memory; see bucket.c. The caller is the thread that runs backward,
 * except for ls__bucket_fill and the two questions, which the launching thread asks. */
#ifndef LS_REDUCE_BUCKET_H
#define LS_REDUCE_BUCKET_H

#include "reduce/internal.h"

/* A backward begins: sets reduced gradients aside, and forgets what was discarded. */
ls_status ls__buckets_begin(ls_reducer *r);
/* Finds which rows of tables the gradients of a backward will hold, before those that it reaches
 * count as local. */
void ls__buckets_mark_rows(ls_reducer *r, bool local);
/* The bucket's reduction has ended: it holds averages. */
void ls__bucket_settle(ls_reducer *r, const ls__reduce_bucket *bucket);
/* All buckets were settled. */
void ls__buckets_settle(ls_reducer *r);
/* Takes what ls__reducer_count_idle has counted since the last backward began. */
double ls__buckets_idle(ls_reducer *r);
/* Every gradient is absent: nothing in the buckets counts any more. */
void ls__buckets_forget(ls_reducer *r);

/* Makes the bucket's memory hold exactly this rank's contribution, right before its all-reduce. */
ls_status ls__bucket_fill(ls_reducer *r, ls__reduce_bucket *bucket);
/* The elements of the whole bucket, gaps included. */
int64_t ls__bucket_elements(const ls_reducer *r, const ls__reduce_bucket *bucket);
char *ls__bucket_memory(const ls_reducer *r, const ls__reduce_bucket *bucket);
/* Where the parameter's gradient lies in the memory of its bucket. */
char *ls__bucket_gradient(const ls_reducer *r, const ls__reduce_param *param);
/* The bucket's gradients get a block, unless they have one or there is no pool; on any thread. */
ls_status ls__bucket_enter(ls_reducer *r, ls__reduce_bucket *bucket);
/* Their block goes back, on the thread of backward: this rank's part is in its own memory. */
void ls__bucket_leave(ls_reducer *r, ls__reduce_bucket *bucket);
/* The part of the bucket that is this rank's, in bytes of its region: each rank of a split has an
 * equal part (division.c). */
typedef struct ls__bucket_part {
    size_t offset, bytes;
} ls__bucket_part;
ls__bucket_part ls__bucket_own(const ls_reducer *r, const ls__reduce_bucket *bucket);
/* Elements [*from, *to) of a parameter lie in this rank's part of its bucket. */
void ls__bucket_own_elements(const ls_reducer *r, const ls__reduce_param *param, int64_t *from,
                             int64_t *to);
/* Gives the memory of the other ranks' parts back to the system, as far as it is whole pages. */
void ls__bucket_release(ls_reducer *r, ls__reduce_bucket *bucket);
/* Whether any rank contributes to the bucket in this backward. */
bool ls__bucket_used(const ls_reducer *r, const ls__reduce_bucket *bucket);

/* The divisor of a bucket's sum in this backward. */
double ls__bucket_divisor(const ls_reducer *r, const ls__reduce_bucket *bucket);

#endif
