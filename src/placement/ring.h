/* SPDX-License-Identifier: Apache-2.0 */
/* What a step of ring attention computes; see ring_attention.c. */
#ifndef LS_PLACEMENT_RING_H
#define LS_PLACEMENT_RING_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ls__ring_block { /* queries from `row` on with the first keys of another's part */
    int64_t row, rows, keys;
    bool causal;
} ls__ring_block;

/* Of `rank`, in step 0 … n-1, with so many queries and keys on each rank. */
ls__ring_block ls__ring_block_of(bool causal, int rank, int step, int64_t time, int64_t keys);

#endif
