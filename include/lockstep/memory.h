/* Memory of tensors: what is in use, and what is kept to be used again. All of it comes from a
 * caching allocator: a block is used again when the last tensor over it died, and a loop of equal
 * steps asks the system for nothing. Blocks from 128 KiB on are pieces of larger regions, so what
 * gradients leave (ls_optim_zero_grad) serves activations and the other way round. Not counted:
 * memory of the caller's (ls_from_memory), of ls_group_alloc (gradients in buckets), and what is
 * not a tensor. */
#ifndef LOCKSTEP_MEMORY_H
#define LOCKSTEP_MEMORY_H

#include <lockstep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes, of all threads of this process; PyTorch's memory_stats. */
typedef struct ls_memory_stats {
    size_t size;                       /* set to sizeof before the call */
    int64_t allocated, allocated_peak; /* blocks in use: bytes asked for, rounded up by a quarter at
                                          most */
    int64_t reserved, reserved_peak; /* taken from the system: in use, cached, or not yet touched */
    int64_t blocks;                  /* in use, a number */
} ls_memory_stats;

/* LS_ERR_STATE without a runtime. */
LS_API ls_status ls_memory_get_stats(ls_memory_stats *out);
LS_API ls_status ls_memory_reset_peaks(void); /* the peaks become what is now */
/* To the system: cached blocks, and regions in which nothing is in use. */
LS_API ls_status ls_memory_release_cached(void);

/* Bytes that this host can still give to this process: what the system calls available, or what is
 * left of a control group's limit (a container's) where that is less; swap does not count. Never
 * more than LOCKSTEP_MEMORY allows. -1: the system does not say. */
LS_API int64_t ls_memory_available(void);

#ifdef __cplusplus
}
#endif
#endif
