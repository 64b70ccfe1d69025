/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of tensors: blocks in use, and blocks cached for reuse.
 *
 * A caching allocator provides this memory. It reuses a block when the last tensor over the block
 * has been freed, so a loop of equal steps requests nothing from the system. Blocks of 128 KiB or
 * more are parts of larger regions, so activations can use memory that gradients have released
 * (ls_optim_zero_grad), and vice versa. The counts exclude the caller's memory (ls_from_memory),
 * memory of ls_group_alloc (gradients in buckets), and memory of objects other than tensors. */
#ifndef LOCKSTEP_MEMORY_H
#define LOCKSTEP_MEMORY_H

#include <lockstep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sizes in bytes, over all threads of this process (torch.cuda.memory_stats). */
typedef struct ls_memory_stats {
    size_t size;                      /* set to sizeof before the call */
    size_t allocated, allocated_peak; /* blocks in use: the requested bytes, rounded up by at most a
                                         quarter */
    size_t reserved, reserved_peak;   /* obtained from the system: in use, cached, or not touched */
    int64_t blocks;                   /* the number of blocks in use */
} ls_memory_stats;

/* Fills *out. LS_ERR_STATE before ls_init. */
LS_API ls_status ls_memory_get_stats(ls_memory_stats *out);
LS_API ls_status ls_memory_reset_peaks(void); /* sets the peaks to the current values */
/* Returns cached blocks, and regions without a block in use, to the system
 * (torch.cuda.empty_cache). */
LS_API ls_status ls_memory_release_cached(void);

/* Bytes that this process can still obtain from the host: the system's available memory, or the
 * rest of the limit of a control group (container) if that is less, without swap, and at most
 * LOCKSTEP_MEMORY. -1: unknown. */
LS_API int64_t ls_memory_available(void);

#ifdef __cplusplus
}
#endif
#endif
