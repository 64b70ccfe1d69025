/* How much memory is left. */
#ifndef LS_BASE_MEMORY_H
#define LS_BASE_MEMORY_H

#include "base/env.h"

/* See ls_memory_available. */
int64_t ls__memory_available(const ls__env *env);

#endif
