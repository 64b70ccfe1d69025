/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers: the counter-based generator Philox4x32-10 (Salmon et al., SC 2011).
 *
 * A value depends only on the key (seed, stream) and the counter, which is the global element
 * index. It therefore depends neither on the rank or thread that draws it, nor on how the work is
 * divided. Drawing a number needs no runtime and cannot fail.
 */
#ifndef LOCKSTEP_RANDOM_H
#define LOCKSTEP_RANDOM_H

#include <lockstep/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The block function of Philox: counter[4], key[2] -> out[4]; tests hold it to the published
 * vectors. */
LS_API void ls_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Number `index` of the stream (seed, stream): uniform in [0,1), or standard normal
 * (Box-Muller). */
LS_API float ls_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);
LS_API float ls_random_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* The position of this rank's samples in the global batch of step `step`. Dropout and other random
 * operations draw from a stream that depends on the seed, the step, the dotted path of the module
 * whose forward function runs ("blocks.3.drop"; outside of modules the path is empty), and the
 * number of the module's draw in this step. They count elements from `sample_offset` samples
 * (entries of dimension 0) on. So the masks depend neither on the number of ranks nor on the other
 * modules that a rank has.
 *
 * A tensor that is LS_SHARDED or LS_ZIGZAG along axes of the mesh in force (placement.h) draws the
 * mask that one process would draw for the whole tensor at its place, along any dimension;
 * ls_attention drops the weights of the heads and queries that its q has, as if queries in zigzag
 * order lay in order. Only dimension 0 along axes that ls_ddp_new takes for batches is left to
 * `sample_offset`, and along other axes `sample_offset` counts samples of the whole. A tensor that
 * is equal on the ranks of an axis draws the same mask on all of them, and so does one that is
 * LS_VARYING: give the modules on such tensors different names on the ranks
 * if their masks are to differ.
 *
 * ls_loader_next sets the context. In a loop without a loader call it at the beginning of each
 * step; the offset is the number of samples on the ranks before this one. Without any call the
 * draws of a module are counted on from step to step. Local call. */
typedef struct ls_step_context {
    uint64_t step;
    int64_t sample_offset;
} ls_step_context;
LS_API void ls_step_begin(ls_step_context context);

#ifdef __cplusplus
}
#endif
#endif
