/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the device: the caching allocator below the pools of tensor/storage.c. Those reuse
 * blocks themselves and ask for blocks of a class, or regions; here the small ones are cut from
 * slabs, since the driver takes microseconds and whole pages for each.
 *
 * Note [Streams and memory]
 * A block belongs to the stream of its device: it may be given back while kernels that were started
 * there still use it, as the next owner's kernels are started there, too. Where another stream used
 * it (NCCL's), ls__cuda_memory_used notes an event of that stream, and the block, once given back,
 * waits for the event before anybody gets it. */
#ifndef LS_CUDA_MEMORY_H
#define LS_CUDA_MEMORY_H

#include "base/env.h"

#define LS__CUDA_SLAB ((size_t)2 << 20)
#define LS__CUDA_SMALL ((size_t)256 << 10) /* from here on a block of the driver's own */

/* As allocate and release of an env table. NULL: the device's memory is out. */
void *ls__cuda_memory_get(const ls__env *env, size_t bytes);
void ls__cuda_memory_put(const ls__env *env, void *memory, size_t bytes);
/* Until what was started on `stream` so far has ended, nobody else gets the block. */
void ls__cuda_memory_used(void *memory, void *stream);

typedef struct ls__cuda_memory_stats {
    size_t reserved; /* of the driver's memory */
    size_t used;     /* by blocks that were not given back */
    int waiting;     /* blocks that were, and that another stream may still use */
} ls__cuda_memory_stats;

ls__cuda_memory_stats ls__cuda_memory_figures(void);

#endif
