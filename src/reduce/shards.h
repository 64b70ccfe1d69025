/* SPDX-License-Identifier: Apache-2.0 */
/* Equal bits for any number of ranks (exact=layout).
 *
 * Note [Shards]
 * A step's batch is divided into a fixed number of shards, a power of two, of which each rank
 * computes a block, one after the other. Gradients are added in one binary tree over the shards,
 * whichever rank computes them: here, the subtree of this rank's block; by the all-reduce, whose
 * canonical order is the same tree over ranks (docs/design.md, D5), the rest. Of 8 shards on 2
 * ranks:
 *
 *          ((0 + 1) + (2 + 3))   +   ((4 + 5) + (6 + 7))
 *          └──── rank 0 ────┘  wire  └──── rank 1 ────┘
 *
 * After shard s, sums[i] holds the sum of 2^i shards for every bit i that is set in s + 1, as in a
 * binary counter. Each shard's backward finds gradients absent, so it writes them over what is
 * there, and the last shard adds the sums that wait when its buckets are launched. A gradient that
 * a shard does not reach is zero in the tree, whether the shard is this rank's or another's. */
#ifndef LS_REDUCE_SHARDS_H
#define LS_REDUCE_SHARDS_H

#include "reduce/internal.h"

#define LS__SHARDS_MAX (1 << LS__SHARD_LEVELS)

/* Divides each step into `shards` shards. Once, before the first backward. LS_ERR_INVALID or
 * LS_ERR_UNSUPPORTED, in words, where equal bits cannot be promised. */
ls_status ls__shards_set(ls_reducer *r, int shards);
void ls__shards_free(ls_reducer *r);

/* Whether the next backward is that of the rank's first or last shard in the step. */
bool ls__shards_first(const ls_reducer *r);
bool ls__shards_last(const ls_reducer *r);
/* How many of this rank's shards are done in this step, and have to be. */
int ls__shards_done(const ls_reducer *r);
int ls__shards_of_rank(const ls_reducer *r);

/* Before a backward: every gradient must be absent. Without shards, always LS_OK. */
ls_status ls__shards_check(const ls_reducer *r);
/* After a shard that is not the last: its gradients go to the sums, and are absent again. */
void ls__shards_keep(ls_reducer *r);
/* The weight of the rank's block, given that of its last shard. */
double ls__shards_weight(const ls_reducer *r, double last);
/* Whether an earlier shard of the step reached the parameter. */
bool ls__shards_held(const ls_reducer *r, int param);
/* Adds the sums that wait to the last shard's gradient, when its bucket is launched. */
void ls__shards_add(const ls_reducer *r, int param, void *grad);
/* The step is over. */
void ls__shards_forget(ls_reducer *r);

#endif
