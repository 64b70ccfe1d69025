/* SPDX-License-Identifier: Apache-2.0 */
/* The counters of storage.c's allocator, for users. */
#include <lockstep/memory.h>

#include "base/memory.h"
#include "base/options.h"
#include "tensor/tensor.h"

/* A copy under the lock, so that its fields belong to one moment. */
ls_status ls_memory_get_stats(ls_memory_stats *out)
{
    ls__tensors *tensors = ls__tensors_get("ls_memory_get_stats");
    if (tensors == NULL) {
        return ls__self.status;
    }
    pthread_mutex_lock(&tensors->lock);
    const ls_memory_stats now = tensors->memory;
    pthread_mutex_unlock(&tensors->lock);
    return ls__struct_fill(out, &now, sizeof now, "ls_memory_stats", "ls_memory_get_stats");
}

/* Peaks fall to the present values, for the next phase of a program. */
ls_status ls_memory_reset_peaks(void)
{
    ls__tensors *tensors = ls__tensors_get("ls_memory_reset_peaks");
    if (tensors == NULL) {
        return ls__self.status;
    }
    pthread_mutex_lock(&tensors->lock);
    tensors->memory.allocated_peak = tensors->memory.allocated;
    tensors->memory.reserved_peak = tensors->memory.reserved;
    pthread_mutex_unlock(&tensors->lock);
    return LS_OK;
}

/* Only blocks that no tensor uses go back to the system. */
ls_status ls_memory_release_cached(void)
{
    ls__tensors *tensors = ls__tensors_get("ls_memory_release_cached");
    if (tensors == NULL) {
        return ls__self.status;
    }
    ls__storages_release_cached(tensors);
    return LS_OK;
}

/* -1 if there is no runtime or the system does not say. */
int64_t ls_memory_available(void)
{
    const ls__tensors *tensors = ls__tensors_get("ls_memory_available");
    return tensors != NULL ? ls__memory_available(tensors->env.real) : -1;
}
