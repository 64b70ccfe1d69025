/* Random numbers: Philox4x32-10 (Salmon et al., SC 2011), counter-based.
 *
 * A value depends on (key, counter) alone: key = (seed, stream), counter = global element index. So
 * a number does not depend on the rank or thread that draws it, nor on the division of the work.
 */
#ifndef LOCKSTEP_RANDOM_H
#define LOCKSTEP_RANDOM_H

#include <lockstep/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The raw block function: counter[4], key[2] -> out[4]; published test vectors hold. */
LS_API void ls_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Uniform in [0,1) / standard normal (Box-Muller) number `index` of stream (seed, stream). */
LS_API float ls_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);
LS_API float ls_random_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* Where this rank's samples lie in the global batch of the current step: dropout counts elements
 * from `sample_offset` samples of `dim 0` on, and starts a new step's streams. The loader's batches
 * and ls_ddp set it; set it yourself in a hand-written loop. */
typedef struct ls_step_context {
    uint64_t step;
    int64_t sample_offset;
} ls_step_context;
LS_API void ls_step_begin(ls_step_context context);

#ifdef __cplusplus
}
#endif
#endif
