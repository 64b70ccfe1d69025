/* Memory of tensors: blocks in use, and blocks cached for reuse. All of it comes from a caching
 * allocator: a block is reused when the last tensor over it has died, and a loop of equal steps
 * requests nothing from the system. Blocks of 128 KiB or more are pieces of larger regions, so
 * activations can use memory that gradients left (ls_optim_zero_grad), and the other way round.
 * Not counted: the caller's memory (ls_from_memory), memory of ls_group_alloc (gradients in
 * buckets), and memory of other objects than tensors. */
#ifndef LOCKSTEP_MEMORY_H
#define LOCKSTEP_MEMORY_H

#include <lockstep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes, of all threads of this process; PyTorch's memory_stats. */
typedef struct ls_memory_stats {
    size_t size;                      /* set to sizeof before the call */
    size_t allocated, allocated_peak; /* blocks in use: bytes asked for, rounded up by a quarter at
                                         most */
    size_t reserved, reserved_peak; /* taken from the system: in use, cached, or not yet touched */
    int64_t blocks;                 /* in use, a number */
} ls_memory_stats;

/* LS_ERR_STATE without a runtime. */
LS_API ls_status ls_memory_get_stats(ls_memory_stats *out);
LS_API ls_status ls_memory_reset_peaks(void); /* the peaks become the current values */
/* Returns cached blocks, and regions without a block in use, to the system. */
LS_API ls_status ls_memory_release_cached(void);

/* Bytes that this host can still give to this process: the system's available memory, or the rest
 * of a control group's (container's) limit if that is less; swap does not count. Never more than
 * LOCKSTEP_MEMORY allows. -1: unknown. */
LS_API int64_t ls_memory_available(void);

#ifdef __cplusplus
}
#endif
#endif
