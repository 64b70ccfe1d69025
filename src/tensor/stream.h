/* Which random numbers an operation draws: the stream is the operation's number in the step, the
 * counter the *global* element index, so that N ranks draw what one process would for the whole
 * batch. Operations of one step must therefore come in the same order on every rank. */
#ifndef LS_TENSOR_STREAM_H
#define LS_TENSOR_STREAM_H

#include "tensor/tensor.h"

typedef enum ls__stream_use {
    LS__STREAM_DROPOUT = 1,
    LS__STREAM_VALUES = 2, /* ls_rand, ls_randn */
} ls__stream_use;

typedef struct ls__stream {
    uint64_t seed, id, first;
} ls__stream;

/* Bits 62-63 of the id tell uses apart, from each other and from parameters' initial values. */
static inline ls__stream ls__stream_next(ls_runtime *runtime, ls__stream_use use,
                                         const ls__record *shape)
{
    int64_t samples = shape->ndim > 0 ? shape->dim[0] : 1;
    int64_t per_sample = samples > 0 ? shape->numel / samples : 0;
    /* Relaxed: threads that draw at once get numbers of their own, in whatever order. */
    uint64_t call = __atomic_fetch_add(&runtime->calls_in_step, 1, __ATOMIC_RELAXED);
    return (ls__stream){.seed = runtime->seed,
                        .id = (uint64_t)use << 62 | (runtime->step << 20 & ~(UINT64_C(3) << 62)) |
                              (call & 0xfffff),
                        .first = (uint64_t)runtime->sample_offset * (uint64_t)per_sample};
}

#endif
