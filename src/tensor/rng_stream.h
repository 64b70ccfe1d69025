/* SPDX-License-Identifier: Apache-2.0 */
/* Which random numbers an operation draws; the idea is in base/draws.h. */
#ifndef LS_TENSOR_RNG_STREAM_H
#define LS_TENSOR_RNG_STREAM_H

#include "tensor/placement.h"
#include "tensor/tensor.h"

typedef enum ls__rng_use {
    LS__RNG_INITIAL = 0, /* first values of parameters */
    LS__RNG_DROPOUT = 1,
    LS__RNG_VALUES = 2, /* ls_rand, ls_randn */
} ls__rng_use;

/* The numbers of elements of a part in its whole: those of dimensions that follow each other there
 * are one level, the innermost first. */
typedef struct ls__rng_level {
    int64_t count;
    uint64_t stride; /* in the whole */
} ls__rng_level;

typedef struct ls__rng_stream {
    uint64_t seed, id;
    const uint64_t *varies; /* of a captured step: where its id is (ls__drop) */
    uint64_t first;         /* number of element 0 */
    int levels;             /* 0 and 1: element i has number first + i */
    ls__rng_level level[LS_DIMS_MAX + LS__ZIGZAG_DIMS];
} ls__rng_stream;

/* A draw of a recomputed segment, or what it kept. */
typedef struct ls__drawn {
    uint64_t id;
    const uint64_t *varies; /* as in ls__rng_stream */
} ls__drawn;

/* The streams that a recomputed segment drew from in its first run, in order, and what it kept. */
typedef struct ls__draw_log {
    struct ls__draw_log *outer; /* of the segment around it whose first run is under way */
    ls__storage *drawn;         /* count of ls__drawn; NULL: nothing was drawn */
    int64_t count;
    int64_t next; /* the one that a replay takes next */
    uint64_t seed;
    int64_t sample_offset;
    ls_status status; /* negative: there was no memory to record all draws */
} ls__draw_log;

/* The stream of the next draw: its counter begins at the first sample of this rank, dimension 0 of
 * `shape` being samples, and follows the part of the whole that its placement says. strides[ndim],
 * unless NULL: those of the whole. */
ls__rng_stream ls__rng_stream_next(ls_runtime *runtime, ls__rng_use use, const ls__record *shape,
                                   int64_t *strides);

/* What a layer found out in a segment's first run, and a second run is not to find out again: there
 * the numbers become those of the first. Outside of segments it does nothing. */
void ls__draw_log_keep(int64_t *numbers, int64_t count);

/* The seed and samples with which a segment begins. */
void ls__draw_log_init(ls__draw_log *log, const ls_runtime *runtime);

/* Bits 62-63 of a stream's number tell uses apart. */
static inline uint64_t ls__rng_id(ls__rng_use use, uint64_t bits)
{
    return (uint64_t)use << 62 | (bits & ~(UINT64_C(3) << 62));
}

#endif
