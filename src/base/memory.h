/* SPDX-License-Identifier: Apache-2.0 */
/* Free memory, and the size of the last cache. */
#ifndef LS_BASE_MEMORY_H
#define LS_BASE_MEMORY_H

#include "base/env.h"

/* How many processes of this host the kernel has killed so far because memory was short; -1: not
 * known. */
int64_t ls__memory_oom_kills(const ls__env *env);
/* See ls_memory_available. */
int64_t ls__memory_available(const ls__env *env);
/* Bytes of the last cache of processor 0; -1: not known. */
int64_t ls__memory_last_cache(const ls__env *env);

#endif
