/* SPDX-License-Identifier: Apache-2.0 */
/* A lock for the threads of one process: one word, taken without a system call when it is
 * free. For short sections only; nothing that can wait is ever done under it, and no lock of this
 * kind lies in memory that another process sees. */
#ifndef LS_BASE_LOCK_H
#define LS_BASE_LOCK_H

#include "base/compiler.h"
#include "base/env.h"

typedef struct ls__lock {
    _Atomic uint32_t word; /* 0 free, 1 held, 2 held and a thread may be parked on it */
} ls__lock;

void ls__lock_wait(ls__lock *lock, const ls__env *env);

/* Sync: acquire; pairs with the release in ls__unlock. */
static inline void ls__lock_take(ls__lock *lock, const ls__env *env)
{
    uint32_t expected = 0;
    if (LS__UNLIKELY(!atomic_compare_exchange_strong_explicit(
            &lock->word, &expected, 1, memory_order_acquire, memory_order_relaxed))) {
        ls__lock_wait(lock, env);
    }
}

static inline void ls__unlock(ls__lock *lock, const ls__env *env)
{
    if (LS__UNLIKELY(atomic_exchange_explicit(&lock->word, 0, memory_order_release) == 2)) {
        env->wake(env, &lock->word, 1);
    }
}

#endif
