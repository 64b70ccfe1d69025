/* Which random numbers an operation draws: the stream is the operation's number in the step, the
 * counter the *global* element index, so that N ranks draw what one process would for the whole
 * batch. Operations of one step must therefore come in the same order on every rank. */
#ifndef LS_TENSOR_RNG_STREAM_H
#define LS_TENSOR_RNG_STREAM_H

#include "tensor/tensor.h"

typedef enum ls__rng_use {
    LS__RNG_DROPOUT = 1,
    LS__RNG_VALUES = 2, /* ls_rand, ls_randn */
} ls__rng_use;

typedef struct ls__rng_stream {
    uint64_t seed, id, first;
} ls__rng_stream;

/* Where this thread's random operations stand; `passed` of them go by. */
static inline ls__draws ls__draws_take(ls_runtime *runtime, uint64_t passed)
{
    ls__draws *replay = ls__self.replay;
    if (replay != NULL) {
        ls__draws now = *replay;
        replay->calls += passed;
        return now;
    }
    /* Relaxed: threads that draw at once get numbers of their own, in whatever order. */
    return (ls__draws){.seed = runtime->seed,
                       .step = runtime->step,
                       .sample_offset = runtime->sample_offset,
                       .calls =
                           __atomic_fetch_add(&runtime->calls_in_step, passed, __ATOMIC_RELAXED)};
}

/* Bits 62-63 of the id tell uses apart, from each other and from parameters' initial values. */
static inline ls__rng_stream ls__rng_stream_next(ls_runtime *runtime, ls__rng_use use,
                                                 const ls__record *shape)
{
    int64_t samples = shape->ndim > 0 ? shape->dim[0] : 1;
    int64_t per_sample = samples > 0 ? shape->numel / samples : 0;
    ls__draws now = ls__draws_take(runtime, 1);
    return (ls__rng_stream){.seed = now.seed,
                            .id = (uint64_t)use << 62 | (now.step << 20 & ~(UINT64_C(3) << 62)) |
                                  (now.calls & 0xfffff),
                            .first = (uint64_t)now.sample_offset * (uint64_t)per_sample};
}

#endif
